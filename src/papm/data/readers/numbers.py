"""Rows of numbers in the files of published datasets: text, tables of .mat and JSON files, boxes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.data.base import Annotation
from papm.data.readers.faults import MAX_COORDINATE, AnnotationError, Fault, Faults, coordinate, read_text
from papm.errors import DataError

Array = NDArray[np.float64]
_NUMBERS = re.compile(r"[0-9eE+.\-\s,]*")  # what rows of numbers are written with; the rest is told by `coordinate`


def number_rows(path: Path, names: Sequence[str], least: int | None = None) -> tuple[Array, list[int]]:
    """Rows of numbers [n, len(names)] with their lines; a row may end after `least` numbers, the rest are zero.

    Numbers are separated by spaces, tabs or commas. Raises AnnotationError with every bad line.
    """
    width, least = len(names), len(names) if least is None else least
    rows: list[list[float]] = []
    lines: list[int] = []
    faults: list[Fault] = Faults()
    for number, text in enumerate(read_text(path).split("\n"), start=1):
        cells = text.replace(",", " ").split()
        if not cells:
            continue
        if not least <= len(cells) <= width:
            wanted = f"'{' '.join(names)}'"
            faults.append(Fault(path, number, f"expected {wanted}, found {len(cells)} fields: {text.strip()[:60]!r}"))
            continue
        try:
            rows.append(numbers(cells, names) + [0.0] * (width - len(cells)))
            lines.append(number)
        except ValueError as e:
            faults.append(Fault(path, number, str(e)))
    if faults:
        raise AnnotationError(faults)
    return np.array(rows, dtype=np.float64).reshape(-1, width), lines


def whole(text: str) -> int | None:
    """A whole number of at most nine digits; None for anything else.

    >>> whole("0042"), whole("-1"), whole("²")
    (42, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def numbers(cells: Sequence[str], names: Iterable[str]) -> list[float]:
    """Finite numbers that could be pixels; ValueError names the one that is not."""
    if _NUMBERS.fullmatch("".join(cells)):
        try:
            values = [float(c) for c in cells]
            if all(-MAX_COORDINATE <= v <= MAX_COORDINATE for v in values):
                return values
        except ValueError:
            pass
    return [coordinate(c, n) for c, n in zip(cells, names)]


def table(path: Path, value: Any, what: str, columns: int) -> Array:
    """An array of a .mat file, or nested lists of a JSON file, as finite numbers [n, columns]; empty ones have n = 0."""
    try:
        array = np.asarray(value)
    except ValueError as e:  # lists of different lengths
        raise DataError(f"{path}: {what} is not a table of {columns} columns") from e
    if array.size == 0:
        return np.zeros((0, columns))
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] != columns:
        shape = "×".join(map(str, array.shape)) or "one value"
        raise DataError(f"{path}: {what} is {shape} of {array.dtype}, expected n × {columns} numbers")
    out = array.astype(np.float64)
    bad = np.flatnonzero(~(np.abs(out) <= MAX_COORDINATE).all(1))  # NaN compares false
    if len(bad):
        row = ", ".join(f"{v:g}" for v in out[bad[0]])
        raise DataError(f"{path}: row {bad[0] + 1} of {what} is ({row}), not a pixel position")
    return out


def tensor(array: Array, origin: float = 0.0) -> Tensor:
    """float32, moved to our pixel convention."""
    return torch.from_numpy((array + origin).astype(np.float32))


def corners(boxes: Array) -> Array:
    """Boxes [n, 4] as x1 ≤ x2, y1 ≤ y2, whichever corners a file gives.

    >>> corners(np.array([[9.0, 2.0, 1.0, 4.0]])).tolist()
    [[1.0, 2.0, 9.0, 4.0]]
    """
    return np.hstack([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])])


def boxed(points: Array, boxes: Array, origin: float, **more: Any) -> Annotation:
    """Points with their boxes [n, 4]; the size of an object is the side of the square of equal area, √(w·h)."""
    sizes = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    return Annotation(tensor(points, origin), boxes=tensor(boxes, origin), extents=tensor(sizes), **more)
