"""Counting in files of images, and what is written about them: tables, and a picture for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from papm.draw import from_pil, save_png
from papm.errors import DataError
from papm.images import find_images, find_unread, frames, image_size, passed_over, read_image
from papm.predict.journal import JOURNAL, Counted, Journal, light
from papm.predict.prediction import Prediction
from papm.predict.results import COUNTS, POINTS, RESULTS, write_results
from papm.predict.source import Source, read_ahead
from papm.predict.tiling import OnTile
from papm.predict.video import Video, is_video_name
from papm.rgb import nearly_black
from papm.text import n_of

log = logging.getLogger(__name__)

OVERLAYS = "overlays"  # the folder of the pictures

Regions = Callable[[Path], Tensor | None]  # where to count in a file; None is everywhere


def files_of(given: Sequence[Path]) -> list[Path]:
    """The files that are meant, each once: those named, and the images of folders."""
    files: list[Path] = []
    unread: list[Path] = []
    for path in given:
        if path.is_dir():
            found, other = find_images(path), find_unread(path)
            if not found:
                deeper = " (its sub-folders hold some: give those)" if find_images(path, recursive=True) else ""
                more = passed_over(other) or "videos are named one by one"
                raise DataError(f"{path}: there are no images in this folder{deeper}; {more}")
            files += found
            unread += other
        elif path.exists():
            files.append(path)
        else:
            raise DataError(f"{path}: no such image, video or folder")
    if said := passed_over(dict.fromkeys(unread)):
        log.warning("%s", said)
    return list(dict.fromkeys(files))


def size_of(path: Path) -> tuple[int, int]:
    """(H, W) of an image or of the frames of a video."""
    if not is_video_name(path.name):
        return image_size(path)
    with Video(path) as video:
        return video.size


def region_of(regions: Regions | None, file: Path) -> Tensor | None:
    """Where to count in a file; None is everywhere."""
    return None if regions is None else regions(file)


def dimmed(image: Tensor, region: Tensor | None) -> Tensor:
    """The image, darker where nothing is counted."""
    return image if region is None else image.where(region, image // 3)


@dataclass
class ImageFiles:
    """Counts in image files, and keeps what is said about them at the end."""

    out: Path
    counter: Source
    points: bool = True
    overlays: bool = True
    regions: Regions | None = None
    journal: Journal | None = None
    counted: dict[Path, Counted] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # a sentence for each file that cannot be read

    @property
    def predictions(self) -> list[Prediction]:
        """Of the files that could be counted, without their maps."""
        return [c.prediction for c in self.counted.values()]

    def recall(self, named: Mapping[Path, str], pictures: Mapping[Path, str]) -> int:
        """Take from the journal what it knows of these files; give their number."""
        for file, name in named.items():
            if self.journal and (known := self.journal.find(file, name, self._picture(pictures[file]))):
                self.counted[file] = known
        return len(self.counted)

    def count(
        self,
        named: Mapping[Path, str],
        pictures: Mapping[Path, str],
        on_item: Callable[[], None] | None = None,
        on_tile: OnTile | None = None,
    ) -> None:
        """Count in those files with these names that were not recalled; what was counted before an interruption or a full disk
        is written too."""
        try:
            for file, reading in read_ahead(_read, [f for f in named if f not in self.counted]):
                try:
                    image, several = reading.result()
                    self._one(file, image, several, named[file], self._picture(pictures[file]), on_tile)
                except DataError as error:  # one bad file among many is named, the others are counted
                    self.faults.append(str(error))
                if on_item is not None:
                    on_item()
        finally:
            if self.journal is not None:
                self.journal.close()
            self.counted = {f: self.counted[f] for f in named if f in self.counted}
            if self.counted:
                write_results(self.predictions, self.out)

    def _picture(self, name: str) -> Path | None:
        return self.out / OVERLAYS / f"{name}.png" if self.overlays else None

    def _one(
        self, file: Path, image: Tensor, several: bool, name: str, picture: Path | None, on_tile: OnTile | None
    ) -> None:
        region = region_of(self.regions, file)
        made = self.counter.predict(image, points=self.points, name=name, roi=region, on_tile=on_tile)
        self.counted[file] = Counted(light(made), nearly_black(image), several)
        if picture is not None:
            save_png(from_pil(made.draw(dimmed(image, region))), picture)
        if self.journal is not None:  # last: what it holds is done
            self.journal.add(file, picture, self.counted[file])

    def warnings(self) -> list[str]:
        """What makes some of the counts doubtful, in sentences."""
        said = []
        dark, stacks = ([c.prediction.name for c in self.counted.values() if getattr(c, k)] for k in ("dark", "stack"))
        if dark:
            which = f"{dark[0]} is" if len(dark) == 1 else f"{dark[0]} and {len(dark) - 1} more are"
            said.append(f"{which} nearly black; was the model trained on such images? (docs/guide/your-data.md)")
        if stacks:
            more = len(stacks) - 1
            which = f"{stacks[0]} and {more} more hold" if more else f"{stacks[0]} holds"
            said.append(f"{which} several pictures; the first was counted")
        if (more := sum(bool(p.warning) for p in self.predictions)) > 1:  # the first was named when it was counted
            said.append(f"{more} of {len(self.predictions)} images are unlike the training images; {RESULTS} says why")
        return said


def _read(file: Path) -> tuple[Tensor, bool]:
    """Pixels, and whether the file holds more than one picture."""
    return read_image(file), frames(file) > 1


def earlier(out: Path, drawn: Collection[str]) -> str:
    """What is said where results lie already: which are replaced, and how many pictures are not of this call."""
    try:
        replaced = [name for name in (COUNTS, POINTS, RESULTS) if (out / name).exists()]
        there = {p.name for p in (out / OVERLAYS).glob("*.png")}
        stopped = not replaced and (out / JOURNAL).exists()
    except OSError:  # writing there will say what is wrong
        return ""
    if stopped:
        return f"{out}: holds the journal of a prediction that was stopped, which is replaced; --resume would go on with it"
    if not replaced and not there:
        return ""
    again, left = len(there.intersection(drawn)), len(there.difference(drawn))
    said = [f"{', '.join(replaced)} will be replaced"] if replaced else []
    if again:
        said.append(f"{n_of(again, 'picture')} drawn again")
    if left:
        said.append(f"{left} earlier picture{'s stay' if left > 1 else ' stays'} in {OVERLAYS}/ beside the new result")
    return f"{out}: holds an earlier result: {'; '.join(said)}"
