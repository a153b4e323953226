"""How the rows of a bench are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from papm.errors import ConfigError


def timing(timing: Any) -> dict[str, Any]:
    """The times of a candidate."""
    return {"name": timing.name, "median_ms": timing.median_ms, "min_ms": timing.min_ms, "ratio": timing.ratio}


def size(text: str) -> tuple[int, int]:
    """`768x1024` as (H, W)."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and 0 < int(p) < 100_000 for p in parts):
        raise ConfigError(f"--size is a height and a width such as 768x1024, not '{text}'")
    return int(parts[0]), int(parts[1])


def busy(what: str) -> Any:
    """A sign of life on a terminal, nothing elsewhere."""
    from papm.cli import ui

    return ui.err.status(what)


def show(
    name: str, what: dict[str, Any], rows: Sequence[dict[str, Any]], agree: bool, hardware: str, json: bool
) -> None:
    """Print a bench's rows and where they were measured; candidates that disagree make it fail."""
    from papm.cli import ui

    if json:
        ui.print_json({"bench": name, **what, "agree": agree, "hardware": hardware, "rows": list(rows)})
    else:
        extra = [k for k in rows[0] if k not in ("name", "median_ms", "min_ms", "ratio")]
        ui.table(
            ["", "median ms", "min ms", "times ours", *(k.replace("_", " ") for k in extra)],
            [[r["name"], r["median_ms"], r["min_ms"], r["ratio"], *(_cell(r[k]) for k in extra)] for r in rows],
            title=f"{name}: "
            + ", ".join(f"{k} {'×'.join(map(str, v)) if isinstance(v, list) else v}" for k, v in what.items()),
        )
        typer.echo(f"Measured in turn on {hardware}")
    if not agree:
        ui.note(f"papm: the candidates of bench {name} do not give the same result")
        raise typer.Exit(1)


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.1e}" if isinstance(value, float) else str(value)
