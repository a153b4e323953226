"""What a format of annotation files is: how it is told from others, read, and written.

There are two kinds: one file per image (`Sidecar`), found by the image's name, and one file for many images (`Sheet`), which
names them. `papm.data.file_formats` lists every format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from papm.data.base import Annotation
from papm.data.readers.records import Points, Table

if TYPE_CHECKING:
    from papm.data.writers.base import Writer

# How sure a look at a file is.
NO, MAYBE, SURELY = 0, 1, 2


@dataclass(frozen=True)
class Context:
    """What a user said about the data, and what lies beside it."""

    root: Path
    wanted: frozenset[str] | None = None  # labels to keep, names or ids; None keeps all
    keypoint: str | None = None
    names: tuple[str, ...] = ()  # of classes.txt or data.yaml
    origin: float = 0.0  # what is added to the coordinates of a file
    dots: str = "auto"
    # Whether coordinates are those of the pixels before EXIF turns a photograph; None: as the points themselves say.
    stored: bool | None = None
    pose: bool = False  # YOLO lines go on with keypoints after the box


@dataclass(frozen=True)
class Sidecar:
    """One file per image.

    `names(stem, folder)` are the files that may belong to an image of that stem, in a folder; `read` gives points as
    written, or an annotation with the origin added.
    """

    names: Callable[[str, Path], Sequence[str]]
    looks_like: Callable[[Path], int]
    read: Callable[[Path, Path, Context], Points | Annotation]  # file, image, context
    named_labels: bool = False  # labels are names, which have to be gathered over all files
    missing_is_empty: bool = False  # an image without a file has no objects


@dataclass(frozen=True)
class Sheet:
    """One file for many images."""

    suffixes: tuple[str, ...]
    looks_like: Callable[[Path], int]
    read: Callable[[Path, Context], Table]
    unlisted_is_empty: bool = False  # an image that the file does not mention has no objects


@dataclass(frozen=True)
class Format:
    """A format of annotation files by name."""

    name: str
    summary: str
    layout: str  # what to put where
    reader: Sidecar | Sheet
    writer: Writer
    origin: float = 0.0  # what is added to its coordinates to reach papm's, in which the first pixel's centre is at 0.5
    stored: bool = False  # its tools pass over EXIF: coordinates are those of the pixels as they are stored
    own_filter: bool = False  # `read` itself keeps the wanted labels
