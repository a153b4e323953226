"""Lines and numbers in the files of published datasets: rows of text, tables of .mat and JSON files, boxes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.data.base import Annotation
from papm.data.readers.faults import MAX_COORDINATE, AnnotationError, Fault, Faults, coordinate, read_text
from papm.errors import DataError

Array = NDArray[np.float64]
T = TypeVar("T")
_NUMBERS = re.compile(r"[0-9eE+.\-\s,]*")  # what rows of numbers are written with; the rest is told by `coordinate`


def parse_lines(path: Path, parse: Callable[[str], T], faults: list[Fault] | None = None) -> list[tuple[int, T]]:
    """What `parse` makes of each line of a text file that is not blank, with the line's number.

    Its ValueErrors go to `faults`; without these every bad line is raised, in one AnnotationError.
    """
    found: list[Fault] = Faults() if faults is None else faults
    out = []
    for number, text in enumerate(read_text(path).split("\n"), start=1):
        if text.strip():
            try:
                out.append((number, parse(text)))
            except ValueError as e:
                found.append(Fault(path, number, str(e)))
    if faults is None and found:
        raise AnnotationError(found)
    return out


def number_rows(path: Path, names: Sequence[str], least: int | None = None) -> tuple[Array, list[int]]:
    """Rows of numbers [n, len(names)] with their lines; a row may end after `least` numbers, the rest are zero.

    Numbers are separated by spaces, tabs or commas. Raises AnnotationError with every bad line.
    """
    width = len(names)

    def parse(text: str) -> list[float]:
        cells = text.replace(",", " ").split()
        if not (width if least is None else least) <= len(cells) <= width:
            raise ValueError(f"expected '{' '.join(names)}', found {len(cells)} fields: {text.strip()[:60]!r}")
        return numbers(cells, names) + [0.0] * (width - len(cells))

    rows = parse_lines(path, parse)
    return np.array([row for _, row in rows], dtype=np.float64).reshape(-1, width), [line for line, _ in rows]


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
