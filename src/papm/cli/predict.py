"""`papm predict`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from papm.cli.counted import Unreadable, by_class, by_model, dimmed, resized
from papm.cli.options import Beside, Count, Device, How, Precision, Tile
from papm.cli.video import VIDEOS, CountedVideo, count_video
from papm.errors import ConfigError, DataError
from papm.text import n_of

if TYPE_CHECKING:
    from torch import Tensor

    from papm.predict.prediction import Prediction
    from papm.predict.predictor import Source


OVERLAYS = "overlays"  # the folder of the pictures


def add(app: typer.Typer) -> None:
    app.command("predict", short_help="Count in images: counts, points, pictures.")(predict)


def predict(
    model: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, folders of images, or videos.")],
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
    every: Annotated[
        float, typer.Option(help="Seconds between the frames of a video that are counted; 0 is all.")
    ] = 1.0,
    tile: Tile = "auto",
    scale: Annotated[
        float | None,
        typer.Option(
            help="Resize images by this factor before counting, 1 is not at all; as in training when not given.",
            show_default=False,
        ),
    ] = None,
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Count in images: counts.csv, points.csv, results.json and a picture for each; in videos, the count over time.

    Examples:

    papm predict runs/first photo.jpg more-photos/ --out results

    papm predict runs/first camera-3/ --roi road.png

    papm predict runs/first photos/ --with runs/second

    papm predict runs/first gate-3.mp4 --every 5
    """
    from papm.cli import ui
    from papm.data.readers.regions import open_regions
    from papm.predict.results import file_names, image_names
    from papm.predict.video import is_video_name, opencv

    if not 0 <= every < math.inf:
        raise ConfigError(f"--every is a number of seconds, 0 or more, not {every}")
    files = _files(images)
    regions = None if roi is None else open_regions(roi, _size_of)
    if any(is_video_name(f.name) for f in files):
        opencv()  # that it is missing is said before anything is counted
    counter = How(device, tile, count, precision, beside or (), scale).open(model)
    named = dict(zip(files, image_names(files)))
    videos = {f: named.pop(f) for f in files if is_video_name(f.name)}
    pictures = dict(zip(named, file_names(list(named.values()))))
    if named and (earlier := _earlier(out, {f"{p}.png" for p in pictures.values()} if overlays else set())):
        ui.note(earlier)
    counted = _Images(out, counter, points, overlays, regions)
    films = [CountedVideo(n, out / VIDEOS / p) for n, p in zip(videos.values(), file_names(list(videos.values())))]
    for film in films:
        if film.folder.exists():
            ui.note(f"{film.folder}: holds an earlier result, which is written over")
    try:
        counted.count(named, pictures)
        for path, film in zip(videos, films):
            try:
                region = _region(regions, path)
                count_video(film, path, counter, every=every, points=points, overlays=overlays, region=region)
            except Unreadable as error:
                counted.faults.append(str(error))
        films = [film for film in films if film.frames]
        if not counted.predictions and not films:
            raise DataError(counted.faults[0])
    except KeyboardInterrupt:
        done, begun = len(counted.predictions), [f"{film.number} of {film.name}" for film in films if film.frames]
        if not done and not begun:
            raise
        counts = [f"{done} of {n_of(len(named), 'image')}", *begun] if named else begun
        ui.note(f"Stopped after {', '.join(counts)}; what was counted is in {out}.")
        raise typer.Exit(1) from None
    if json:
        found = [
            {"image": p.name, "count": round(p.count, 3), **by_class(p), **by_model(p), **resized(p)}
            for p in counted.predictions
        ]
        ui.print_json([*found, *(film.summary() for film in films)])
    else:
        for p in counted.predictions[:20]:
            shares = [*by_class(p).get("classes", {}).items(), *by_model(p).get("models", {}).items()]
            apart = ", ".join(f"{k} {v:.1f}" for k, v in shares)
            ui.say(f"{p.count:9.1f}  {p.name}{f'  ({apart})' if apart else ''}")
        if len(counted.predictions) > 20:
            ui.say(f"… and {len(counted.predictions) - 20} more in {out}/counts.csv")
        for film in films:
            ui.say(film.sentence())
        ui.say(f"Results in {out}")
    counted.warn()
    if counted.faults:
        raise typer.Exit(2)


def _files(given: Sequence[Path]) -> list[Path]:
    """The files that are meant, each once: those named, and the images of folders."""
    from papm.images import find_images

    files: list[Path] = []
    for path in given:
        if path.is_dir():
            found = find_images(path)
            if not found:
                deeper = " (its sub-folders hold some: give those)" if find_images(path, recursive=True) else ""
                raise DataError(f"{path}: there are no images in this folder{deeper}; videos are named one by one")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"{path}: no such image, video or folder")
    return list(dict.fromkeys(files))


def _size_of(path: Path) -> tuple[int, int]:
    from papm.images import image_size
    from papm.predict.video import Video, is_video_name

    if not is_video_name(path.name):
        return image_size(path)
    with Video(path) as video:
        return video.size


@dataclass
class _Images:
    """Counts images and keeps what is said about them at the end."""

    out: Path
    counter: Source
    points: bool
    overlays: bool
    regions: Callable[[Path], Tensor | None] | None
    predictions: list[Prediction] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    dark: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)

    def count(self, named: Mapping[Path, str], pictures: Mapping[Path, str]) -> None:
        """Count in files with these names; what was counted before an interruption or a full disk is written too."""
        from papm.cli import ui
        from papm.predict.results import write_results

        if not named:
            return
        try:
            with ui.items("counting", len(named)) as advance:
                for file, name in named.items():
                    try:
                        self._one(file, name, pictures[file], advance.part)
                    except Unreadable as error:  # one bad file among many is named, the others are counted
                        self.faults.append(str(error))
                    advance()
        finally:
            if self.predictions:
                write_results(self.predictions, self.out)

    def _one(self, file: Path, name: str, picture: str, on_tile: Callable[[int, int], None]) -> None:
        from papm.draw import overlay, save_png
        from papm.images import frames, nearly_black, read_image

        try:
            image = read_image(file)
            several = frames(file) > 1
        except DataError as error:
            raise Unreadable(str(error)) from error
        region = _region(self.regions, file)
        try:
            made = self.counter.predict(image, points=self.points, name=name, roi=region, on_tile=on_tile)
        except DataError as error:
            raise Unreadable(str(error)) from error
        self.predictions.append(made)
        if nearly_black(image):
            self.dark.append(name)
        if several:
            self.stacks.append(name)
        if self.overlays:
            shown = dimmed(image, region)
            drawn = overlay(shown, made.density, made.stride, points=made.points, count=made.count)
            save_png(drawn, self.out / OVERLAYS / f"{picture}.png")

    def warn(self) -> None:
        from papm.cli import ui
        from papm.predict.results import RESULTS

        if self.dark:
            which = f"{self.dark[0]} is" if len(self.dark) == 1 else f"{self.dark[0]} and {len(self.dark) - 1} more are"
            ui.note(
                f"WARNING: {which} nearly black; was the model trained on such images? (docs/guide.md, your own data)"
            )
        if self.stacks:
            more = len(self.stacks) - 1
            which = f"{self.stacks[0]} and {more} more hold" if more else f"{self.stacks[0]} holds"
            ui.note(f"WARNING: {which} several pictures; the first was counted")
        if (more := sum(bool(p.warning) for p in self.predictions)) > 1:  # the first was named when it was counted
            ui.note(f"WARNING: {more} of {len(self.predictions)} images were shrunk like that; {RESULTS} names them")
        for fault in self.faults:
            ui.note(f"papm: {fault}")


def _region(regions: Callable[[Path], Tensor | None] | None, file: Path) -> Tensor | None:
    """Where to count in a file; None is everywhere."""
    try:
        return None if regions is None else regions(file)
    except DataError as error:
        raise Unreadable(str(error)) from error


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
        said.append(f"{n_of(anew, 'picture')} drawn anew")
    if left:
        said.append(f"{left} earlier picture{'s stay' if left > 1 else ' stays'} in {OVERLAYS}/ beside the new result")
    return f"{out}: holds an earlier result: {'; '.join(said)}"
