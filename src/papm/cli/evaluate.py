"""`papm eval`: counts against annotations, or points against annotations (`--localization`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from papm.cli.options import Beside, Count, Device, How, Precision, Tile
from papm.errors import ConfigError

PROTOCOLS = ("nwpu", "qnrf")  # of --localization


def add(app: typer.Typer) -> None:
    app.command("eval", short_help="Count a split and compare with its annotations.")(evaluate)


def evaluate(
    model: Annotated[Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Argument(help="NAME:FOLDER, a dataset name, or a folder.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE …", help="Options of the dataset (docs/datasets.md), e.g. origin=0.5", show_default=False
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which split to count.")] = "test",
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the result of every image to this CSV file.")] = None,
    localization: Annotated[
        str | None, typer.Option(help="Compare points instead of counts: nwpu or qnrf, the protocol.")
    ] = None,
    radius: Annotated[
        str | None, typer.Option(help="With nwpu: these distances in pixels, such as 4,8, instead of object sizes.")
    ] = None,
    matching: Annotated[str | None, typer.Option(help="With qnrf: greedy (default) or maximum.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Points from this file ('id n x y …' a line) instead of a model.")
    ] = None,
    ground_truth: Annotated[
        Path | None, typer.Option(help="Their truth ('id n x y sigma_s sigma_l level …' a line) instead of data.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--game", help="Also GAME(0) … GAME(3); always with regions of interest.")
    ] = False,
    submission: Annotated[
        Path | None, typer.Option(help="Write the two files that the NWPU-Crowd server takes to this folder.")
    ] = None,
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Count a split and compare with its annotations; with --localization compare where the objects are.

    Examples:

    papm eval runs/first photos/ --split test

    papm eval runs/first photos/ --with runs/second

    papm eval runs/first shanghaitech-a:data/ShanghaiTech --localization nwpu --radius 4,8

    papm eval --localization nwpu --predictions mine.txt --ground-truth val_gt_loc.txt

    papm eval runs/first nwpu:data/NWPU-Crowd --split test-hidden --submission mine
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is auto, cpu or cuda, not '{device}'")
    how = How(device, tile, count, precision, beside or ())
    files = (predictions, ground_truth)
    if localization is None:
        given = {
            "--radius": radius,
            "--matching": matching,
            "--predictions": predictions,
            "--ground-truth": ground_truth,
        }
        for option in (name for name, value in given.items() if value is not None):
            raise ConfigError(f"{option} goes with --localization {' or '.join(PROTOCOLS)}")
        from papm.cli.eval_counts import count_split

        count_split(*_both(model, data), split, how, _options(data, options), grid, submission, out, json)
        return
    if grid or submission is not None:
        raise ConfigError("--game and --submission go with counts; leave out --localization")
    from papm.cli import eval_points as points

    asked = points.Asked(localization, radius, matching)
    if files == (None, None):
        found, about = points.from_model(*_both(model, data), split, how, asked.sized, _options(data, options))
    elif predictions is None or ground_truth is None:
        raise ConfigError("--predictions and --ground-truth go together: give both files")
    elif model is not None or data is not None or beside:
        raise ConfigError("give either MODEL and DATA, or --predictions and --ground-truth")
    else:
        found, about = points.from_files(predictions, ground_truth), {}
    points.compare(found, about, asked, out, json)


def _both(model: Path | None, data: str | None) -> tuple[Path, str]:
    if model is None or data is None:
        raise ConfigError("give a model and data: papm eval MODEL DATA (papm eval --help tells more)")
    return model, data


def _options(data: str | None, given: list[str] | None) -> dict[str, Any]:
    """key=value pairs as options of the dataset."""
    if not given or data is None:
        return {}
    from papm.data import spec

    return spec.reader_options(spec.parse(data)[0], given)
