"""Marks on a picture: dots and rings at points, with smooth edges, sized to their spacing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.neighbours import spacing

Picture = NDArray[np.float32]  # [h, w, 3], 0 … 255
Colour = tuple[int, int, int]

PREDICTED: Colour = (255, 214, 10)  # yellow and blue stay apart for every kind of colour blindness
TRUTH: Colour = (64, 196, 255)
OUTLINE: Colour = (12, 12, 16)


def _places(points: Tensor, scale: float) -> Tensor:
    """Points [n, 2] on the canvas, without those that are nowhere."""
    xy = points.detach().cpu().float().reshape(-1, 2) * scale
    return xy[xy.isfinite().all(-1)]


def _radii(points: Tensor, canvas: Picture, radius: float | None) -> NDArray[np.float32]:
    """Radius of each mark in pixels of the canvas: a third of the way to its neighbours, within limits of the picture."""
    if radius is not None:
        return np.full(len(points), radius, dtype=np.float32)
    side = min(canvas.shape[:2])
    largest = max(2.5, side * 0.009)
    return (0.33 * spacing(points, 2, alone=1e9).numpy()).clip(1.3, largest).astype(np.float32)


def dots(canvas: Picture, points: Tensor, scale: float, colour: Colour, radius: float | None = None) -> None:
    """Filled dots with a dark rim, in place."""
    xy = _places(points, scale)
    radii = _radii(xy, canvas, radius)
    rim = np.clip(radii * 0.35, 0.6, 1.6)
    _stamp(canvas, xy.numpy(), np.zeros_like(radii), radii + rim, OUTLINE, 0.85)
    _stamp(canvas, xy.numpy(), np.zeros_like(radii), radii, colour, 1.0)


def rings(canvas: Picture, points: Tensor, scale: float, colour: Colour, radius: float | None = None) -> None:
    """Hollow rings with a dark rim, wide enough to show around a dot at the same place, in place."""
    xy = _places(points, scale)
    radii = _radii(xy, canvas, radius) * 1.9
    line = np.clip(radii * 0.22, 0.7, 2.0)
    rim = np.clip(line * 0.5, 0.4, 1.0)
    _stamp(canvas, xy.numpy(), radii - line - rim, radii + line + rim, OUTLINE, 0.7)
    _stamp(canvas, xy.numpy(), radii - line, radii + line, colour, 1.0)


def _stamp(
    canvas: Picture,
    xy: NDArray[np.float32],
    inner: NDArray[np.float32],
    outer: NDArray[np.float32],
    colour: Colour,
    opacity: float,
) -> None:
    """Paint the ring inner ≤ r ≤ outer around each point; a pixel is covered by how far it reaches into the ring.

    All marks of a layer make one coverage map (the largest wins), so overlapping marks stay even.
    """
    h, w = canvas.shape[:2]
    layer = torch.zeros(h * w)
    for some in _chunks(outer):
        x, y = xy[some, 0, None, None], xy[some, 1, None, None]
        within, beyond = inner[some, None, None], outer[some, None, None]
        reach = int(np.ceil(beyond.max())) + 1
        step = np.arange(-reach, reach + 1)
        columns = np.floor(x).astype(np.int64) + step[None, None, :]
        rows = np.floor(y).astype(np.int64) + step[None, :, None]
        distance = np.hypot(columns + 0.5 - x, rows + 0.5 - y)
        hole = np.where(within > 0, (distance - within + 0.5).clip(0, 1), 1.0)
        cover = (beyond - distance + 0.5).clip(0, 1) * hole
        seen = (columns >= 0) & (columns < w) & (rows >= 0) & (rows < h) & (cover > 0)
        where = torch.from_numpy((rows * w + columns)[seen])
        layer.scatter_reduce_(0, where, torch.from_numpy(cover[seen]).float(), "amax")
    weight = layer.reshape(h, w, 1).numpy() * opacity
    canvas *= 1 - weight
    canvas += weight * np.asarray(colour, dtype=np.float32)


def _chunks(radius: NDArray[np.float32]) -> Iterator[NDArray[np.int64]]:
    """Indices of marks of about one size together, few enough at a time to hold their pixels."""
    order = np.argsort(-radius)
    start = 0
    while start < len(order):
        area = (2 * np.ceil(radius[order[start]]) + 3) ** 2
        some = order[start : start + max(1, int((1 << 19) / area))]
        yield some
        start += len(some)
