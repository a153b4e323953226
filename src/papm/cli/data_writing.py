"""`papm data convert`, `split`, `displace`: rewrite a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, echo

from papm.cli import ui
from papm.cli.data import opened
from papm.cli.options import Data, Json, Options, one_of
from papm.errors import ConfigError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.data.base import Dataset

Inside = Annotated[bool, Option("--inside-only", help="Leave out points that lie outside their image.")]
Link = Annotated[bool, Option("--link", help="Link the images instead of copying them.")]
Out = Annotated[Path, Option(help="The folder to write; new or empty.")]
Seed = Annotated[int, Option(help="Random seed.", min=0)]


def convert(
    data: Data,
    out: Out,
    options: Options = None,
    to: Annotated[str, Option(help="The format to write: folder (text), or one that papm data list names.")] = "folder",
    box: Annotated[float, Option(help="Side in px of the box around a point, where a format has only boxes.")] = 16.0,
    link: Link = False,
    inside_only: Inside = False,
    json: Json = False,
) -> None:
    """Write any dataset as a folder of images with their points: as text beside each, or as an annotation tool reads them.

    Examples:

    papm data convert shanghaitech-a:data/ShanghaiTech --out heads

    papm data convert photos/ --out for-cvat --to cvat
    """
    from papm.data import convert as io

    io.file_format(to)  # a wrong name is told before anything is read
    if not 0 < box < float("inf"):
        raise ConfigError(f"--box is a number of pixels above 0, not {box:g}")
    io.check_out(out)
    found = io.writable(opened(data, options))
    _write(found, out, json, link=link, inside_only=inside_only, to=to, box=box)


def split(
    data: Data,
    out: Out,
    options: Options = None,
    val: Annotated[float, Option(help="Share of the images for validation.")] = 0.1,
    test: Annotated[float, Option(help="Share of the images for testing.")] = 0.2,
    seed: Seed = 0,
    link: Link = False,
    inside_only: Inside = False,
    json: Json = False,
) -> None:
    """Divide a dataset at random into the sub-folders train, val and test.

    Example: papm data split photos/ --out divided --val 0.1 --test 0.2
    """
    from papm.data import convert as io

    if not (val >= 0 and test >= 0 and val + test < 1):
        raise ConfigError(f"--val {val:g} and --test {test:g} are shares ≥ 0 that leave something to train on")
    io.check_out(out)
    found = io.writable(opened(data, options))
    if len(found) > 1:
        ui.note(f"The splits {', '.join(found)} are merged and split again.")
    _write(io.divide(found, val, test, seed), out, json, link=link, inside_only=inside_only)


def displace(
    data: Data,
    out: Out,
    options: Options = None,
    noise: Annotated[
        float | None,
        Option(help="How far points move: pixels (8); with --kind extent a share of each object's size (0.35)."),
    ] = None,
    kind: Annotated[str, Option(help="ring (exactly so far), disc, gaussian (σ per axis) or extent.")] = "ring",
    edge: Annotated[str, Option(help="A point that leaves its image: redraw, clip or drop.")] = "redraw",
    missed: Annotated[float, Option(help="Chance that an object is left out.")] = 0.0,
    doubled: Annotated[float, Option(help="Chance that an object is marked twice.")] = 0.0,
    seed: Seed = 0,
    split: Annotated[str | None, Option(help="Displace this split only; the others stay as they are.")] = None,
    link: Link = False,
    json: Json = False,
) -> None:
    """Write a dataset as a less careful person would have annotated it: points moved, missed, doubled.

    Example: papm data displace photos/ --out noisy --noise 8 --split train
    """
    from papm.data import convert as io
    from papm.data.click_model import Annotator, annotate_dataset

    one_of("kind", kind, ("ring", "disc", "gaussian", "extent"))
    one_of("edge rule", edge, ("redraw", "clip", "drop"))
    noise = (0.35 if kind == "extent" else 8.0) if noise is None else noise
    if not 0 <= noise < float("inf"):
        raise ConfigError(f"--noise is a finite number ≥ 0, not {noise:g}")
    annotator = Annotator(kind, noise, missed=missed, doubled=doubled, edge=edge)  # type: ignore[arg-type]
    io.check_out(out)
    found = io.writable(opened(data, options))
    if split is not None:
        one_of("split", split, tuple(found))
    moved = {s: annotate_dataset(d, annotator, seed) if split in (None, s) else d for s, d in found.items()}
    moving = {"noise": noise, "kind": kind, "edge": edge, "missed": missed, "doubled": doubled, "seed": seed}
    made = {"data": data, "displaced": [s for s in found if split in (None, s)], **moving}
    _write(moved, out, json, {s: sum(x.count for x in d) for s, d in found.items()}, link=link, made=made)


def _write(
    splits: Mapping[str, Dataset], out: Path, json: bool, before: Mapping[str, int] | None = None, **how: Any
) -> None:
    """Write splits and say how many images and points there are; `before`: points they had."""
    from papm.data import convert as io

    with ui.items("writing", sum(map(len, splits.values()))) as advance:
        done = io.write(splits, out, on_item=advance, **how)
    for split, number in (before or {}).items():
        done[split]["points_before"] = number
    if json:
        ui.print_json({"out": str(out), **how.get("made", {}), "splits": done})
        return
    for split, n in done.items():
        was = f" (before: {n['points_before']})" if "points_before" in n else ""
        echo(f"{split}: {n_of(n['images'], 'image')}, {n_of(n['points'], 'point')}{was}")
    echo(f"Written to {out}. Next: papm data check {shlex.quote(str(out))}")
