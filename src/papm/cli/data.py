"""`papm data list`, `info`, `stats`, `check`: look at datasets. Those that write them anew are in `data_writing`."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.errors import ConfigError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.data.base import Dataset

app = typer.Typer(
    help="Look at datasets, check them, and write them anew.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Data = Annotated[str, typer.Argument(help="NAME:FOLDER, a dataset name, or a folder whose format is recognised.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE …", help="Options of the dataset (docs/datasets.md), e.g. origin=0.5"),
]
Split = Annotated[str | None, typer.Option(help="Only this split.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

SHOWN = 50  # findings listed without --all


@app.command("list")
def list_formats(json: Json = False) -> None:
    """Name every dataset that can be read and the files it expects.

    Example: papm data list
    """
    from papm.cli import ui
    from papm.data import base
    from papm.data.file_formats import FORMATS

    known = base.readers().values()
    formats = [{"name": f.name, "summary": f.summary, "layout": f.layout} for f in FORMATS.values()]
    if json:
        listed = ({"name": r.name, "summary": r.summary, "layout": r.layout} for r in known)
        ui.print_json([r | ({"formats": formats} if r["name"] == "folder" else {}) for r in listed])
        return
    for r in known:
        typer.echo(f"{r.name:16}{r.summary}")
        if r.layout:
            typer.echo(f"{'':16}{r.layout}")
    typer.echo(
        "\nWhat a folder of your own may hold (recognised, or format=NAME; papm data convert --to NAME writes it):"
    )
    for f in formats:
        typer.echo(f"{f['name']:16}{f['summary']}\n{'':16}{f['layout']}")
    typer.echo("\nWrite NAME:FOLDER, e.g. papm data info folder:photos; a bare folder is recognised by its files.")


@app.command("info", short_help="Sum up a dataset: images, points, spacing, sizes, blemishes.")
def info(data: Data, options: Options = None, json: Json = False) -> None:
    """Sum up a dataset: images, points, counts, spacing, sizes and blemishes of each split.

    Example: papm data info photos/
    """
    from papm.cli import dataset_io as io
    from papm.cli import ui
    from papm.data.agreement import agreement
    from papm.data.summary import summary

    opened = io.open_dataset(data, options)
    with ui.err.status("measuring distances"):
        found = summary(opened)
        people = {s: a for s, d in opened.items() if (a := agreement(d)) is not None}
    if json:
        more = {s: {"file_format": d.file_format} if d.file_format else {} for s, d in opened.items()}
        ui.print_json({s: more[s] | f | ({"agreement": people[s]} if s in people else {}) for s, f in found.items()})
        return
    rows: list[list[object]] = [
        [what, *(_shown(found[s], key) for s in found)]
        for what, key in (
            ("images", "images"),
            ("points", "points"),
            ("count per image: least", "count_min"),
            ("mean", "count_mean"),
            ("median", "count_median"),
            ("most", "count_max"),
            ("images without points", "without_points"),
            ("points outside their image", "outside"),
            ("points repeated exactly", "duplicates"),
            ("nearest neighbour, px", "neighbour_distance"),
            ("smallest image, H×W", "size_min"),
            ("largest image, H×W", "size_max"),
        )
    ]
    if any(d.file_format for d in opened.values()):
        rows.insert(0, ["read as", *(d.file_format for d in opened.values())])
    ui.table(["", *found], rows)
    for s, a in people.items():
        near, off = (_shown(a, k) for k in ("distance_median", "click_error"))
        ui.say(
            f"{s}: {n_of(a['images'], 'image')} marked by {len(a['annotators'])} people: two clicks "
            f"on one object are {near} px apart (median), which one person's error of {off} px along each axis explains; "
            f"{100 * a['unpaired']:.1f} % of the points have no partner; counts differ by {a['count_difference']:.1f} "
            f"({100 * a['count_difference_relative']:.1f} %)."
        )


def _shown(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "×".join(map(str, value))
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


@app.command("stats", short_help="Draw how counts and distances are spread, as text or a page.")
def stats(
    data: Data,
    options: Options = None,
    split: Split = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with charts and the images that deserve a look to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw how counts and distances between neighbours are spread, as bars of text or as a page.

    Examples:

    papm data stats photos/ --split train

    papm data stats photos/ --html photos.html
    """
    from papm.cli import dataset_io as io
    from papm.cli import ui
    from papm.points import spacing

    opened = io.open_dataset(data, options, split)
    if html is not None:
        _page(html, data, opened)
        if not json:
            return
    result: dict[str, dict[str, list[dict[str, float | int]]]] = {}
    with ui.err.status("measuring distances"):
        for name, dataset in opened.items():
            distances = [d for s in dataset if len(s.points_inside) > 1 for d in spacing(s.points_inside, 1).tolist()]
            result[name] = {
                "objects per image": _bins([s.count for s in dataset]),
                "px to the nearest neighbour": _bins(distances),
            }
    if json:
        ui.print_json(result)
        return
    for name, parts in result.items():
        for what, bins in parts.items():
            typer.echo(f"{name}: {what}" + ("" if bins else ": nothing to show"))
            top = max((int(b["n"]) for b in bins), default=1)
            for b in bins:
                drawn = "█" * max(round(40 * int(b["n"]) / top), 1 if b["n"] else 0)
                typer.echo(f"{b['from']:>10g} to {b['to']:<10g}{b['n']:>8}  {drawn}")


def _page(path: Path, data: str, opened: Mapping[str, Dataset]) -> None:
    """The page of a dataset; its images are looked at once for those that occur in two splits."""
    from papm.cli import ui
    from papm.data.near_duplicates import near_duplicates
    from papm.report.dataset import write_dataset_page

    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; --html is the file to write")
    with ui.items("looking at images", sum(map(len, opened.values()))) as advance:
        pairs = near_duplicates(opened, on_item=advance) if len(opened) > 1 else []
    with ui.err.status("drawing"):
        write_dataset_page(path, data, opened, pairs)
    ui.note(f"Page: {path}")


def _bins(values: Sequence[float]) -> list[dict[str, float | int]]:
    """About ten bins of a round width; the last one takes in the farthest hundredth, which would flatten the rest."""
    import numpy as np

    if not values:
        return []
    v = np.asarray(values, dtype=np.float64)
    low, high = float(v.min()), float(np.quantile(v, 0.99))
    widths = (m * 10.0**e for e in range(0 if (v % 1 == 0).all() else -3, 12) for m in (1, 2, 5))
    step = next(w for w in widths if high - low <= 10 * w)
    edges = np.round(np.arange(np.floor(low / step), np.floor(high / step) + 2) * step, 6)
    top = max(round(float(np.ceil(v.max() / step) * step), 6), float(v.max()))
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], top)
    counted = np.histogram(v, edges)[0]  # the last bin holds its upper edge too
    return [{"from": float(a), "to": float(b), "n": int(n)} for a, b, n in zip(edges, edges[1:], counted)]


@app.command("check", short_help="Read everything and list what is wrong.")
def check(
    data: Data,
    options: Options = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail the check too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help=f"List every finding, not the first {SHOWN}.")] = False,
    headers: Annotated[bool, typer.Option("--quick", help="Read image headers only, decode nothing.")] = False,
    json: Json = False,
) -> None:
    """Read every image and annotation and list what is wrong; exit code 2 when something is.

    Example: papm data check photos/
    """
    from papm.cli import dataset_io as io
    from papm.cli import ui
    from papm.data import base
    from papm.data import check as checks

    name, root = io.parse(data)
    chosen = io.reader_options(name, options)
    images, files = 0, ""
    with ui.items("checking", 0) as advance, _findings_only():

        def on_item(done: int, total: int) -> None:
            nonlocal images
            images = done
            advance.at(done, total)

        def on_entries(splits: base.Entries) -> None:
            nonlocal files
            files = base.file_formats(e for es in splits.values() for e in es)

        findings = checks.check(name, root, decode=not headers, on_item=on_item, on_entries=on_entries, **chosen)
    if base.reader(name).entries is None:  # made on the spot: opening it is the whole check
        images = sum(map(len, base.open(name, root, **chosen).values()))
    n = {kind: sum(f.severity == kind for f in findings) for kind in ("error", "warning", "info")}
    failed = checks.has_errors(findings, strict)
    if json:
        listed = [
            {"severity": f.severity, "file": f.file and str(f.file), "line": f.line, "message": f.message}
            for f in findings
        ]
        known = {"data": data, "format": name, **({"file_format": files} if files else {})}
        ui.print_json(known | {"images": images, "ok": not failed, "found": n, "findings": listed})
    else:
        notes = [f for f in findings if f.severity == "info"]  # totals among them: after many warnings they count most
        for part in ([f for f in findings if f.severity != "info"], notes):
            shown = part if everything else part[:SHOWN]
            for f in shown:
                typer.echo(str(f))
            if rest := len(part) - len(shown):
                typer.echo(f"… and {rest} more; --all lists them")
        numbers = ", ".join(
            n_of(n[k], word) for k, word in (("error", "error"), ("warning", "warning"), ("info", "note"))
        )
        if n["error"]:
            advice = "Mend the errors, then check again."
            if all(f.outside for f in findings if f.severity == "error"):  # stray clicks
                again = "".join(f" {shlex.quote(o)}" for o in options or ())
                advice = f"Mend the errors, or: papm data convert {shlex.quote(data)} --out NEW --inside-only{again}"
        else:
            import torch

            verdict = "Good to use"
            if n["warning"]:
                verdict = (
                    f"{'--strict fails on warnings: mend them' if strict else 'Usable; look at the warnings'}, then"
                )
            # A pretrained network on a CPU would take days.
            network = "" if torch.cuda.is_available() else " --backbone tiny"
            given = "".join(f" {shlex.quote(f'data.{o}')}" for o in options or ())
            advice = f"{verdict}: papm train {shlex.quote(data)}{network}{given}"
        typer.echo(f"Checked {n_of(images, 'image')} as '{name}'{f' ({files})' if files else ''}: {numbers}. {advice}")
    if failed:
        raise typer.Exit(2)


@contextmanager
def _findings_only() -> Iterator[None]:
    """What the reader of folders warns of while it opens is among the findings: it is said once."""
    readers = logging.getLogger("papm.data.readers.folder")
    level = readers.level
    readers.setLevel(logging.ERROR)
    try:
        yield
    finally:
        readers.setLevel(level)
