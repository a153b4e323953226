"""Which row of a study is best over its columns: variants of a recipe on several datasets.

    score of a row = mean over columns of (its MAE / the lowest MAE of the column)        1: the best everywhere

over the columns in which every row that has results has one, so that no row gains by what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from papm.errors import ConfigError
from papm.study.cells import Study
from papm.study.results import Group, Result
from papm.study.show import DASH, text_of, view

SHOWN = ("mae", "bias", "bias-train")


@dataclass(frozen=True)
class Ranked:
    """A row with its score and, by column, its figures; None where it was not measured."""

    name: str
    score: float | None
    figures: Mapping[str, Mapping[str, float | None]]
    seeds: Mapping[str, int]


@dataclass(frozen=True)
class Ranking:
    """The rows, best first; those without results last."""

    study: Study
    rows: tuple[Ranked, ...]
    compared: tuple[str, ...]  # the columns that scores are over
    metrics: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """Every column of the study."""
        return list(dict.fromkeys(c.column for c in self.study.cells))

    def table(self) -> tuple[list[str], list[list[object]]]:
        """Headings, and rows of texts: rank, name, score, then for each column MAE (bias, bias on training images)."""
        head = [
            "",
            "variant",
            "mean ratio",
            *(f"{c or 'figures'}{'' if c in self.compared else ' *'}" for c in self.columns),
        ]
        body: list[list[object]] = []
        for k, row in enumerate(self.rows, 1):
            score = DASH if row.score is None else f"{row.score:.3f}"
            place = DASH if row.score is None else str(k)
            body.append([place, row.name, score, *(self._text(row.figures.get(c)) for c in self.columns)])
        return head, body

    def _text(self, figures: Mapping[str, float | None] | None) -> str:
        if figures is None or figures.get("mae") is None:
            return DASH
        shares = [100 * v if (v := figures[m]) is not None else None for m in self.metrics if m != "mae"]
        beside = ", ".join(f"{text_of(v, 1, '+')} %" if v is not None else DASH for v in shares)
        return text_of(figures["mae"], 2) + (f" ({beside})" if beside else "")

    def words(self) -> list[str]:
        """What the table means."""
        names = {"bias": "bias", "bias-train": "bias on training images"}
        beside = ", ".join(names[m] for m in self.metrics if m != "mae")
        said = [f"MAE{f' ({beside})' if beside else ''}; mean over seeds. Mean ratio: MAE to the lowest of its column."]
        if min((n for row in self.rows for n in row.seeds.values()), default=2) < 2:
            said.append(
                "Some figures are of one seed: rows that lie within a few percent may be in this order by chance."
            )
        left = [c for c in self.columns if c not in self.compared]
        if left:
            said.append(
                f"Columns with * are left out of the ratio, for not every variant is measured there: {', '.join(left)}."
            )
        return said

    def to_json(self) -> dict[str, object]:
        """The same for other programs."""
        rows = [{"name": r.name, "score": r.score, "figures": r.figures, "seeds": r.seeds} for r in self.rows]
        return {"study": self.study.name, "compared": list(self.compared), "rows": rows}


def rank(study: Study, results: Sequence[Result], select: str = "last") -> Ranking:
    """The rows of a study by their mean ratio to the lowest MAE of each column."""
    if "mae" not in study.metrics:
        raise ConfigError(f"study '{study.name}' has no MAE to rank by; its metrics are {', '.join(study.metrics)}")
    metrics = tuple(m for m in SHOWN if m in study.metrics)
    groups = view(study, results, select=select).groups()
    found = {place: _figures(group, study, metrics) for place, group in groups.items() if group is not None}
    names = list(dict.fromkeys(c.row for c in study.cells))
    known = [n for n in names if any(row == n for row, _ in found)]
    columns = dict.fromkeys(c.column for c in study.cells)
    compared = tuple(c for c in columns if known and all(_mae(found, n, c) is not None for n in known))
    lowest = {c: min(v for n in known if (v := _mae(found, n, c)) is not None) for c in compared}
    rows = []
    for name in names:
        own = {c: found[name, c] for c in columns if (name, c) in found}
        seeds = {c: len(g.seeds) for c in own if (g := groups[name, c]) is not None}
        ratios = [(_mae(found, name, c) or 0.0) / max(lowest[c], 1e-9) for c in compared if c in own]
        rows.append(Ranked(name, fmean(ratios) if ratios else None, own, seeds))
    rows.sort(key=lambda r: (r.score is None, r.score or 0.0))
    return Ranking(study, tuple(rows), compared, metrics)


def _figures(group: Group, study: Study, metrics: Sequence[str]) -> dict[str, float | None]:
    return {m: group.mean(study.metrics.index(m)) for m in metrics}


def _mae(found: Mapping[tuple[str, str], Mapping[str, float | None]], row: str, column: str) -> float | None:
    return found.get((row, column), {}).get("mae")
