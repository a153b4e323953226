"""`papm predict`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.cli.options import Beside, Count, Device, How, Precision, Tile
from papm.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from papm.structures import Prediction


OVERLAYS = "overlays"  # the folder of the pictures


def add(app: typer.Typer) -> None:
    app.command("predict", short_help="Count in images: counts, points, pictures.")(predict)


def predict(
    model: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders of images.")],
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    device: Device = "auto",
    overlays: Annotated[bool, typer.Option(help="Draw the density and points over each image.")] = True,
    points: Annotated[bool, typer.Option(help="Also find where the objects are.")] = True,
    roi: Annotated[
        Path | None,
        typer.Option(
            help="Count only here: a mask (black does not count), a folder of masks NAME.png, or polygons in a .json.",
            show_default=False,
        ),
    ] = None,
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Count in images: counts.csv, points.csv, results.json and a picture for each.

    Examples:

    papm predict runs/first photo.jpg more-photos/ --out results

    papm predict runs/first camera-3/ --roi road.png

    papm predict runs/first photos/ --with runs/second
    """
    from papm.cli import ui
    from papm.data.readers.regions import open_regions
    from papm.images import find_images, frames, nearly_black, read_image
    from papm.predict.overlay import overlay, save_png
    from papm.predict.results import file_names, image_names, write_results

    files: list[Path] = []
    for path in images:
        if path.is_dir():
            found = find_images(path)
            if not found:
                deeper = " (its sub-folders hold some: give those)" if find_images(path, recursive=True) else ""
                raise DataError(f"{path}: there are no images in this folder{deeper}")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"{path}: no such image or folder")
    regions = None if roi is None else open_regions(roi)
    counter = How(device, tile, count, precision, beside or ()).open(model)
    predictions, faults, dark, stacks = [], [], [], []
    files = list(dict.fromkeys(files))
    names = image_names(files)
    pictures = file_names(names)
    if earlier := _earlier(out, {f"{p}.png" for p in pictures} if overlays else set()):
        ui.note(earlier)
    try:
        with ui.items("counting", len(files)) as advance:
            for file, name, picture in zip(files, names, pictures):
                try:
                    image = read_image(file)
                    several = frames(file) > 1
                    region = None if regions is None else regions(file)
                except DataError as error:  # one bad file among many is named, the others are counted
                    faults.append(str(error))
                    advance()
                    continue
                made = counter.predict(image, points=points, name=name, roi=region, on_tile=advance.part)
                predictions.append(made)
                if nearly_black(image):
                    dark.append(name)
                if several:
                    stacks.append(name)
                if overlays:
                    shown = _dimmed(image, region)
                    drawn = overlay(shown, made.density, made.stride, points=made.points, count=made.count)
                    save_png(drawn, out / OVERLAYS / f"{picture}.png")
                advance()
        if not predictions:
            raise DataError(faults[0])
    except KeyboardInterrupt:
        if not predictions:
            raise
        ui.note(f"Stopped after {len(predictions)} of {len(files)} images; what was counted is in {out}.")
        raise typer.Exit(1) from None
    finally:  # what was counted before an interruption or a full disk is worth keeping
        if predictions:
            write_results(predictions, out)
    if json:
        ui.print_json([{"image": p.name, "count": round(p.count, 3), **_classes(p), **_models(p)} for p in predictions])
    else:
        for p in predictions[:20]:
            shares = {**_classes(p).get("classes", {}), **_models(p).get("models", {})}
            apart = ", ".join(f"{k} {v:.1f}" for k, v in shares.items())
            ui.say(f"{p.count:9.1f}  {p.name}{f'  ({apart})' if apart else ''}")
        if len(predictions) > 20:
            ui.say(f"… and {len(predictions) - 20} more in {out}/counts.csv")
        ui.say(f"Results in {out}")
    if dark:
        which = f"{dark[0]} is" if len(dark) == 1 else f"{dark[0]} and {len(dark) - 1} more are"
        ui.note(f"WARNING: {which} nearly black; was the model trained on such images? (docs/guide.md, your own data)")
    if stacks:
        which = f"{stacks[0]} holds" if len(stacks) == 1 else f"{stacks[0]} and {len(stacks) - 1} more hold"
        ui.note(f"WARNING: {which} several pictures; the first was counted")
    for fault in faults:
        ui.note(f"papm: {fault}")
    if faults:
        raise typer.Exit(2)


def _dimmed(image: Tensor, region: Tensor | None) -> Tensor:
    """The image, darker where nothing is counted."""
    return image if region is None else image.where(region, image // 3)


def _earlier(out: Path, drawn: Collection[str]) -> str:
    """What is said where results lie already: which are replaced, and how many pictures are not of this call."""
    from papm.predict.results import COUNTS, POINTS, RESULTS

    try:
        replaced = [name for name in (COUNTS, POINTS, RESULTS) if (out / name).exists()]
        there = {p.name for p in (out / OVERLAYS).glob("*.png")}
    except OSError:  # writing there will say what is wrong
        return ""
    if not replaced and not there:
        return ""
    anew, left = len(there.intersection(drawn)), len(there.difference(drawn))
    said = [f"{', '.join(replaced)} will be replaced"] if replaced else []
    if anew:
        said.append(f"{anew} picture{'' if anew == 1 else 's'} drawn anew")
    if left:
        said.append(f"{left} earlier picture{'s stay' if left > 1 else ' stays'} in {OVERLAYS}/ beside the new result")
    return f"{out}: holds an earlier result: {'; '.join(said)}"


def _classes(prediction: Prediction) -> dict[str, Any]:
    """Counts of the classes by name, where there are several."""
    apart = prediction.class_counts
    names = prediction.classes or tuple(map(str, range(len(apart))))
    return {"classes": {k: round(v, 3) for k, v in zip(names, apart)}} if apart else {}


def _models(prediction: Prediction) -> dict[str, Any]:
    """Counts of the models by name, where several counted."""
    each = zip(prediction.models, prediction.by_model, strict=True)
    return {"models": {k: round(v, 3) for k, v in each}} if prediction.models else {}
