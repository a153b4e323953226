"""Writing a dataset as a `folder` dataset, in any format of annotation files.

A dataset is written under another name beside its place and renamed at the end, so that what fails or is interrupted leaves
nothing behind. As text, points come back bit for bit. Regions of interest go to roi/NAME.png, whatever the format. What one
cannot hold (boxes, for most) is left out, with a warning in the log.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from papm.data.base import Dataset
from papm.data.formats import FORMATS, Format
from papm.data.formats.items import XY, Box, Item, decimal, put_text
from papm.data.splits import hold_out
from papm.data.upright import as_stored
from papm.errors import ConfigError, DataError, PapmError
from papm.files import write_json
from papm.images import is_image_name
from papm.structures import Sample
from papm.text import n_of

log = logging.getLogger(__name__)

# The splits a folder dataset can hold; `all` is a folder without sub-folders.
WRITABLE = ("train", "val", "test", "all")
BOX = 16.0  # px, the side of the box drawn around a point where a format knows only boxes
_CENTRED = 0.01  # px, how far a point may lie from its box's centre to be told by the box alone


# --- which images ------------------------------------------------------------------------------------------------------


def writable(found: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """The splits that sub-folders can hold: train, val and test, else the whole; folds overlap and are left out."""
    kept = {s: found[s] for s in WRITABLE[:3] if s in found} or {s: found[s] for s in ("all",) if s in found}
    if not kept:
        raise DataError(f"a folder dataset has the splits train, val and test, and this one has {', '.join(found)}")
    if left := [s for s in found if s not in kept]:
        log.warning("left out, for a folder dataset cannot hold them: %s", ", ".join(left))
    return kept


def pool(datasets: Mapping[str, Dataset]) -> Dataset:
    """One dataset of all splits, each image once; names that different images share get the split's name in front.

    Splits may overlap: the folds of UCF_CC_50 are parts of its `all`, the `trainval` of TRANCOS is two others together.
    """
    once: dict[object, tuple[str, Sample]] = {}
    for split, dataset in datasets.items():
        for sample in dataset:
            path = sample.published.file
            once.setdefault(sample.published.source if path is None else path.resolve(), (split, sample))
    often = Counter(s.name.casefold() for _, s in once.values())
    samples = [
        replace(s, name=f"{split}_{s.name}") if often[s.name.casefold()] > 1 else s for split, s in once.values()
    ]
    return Dataset(samples, next(iter(datasets.values())).name, "all")


def divide(datasets: Mapping[str, Dataset], val: float, test: float, seed: int) -> dict[str, Dataset]:
    """All images split at random: shares for validation and for testing, the rest for training."""
    parts = {"train": pool(datasets)}
    if test:
        parts["train"], parts["test"] = hold_out(parts["train"], test, seed)
    if val:
        tested = len(parts.get("test", ()))
        parts["train"], parts["val"] = hold_out(parts["train"], val / (1 - test), seed, tested)
    return {s: parts[s] for s in WRITABLE if s in parts}


# --- writing them ------------------------------------------------------------------------------------------------------


def file_format(name: str) -> Format:
    """A format by name; `folder` is the text format."""
    return FORMATS.get("txt" if name == "folder" else name)


def check_out(out: Path) -> None:
    """Refuse to write where something is."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: not empty; choose a new folder")


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or vanishes; messages speak of `out`."""
    check_out(out)
    place = out.expanduser().resolve()
    draft = place.parent / f".{place.name}.{os.getpid()}.tmp"
    try:
        draft.mkdir(parents=True)
        yield draft
        if place.is_dir():  # empty, as checked above
            place.rmdir()
        draft.replace(place)
    except PapmError as error:
        raise DataError(str(error).replace(str(draft), str(out))) from None
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error}); nothing was left there") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_folder(samples: Iterable[Sample], out: str | Path, **how: Any) -> int:
    """Write samples as one folder, with the options of `write`; gives the number of images."""
    return write({"all": samples}, out, **how)["all"]["images"]


def write(
    splits: Mapping[str, Iterable[Sample]],
    out: str | Path,
    *,
    link: bool = False,
    inside_only: bool = False,
    made: Mapping[str, Any] | None = None,
    to: str = "txt",
    box: float = BOX,
    on_item: Callable[[], None] | None = None,
) -> dict[str, dict[str, int]]:
    """Write splits as sub-folders of `out` in the format `to`; gives the images, points and outside points of each.

    Images are copied, or with `link` linked; those that are drawn on demand are saved as PNG. `inside_only` leaves out points
    outside their image, which `papm data check` counts as errors in folder data. `made`, how the points came about, is kept
    beside them as displaced.json. `box` is the side of the box around a point, where the format knows only boxes; near the
    border of the image it is smaller, so that it stays inside and around its point.
    """
    format = file_format(to)
    if not (math.isfinite(box) and box > 0):
        raise ConfigError(f"the side of a box is a number of pixels above 0, not {box:g}")
    lost: set[str] = set()
    written = {}
    with _staged(Path(out)) as draft:
        for split, samples in splits.items():
            folder = draft if split == "all" else draft / split
            items = written[split] = _Items(samples, folder, format, link, inside_only, box, on_item, lost)
            format.write(items, folder)
        named = {i: name for items in written.values() for i, name in items.named.items()}
        used = {i: name for items in written.values() for i, name in items.used.items()}
        if named:
            put_text(draft / "classes.txt", "".join(f"{named.get(i, i)}\n" for i in range(max(named) + 1)))
        format.finish(draft, list(splits), used | named)
        if made is not None:
            write_json(draft / "displaced.json", made)
    if lost:
        kind = "" if format.name == "txt" else f" as {format.name}"
        log.warning("folder data%s cannot hold %s: left out", kind, ", ".join(sorted(lost)))
    if outside := sum(items.outside for items in written.values()):
        log.warning(
            "%s outside the image, an error in folder data; --inside-only leaves them out", n_of(outside, "point")
        )
    return {s: {"images": len(i.names), "points": i.points, "outside": i.outside} for s, i in written.items()}


@dataclass
class _Items:
    """The samples of a split as a format writes them; each one's image is written as it passes."""

    samples: Iterable[Sample]
    folder: Path
    format: Format
    link: bool
    inside_only: bool
    box: float
    on_item: Callable[[], None] | None
    lost: set[str]  # what the format cannot hold
    names: set[str] = field(default_factory=set)
    named: dict[int, str] = field(default_factory=dict)  # classes that the samples name
    used: dict[int, str] = field(default_factory=dict)  # classes that points have
    points: int = 0
    outside: int = 0

    def __iter__(self) -> Iterator[Item]:
        (self.folder / "images").mkdir(parents=True, exist_ok=True)
        for sample in self.samples:
            item = self.item(self.fitting(sample))
            _write_image(sample, self.folder / item.file, self.link)
            if sample.roi is not None:  # white where objects count
                (self.folder / "roi").mkdir(exist_ok=True)
                mask = sample.roi.cpu().to(torch.uint8).mul(255).numpy()
                Image.fromarray(mask).save(self.folder / "roi" / f"{item.name}.png")
            yield item
            if self.on_item is not None:
                self.on_item()

    def fitting(self, sample: Sample) -> Sample:
        """The sample without what the format cannot hold."""
        if not bool(torch.isfinite(sample.points).all()):
            raise DataError(f"{sample.path or sample.name}: has a point that is not finite")
        if (self.inside_only or self.format.inside_only) and not bool(sample.inside.all()):
            self.lost |= set() if self.inside_only else {"points outside their image"}
            sample = sample.keep(sample.inside)
        if sample.extents is not None:
            self.lost.add("object sizes")
        if sample.labels is not None and not self.format.labels:
            self.lost.add("labels")
            sample = replace(sample, labels=None)
        return sample

    def item(self, sample: Sample) -> Item:
        """What is written of a sample, in the coordinates of the format."""
        name = self.name(sample)
        classes = dict(enumerate(_classes(sample)))
        placed = sample.points
        if self.format.stored and sample.path is not None:
            placed = as_stored(placed, sample.path, sample.size)
        points = [(decimal(x), decimal(y)) for x, y in placed.tolist()]
        boxes = self.boxes(sample, points)
        if shift := self.format.origin:
            points = [(x - shift, y - shift) for x, y in points]
            boxes = boxes and [(a - shift, b - shift, c - shift, d - shift) for a, b, c, d in boxes]
        suffix = ".png" if sample.path is None else sample.path.suffix.lower()
        ids = None if sample.labels is None else [int(i) for i in sample.labels.tolist()]
        item = Item(name, Path("images") / f"{name}{suffix}", sample.size, points, boxes, ids, classes)
        self.named |= classes if self.format.labels else {}
        self.used |= dict(zip(ids or [0], item.labels))
        self.points += len(points)
        self.outside += int((~sample.inside).sum())
        return item

    def name(self, sample: Sample) -> str:
        """A sample's name as a file name without suffix, new in this split: `cam1/a.jpg` becomes `cam1_a`."""
        name = sample.name.replace("\\", "/").strip("/").replace("/", "_")
        if is_image_name(name):
            name = name.rpartition(".")[0]
        try:
            long = len(name.encode("utf-8")) > 200  # a file name has 255 bytes, and other files are named after it
        except UnicodeEncodeError:
            long = True
        if not name or long or name.startswith(".") or any(ord(c) < 32 or c in '<>:"|?*' for c in name):
            raise DataError(f"{sample.path or 'a sample'}: the name {sample.name[:80]!r} cannot be a file name")
        if name.casefold() in self.names:
            raise DataError(f"{self.folder / 'images' / name}: two samples have this name; rename one")
        self.names.add(name.casefold())
        return name

    def boxes(self, sample: Sample, points: list[XY]) -> list[Box] | None:
        """The boxes as the format wants them."""
        kind = self.format.boxes
        if sample.boxes is not None and kind != "never" and bool(torch.isfinite(sample.boxes).all()):
            found = [(decimal(a), decimal(b), decimal(c), decimal(d)) for a, b, c, d in sample.boxes.tolist()]
            apart = [max(abs((b[0] + b[2]) / 2 - p[0]), abs((b[1] + b[3]) / 2 - p[1])) for b, p in zip(found, points)]
            if kind != "instead" or max(apart, default=0.0) <= _CENTRED:
                return found
        if sample.boxes is not None and len(points):
            self.lost.add("boxes")
        return [_around(p, self.box, sample.size) for p in points] if kind == "always" else None


def _classes(sample: Sample) -> tuple[str, ...]:
    names = tuple(str(c) for c in sample.meta.get("classes", ()))
    for c in names:
        if c != c.strip() or not c or "#" in c or any(ord(k) < 32 for k in c):
            raise DataError(f"{sample.path or sample.name}: the class {c!r} cannot be written; rename it")
    return names


def _around(point: XY, side: float, size: tuple[int, int]) -> Box:
    """A box around a point, smaller near the border so that it stays inside; of one pixel at least."""
    (x, y), (h, w) = point, size
    dx, dy = (max(0.5, min(side / 2, v, limit - v)) for v, limit in ((x, w), (y, h)))
    return x - dx, y - dy, x + dx, y + dy


def _write_image(sample: Sample, path: Path, link: bool) -> None:
    source = sample.path
    if source is None:
        Image.fromarray(sample.image.permute(1, 2, 0).contiguous().cpu().numpy()).save(path, "PNG")
        return None
    if link:
        try:
            return path.symlink_to(source.resolve())
        except OSError as e:
            log.warning("%s: cannot link (%s), copying", source, e.strerror or e)
    try:
        shutil.copyfile(source, path)
    except FileNotFoundError as e:
        raise DataError(f"{source}: no such image file") from e
