"""Anti-aliased drawing with NumPy: shapes are signed distances, and only an object's own window is touched.

A canvas is a float32 array [3, H, W] with values around 0…1. A shape's signed distance is negative inside; its coverage is
clip(½ − distance / soft, 0, 1), a ramp of `soft` pixels across the edge, so that coverage is symmetric about the centre and
its centroid is the centre to a small fraction of a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 at run time; the wider type is what NumPy's stubs infer for float32 × float
Colour = Sequence[float]


def blank(size: tuple[int, int], colour: Colour) -> Array:
    """A canvas [3, H, W] of one colour."""
    return np.ones((3, *size), np.float32) * rgb(colour)


def rgb(colour: Any) -> Array:
    """A colour as float32 [3, 1, 1], ready to broadcast over a canvas."""
    return np.asarray(colour, np.float32).reshape(3, 1, 1)


def grid(size: tuple[int, int]) -> tuple[Array, Array]:
    """Pixel centres of a whole image: x [1, W] and y [H, 1]."""
    h, w = size
    return np.arange(w, dtype=np.float32)[None, :] + 0.5, np.arange(h, dtype=np.float32)[:, None] + 0.5


def window(
    canvas: Array, x: float, y: float, left: float, right: float = 0, up: float = 0, down: float = 0
) -> tuple[Array, Array, Array]:
    """The part of a canvas [..., H, W] around (x, y), with dx [1, w] and dy [h, 1] measured from there; empty if outside.

    `left` alone is how far it reaches to every side.
    """
    if not (right or up or down):
        right = up = down = left
    h, w = canvas.shape[-2:]
    x0, x1 = max(int(np.floor(x - left)) - 1, 0), min(int(np.ceil(x + right)) + 1, w)
    y0, y1 = max(int(np.floor(y - up)) - 1, 0), min(int(np.ceil(y + down)) + 1, h)
    dx = np.arange(x0, x1, dtype=np.float32)[None, :] + (0.5 - x)
    dy = np.arange(y0, y1, dtype=np.float32)[:, None] + (0.5 - y)
    return canvas[..., y0 : max(y0, y1), x0 : max(x0, x1)], dx, dy


def turn(dx: Array, dy: Array, angle: float) -> tuple[Array, Array]:
    """Coordinates (u, v) along and across a direction, in radians."""
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    return dx * cos + dy * sin, dy * cos - dx * sin


def ellipse(u: Array, v: Array, a: float, b: float) -> Array:
    """Signed distance to an ellipse of half axes (a, b), first order: k(k − 1)/|∇| with k = |(u/a, v/b)|."""
    p, q = u / a, v / b
    k = np.sqrt(p * p + q * q)
    p, q = p / a, q / b
    slope = np.sqrt(p * p + q * q)
    distance: Array = k * (k - 1) / np.maximum(slope, 1e-6)
    # At the centre itself k and the slope both vanish: the distance there is −min(a, b).
    return np.where(k < 1e-3, np.float32(-min(a, b)), distance)


def disc(u: Array, v: Array, radius: float) -> Array:
    """Signed distance to a disc."""
    distance: Array = np.sqrt(u * u + v * v) - radius
    return distance


def box(u: Array, v: Array, a: float, b: float, radius: float = 0.0) -> Array:
    """Signed distance to a rectangle of half sides (a, b) with rounded corners."""
    p, q = np.abs(u) - (a - radius), np.abs(v) - (b - radius)
    outside = np.sqrt(np.maximum(p, 0) ** 2 + np.maximum(q, 0) ** 2)
    distance: Array = outside + np.minimum(np.maximum(p, q), 0) - radius
    return distance


def cover(distance: Array, soft: float = 1.0) -> Array:
    """Coverage of each pixel, 0…1, from the signed distance."""
    alpha: Array = np.clip(0.5 - distance / soft, 0, 1)
    return alpha


def blend(view: Array, alpha: Array, colour: Any) -> None:
    """Paint `colour` (three numbers or [3, h, w]) over a view in place: view ← view + alpha·(colour − view)."""
    shade = colour if isinstance(colour, np.ndarray) and colour.ndim == 3 else rgb(colour)
    view += alpha * (shade - view)


def smooth_noise(rng: np.random.Generator, size: tuple[int, int], cell: float) -> Array:
    """A smooth random field [H, W] in −1…1 whose bumps are about `cell` pixels wide (value noise, smoothstep between knots)."""
    h, w = size
    knots = rng.random((int(h / cell) + 3, int(w / cell) + 3), np.float32) * 2 - 1
    shift = rng.random(2)

    def weights(n: int, offset: float) -> tuple[NDArray[np.intp], Array]:
        position = np.arange(n) / cell + offset
        index = position.astype(np.intp)
        t = (position - index).astype(np.float32)
        return index, t * t * (3 - 2 * t)

    rows, t = weights(h, float(shift[0]))
    columns, s = weights(w, float(shift[1]))
    across = knots[:, columns] * (1 - s) + knots[:, columns + 1] * s
    field: Array = across[rows] * (1 - t)[:, None] + across[rows + 1] * t[:, None]
    return field


def texture(rng: np.random.Generator, size: tuple[int, int], cells: Sequence[float]) -> Array:
    """A sum of smooth fields from coarse to fine, each half as strong as the one before, about −1…1."""
    total = np.zeros(size, np.float32)
    for octave, cell in enumerate(cells):
        total += smooth_noise(rng, size, cell) * 0.5**octave
    return total


def to_bytes(canvas: Array) -> NDArray[np.uint8]:
    """uint8 [3, H, W] of a canvas."""
    levels: NDArray[np.uint8] = np.clip(canvas * 255 + 0.5, 0, 255).astype(np.uint8)
    return levels
