"""`papm bench …`: how long our parts take beside other ways to do the same, measured in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from typer import Exit, Option, echo

from papm.cli import ui
from papm.cli.options import Json, height_width
from papm.extras import missing
from papm.text import n_of

Repeat = Annotated[int, Option(help="Timed rounds; each runs every candidate once.", min=1)]


def list_benches(json: Json = False) -> None:
    """Name every bench.

    Example: papm bench list
    """
    from papm.cli.bench_predict import predict

    found = [
        {"name": f.__name__, "summary": str(f.__doc__).partition("\n")[0]}
        for f in (targets, transport, matching, predict)
    ]
    if json:
        ui.print_json(found)
        return
    for bench in found:
        echo(f"{bench['name']:16}{bench['summary']}")


def targets(
    points: Annotated[int, Option(help="Number of points.", min=1)] = 3000,
    size: Annotated[str, Option(help="Height and width of the image.")] = "768x1024",
    sigma: Annotated[float, Option(help="Bandwidth of the kernel in pixels.")] = 4.0,
    shape: Annotated[float, Option(help="Exponent of the kernel.")] = 8.0,
    repeat: Repeat = 9,
    json: Json = False,
) -> None:
    """Draw the HD-PAPM target of many points on the CPU, beside a NumPy loop and a filtered dot map.

    Example: papm bench targets --points 3000 --size 768x1024
    """
    from papm.bench import targets as bench

    side = height_width(size, "--size")
    with ui.err.status("drawing targets"):
        rows = bench.run(points, side, sigma, shape, repeat)
    what = {"points": points, "size": list(side), "sigma": sigma, "shape": shape, "repeat": repeat}
    more = {"max_abs_difference": "difference", "sum_error": "sum_error"}
    show("targets", what, rows, more, bench.agree(rows, points), json)


def transport(
    points: Annotated[int, Option(help="Points in a crop.", min=1)] = 200,
    images: Annotated[int, Option(help="Crops in a batch.", min=1)] = 4,
    crop: Annotated[int, Option(help="Side of a crop in pixels.", min=8)] = 256,
    cost: Annotated[str, Option(help="l2, ggd-l2, ggd-l1 or log-ggd.")] = "ggd-l2",
    sweep: Annotated[bool, Option("--sweep", help="Show instead how time grows with points and crop.")] = False,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Transport points onto density maps, beside POT and geomloss where they are installed.

    Example: papm bench transport --points 1000 --crop 512
    """
    from papm.bench import transport as bench
    from papm.bench.timing import machine

    if sweep:
        with ui.err.status("solving"):
            grown = [vars(row) for row in bench.sweep(images=images, cost=cost)]
        if json:
            what = {"bench": "transport", "images": images, "cost": cost, "hardware": machine("cpu")}
            ui.print_json({**what, "rows": grown})
            return
        title = f"transport: {n_of(images, 'image')}, {cost}"
        ui.table(list(grown[0]), [list(row.values()) for row in grown], title=title)
        return
    with ui.err.status("solving"):
        rows = bench.run(images=images, points=points, crop=crop, cost=cost, repeat=repeat)
    if absent := missing("bench"):
        ui.note(f"Not installed, so not compared: {' and '.join(absent)} (pip install 'papm[bench]')")
    what = {"images": images, "points": points, "crop": crop, "cost": cost, "repeat": repeat}
    show("transport", what, rows, {"difference_of_potentials": "difference"}, bench.agree(rows), json)


def matching(
    points: Annotated[int, Option(help="Points in a crop.", min=1)] = 100,
    problems: Annotated[int, Option(help="Crops in a batch.", min=1)] = 32,
    crop: Annotated[int, Option(help="Side of a crop in pixels; 128 has 1024 proposals.", min=8)] = 128,
    cost: Annotated[str, Option(help="l2, ggd or ggd-literal.")] = "ggd",
    clumped: Annotated[bool, Option("--clumped", help="All points of a crop in one clump.")] = False,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Assign points to proposals on the CPU, beside scipy.

    Example: papm bench matching --points 400 --cost ggd-literal
    """
    from papm.bench import matching as bench

    with ui.err.status("assigning"):
        rows = bench.run(cost, problems, points, crop, clumped, repeat)  # type: ignore[arg-type]
    what = {"points": points, "problems": problems, "crop": crop, "cost": cost, "clumped": clumped, "repeat": repeat}
    show("matching", what, rows, {"excess_per_pair": "excess"}, bench.agree(rows), json)


def show(
    name: str, what: dict[str, Any], rows: Sequence[Any], more: Mapping[str, str], agree: bool, json: bool
) -> None:
    """The times of each candidate and `more` of its attributes; candidates that disagree make the command fail."""
    from papm.bench.timing import machine

    times, hardware = ("name", "median_ms", "min_ms", "ratio"), machine("cpu")
    timed = [{k: getattr(r.timing, k) for k in times} for r in rows]
    extra = [{k: getattr(r, v) for k, v in more.items()} for r in rows]
    if json:
        listed = [{**t, **e} for t, e in zip(timed, extra)]
        ui.print_json({"bench": name, **what, "agree": agree, "hardware": hardware, "rows": listed})
    else:
        columns = ["", "median ms", "min ms", "times ours", *(k.replace("_", " ") for k in more)]
        shown = [f"{k} {'×'.join(map(str, v)) if isinstance(v, list) else v}" for k, v in what.items()]
        cells = [[*t.values(), *map(_cell, e.values())] for t, e in zip(timed, extra)]
        ui.table(columns, cells, title=f"{name}: {', '.join(shown)}")
        echo(f"Measured in turn on {hardware}")
    if not agree:
        ui.note(f"papm: the candidates of bench {name} do not give the same result")
        raise Exit(1)


def _cell(value: object) -> str:
    return (
        "–" if value is None else f"{value:.1{'f' if value >= 1 else 'e'}}" if isinstance(value, float) else str(value)
    )
