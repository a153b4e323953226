"""The text files of the NWPU-Crowd localization task, one line per image:

    predictions     id n x y x y …
    ground truth    id n x y σ_s σ_l level x y σ_s σ_l level …
    counts          id count                                        (of the counting task)

`id` is the number of the image, n the number of points on the line, coordinates are pixels of the original image, level is
0 to 5. The benchmark writes whole numbers; fractions are read too. Parsing is strict: a line whose numbers do not add up,
an image given twice or a prediction for an image that the ground truth lacks is refused, with file and line. An image
without a line of predictions has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from papm.data.readers.faults import MAX_COORDINATE, read_text
from papm.data.readers.numbers import Array, numbers, whole
from papm.errors import DataError
from papm.files import write_text
from papm.text import Brief

MAX_LEVEL = 5
MAX_COUNT = 1e9


@dataclass(frozen=True, eq=False, repr=False)
class Objects(Brief):
    """The annotated objects of one image."""

    points: Array  # [n, 2]
    sigma_s: Array  # [n] min(w, h) / 2 of the box
    sigma_l: Array  # [n] half its diagonal
    levels: NDArray[np.int64]  # [n] order of magnitude of its area

    def __len__(self) -> int:
        return len(self.points)


def read_predictions(path: str | Path, images: Collection[int] | None = None) -> dict[int, Array]:
    """Predicted points [n, 2] by image; with `images` given, a line for any other is refused."""
    path = Path(path)
    found: dict[int, Array] = {}
    for line, image, values in _lines(path, 2):
        if images is not None and image not in images:
            raise DataError(
                f"{path}:{line}: image {image} is not in the ground truth; remove this line, or check the files"
            )
        found[image] = values
    return found


def read_ground_truth(path: str | Path) -> dict[int, Objects]:
    """Annotated objects by image, in the order of the file."""
    path = Path(path)
    found: dict[int, Objects] = {}
    for line, image, values in _lines(path, 5):
        sigma, level = values[:, 2:4], values[:, 4]
        if (sigma < 0).any():
            raise DataError(f"{path}:{line}: σ is {float(sigma.min()):g}; it is a distance in pixels, 0 or more")
        wrong = (level != np.floor(level)) | (level < 0) | (level > MAX_LEVEL)
        if wrong.any():
            raise DataError(
                f"{path}:{line}: level is {float(level[wrong][0]):g}, not a whole number from 0 to {MAX_LEVEL}"
            )
        found[image] = Objects(values[:, :2], sigma[:, 0], sigma[:, 1], level.astype(np.int64))
    if not found:
        raise DataError(f"{path}: no images; each line is 'id n', then 'x y σ_s σ_l level' for each of n objects")
    return found


def write_predictions(path: str | Path, predictions: Mapping[int, ArrayLike | Tensor]) -> None:
    """Write points [n, 2] by image, in order of image, rounded to whole pixels, as the server takes them."""
    lines = []
    for image, points in sorted(predictions.items()):
        values = points.detach().cpu().numpy() if isinstance(points, Tensor) else points
        table = np.asarray(values, dtype=np.float64).reshape(-1, 2)
        if not bool((np.abs(table) <= MAX_COORDINATE).all()):
            raise DataError(f"image {image} has a value that is no pixel coordinate; leave such points out")
        cells = [_number(image), str(len(table)), *(str(round(v)) for v in table.flatten().tolist())]
        lines.append(" ".join(cells) + "\n")
    write_text(Path(path), "".join(lines))


def write_counts(path: str | Path, counts: Mapping[int, float]) -> None:
    """Write the count of each image, in order of image; not rounded to whole numbers, as the server takes them."""
    lines = []
    for image, count in sorted(counts.items()):
        if not 0 <= count < MAX_COUNT:  # NaN too
            raise DataError(f"image {image} has the count {count}, which is not a number of objects")
        lines.append(f"{_number(image)} {count:.4f}\n")
    write_text(Path(path), "".join(lines))


def image_id(name: str) -> int:
    """The number of an image from its name: `images/3110.jpg` is 3110."""
    if (number := whole(Path(name).stem)) is None:
        raise DataError(f"{name}: the name of an image of NWPU-Crowd is its number, such as 3110.jpg")
    return number


def _lines(path: Path, width: int) -> Iterator[tuple[int, int, Array]]:
    """Line number, image and values [n, width] of each line that is not blank."""
    seen: dict[int, int] = {}
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        cells = text.split()
        if not cells:
            continue
        where = f"{path}:{line}"
        if (image := whole(cells[0])) is None:
            raise DataError(f"{where}: the line begins with {cells[0][:40]!r}, not with the number of an image")
        if image in seen:
            raise DataError(f"{where}: image {image} was given on line {seen[image]} already; keep one of the two")
        seen[image] = line
        n, rest = whole(cells[1]) if len(cells) > 1 else None, cells[2:]
        if n is None:
            got = repr(cells[1][:40]) if len(cells) > 1 else "missing"
            raise DataError(f"{where}: the number of points of image {image} is {got}; write 'id n' first")
        if len(rest) != n * width:
            raise DataError(
                f"{where}: {n} points need {n * width} numbers after the count ({width} each), there are {len(rest)}"
            )
        try:
            values = numbers(rest, (f"value {k}" for k in itertools.count(3)))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        yield line, image, np.array(values, dtype=np.float64).reshape(n, width)


def _number(image: int) -> str:
    if not 0 <= image < 10**9:
        raise DataError(f"{image} cannot be the number of an image; use 0 to 999999999")
    return str(image)
