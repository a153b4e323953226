"""`papm predict`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.options import Beside, Count, Device, How, Json, Model, Precision, Tile
from papm.errors import ConfigError, DataError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.predict.folder import ImageFiles
    from papm.predict.video_counts import CountedVideo

LISTED = 20  # images named on screen
ROI = "Count only here: a mask (black does not count), a folder of masks NAME.png, or polygons in a .json."
SCALE = "Resize images by this factor before counting, 1 is not at all; as in training when not given."


def predict(
    model: Model,
    images: Annotated[list[Path], Argument(help="Image files, folders of images, or videos.")],
    out: Annotated[Path, Option(help="Where results go.")] = Path("results"),
    device: Device = "auto",
    overlays: Annotated[bool, Option(help="Draw the density and points over each image.")] = True,
    points: Annotated[bool, Option(help="Also find where the objects are.")] = True,
    roi: Annotated[Path | None, Option(help=ROI, show_default=False)] = None,
    every: Annotated[float, Option(help="Seconds between the frames of a video that are counted; 0 is all.")] = 1.0,
    tile: Tile = "auto",
    scale: Annotated[float | None, Option(help=SCALE, show_default=False)] = None,
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on with the prediction in --out; videos are counted anew.")
    ] = False,
    json: Json = False,
) -> None:
    """Count in images: counts.csv, points.csv, results.json and a picture for each; in videos, the count over time.

    Examples:

    papm predict runs/first photo.jpg more-photos/ --out results

    papm predict runs/first camera-3/ --roi road.png

    papm predict runs/first photos/ --with runs/second

    papm predict runs/first photos/ --out results --resume

    papm predict runs/first gate-3.mp4 --every 5
    """
    from papm.data.readers.regions import open_regions
    from papm.predict import folder
    from papm.predict.journal import Journal, asked_of
    from papm.predict.results import file_names, image_names
    from papm.predict.video import is_video_name, opencv
    from papm.predict.video_counts import VIDEOS, CountedVideo

    if not 0 <= every < math.inf:
        raise ConfigError(f"--every is a number of seconds, 0 or more, not {every}")
    files = folder.files_of(images)
    regions = None if roi is None else open_regions(roi, folder.size_of)
    if any(is_video_name(f.name) for f in files):
        opencv()  # that it is missing is said before anything is counted
    counter = How(device, tile, count, precision, beside or (), scale).open(model)
    named = dict(zip(files, image_names(files)))
    videos = {f: named.pop(f) for f in files if is_video_name(f.name)}
    pictures = dict(zip(named, file_names(list(named.values()))))
    journal = Journal(out, asked_of(counter, points, roi), resume)
    drawn = {f"{p}.png" for p in pictures.values()} if overlays else set()
    if named and not resume and (earlier := folder.earlier(out, drawn)):
        ui.note(earlier)
    counted = folder.ImageFiles(out, counter, points, overlays, regions, journal)
    films = [CountedVideo(n, out / VIDEOS / p) for n, p in zip(videos.values(), file_names(list(videos.values())))]
    for film in (film for film in films if film.folder.exists()):
        ui.note(f"{film.folder}: holds an earlier result, which is written over")
    try:
        if named:
            known = counted.recall(named, pictures)
            if resume:
                ui.note(f"{out}: {known} of {n_of(len(named), 'image')} counted before.")
            with ui.items("counting", len(named), known) as advance:
                counted.count(named, pictures, advance, advance.part)
        for path, film in zip(videos, films):
            _film(film, path, counted, every)
        films = [film for film in films if film.frames]
        if not counted.predictions and not films:
            raise DataError(counted.faults[0])
    except KeyboardInterrupt:
        done, begun = len(counted.predictions), [f"{film.number} of {film.name}" for film in films if film.frames]
        if not done and not begun:
            raise
        counts = [f"{done} of {n_of(len(named), 'image')}", *begun] if named else begun
        ui.note(
            f"Stopped after {', '.join(counts)}; what was counted is in {out}.{' Go on with --resume.' if named else ''}"
        )
        raise Exit(1) from None
    _show(counted, films, json)
    raise Exit(2 if counted.faults else 0)


def _film(film: CountedVideo, path: Path, how: ImageFiles, every: float) -> None:
    """Count in a video as in the images, and write its page."""
    from papm.predict.folder import region_of
    from papm.predict.video import Video
    from papm.predict.video_counts import count_video
    from papm.report.video import write_film_page

    try:
        region = region_of(how.regions, path)
        with Video(path) as video, ui.items(f"counting {film.name}", video.expected(every)) as advance:
            asked: dict[str, Any] = {"points": how.points, "overlays": how.overlays, "region": region}
            count_video(film, video, how.counter, every=every, on_item=advance, on_tile=advance.part, **asked)
    except DataError as error:
        how.faults.append(str(error))
    finally:
        if film.frames:
            write_film_page(film, how.overlays)


def _show(counted: ImageFiles, films: list[CountedVideo], json: bool) -> None:
    """What was counted, then what makes it doubtful."""
    from papm.predict.results import summary

    if json:
        found = [{"image": p.name, **summary(p)} for p in counted.predictions]
        ui.print_json([*found, *(film.summary() for film in films)])
    else:
        for p in counted.predictions[:LISTED]:
            said = summary(p)
            shares = [*said.get("classes", {}).items(), *said.get("models", {}).items()]
            apart = ", ".join(f"{k} {v:.1f}" for k, v in shares)
            ends = "" if p.interval is None else f"  ({p.interval[0]:.1f} to {p.interval[1]:.1f})"
            ui.say(f"{p.count:9.1f}{ends}  {p.name}{f'  ({apart})' if apart else ''}")
        if len(counted.predictions) > LISTED:
            ui.say(f"… and {len(counted.predictions) - LISTED} more in {counted.out}/counts.csv")
        for film in films:
            ui.say(film.sentence())
        ui.say(f"Results in {counted.out}")
    for line in (*(f"WARNING: {w}" for w in counted.warnings()), *(f"papm: {fault}" for fault in counted.faults)):
        ui.note(line)
