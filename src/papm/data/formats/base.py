"""What a format of annotation files is: how a file of it is told from others, read, and written.

There are two kinds: one file per image (`PerImage`), found by the image's name, and one file for many images (`Sheet`), which
names them. A format is one file of this package that registers itself; `format=NAME` reads it, `papm data convert --to NAME`
writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import torch

from papm.data.base import Annotation
from papm.data.formats.items import XY, Box, Item
from papm.data.readers.faults import AnnotationError, Fault, Faults, safe_relative
from papm.data.upright import upright
from papm.images import image_size
from papm.registry import Registry

NO, MAYBE, SURELY = 0, 1, 2  # how sure a look at a file is


# --- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """What a user said about the data, and what lies beside it."""

    root: Path
    wanted: frozenset[str] | None = None  # labels to keep, names or ids; None keeps all
    keypoint: str | None = None
    names: tuple[str, ...] = ()  # of classes.txt or data.yaml
    origin: float = 0.0  # what is added to the coordinates of a file
    dots: str = "auto"
    masks: str = "auto"
    # Whether coordinates are those of the pixels before EXIF turns a photograph; None: as the points themselves say.
    stored: bool | None = None
    pose: bool = False  # YOLO lines go on with keypoints after the box


@dataclass
class Points:
    """Points of one image as a file gives them, coordinates as written, and what was wrong with the rest."""

    xy: list[XY] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    lines: list[int | None] = field(default_factory=list)
    boxes: list[Box | None] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    line: int | None = None  # where the image is first mentioned
    meta: dict[str, Any] = field(default_factory=dict)
    relative: bool = False  # coordinates are fractions of the image's width and height
    also: str | None = None  # another name the image may have
    stored: bool = False  # coordinates are those of the pixels before EXIF turns a photograph

    def add(self, xy: XY, label: str | None, line: int | None = None, box: Box | None = None) -> None:
        """Append a point, with all that is known about it."""
        self.xy.append(xy)
        self.labels.append(label)
        self.lines.append(line)
        self.boxes.append(box)

    def declare(self, height: object, width: object) -> None:
        """Note the size that a file gives its image, as numbers or as digits; anything else is passed over."""
        if all(isinstance(v, str) and v.isascii() and v.isdigit() and len(v) < 10 for v in (height, width)):
            height, width = int(str(height)), int(str(width))
        if type(height) is int and type(width) is int:
            self.meta["declared_size"] = height, width

    def check_labels(self, path: Path) -> None:
        """All points of an image have a label, or none: half a labelling is a slip of the pen."""
        if 0 < self.labels.count(None) < len(self.labels):
            line = self.lines[self.labels.index(None)]
            self.faults.append(Fault(path, line, "this point has no label, others of its image do"))

    def keep(self, wanted: Collection[str] | None, names: Sequence[str]) -> None:
        """Leave only points whose label is wanted, by name or by number."""
        if wanted is not None:
            other = {name: str(i) for i, name in enumerate(names)} | {str(i): name for i, name in enumerate(names)}
            kept = [v is not None and (v in wanted or other.get(v) in wanted) for v in self.labels]
            parts: tuple[list[Any], ...] = (self.xy, self.labels, self.lines, self.boxes)
            for part in parts:
                part[:] = compress(part, kept)

    def annotation(self, image: Path, path: Path, context: Context) -> Annotation:
        """As the tensors of an image, in papm's coordinates; AnnotationError with the faults."""
        labels = None if self.faults else self._numbers(path, context.names)
        if self.faults:
            raise AnnotationError(self.faults)
        scale = torch.tensor(image_size(image)[::-1] if self.relative else (1, 1), dtype=torch.float64)
        xy = torch.tensor(self.xy, dtype=torch.float64).reshape(-1, 2) * scale
        if self.relative:  # the centre of a box in fractions may come out a rounding error beyond 0
            xy = torch.where((xy < 0) & (xy > -1e-6), 0.0, xy)
        boxes = None
        if self.boxes and None not in self.boxes:
            boxes = (torch.tensor(self.boxes, dtype=torch.float64) * scale.repeat(2)).add(context.origin).float()
        read = Annotation(
            xy.add(context.origin).float(),
            None if labels is None else torch.tensor(labels, dtype=torch.int64),
            boxes,
            lines=[n for n in self.lines if n is not None] or None,
            meta=self.meta | ({"classes": context.names} if context.names and labels is not None else {}),
        )
        stored = self.stored if context.stored is None else context.stored
        return upright(read, image, image_size(image)) if stored else read

    def _numbers(self, path: Path, names: tuple[str, ...]) -> list[int] | None:
        """The labels as numbers; those that have none are faults."""
        labels = [v for v in self.labels if v is not None]
        known = {v: int(v) for v in set(labels) if is_int(v)} | {name: i for i, name in enumerate(names)}
        for line, label in zip(self.lines, labels):
            if label not in known:
                rule = "is neither a whole number nor a name listed in classes.txt (one a line)"
                self.faults.append(Fault(path, line, f"the label {label[:40]!r} {rule}"))
        return [known[v] for v in labels] if labels and not self.faults else None


@dataclass
class Table:
    """One file for many images: points by image name as written, and faults that belong to no image."""

    path: Path
    images: dict[str, Points] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    classes: tuple[str, ...] = ()  # names in the order of their indices, when the file defines one

    def new(self, written: str | PurePosixPath, **about: Any) -> Points:
        """The points of an image that the file names for the first time; ValueError says what is wrong with the name."""
        name = str(safe_relative(written) if isinstance(written, str) else written)
        if name in self.images:
            raise ValueError(f"the image {name[:80]!r} is given a second time")
        points = self.images[name] = Points(**about)
        return points


def is_int(text: str) -> bool:
    """Whether a label is a number."""
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 19  # fits int64


def text_label(value: object) -> str | None:
    """A label that a JSON file gives as a text or a number."""
    return str(value) if isinstance(value, str | int) and value != "" else None


# --- formats -----------------------------------------------------------------------------------------------------------


class Format:
    """A format of annotation files. The docstring of a subclass is what `papm data list` says of it."""

    name: str
    layout: str  # what to put where
    origin = 0.0  # what is added to its coordinates to reach papm's, in which the first pixel's centre is at 0.5
    stored = False  # its tools pass over EXIF: coordinates are those of the pixels as they are stored
    filters = False  # `read` itself keeps the wanted labels
    # What becomes of boxes: never written, written beside the point, instead of it (where the point is the centre), or
    # always, a small one where there is none.
    boxes: Literal["never", "beside", "instead", "always"] = "never"
    labels = True  # it can hold labels
    inside_only = False  # it cannot hold points outside the image

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return self.__doc__ or ""

    def detect(self, path: Path) -> int:
        """How surely a look at a file says that it is of this format: NO, MAYBE or SURELY."""
        raise NotImplementedError

    def prepare(self, context: Context) -> Context:
        """The context with what files beside the annotations say."""
        return context

    def write(self, items: Iterable[Item], folder: Path) -> None:
        """Write the annotations of one split."""
        raise NotImplementedError

    def finish(self, out: Path, splits: Iterable[str], classes: Mapping[int, str]) -> None:
        """Write what lies at the top of a dataset, after its splits."""


class PerImage(Format):
    """One file per image, named after it."""

    # What follows the image's stem. `dots/.png` holds in a folder `dots`, and in the folders in it.
    endings: tuple[str, ...]
    prefix = ""
    named_labels = False  # labels are names, which have to be gathered over all files
    missing_is_empty = False  # an image without a file has no objects
    alone: tuple[str, ...] = ()  # names of files that belong to the image of a folder that has one
    only_one = False  # several files with the names of one image's are an error, but for the `last_resort` among them
    last_resort: tuple[str, ...] = ()
    pictures: tuple[
        str, ...
    ] = ()  # words in the names of its files, where these are pictures that lie among the images
    leftovers: tuple[str, ...] = ()  # endings of other pictures that its tool puts there

    def read(self, path: Path, image: Path, context: Context) -> Points | Annotation:
        """The points of a file as written, and its faults; or an annotation, with the origin added."""
        raise NotImplementedError

    def endings_in(self, folder: Path) -> list[str]:
        """The endings that files in a folder may have."""
        near = {"", folder.name.lower(), folder.parent.name.lower()}
        parts = (e.rpartition("/") for e in self.endings)
        return [ending for home, _, ending in parts if home in near]

    def names(self, stem: str, endings: Sequence[str]) -> list[str]:
        """The names that the file of an image may have, likeliest first."""
        return [f"{self.prefix}{stem}{ending}" for ending in endings]


class Sheet(Format):
    """One file for many images."""

    suffixes: tuple[str, ...]
    unlisted_is_empty = False  # an image that the file does not mention has no objects

    def read(self, path: Path, context: Context) -> Table:
        """The points of every image that the file names, and its faults."""
        raise NotImplementedError


FORMATS: Registry[Format] = Registry("format")
F = TypeVar("F", bound=type[Format])


def register(kind: F) -> F:
    """Add a format, or put it in the place of the one that has its name: `@register` above its class."""
    FORMATS.register(kind.name, kind())
    return kind


def formats() -> list[Format]:
    """Every known format."""
    return [FORMATS.get(name) for name in FORMATS]
