"""`papm bench …`: how long our parts take beside other ways to do the same, measured in one run.

A bench is one function here, decorated with `bench("NAME")`: NAME is a module of `papm.bench`, and the command is offered
when that module is there.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated

import typer

from papm.cli import bench_rows as shown
from papm.text import n_of

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

    side = shown.size(size)
    with shown.busy("drawing targets"):
        rows = bench.run(points, side, sigma, shape, repeat)
    what = {"points": points, "size": list(side), "sigma": sigma, "shape": shape, "repeat": repeat}
    listed = [{**shown.timing(r.timing), "max_abs_difference": r.difference, "sum_error": r.sum_error} for r in rows]
    shown.show("targets", what, listed, bench.agree(rows, points), machine("cpu"), json)


@bench("transport")
def transport(
    points: Annotated[int, typer.Option(help="Points in a crop.", min=1)] = 200,
    images: Annotated[int, typer.Option(help="Crops in a batch.", min=1)] = 4,
    crop: Annotated[int, typer.Option(help="Side of a crop in pixels.", min=8)] = 256,
    cost: Annotated[str, typer.Option(help="l2, ggd-l2, ggd-l1 or log-ggd.")] = "ggd-l2",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Show instead how our time grows with points and crop.")
    ] = False,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Transport points onto density maps, beside POT and geomloss where they are installed.

    Example: papm bench transport --points 1000 --crop 512
    """
    from papm.bench import transport as bench
    from papm.bench.timing import machine
    from papm.cli import ui

    if sweep:
        with shown.busy("solving"):
            grown = bench.sweep(images=images, cost=cost)
        listed = [vars(g) for g in grown]
        if json:
            ui.print_json(
                {"bench": "transport", "images": images, "cost": cost, "hardware": machine("cpu"), "rows": listed}
            )
        else:
            ui.table(
                list(listed[0]), [list(r.values()) for r in listed], title=f"transport: {n_of(images, 'image')}, {cost}"
            )
        return
    with shown.busy("solving"):
        rows = bench.run(images=images, points=points, crop=crop, cost=cost, repeat=repeat)
    if absent := [name for name, module in (("POT", "ot"), ("geomloss", "geomloss")) if find_spec(module) is None]:
        ui.note(f"Not installed, so not compared: {' and '.join(absent)} (pip install 'papm[bench]')")
    what = {"images": images, "points": points, "crop": crop, "cost": cost, "repeat": repeat}
    listed = [{**shown.timing(r.timing), "difference_of_potentials": r.difference} for r in rows]
    shown.show("transport", what, listed, bench.agree(rows), machine("cpu"), json)


@bench("matching")
def matching(
    points: Annotated[int, typer.Option(help="Points in a crop.", min=1)] = 100,
    problems: Annotated[int, typer.Option(help="Crops in a batch.", min=1)] = 32,
    crop: Annotated[int, typer.Option(help="Side of a crop in pixels; 128 has 1024 proposals.", min=8)] = 128,
    cost: Annotated[str, typer.Option(help="l2, ggd or ggd-literal.")] = "ggd",
    clumped: Annotated[bool, typer.Option("--clumped", help="All points of a crop in one clump.")] = False,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Assign points to proposals on the CPU, beside scipy.

    Example: papm bench matching --points 400 --cost ggd-literal
    """
    from papm.bench import matching as bench
    from papm.bench.timing import machine

    with shown.busy("assigning"):
        rows = bench.run(cost, problems, points, crop, clumped, repeat)  # type: ignore[arg-type]
    what = {"points": points, "problems": problems, "crop": crop, "cost": cost, "clumped": clumped, "repeat": repeat}
    listed = [{**shown.timing(r.timing), "excess_per_pair": r.excess} for r in rows]
    shown.show("matching", what, listed, bench.agree(rows), machine("cpu"), json)
