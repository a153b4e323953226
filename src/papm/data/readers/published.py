"""What the readers of published datasets share: finding the folder, lists of image names, rows of numbers, boxes.

Nothing here walks a tree without bounds: a dataset is looked for at most three levels below the folder a user names, in at
most `_MAX_FOLDERS` folders, so that neither a loop of links nor a home directory keeps it busy. Names read from a file are
looked up among the images that were listed, never joined to a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.data.base import Annotation, Entry
from papm.data.readers.faults import (
    MAX_COORDINATE,
    AnnotationError,
    Fault,
    Faults,
    coordinate,
    read_text,
    safe_relative,
)
from papm.errors import DataError
from papm.images import find_images, natural_key

Array = NDArray[np.float64]
_MAX_FOLDERS = 500
_NUMBERS = re.compile(r"[0-9eE+.\-\s,]*")  # what rows of numbers are written with; the rest is told by `coordinate`


# --- folders -----------------------------------------------------------------------------------------------------------


def children(folder: Path) -> list[Path]:
    """Sub-folders in natural order; none of a folder that cannot be listed."""
    try:
        with os.scandir(folder) as items:  # knows files from folders without a look at each, as iterdir would need
            found = [i.name for i in items if not i.name.startswith(".") and i.is_dir()]
    except OSError:
        return []
    return [folder / name for name in sorted(found, key=natural_key)]


def named(folder: Path, *names: str) -> Path | None:
    """The file or folder of one of these names, whatever its case; the first name that is there."""
    try:
        found = {name.lower(): name for name in sorted(p.name for p in folder.iterdir())}
    except OSError:
        return None
    return next((folder / found[n.lower()] for n in names if n.lower() in found), None)


def named_folder(folder: Path, *names: str) -> Path | None:
    """The sub-folder of one of these names, whatever its case."""
    found = {d.name.lower(): d for d in children(folder)}
    return next((found[n.lower()] for n in names if n.lower() in found), None)


def cheaply(recognise: Callable[[Path], bool]) -> Callable[[Path], bool]:
    """A recogniser that says no where a folder cannot be read, instead of raising."""

    def quiet(root: Path) -> bool:
        try:
            return recognise(root)
        except (DataError, OSError):
            return False

    return quiet


def search(root: Path, is_it: Callable[[Path], bool], depth: int = 2) -> list[Path]:
    """The folders that `is_it` knows: the root itself, else those nearest below it, at most `depth` levels down."""
    level, visited = [root], 0
    for below in range(depth + 1):
        visited += len(level)
        if found := [d for d in level[:_MAX_FOLDERS] if is_it(d)]:
            return found
        if below == depth or visited > _MAX_FOLDERS:
            break
        level = [c for d in level for c in children(d)]
    return []


def images_below(folder: Path, depth: int = 2) -> list[Path]:
    """Images of a folder and of its sub-folders (`images/part1/images/…`), at most `depth` levels down."""
    found = find_images(folder)
    if depth:
        for child in children(folder)[:_MAX_FOLDERS]:
            found += images_below(child, depth - 1)
    return found


def by_stem(paths: Iterable[Path]) -> dict[str, Path]:
    """Files by name without suffix; of several the first."""
    out: dict[str, Path] = {}
    for path in paths:
        out.setdefault(path.stem, path)
    return out


def files(folder: Path | None, suffix: str) -> dict[str, Path]:
    """The files of a folder with this suffix (in any case), by name without it."""
    if folder is None:
        return {}
    try:
        return by_stem(sorted(p for p in folder.iterdir() if p.suffix.lower() == suffix and not p.name.startswith(".")))
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e


# --- lists of images ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """One line of a list: the image it names and the fields after the name."""

    image: Path
    line: int
    rest: tuple[str, ...] = ()


def read_list(path: Path, images: Mapping[str, Path], faults: list[Fault]) -> list[Listed]:
    """The images that a list names, one a line (with or without folder and suffix); what is wrong goes to `faults`."""
    out: list[Listed] = []
    seen: dict[Path, int] = {}
    for number, text in enumerate(read_text(path).split("\n"), start=1):
        cells = text.split()
        if not cells:
            continue
        try:
            name = safe_relative(cells[0]).name
        except ValueError as e:
            faults.append(Fault(path, number, str(e)))
            continue
        image = images.get(name) or images.get(name.rpartition(".")[0])
        if image is None:
            faults.append(Fault(path, number, f"names the image {name[:80]!r}, which is not among the images"))
        elif image in seen:
            faults.append(Fault(path, number, f"names {name[:80]!r} a second time (also on line {seen[image]})"))
        else:
            seen[image] = number
            out.append(Listed(image, number, tuple(cells[1:])))
    if not out and not faults:
        faults.append(Fault(path, None, "names no image"))
    return out


def finish(found: Mapping[str, Sequence[Entry]], faults: Sequence[Fault]) -> dict[str, list[Entry]]:
    """What was found, or all its faults together."""
    if faults:
        raise AnnotationError(faults, found)
    return {split: list(entries) for split, entries in found.items()}


# --- numbers -----------------------------------------------------------------------------------------------------------


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


def numbers(cells: Sequence[str], names: Sequence[str]) -> list[float]:
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


def extents(boxes: Array) -> Tensor:
    """The size of each object: the side of the square of equal area, √(w·h)."""
    return tensor(np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)))


# --- images without annotations ----------------------------------------------------------------------------------------


def hidden_entry(image: Path) -> Entry:
    """An image whose annotation its authors keep for themselves: no points, and `meta` says so."""
    return Entry(image.stem, image, None, _hidden)


def _hidden() -> Annotation:
    return Annotation(torch.zeros(0, 2), meta={"hidden": True})


def only_one(found: Sequence[Path], dataset: str, root: Path) -> Path | None:
    """The folder found; DataError when there are several and the user has to say which."""
    if len(found) > 1:
        some = ", ".join(str(p) for p in found[:3])
        raise DataError(f"{root}: {len(found)} copies of {dataset} here ({some}); give the folder of one of them")
    return found[0] if found else None


def held_out(count: int, fraction: float, seed: int) -> Collection[int]:
    """Indices of a seeded share: the draw that `splits.hold_out` begins with, which then looks for objects."""
    order = np.random.default_rng([seed, 3]).permutation(count)
    k = min(max(1, round(fraction * count)), count - 1)
    return set(order[:k].tolist())
