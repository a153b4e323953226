"""What a format writes: images with points in its coordinates, and how numbers, names and files are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from papm.errors import DataError

XY = tuple[float, float]
Box = tuple[float, float, float, float]
UNNAMED = "object"  # the class of points without one, where a format cannot do without
_MOST_CLASSES = 1000


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

    def beside(self, suffix: str) -> Path:
        """The file of that suffix beside the image."""
        return self.file.with_name(self.name + suffix)

    def numbers(self, kind: str) -> list[int]:
        """Class numbers from 0, as a format that counts them needs."""
        ids = self.ids or [0] * len(self.points)
        if min(ids, default=0) < 0:
            raise DataError(f"{self.file}: has the class {min(ids)}; {kind} counts classes from 0")
        return ids


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


def put_text(path: Path, text: str) -> None:
    """Write a text file, and the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_bytes(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise DataError(f"{path}: a name in it is not valid Unicode; rename it") from None


def put_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write a JSON file, and the folder it lies in."""
    put_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n")
