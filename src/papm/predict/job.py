"""A prediction of files, as `papm predict` asks for it: what is wanted, which files are meant, counting them, what is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from papm.data.readers.regions import open_regions
from papm.errors import ConfigError, DataError
from papm.predict import folder
from papm.predict.ensemble import Ensemble
from papm.predict.ground import Homography, world_file
from papm.predict.journal import Journal, asked_of
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.results import file_names, image_names, summary
from papm.predict.takeaway import RESULT_FORMATS, Taken, save
from papm.predict.video import Video, is_video_name, opencv
from papm.predict.video_counts import VIDEOS, CountedVideo, count_video
from papm.text import n_of

LISTED = 20  # images named on screen


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a prediction of files, beside the model and how it counts."""

    out: Path = Path("results")
    overlays: bool = True
    points: bool = True
    roi: Path | None = None
    every: float = 1.0  # seconds between the frames of a video or stream
    resume: bool = False
    save_as: tuple[str, ...] = ()  # formats of results, beside the tables
    homography: Path | None = None  # from pixels to map coordinates
    georeference: bool = False  # by the world file of each image
    seconds: float = math.inf  # how long a stream is counted

    def __post_init__(self) -> None:
        if not 0 <= self.every < math.inf:
            raise ConfigError(f"--every is a number of seconds, 0 or more, not {self.every}")
        if not self.seconds > 0:
            raise ConfigError(f"--for is a number of seconds above 0, not {self.seconds}")
        for kind in map(RESULT_FORMATS.get, self.save_as):
            if kind.needs_points and not self.points:
                raise ConfigError(f"--save-as {kind.name} writes points; drop --no-points")
        mapped = [f"--{k}" for k in ("homography", "georeference") if getattr(self, k)]
        if len(mapped) > 1:
            raise ConfigError(f"{' and '.join(mapped)} say the same in two ways; give one of them")
        if mapped and "geojson" not in self.save_as:
            raise ConfigError(f"{mapped[0]} is for map coordinates; add --save-as geojson")


class Advance(Protocol):
    """Called once per item."""

    def __call__(self) -> None: ...
    def part(self, done: int, total: int) -> None:
        """How far the present item is."""


class Screen(Protocol):
    """Where remarks and progress are shown."""

    def note(self, text: str) -> None: ...
    def items(self, what: str, total: int, done: int = 0) -> AbstractContextManager[Advance]: ...


Page = Callable[[CountedVideo, bool], Any]  # writes the page of a video, with the pictures or without


class Job:
    """Files to count in. What cannot be done is said before `open` loads the model, and that before anything is counted."""

    def __init__(self, given: Sequence[Path], wanted: Wanted, open: Callable[[], Counter | Ensemble]) -> None:
        self.wanted = wanted
        files = folder.files_of(given)
        regions = None if wanted.roi is None else open_regions(wanted.roi, folder.size_of)
        named = dict(zip(files, image_names(files)))
        videos = {f: named.pop(f) for f in files if is_video_name(f.name)}
        if videos:
            opencv()  # that it is missing
        self.images = named
        self.shared = None if wanted.homography is None else Homography.read(wanted.homography)
        self.ground = {f: world_file(f) if wanted.georeference else self.shared for f in files}
        self.pictures = dict(zip(named, file_names(list(named.values()))))
        places = [wanted.out / VIDEOS / place for place in file_names(list(videos.values()))]
        self.films = {f: CountedVideo(name, place) for (f, name), place in zip(videos.items(), places)}
        counter = open()
        journal = Journal(wanted.out, asked_of(counter, wanted.points, wanted.roi), wanted.resume)
        self.counted = folder.ImageFiles(wanted.out, counter, wanted.points, wanted.overlays, regions, journal)
        self.faults = self.counted.faults  # a sentence for each file that could not be counted

    def run(self, screen: Screen, page: Page) -> None:
        """Count in the images, then in the videos, for each of which `page` writes its page."""
        self._replaced(screen)
        if self.shared is not None and self.shared.remark:
            screen.note(f"{self.wanted.homography}: {self.shared.remark}")
        if self.images:
            self._images(screen)
        for path, film in self.films.items():
            self._film(path, film, screen, page)
        if not self.counted.predictions and not self._seen():
            raise DataError(self.faults[0])

    def _replaced(self, screen: Screen) -> None:
        """Say which earlier results are replaced."""
        wanted = self.wanted
        drawn = {f"{p}.png" for p in self.pictures.values()} if wanted.overlays else set()
        if self.images and not wanted.resume and (earlier := folder.earlier(wanted.out, drawn)):
            screen.note(earlier)
        others = {k: RESULT_FORMATS.get(k).there(wanted.out) for k in RESULT_FORMATS if k not in wanted.save_as}
        if self.images and (left := [name for names in others.values() for name in names]):
            screen.note(
                f"{wanted.out}: {', '.join(left)} of an earlier result: not rewritten, for --save-as does not name it"
            )
        for film in (film for film in self.films.values() if film.folder.exists()):
            screen.note(f"{film.folder}: holds an earlier result, which is written over")

    def _images(self, screen: Screen) -> None:
        number, known = len(self.images), self.counted.recall(self.images, self.pictures)
        if self.wanted.resume:
            screen.note(f"{self.wanted.out}: {known} of {n_of(number, 'image')} counted before.")
        try:
            with screen.items("counting", number, known) as advance:
                self.counted.count(self.images, self.pictures, advance, advance.part)
        finally:  # what was counted before an interruption is saved too
            found = {f: c.prediction for f, c in self.counted.counted.items()}
            if found:
                save([Taken(p, f, self.ground[f]) for f, p in found.items()], self.wanted.out, self.wanted.save_as)

    def _film(self, path: Path, film: CountedVideo, screen: Screen, page: Page) -> None:
        """Count in a video as in the images, and have its page written."""
        wanted, counter = self.wanted, self.counted.counter
        try:
            asked: dict[str, Any] = {"every": wanted.every, "points": wanted.points, "overlays": wanted.overlays}
            region = folder.region_of(self.counted.regions, path)
            with Video(path) as video, screen.items(f"counting {film.name}", video.expected(wanted.every)) as advance:
                count_video(film, video, counter, region=region, on_item=advance, on_tile=advance.part, **asked)
        except DataError as error:
            self.faults.append(str(error))
        finally:
            if film.frames:
                page(film, wanted.overlays)
                save([Taken(p, None, self.ground[path]) for p in film.predictions], film.folder, wanted.save_as)

    def _seen(self) -> list[CountedVideo]:
        """The videos of which at least a frame was counted."""
        return [film for film in self.films.values() if film.frames]

    def stopped(self) -> str:
        """What is said where the user has stopped it; nothing where nothing was counted."""
        done, begun = len(self.counted.predictions), [f"{film.number} of {film.name}" for film in self._seen()]
        if not done and not begun:
            return ""
        counts = [f"{done} of {n_of(len(self.images), 'image')}", *begun] if self.images else begun
        further = " Go on with --resume." if self.images else ""
        return f"Stopped after {', '.join(counts)}; what was counted is in {self.wanted.out}.{further}"

    def values(self) -> list[dict[str, Any]]:
        """What was counted, as JSON types."""
        found = [{"image": p.name, **summary(p)} for p in self.counted.predictions]
        return [*found, *(film.summary() for film in self._seen())]

    def lines(self) -> list[str]:
        """What was counted, in lines to read."""
        made, out = self.counted.predictions, self.wanted.out
        said = [_line(p) for p in made[:LISTED]]
        if len(made) > LISTED:
            said.append(f"… and {len(made) - LISTED} more in {out}/counts.csv")
        return [*said, *(film.sentence() for film in self._seen()), f"Results in {out}"]

    def doubts(self) -> list[str]:
        """What makes it doubtful, and what could not be counted."""
        return [*(f"WARNING: {w}" for w in self.counted.warnings()), *(f"papm: {fault}" for fault in self.faults)]


def _line(made: Prediction) -> str:
    """Count, interval, name, and what classes or models counted.

    >>> _line(Prediction(12.34, (10, 10), name="a.jpg", interval=(10.0, 15.0)))
    '     12.3  (10.0 to 15.0)  a.jpg'
    """
    said = summary(made)
    apart = ", ".join(f"{k} {v:.1f}" for kind in ("classes", "models") for k, v in said.get(kind, {}).items())
    ends = "" if made.interval is None else f"  ({made.interval[0]:.1f} to {made.interval[1]:.1f})"
    return f"{made.count:9.1f}{ends}  {made.name}{f'  ({apart})' if apart else ''}"
