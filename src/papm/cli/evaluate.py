"""`papm eval`: counts against annotations, or points against annotations (`--localization`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from papm.cli.options import DATA, MODEL, Beside, Count, Device, How, Json, Options, Precision, Tile
from papm.errors import ConfigError

PROTOCOLS = ("nwpu", "qnrf")  # of --localization
RADIUS = "With nwpu: these distances in pixels, such as 4,8, instead of object sizes."
PREDICTIONS = "Points from this file ('id n x y …' a line) instead of a model."
TRUTH = "Their truth ('id n x y sigma_s sigma_l level …' a line) instead of data."
SUBMISSION = "Write the two files that the NWPU-Crowd server takes to this folder."


def evaluate(
    model: Annotated[str | None, Argument(help=MODEL, show_default=False)] = None,
    data: Annotated[str | None, Argument(help=DATA, show_default=False)] = None,
    options: Options = None,
    split: Annotated[str, Option(help="Which split to count.")] = "test",
    device: Device = "auto",
    out: Annotated[Path | None, Option(help="Write the result of every image to this CSV file.")] = None,
    localization: Annotated[str | None, Option(help="Compare points instead of counts, as nwpu or qnrf do.")] = None,
    radius: Annotated[str | None, Option(help=RADIUS)] = None,
    matching: Annotated[str | None, Option(help="With qnrf: greedy (default) or maximum.")] = None,
    predictions: Annotated[Path | None, Option(help=PREDICTIONS)] = None,
    ground_truth: Annotated[Path | None, Option(help=TRUTH)] = None,
    grid: Annotated[bool, Option("--game", help="Also GAME(0) … GAME(3); always with regions of interest.")] = False,
    submission: Annotated[Path | None, Option(help=SUBMISSION)] = None,
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    json: Json = False,
) -> None:
    """Count a split and compare with its annotations; with --localization compare where the objects are.

    Examples:

    papm eval runs/first photos/ --split test

    papm eval runs/first photos/ --with runs/second

    papm eval runs/first shanghaitech-a:data/ShanghaiTech --localization nwpu --radius 4,8

    papm eval --localization nwpu --predictions mine.txt --ground-truth val_gt_loc.txt

    papm eval runs/first nwpu:data/NWPU-Crowd --split test-hidden --submission mine
    """
    how = How(device, tile, count, precision, beside or ())
    files = (predictions, ground_truth)
    if localization is None:
        names = ("--radius", "--matching", "--predictions", "--ground-truth")
        for option, value in zip(names, (radius, matching, *files)):
            if value is not None:
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


def _both(model: str | None, data: str | None) -> tuple[str, str]:
    if model is None or data is None:
        raise ConfigError("give a model and data: papm eval MODEL DATA (papm eval --help tells more)")
    return model, data


def _options(data: str | None, given: list[str] | None) -> dict[str, Any]:
    """key=value pairs as options of the dataset."""
    if not given or data is None:
        return {}
    from papm.data import spec

    return spec.reader_options(data, given)
