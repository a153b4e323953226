"""What writers share: the item they write, how numbers and names are written, and files that are never half there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from papm.errors import DataError

XY = tuple[float, float]
Box = tuple[float, float, float, float]
UNNAMED = "object"  # the class of points without one, where a format cannot do without
_MOST_CLASSES = 1000
DOT_NOTE = ("papm", "every pixel is a point")  # in the text of dot maps that papm wrote


@dataclass(frozen=True)
class Item:
    """One image to write: `file` is its name from the dataset's folder on, coordinates are those of the format."""

    name: str  # without suffix
    file: Path
    size: tuple[int, int]  # (H, W)
    points: list[XY]
    boxes: list[Box] | None
    ids: list[int] | None  # class of each point
    classes: Mapping[int, str]  # the names that are known

    @property
    def labels(self) -> list[str]:
        """The class of each point by name, by number where it has none."""
        if self.ids is None:
            return [UNNAMED] * len(self.points)
        return [self.classes.get(i, str(i)) for i in self.ids]

    @property
    def reference(self) -> str:
        """The image's file name, as a table can give it: a blank or # at its beginning stays part of it."""
        name = self.file.name
        return f"./{name}" if name != name.strip() or name.startswith("#") else name


@dataclass(frozen=True)
class Writer:
    """How a format is written.

    `write(items, folder)` writes the annotations of one split; `finish(out, splits, classes)` what lies at the top. `boxes`
    says what becomes of them: never written, written beside the point, instead of it (where the point is its centre), or
    always, a small one where there is none.
    """

    write: Callable[[Iterable[Item], Path], None]
    boxes: Literal["never", "beside", "instead", "always"] = "never"
    labels: bool = True
    inside_only: bool = False  # cannot hold points outside the image
    finish: Callable[[Path, Iterable[str], Mapping[int, str]], None] | None = None


def decimal(value: float) -> float:
    """A float32 as the shortest decimal that comes back to it.

    >>> decimal(float(np.float32(12.3)))
    12.3
    """
    return float(np.format_float_positional(np.float32(value), unique=True))


def written(value: float) -> str:
    """A number without needless zeros or exponents.

    >>> written(12.0), written(0.00001)
    ('12', '0.00001')
    """
    return np.format_float_positional(value, unique=True, trim="-")


def all_classes(used: Mapping[int, str]) -> dict[int, str]:
    """Names of the classes 0 to the highest, so that their order gives the numbers back.

    >>> all_classes({2: "cat"})
    {0: '0', 1: '1', 2: 'cat'}
    """
    top = max(used, default=-1)
    if min(used, default=0) < 0 or top >= _MOST_CLASSES:
        return dict(sorted(used.items()))
    return {i: used.get(i, str(i)) for i in range(top + 1)}


def number_of(item: Item, kind: str) -> list[int]:
    """Class numbers from 0, as a format that counts them needs."""
    ids = item.ids or [0] * len(item.points)
    if min(ids, default=0) < 0:
        raise DataError(f"{item.file}: has the class {min(ids)}; {kind} counts classes from 0")
    return ids


def put_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{path}: a name in it is not valid Unicode; rename it") from None
    atomically(path, lambda p: p.write_bytes(data))


def put_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write a JSON file, whole or not at all."""
    put_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n")


def atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then rename it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
