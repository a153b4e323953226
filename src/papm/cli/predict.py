"""`papm predict`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.options import Beside, Count, Device, How, Json, Model, Precision, Tile, one_of
from papm.cli.predict_many import count_many, refuse_of_plain, refuse_of_ray
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.predict.watch import Watch

ENGINE = "plain, or ray for very many images: counts alone, as Parquet, by several processes or machines (papm[ray])."
WORKERS = "Of --engine ray: processes; one a core, or one a GPU, when not given."
ADDRESS = "Of --engine ray: auto, or the address of a cluster; a Ray of this machine alone when not given."
SHARD = "Of --engine ray: images in a file of results."
BATCH = "Of --engine ray: images of one size that go through the network together; 16 when not given."
ROI = "Count only here: a mask (black does not count), a folder of masks NAME.png, or polygons in a .json."
SCALE = "Resize images by this factor before counting, 1 is not at all; as in training when not given."
IMAGES = "Image files, folders of images, or videos; or one camera or stream: its number, or rtsp://… or http://…"
EVERY = "Seconds between the frames of a video or stream that are counted; 0 is all."
FOR = "Seconds to count a stream; until Ctrl-C when not given."
SAVE_AS = "Write the results as xlsx, geojson or roiset (ImageJ) too; may be repeated."
HOMOGRAPHY = "For geojson: a 3×3 matrix from pixels to map coordinates, or four or more lines x, y, X, Y to fit it to."
GEOREFERENCE = "For geojson: map coordinates by the world file (.tfw, .jgw, …) of each image."


def predict(
    model: Model,
    images: Annotated[list[str], Argument(metavar="IMAGES…", help=IMAGES)],
    out: Annotated[str, Option(help="Where results go.")] = "results",
    device: Device = "auto",
    overlays: Annotated[bool, Option(help="Draw the density and points over each image.")] = True,
    points: Annotated[bool, Option(help="Also find where the objects are.")] = True,
    roi: Annotated[Path | None, Option(help=ROI, show_default=False)] = None,
    every: Annotated[float, Option(help=EVERY)] = 1.0,
    tile: Tile = "auto",
    scale: Annotated[float | None, Option(help=SCALE, show_default=False)] = None,
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on with the prediction in --out; videos are counted again.")
    ] = False,
    save_as: Annotated[list[str] | None, Option(help=SAVE_AS, show_default=False)] = None,
    homography: Annotated[Path | None, Option(help=HOMOGRAPHY, show_default=False)] = None,
    georeference: Annotated[bool, Option("--georeference", help=GEOREFERENCE)] = False,
    seconds: Annotated[float | None, Option("--for", help=FOR, show_default=False)] = None,
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

    papm predict runs/first rtsp://gate.local/ch1 --every 10

    papm predict runs/first "archive/**/*.jpg" --engine ray --workers 8 --out counted

    papm predict runs/first square.jpg --save-as xlsx --save-as geojson --homography square.csv
    """
    from papm.predict.job import Job, Wanted
    from papm.predict.watch import Watch, stream_among
    from papm.report.video import write_film_page

    many = {"workers": workers, "ray_address": ray_address, "shard": shard, "batch": batch}
    one_of("engine", engine, ("plain", "ray"))
    how = How(device, tile, count, precision, beside or (), scale)
    if engine == "ray":
        refuse_of_ray(roi=roi, save_as=save_as, homography=homography, georeference=georeference or None, for_=seconds)
        return count_many([model], images, out, how, json, resume=resume, **many)
    refuse_of_plain(**many)
    saved = (tuple(save_as or ()), homography, georeference)
    wanted = Wanted(Path(out), overlays, points, roi, every, resume, *saved, math.inf if seconds is None else seconds)
    if (address := stream_among(images)) is not None:
        return _watch(Watch(address, wanted, lambda: how.open(model)), json)
    if seconds is not None:
        raise ConfigError("--for is for cameras and streams")
    job = Job([Path(image) for image in images], wanted, lambda: how.open(model))
    try:
        job.run(ui, write_film_page)
    except KeyboardInterrupt:
        if not (said := job.stopped()):
            raise
        ui.note(said)
        raise Exit(1) from None
    if json:
        ui.print_json(job.values())
    else:
        for line in job.lines():
            ui.say(line)
    for line in job.doubts():
        ui.note(line)
    raise Exit(2 if job.faults else 0)


def _watch(watch: Watch, json: bool) -> None:
    """Print each count as it comes; Ctrl-C is how it is meant to end."""
    try:
        for made in watch.counts():
            if json:
                ui.print_json_line(made.value())
            else:
                ui.say(made.line())
    except KeyboardInterrupt:
        if not watch.number:
            raise
    ui.note(watch.stopped())
