"""`papm predict`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.options import Beside, Count, Device, How, Json, Model, Precision, Tile, one_of
from papm.cli.predict_many import count_many, refuse_of_plain
from papm.cli.predict_show import count_film, show
from papm.errors import ConfigError, DataError
from papm.text import n_of

ENGINE = "plain, or ray for very many images: counts alone, as Parquet, by several processes or machines (papm[ray])."
WORKERS = "Of --engine ray: processes; one a core, or one a GPU, when not given."
ADDRESS = "Of --engine ray: auto, or the address of a cluster; a Ray of this machine alone when not given."
SHARD = "Of --engine ray: images in a file of results."
BATCH = "Of --engine ray: images of one size that go through the network together; 16 when not given."
ROI = "Count only here: a mask (black does not count), a folder of masks NAME.png, or polygons in a .json."
SCALE = "Resize images by this factor before counting, 1 is not at all; as in training when not given."


def predict(
    model: Model,
    images: Annotated[
        list[str], Argument(help="Image files, folders of images, or videos; for ray also patterns, URLs.")
    ],
    out: Annotated[str, Option(help="Where results go.")] = "results",
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
    engine: Annotated[str, Option(help=ENGINE)] = "plain",
    workers: Annotated[int | None, Option(help=WORKERS, show_default=False)] = None,
    ray_address: Annotated[str | None, Option(help=ADDRESS, show_default=False)] = None,
    shard: Annotated[int | None, Option(help=SHARD, show_default=False)] = None,
    batch: Annotated[int | None, Option(help=BATCH, show_default=False)] = None,
    json: Json = False,
) -> None:
    """Count in images: counts.csv, points.csv, results.json and a picture for each; in videos, the count over time.

    Examples:

    papm predict runs/first photo.jpg more-photos/ --out results

    papm predict runs/first camera-3/ --roi road.png

    papm predict runs/first photos/ --with runs/second

    papm predict runs/first photos/ --out results --resume

    papm predict runs/first gate-3.mp4 --every 5

    papm predict runs/first "archive/**/*.jpg" --engine ray --workers 8 --out counted
    """
    from papm.data.readers.regions import open_regions
    from papm.predict import folder
    from papm.predict.journal import Journal, asked_of
    from papm.predict.results import file_names, image_names
    from papm.predict.video import is_video_name, opencv
    from papm.predict.video_counts import VIDEOS, CountedVideo

    if not 0 <= every < math.inf:
        raise ConfigError(f"--every is a number of seconds, 0 or more, not {every}")
    many = {"workers": workers, "ray_address": ray_address, "shard": shard, "batch": batch}
    how = How(device, tile, count, precision, beside or (), scale)
    one_of("engine", engine, ("plain", "ray"))
    if engine == "ray":
        if roi is not None:
            raise ConfigError("--roi is not for --engine ray, which counts in whole images; leave one of them out")
        count_many([model], images, out, how, json, resume=resume, **many)
    refuse_of_plain(**many)
    where, files = Path(out), folder.files_of([Path(p) for p in images])
    regions = None if roi is None else open_regions(roi, folder.size_of)
    if any(is_video_name(f.name) for f in files):
        opencv()  # that it is missing is said before anything is counted
    counter = how.open(model)
    named = dict(zip(files, image_names(files)))
    videos = {f: named.pop(f) for f in files if is_video_name(f.name)}
    pictures = dict(zip(named, file_names(list(named.values()))))
    journal = Journal(where, asked_of(counter, points, roi), resume)
    drawn = {f"{p}.png" for p in pictures.values()} if overlays else set()
    if named and not resume and (earlier := folder.earlier(where, drawn)):
        ui.note(earlier)
    counted = folder.ImageFiles(where, counter, points, overlays, regions, journal)
    films = [CountedVideo(n, where / VIDEOS / p) for n, p in zip(videos.values(), file_names(list(videos.values())))]
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
            count_film(film, path, counted, every)
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
    show(counted, films, json)
    raise Exit(2 if counted.faults else 0)
