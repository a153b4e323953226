"""The bytes of one ImageJ selection (`.roi`): what it marks, and a multi-point selection written.

Big-endian. A header of 64 bytes (`Iout`, version, type, bounds, number of points, options, where the second header is), whole
coordinates from the corner of the bounds, then, with sub-pixel resolution, the same as floats from the corner of the image. The
second header says where the counters of points are. As ij.io.RoiDecoder describes it.

Whole coordinates of points are indices of pixels, whose centres are meant: half a pixel is added. Those of areas lie between
pixels, as all floats do.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from papm.data.formats import shapes
from papm.data.formats.items import XY
from papm.data.readers.faults import coordinate

MAGIC = b"Iout"
MOST_POINTS = 65_535  # in one selection
MOST_COUNTERS = 100
_HEADER = struct.Struct(">4sh B x 4h H 4f h i 4x 4x h h 4x i i")  # 64 bytes
_POSITIONS = struct.Struct(
    ">4x 3i"
)  # the second header: channel, slice, frame; then from 30 the group, from 48 the counters
_POLYGON, _RECTANGLE, _OVAL, _FREEHAND, _TRACED, _POINT = 0, 1, 2, 7, 8, 10
_OTHERS = {3: "line", 4: "freehand line", 5: "segmented line", 6: "selection without anything", 9: "angle"}
_TEXT, _IMAGE = 1, 4  # subtypes
_SUB_PIXEL = 128
_UNSIGNED = -5000  # two bytes below that are a number above 32,767, as ImageJ reads them


@dataclass(frozen=True)
class Mark:
    """A point or the shape of an area; `kind` is the counter of a point, or the group of a selection."""

    shape: shapes.Shape
    kind: int
    counted: bool = False  # the file has counters


def marks(data: bytes) -> list[Mark]:
    """What a selection marks: every point of a multi-point one, or one area; ValueError says what is wrong with it."""
    if not data.startswith(MAGIC):
        raise ValueError("not a selection of ImageJ (it does not begin with 'Iout')")
    try:
        return _marks(data)
    except struct.error:
        raise ValueError("cut off or damaged") from None


def _marks(data: bytes) -> list[Mark]:
    _, version, kind, top, left, bottom, right, n, *corner, _, parts, subtype, options, slice_, second = (
        _HEADER.unpack_from(data)
    )
    top, left, bottom, right = (v + 65_536 if v < _UNSIGNED else v for v in (top, left, bottom, right))
    exact = bool(options & _SUB_PIXEL) and version >= 222
    group = _second(data, second, slice_)
    if parts > 0:
        raise ValueError("an area of several parts is no object with one place; split it (ROI Manager: More > Split)")
    if kind in _OTHERS or subtype in (_TEXT, _IMAGE):
        what = {_TEXT: "text", _IMAGE: "picture"}.get(subtype) or _OTHERS[kind]
        raise ValueError(f"a {what} cannot be read as a point; use points, rectangles, ovals or polygons")
    if kind in (_RECTANGLE, _OVAL):
        x, y, w, h = _finite(corner) if exact else (left, top, right - left, bottom - top)
        return [Mark(shapes.box(x, y, x + w, y + h), group)]
    if kind not in (_POLYGON, _FREEHAND, _TRACED, _POINT):
        raise ValueError(f"an unknown type of selection, {kind}")
    xy = _coordinates(data, n, left, top, exact)
    if kind != _POINT:
        return [Mark(shapes.polygon(xy), group)]
    half = 0.0 if exact else 0.5
    counters = _counters(data, second, n)
    kinds = [group] * n if counters is None else counters
    return [Mark(((x + half, y + half), None), k, counters is not None) for (x, y), k in zip(xy, kinds)]


def _coordinates(data: bytes, n: int, left: int, top: int, exact: bool) -> list[XY]:
    start, dtype = (_HEADER.size + 4 * n, ">f4") if exact else (_HEADER.size, ">i2")
    end = start + 2 * n * np.dtype(dtype).itemsize
    if n == 0 or end > len(data):
        raise ValueError(f"cut off or damaged: {n} points in {len(data)} bytes")
    x, y = np.frombuffer(data[start:end], dtype).astype(np.float64).reshape(2, n)
    if not exact:  # what is negative stands for the corner, as ImageJ reads it
        x, y = (np.where(v < _UNSIGNED, v + 65_536, v) for v in (x, y))
        x, y = left + np.maximum(x, 0), top + np.maximum(y, 0)
    return [(coordinate(a, "x"), coordinate(b, "y")) for a, b in zip(x.tolist(), y.tolist())]


def _finite(corner: Sequence[float]) -> list[float]:
    return [coordinate(v, name) for v, name in zip(corner, ("x", "y", "width", "height"))]


def _second(data: bytes, start: int, slice_: int) -> int:
    """The group; ValueError where the selection is not of the first picture of a stack."""
    group, places = 0, [slice_]
    if 0 < start <= len(data) - 64:
        places += _POSITIONS.unpack_from(data, start)[1:]
        group = data[start + 30]
    _require_first(max(places))
    return group


def _counters(data: bytes, start: int, n: int) -> list[int] | None:
    """The counter of each point, where the file has them."""
    if not 0 < start <= len(data) - 64:
        return None
    (at,) = struct.unpack_from(">i", data, start + 48)
    if not 0 < at <= len(data) - 4 * n:
        return None
    values: NDArray[np.uint32] = np.frombuffer(data[at : at + 4 * n], ">u4").astype(np.uint32)
    _require_first(int((values >> 8).max()))
    return [int(v) & 255 for v in values]


def _require_first(place: int) -> None:
    if place > 1:
        raise ValueError(f"lies on picture {place} of a stack, of which the first is read; save its pictures as files")


def multi_point(points: Sequence[XY], kinds: Sequence[int] | None) -> bytes:
    """A multi-point selection, exact to float32, with a counter for each point where `kinds` are given.

    >>> [m.shape[0] for m in marks(multi_point([(1.5, 2.25)], None))]
    [(1.5, 2.25)]
    """
    n, xy = len(points), np.array(points, dtype=np.float64).reshape(-1, 2).T
    low, high = np.clip(np.floor(xy.min(1)), 0, 65_535), np.clip(np.ceil(xy.max(1)), 0, 65_535)
    whole = np.clip(np.floor(xy) - low[:, None], 0, 32_767).astype(">i2")
    left, top, right, bottom = (int(v) - (65_536 if v > 32_767 else 0) for v in (*low, *high))
    second = _HEADER.size + 12 * n
    header = _HEADER.pack(
        *(MAGIC, 227, _POINT, top, left, bottom, right, n, 0, 0, 0, 0), *(0, 0, 0, _SUB_PIXEL, 0, second)
    )
    tail = bytearray(64)
    if kinds is not None:
        struct.pack_into(">i", tail, 48, second + 64)
        tail += np.array(kinds, dtype=">u4").tobytes()
    return b"".join((header, whole.tobytes(), xy.astype(">f4").tobytes(), tail))
