"""The point and the box that a drawn shape stands for.

    box                  its centre; the box
    circle, ellipse      its centre; the upright box around it
    polygon              its centroid (of the area; of the corners where there is no area); the upright box around it

A box without area is no size: then there is a point alone. Coordinates that are no numbers raise ValueError, which says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from papm.data.formats.items import XY, Box
from papm.data.readers.faults import coordinate

Shape = tuple[XY, Box | None]


def box(x1: float, y1: float, x2: float, y2: float) -> Shape:
    """A box from any two opposite corners.

    >>> box(4, 6, 0, 0)
    ((2.0, 3.0), (0, 0, 4, 6))
    """
    x1, x2 = min(x1, x2), max(x1, x2)
    y1, y2 = min(y1, y2), max(y1, y2)
    return ((x1 + x2) / 2, (y1 + y2) / 2), (x1, y1, x2, y2) if x2 > x1 and y2 > y1 else None


def ellipse(cx: float, cy: float, rx: float, ry: float, angle: float = 0.0) -> Shape:
    """An ellipse by its centre, half axes and rotation in radians; a circle when both axes are the same."""
    if rx < 0 or ry < 0:
        raise ValueError(f"a radius is negative, {min(rx, ry):g}")
    c, s = math.cos(angle), math.sin(angle)
    w, h = math.hypot(rx * c, ry * s), math.hypot(rx * s, ry * c)
    return (cx, cy), box(cx - w, cy - h, cx + w, cy + h)[1]


def polygon(corners: Sequence[XY]) -> Shape:
    """A polygon by its corners.

    >>> polygon([(0, 0), (4, 0), (4, 2), (0, 2)])
    ((2.0, 1.0), (0, 0, 4, 2))
    """
    if not corners:
        raise ValueError("a polygon has no corners")
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    around = box(min(xs), min(ys), max(xs), max(ys))[1]
    x0, y0 = corners[0]  # near the origin less is lost to rounding
    area = cx = cy = 0.0
    for (xa, ya), (xb, yb) in zip(corners, [*corners[1:], corners[0]]):
        cross = (xa - x0) * (yb - y0) - (xb - x0) * (ya - y0)
        area += cross
        cx += cross * (xa + xb - 2 * x0)
        cy += cross * (ya + yb - 2 * y0)
    if around is not None and abs(area) > 1e-9 * (around[2] - around[0]) * (around[3] - around[1]):
        x, y = x0 + cx / (3 * area), y0 + cy / (3 * area)
        if around[0] <= x <= around[2] and around[1] <= y <= around[3]:  # else it crosses itself
            return (x, y), around
    return (sum(xs) / len(xs), sum(ys) / len(ys)), around


def turned(shape: Shape, angle: float) -> Shape:
    """A box that was turned about its centre by so many radians: the upright box around it."""
    xy, box = shape
    if not angle or box is None:
        return shape
    c, s = abs(math.cos(angle)), abs(math.sin(angle))
    w, h = box[2] - box[0], box[3] - box[1]
    w, h = w * c + h * s, w * s + h * c
    return xy, (xy[0] - w / 2, xy[1] - h / 2, xy[0] + w / 2, xy[1] + h / 2)


def pairs(value: Any) -> list[XY]:
    """The corners that a JSON file gives as [[x, y], …]."""
    if not isinstance(value, list) or not all(isinstance(p, list) and len(p) == 2 for p in value):
        raise ValueError("'points' should be a list of [x, y]")
    return [(coordinate(x, "x"), coordinate(y, "y")) for x, y in value]


def rotated(x: float, y: float, w: float, h: float, degrees: float) -> list[XY]:
    """The corners of a box that was turned clockwise about its first corner (x, y)."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x + u * c - v * s, y + u * s + v * c) for u, v in ((0, 0), (w, 0), (w, h), (0, h))]
