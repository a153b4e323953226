"""How a claim is written in a study: `{row: AL-PAPM, below: DM-Count}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from papm.errors import ConfigError, unknown
from papm.study.cells import Cell, Claim

KEYS = ("row", "below", "above", "column", "change", "metric")
FORM = "a claim is written {row: NAME, below: NAME}, with above in place of below where higher is better"


def read_claim(given: Mapping[str, Any], cells: Sequence[Cell], metrics: Sequence[str]) -> Claim:
    """A claim from its mapping; rows, columns and metrics must be the table's."""
    for key in given:
        if key not in KEYS:
            raise unknown("key of a claim", str(key), KEYS)
    if "row" not in given or ("below" in given) == ("above" in given):
        raise ConfigError(f"{FORM}, not '{dict(given)}'")
    row, others = str(given["row"]), _names(given.get("below", given.get("above")))
    metric = str(given.get("metric", metrics[0]))
    if metric not in metrics:
        raise unknown("metric", metric, metrics)
    have = {(c.row, c.column) for c in cells}
    for name in (row, *others):
        if not any(r == name for r, _ in have):
            raise ConfigError(f"a claim is about row '{name}', which the table does not have")
    common = [c for c in dict.fromkeys(c.column for c in cells) if all((r, c) in have for r in (row, *others))]
    change = _names(given.get("change") or [])
    columns = change or _names(given.get("column") or []) or tuple(common)
    if len(change) not in (0, 2) or not columns:
        raise ConfigError(f"change is [FIRST, LAST], two columns, and rows of a claim share one; see '{dict(given)}'")
    for column in columns:
        if column not in common:
            raise ConfigError(f"a claim is about column '{column}', which its rows do not all have")
    return Claim(row, others, columns, metric, "below" in given, bool(change))


def _names(given: Any) -> tuple[str, ...]:
    return tuple(map(str, given if isinstance(given, list) else [given]))
