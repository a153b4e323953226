"""Write samples as a `folder` dataset: images/NAME.jpg with NAME.txt beside it, or any format of `papm.data.file_formats`.

Every file is written under another name and renamed, so that an interrupted run leaves no half files. As text, points come
back bit for bit. Regions of interest go to roi/NAME.png, whatever the format. What a format cannot hold (boxes, for most)
is left out, with a warning in the log.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from PIL import Image

from papm.data.upright import as_stored
from papm.data.writers.base import Box, Item, atomically, decimal, put_text
from papm.errors import ConfigError, DataError, unknown
from papm.images import is_image_name
from papm.structures import Sample

if TYPE_CHECKING:
    from papm.data.readers.kinds import Format

logger = logging.getLogger(__name__)

BOX = 16.0  # px, the side of the box drawn around a point where a format knows only boxes
_CENTRED = 0.01  # px, how far a point may lie from its box's centre to be told by the box alone


def write_folder(
    dataset: Iterable[Sample],
    out: str | Path,
    copy_images: bool | Literal["link"] = True,
    *,
    overwrite: bool = False,
    inside_only: bool = False,
    format: str = "txt",
    box: float = BOX,
) -> int:
    """Write every sample to `out/images`; gives the number of images.

    `copy_images`: True copies the files, "link" makes symbolic links to them (copies where links are not possible), False
    writes the points alone. Images that are drawn on demand are saved as PNG. `inside_only` leaves out points outside
    their image, which `papm data check` counts as errors in folder data. A folder with something in it is refused without
    `overwrite`. `box` is the side, in pixels, of the box around a point in formats that know only boxes; near the border
    of the image it is smaller, so that it stays inside and around its point.
    """
    done = write_splits(
        {"all": dataset}, out, copy_images, overwrite=overwrite, inside_only=inside_only, format=format, box=box
    )
    return done["all"]


def write_splits(
    splits: Mapping[str, Iterable[Sample]],
    out: str | Path,
    copy_images: bool | Literal["link"] = True,
    *,
    overwrite: bool = False,
    inside_only: bool = False,
    format: str = "txt",
    box: float = BOX,
) -> dict[str, int]:
    """The same for several splits, each in its sub-folder (`all` in `out` itself); gives the number of images of each."""
    chosen = file_format(format)
    if not (math.isfinite(box) and box > 0):
        raise ConfigError(f"the side of a box is a number of pixels above 0, not {box:g}")
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: not empty; choose a new folder, or allow overwriting")
    lost: set[str] = set()
    classes: dict[int, str] = {}
    used: dict[int, str] = {}
    done: dict[str, int] = {}
    for split, samples in splits.items():
        folder = out if split == "all" else out / split
        items = _Items(samples, folder, chosen, copy_images, inside_only, box, lost)
        chosen.writer.write(items, folder)
        done[split] = items.count
        classes |= items.classes
        used |= items.used
    if classes:
        names = [classes.get(i, str(i)) for i in range(max(classes) + 1)]
        put_text(out / "classes.txt", "".join(f"{c}\n" for c in names))
    if chosen.writer.finish is not None:
        chosen.writer.finish(out, list(splits), used | classes)
    if lost:
        logger.warning("%s: folder data as %s cannot hold %s; left out", out, chosen.name, ", ".join(sorted(lost)))
    return done


def file_format(name: str) -> Format:
    """A format by name; `folder` is the text format."""
    from papm.data.file_formats import FORMATS

    if name == "folder":
        name = "txt"
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return FORMATS[name]


class _Items:
    """The samples of a split as a writer takes them; each one's image is written as it passes."""

    def __init__(
        self,
        samples: Iterable[Sample],
        folder: Path,
        format: Format,
        copy_images: bool | Literal["link"],
        inside_only: bool,
        box: float,
        lost: set[str],
    ) -> None:
        self.samples, self.folder, self.format, self.copy_images = samples, folder, format, copy_images
        self.inside_only, self.box, self.lost = inside_only or format.writer.inside_only, box, lost
        self.names: set[str] = set()
        self.classes: dict[int, str] = {}  # that the samples name
        self.used: dict[int, str] = {}  # that points have

    @property
    def count(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Item]:
        target = self.folder / "images"
        target.mkdir(parents=True, exist_ok=True)
        for sample in self.samples:
            name = _file_name(sample)
            if name.casefold() in self.names:
                raise DataError(f"{target / name}: two samples have this name; rename one")
            self.names.add(name.casefold())
            item = self.item(sample, name)
            if self.copy_images:
                _write_image(sample, self.folder / item.file, link=self.copy_images == "link")
            _write_region(sample, self.folder / "roi" / f"{name}.png")
            self.used |= dict(zip(item.ids or [0], item.labels))
            yield item

    def item(self, sample: Sample, name: str) -> Item:
        writer = self.format.writer
        if not bool(torch.isfinite(sample.points).all()):
            raise DataError(f"{sample.path or sample.name}: has a point that is not finite")
        if self.inside_only and not bool(sample.inside.all()):
            if writer.inside_only:
                self.lost.add("points outside their image")
            sample = sample.keep(sample.inside)
        names = tuple(str(c) for c in sample.meta.get("classes", ()))
        for c in names:
            if c != c.strip() or not c or "#" in c or any(ord(k) < 32 for k in c):
                raise DataError(f"{sample.path or sample.name}: the class {c!r} cannot be written; rename it")
        if writer.labels:
            self.classes |= dict(enumerate(names))
        elif sample.labels is not None:
            self.lost.add("labels")
        placed = sample.points
        if self.format.stored and sample.path is not None:
            placed = as_stored(placed, sample.path, sample.size)
        points = [(decimal(x), decimal(y)) for x, y in placed.tolist()]
        boxes = self.boxes(sample, points)
        shift = self.format.origin
        if shift:
            points = [(x - shift, y - shift) for x, y in points]
            boxes = boxes and [(a - shift, b - shift, c - shift, d - shift) for a, b, c, d in boxes]
        suffix = ".png" if sample.path is None else sample.path.suffix.lower()
        ids = None if sample.labels is None or not writer.labels else [int(i) for i in sample.labels.tolist()]
        return Item(name, Path("images") / f"{name}{suffix}", sample.size, points, boxes, ids, dict(enumerate(names)))

    def boxes(self, sample: Sample, points: list[tuple[float, float]]) -> list[Box] | None:
        """The boxes as the format wants them."""
        kind = self.format.writer.boxes
        if sample.boxes is not None and kind != "never" and bool(torch.isfinite(sample.boxes).all()):
            found: list[Box] = [
                (decimal(a), decimal(b), decimal(c), decimal(d)) for a, b, c, d in sample.boxes.tolist()
            ]
            apart = [max(abs((b[0] + b[2]) / 2 - p[0]), abs((b[1] + b[3]) / 2 - p[1])) for b, p in zip(found, points)]
            if kind != "instead" or max(apart, default=0.0) <= _CENTRED:
                return found
        if sample.boxes is not None and len(points):
            self.lost.add("boxes")
        return [_around(p, self.box, sample.size) for p in points] if kind == "always" else None


def _around(point: tuple[float, float], side: float, size: tuple[int, int]) -> Box:
    """A box around a point, smaller near the border so that it stays inside; of one pixel at least."""
    (x, y), (h, w) = point, size
    dx, dy = (max(0.5, min(side / 2, v, limit - v)) for v, limit in ((x, w), (y, h)))
    return x - dx, y - dy, x + dx, y + dy


def _file_name(sample: Sample) -> str:
    """A sample's name as a file name without suffix: `cam1/a.jpg` becomes `cam1_a`."""
    name = sample.name.replace("\\", "/").strip("/").replace("/", "_")
    if is_image_name(name):
        name = name.rpartition(".")[0]
    try:
        long = len(name.encode("utf-8")) > 200  # a file name has 255 bytes, and other files are named after it
    except UnicodeEncodeError:
        long = True
    if not name or long or name.startswith(".") or any(ord(c) < 32 or c in '<>:"|?*' for c in name):
        raise DataError(f"{sample.path or 'a sample'}: the name {sample.name[:80]!r} cannot be a file name")
    return name


def _write_region(sample: Sample, path: Path) -> None:
    """The region of interest as a mask, white where objects count."""
    region = sample.roi
    if region is not None:
        pixels = region.cpu().to(torch.uint8).mul(255).numpy()
        atomically(path, lambda p: Image.fromarray(pixels).save(p, "PNG"))


def _write_image(sample: Sample, path: Path, link: bool) -> None:
    source = sample.path
    if source is None:
        pixels = sample.image.permute(1, 2, 0).contiguous().cpu().numpy()
        atomically(path, lambda p: Image.fromarray(pixels).save(p, "PNG"))
        return
    if path.exists() and path.resolve() == source.resolve():
        raise DataError(f"{path}: would be written over itself; choose another folder")
    if link:
        try:
            atomically(path, lambda p: p.symlink_to(source.resolve()))
            return
        except OSError as e:
            logger.warning("%s: cannot link (%s), copying", path, e.strerror or e)
    try:
        atomically(path, partial(shutil.copyfile, source))
    except FileNotFoundError as e:
        raise DataError(f"{source}: no such image file") from e
