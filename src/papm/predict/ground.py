"""From pixels of an image to coordinates of a map: a homography, as a matrix, of pairs of points, or of a world file.

(X, Y) = (u/w, v/w) with (u, v, w) = M·(x, y, 1). Pixels are papm's: the image's corner is (0, 0), the first pixel's centre
(½, ½). Where the camera looks over the ground, w changes its sign at the horizon: beyond it there is no place on the ground.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from papm.data.upright import as_stored
from papm.errors import DataError
from papm.text import Brief

Array = NDArray[np.float64]
LARGEST = 1_000_000  # bytes of a file with a matrix or pairs
FLAT = 1e-12  # of a matrix: a smaller determinant, of columns of length 1, maps all onto a line
APART = 1e-6  # of pairs, normalised: a smaller singular value leaves the matrix open
FARTHEST = 1e100  # coordinates of pairs: squares of larger ones overflow
NEAR = 1e-9  # how near the horizon a point has no place any more
FORMS = "three lines of three numbers (a matrix), or four lines or more of x, y, X, Y (pixels and map coordinates of a point)"


@dataclass(frozen=True, eq=False, repr=False)
class Homography(Brief):
    """Takes points of an image to a map."""

    matrix: Array  # [3, 3]
    side: float = 0.0  # the sign of w on the ground; 0: that of the middle of the image's lower border
    stored: bool = False  # of the pixels as they are stored, before EXIF turns them
    remark: str = ""  # how well it fits the pairs that it was made of

    def __post_init__(self) -> None:
        columns = np.linalg.norm(self.matrix, axis=0)
        if not np.isfinite(self.matrix).all() or columns.min() == 0:
            raise DataError("a homography is nine finite numbers, no column of them all zero")
        if abs(np.linalg.det(self.matrix / columns)) < FLAT:
            raise DataError("this homography maps the image onto a line or a point; check the numbers")

    def place(self, points: Array, size: tuple[int, int], file: Path | None = None) -> Array:
        """Points [n, 2] of the upright image of `size` (H, W) on the map; NaN for those at or beyond the horizon.

        >>> Homography(np.diag([2.0, 2.0, 1.0])).place(np.array([[3.0, 4.0]]), (10, 10)).tolist()
        [[6.0, 8.0]]
        """
        if self.stored and file is not None:
            points = as_stored(torch.from_numpy(points), file, size).numpy()
        height, width = size
        found = _homogeneous(points) @ self.matrix.T
        side = self.side or math.copysign(1.0, float(self.matrix[2] @ (width / 2, height, 1.0)))
        w = side * found[:, 2]
        seen = w > NEAR * float(np.abs(self.matrix[2]) @ (width, height, 1.0))
        with np.errstate(all="ignore"):
            made: Array = np.where(seen[:, None], side * found[:, :2] / w[:, None], math.nan)
        return made

    @staticmethod
    def read(path: str | Path) -> Homography:
        """From a file: a matrix, or pairs of points from which it is fitted; JSON, CSV or plain text."""
        path = Path(path)
        rows = _rows(path)
        shape = {len(row) for row in rows}
        try:
            if len(rows) == 3 and shape == {3}:
                return Homography(np.array(rows))
            if len(rows) >= 4 and shape == {4}:
                pairs = np.array(rows)
                return Homography.fit(pairs[:, :2], pairs[:, 2:])
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        raise DataError(f"{path}: holds {len(rows)} lines of {_several(shape)} numbers; a homography is {FORMS}")

    @staticmethod
    def fit(pixels: Array, places: Array) -> Homography:
        """The direct linear transform of n ≥ 4 pairs [n, 2], normalised: centre 0, mean distance √2.

        >>> square = np.array([[0.0, 0], [10, 0], [10, 10], [0, 10]])
        >>> Homography.fit(square, square * 3).place(np.array([[5.0, 2.0]]), (10, 10)).round(6).tolist()
        [[15.0, 6.0]]
        """
        if not (np.abs(pixels).max() < FARTHEST and np.abs(places).max() < FARTHEST):  # nor of one that is no number
            raise DataError(f"a coordinate of a pair is no number below {FARTHEST:g}")
        (a, to_a), (b, to_b) = _normalised(pixels), _normalised(places)
        p, zero = _homogeneous(a), np.zeros((len(a), 3))
        rows = np.concatenate([np.hstack([p, zero, -b[:, :1] * p]), np.hstack([zero, p, -b[:, 1:] * p])])
        _, values, basis = np.linalg.svd(np.linalg.qr(rows, mode="r"))  # [≤ 9, 9], however many pairs
        inner = basis[-1].reshape(3, 3)
        if values[7] < APART * values[0] or abs(np.linalg.det(inner)) < APART:
            raise DataError(
                "the pairs do not say where other points lie: three or more of them are on one line; spread them"
            )
        matrix = np.linalg.inv(to_b) @ inner @ to_a
        w = _homogeneous(pixels) @ matrix[2]
        if not ((w > 0).all() or (w < 0).all()):
            raise DataError("the pairs lie on both sides of a horizon: is one of them exchanged or mistyped?")
        made = Homography(matrix / np.abs(matrix).max(), math.copysign(1.0, w[0]))
        off = np.linalg.norm(made.place(pixels, (1, 1)) - places, axis=1)
        return Homography(made.matrix, made.side, remark=_remark(off))


def world_file(image: Path) -> Homography:
    """The world file beside an image (.tfw, .jgw, …): six lines A, D, B, E, C, F, where X = A·column + B·row + C and
    Y = D·column + E·row + F, column and row counted from 0 at the first pixel's centre.
    """
    suffix = image.suffix[1:].lower()
    names = [f"{suffix[:1]}{suffix[-1:]}w", f"{suffix}w", "wld"]
    found = [p for n in names for e in (n, n.upper()) if (p := image.with_suffix(f".{e}")).is_file()]
    if not found:
        raise DataError(f"{image}: has no world file ({', '.join(f'{image.stem}.{n}' for n in names)}) beside it")
    values = [v for row in _rows(found[0]) for v in row]
    if len(values) != 6:
        raise DataError(f"{found[0]}: a world file is six numbers, not {len(values)}")
    a, d, b, e, c, f = values
    try:
        return Homography(np.array([[a, b, c - (a + b) / 2], [d, e, f - (d + e) / 2], [0, 0, 1]]), 1.0, stored=True)
    except DataError as error:
        raise DataError(f"{found[0]}: {error}") from None


def _remark(off: Array) -> str:
    """How far the pairs are from their places."""
    if len(off) == 4:
        return "the homography fits four pairs exactly, whatever they are; give more to see how well it fits"
    rms, worst = math.sqrt(float((off**2).mean())), int(off.argmax())
    return (
        f"the homography misses its {len(off)} pairs by {rms:.3g} (root mean square, in map units),"
        f" at most {off[worst]:.3g} (pair {worst + 1})"
    )


def _homogeneous(points: Array) -> Array:
    return np.hstack([points, np.ones((len(points), 1))])


def _normalised(points: Array) -> tuple[Array, Array]:
    """Points with centre 0 and mean distance √2, and the matrix that makes them so."""
    centre = points.mean(0)
    spread = float(np.linalg.norm(points - centre, axis=1).mean())
    if spread == 0:
        raise DataError("all pairs are at one place")
    scale = math.sqrt(2) / spread
    matrix = np.array([[scale, 0, -scale * centre[0]], [0, scale, -scale * centre[1]], [0, 0, 1]])
    return (points - centre) * scale, matrix


def _rows(path: Path) -> list[list[float]]:
    """The numbers of a file, line by line: JSON, or text with commas, semicolons or blanks; # begins a remark."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is no text file; a homography is {FORMS}") from None
    if len(content) > LARGEST:
        raise DataError(f"{path}: is longer than {LARGEST:,} bytes; a homography is {FORMS}")
    if text.lstrip().startswith(("[", "{")):
        return _of_json(path, text)
    lines = [
        re.split(r"[,;\s]+", line.strip(" \t\r,;"))
        for line in (t.partition("#")[0] for t in text.splitlines())
        if line.strip()
    ]
    if lines and not any(map(_number, lines[0])):  # a heading
        del lines[0]
    return [[_value(path, word) for word in line] for line in lines]


def _of_json(path: Path, text: str) -> list[list[float]]:
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict):  # {"matrix": …} or {"pairs": …}
            value = value.get("matrix", value.get("pairs"))
        return [[_value(path, v) for v in row] for row in value]
    except (ValueError, TypeError, RecursionError):
        raise DataError(f"{path}: is no JSON list of lists of numbers; a homography is {FORMS}") from None


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _value(path: Path, word: Any) -> float:
    if isinstance(word, bool) or not isinstance(word, str | int | float) or not _number(str(word)):
        raise DataError(f"{path}: '{str(word)[:40]}' is not a number; a homography is {FORMS}")
    value = float(str(word))  # a whole number of 400 digits is infinite as text, and an error as it is
    if not math.isfinite(value):
        raise DataError(f"{path}: '{str(word)[:40]}' is not a finite number")
    return value


def _several(shape: set[int]) -> str:
    """
    >>> _several({4}), _several({3, 4}), _several(set())
    ('4', '3 to 4', 'no')
    """
    return "no" if not shape else str(min(shape)) if len(shape) == 1 else f"{min(shape)} to {max(shape)}"
