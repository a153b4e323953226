"""`papm bench …`: how long our parts take beside other ways to do the same, measured in one run.

A bench is one function here, decorated with `bench("NAME")`: NAME is a module of `papm.bench`, and the command is offered
when that module is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from papm.errors import ConfigError

app = typer.Typer(
    help="Time our parts beside other ways to do the same.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Repeat = Annotated[int, typer.Option(help="Timed rounds; each runs every candidate once.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

SUMMARIES: dict[str, str] = {}


def bench(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Offer a function as `papm bench NAME` if `papm.bench.NAME` is there."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        if find_spec(f"papm.bench.{name}") is not None:
            SUMMARIES[name] = (function.__doc__ or "").strip().split("\n")[0]
            app.command(name)(function)
        return function

    return add


@app.command("list")
def list_benches(json: Json = False) -> None:
    """Name every bench.

    Example: papm bench list
    """
    from papm.cli import ui

    if json:
        ui.print_json([{"name": name, "summary": text} for name, text in SUMMARIES.items()])
        return
    for name, text in SUMMARIES.items():
        typer.echo(f"{name:16}{text}")


@bench("targets")
def targets(
    points: Annotated[int, typer.Option(help="Number of points.", min=1)] = 3000,
    size: Annotated[str, typer.Option(help="Height and width of the image.")] = "768x1024",
    sigma: Annotated[float, typer.Option(help="Bandwidth of the kernel in pixels.")] = 4.0,
    shape: Annotated[float, typer.Option(help="Exponent of the kernel.")] = 8.0,
    repeat: Repeat = 9,
    json: Json = False,
) -> None:
    """Draw the HD-PAPM target of many points on the CPU, beside a NumPy loop and a filtered dot map.

    Example: papm bench targets --points 3000 --size 768x1024
    """
    from papm.bench import targets as bench
    from papm.bench.timing import machine

    shown = _size(size)
    with _busy("drawing targets"):
        rows = bench.run(points, shown, sigma, shape, repeat)
    what = {"points": points, "size": list(shown), "sigma": sigma, "shape": shape, "repeat": repeat}
    listed = [{**_timing(r.timing), "max_abs_difference": r.difference, "sum_error": r.sum_error} for r in rows]
    _show("targets", what, listed, bench.agree(rows, points), machine("cpu"), json)


def _timing(timing: Any) -> dict[str, Any]:
    return {"name": timing.name, "median_ms": timing.median_ms, "min_ms": timing.min_ms, "ratio": timing.ratio}


def _size(text: str) -> tuple[int, int]:
    """`768x1024` as (H, W)."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and 0 < int(p) < 100_000 for p in parts):
        raise ConfigError(f"--size is a height and a width such as 768x1024, not '{text}'")
    return int(parts[0]), int(parts[1])


def _busy(what: str) -> Any:
    """A sign of life on a terminal, nothing elsewhere."""
    from papm.cli import ui

    return ui.err.status(what)


def _show(
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
        ui.err.print(f"papm: the candidates of bench {name} do not give the same result")
        raise typer.Exit(1)


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.1e}" if isinstance(value, float) else str(value)
