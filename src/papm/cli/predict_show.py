"""What `papm predict` does with videos, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from papm.cli import ui
from papm.errors import DataError

if TYPE_CHECKING:
    from papm.predict.folder import ImageFiles
    from papm.predict.video_counts import CountedVideo

LISTED = 20  # images named on screen


def count_film(film: CountedVideo, path: Path, how: ImageFiles, every: float) -> None:
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


def show(counted: ImageFiles, films: list[CountedVideo], json: bool) -> None:
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
