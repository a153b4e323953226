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
CLASSES: tuple[Colour, ...] = (
    PREDICTED,
    (255, 82, 200),
    (80, 230, 120),
    (255, 140, 20),
    (190, 140, 255),
    (240, 240, 240),
)
OUTLINE: Colour = (12, 12, 16)


def class_colour(number: int) -> Colour:
    """The colour of the dots of a class."""
    return CLASSES[number % len(CLASSES)]


def radii(points: Tensor, scale: float, canvas: Picture, share: float = 1.0) -> NDArray[np.float32]:
    """Radius of each mark in pixels of the canvas: a quarter of the way to its neighbours, within limits of the picture; or a
    `share` of that."""
    xy = torch.nan_to_num(points.detach().cpu().float().reshape(-1, 2) * scale, nan=1e9, posinf=1e9, neginf=-1e9)
    largest = max(3.6, max(canvas.shape[:2]) * 0.0065)
    return (share * 0.28 * spacing(xy, 2, alone=1e9).numpy()).clip(1.5, share * largest).astype(np.float32)


def _placed(
    canvas: Picture, points: Tensor, scale: float, radius: float | NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Points [n, 2] on the canvas and their radii, without those that are nowhere."""
    xy = points.detach().cpu().float().reshape(-1, 2) * scale
    sizes = radii(points, scale, canvas) if radius is None else np.broadcast_to(np.float32(radius), len(xy))
    there = xy.isfinite().all(-1).numpy()
    return xy.numpy()[there], sizes[there]


def dots(
    canvas: Picture, points: Tensor, scale: float, colour: Colour, radius: float | NDArray[np.float32] | None = None
) -> None:
    """Filled dots with a dark rim, in place."""
    xy, sizes = _placed(canvas, points, scale, radius)
    rim = np.clip(sizes * 0.35, 0.6, 1.6)
    _stamp(canvas, xy, np.zeros_like(sizes), sizes + rim, OUTLINE, 0.85)
    _stamp(canvas, xy, np.zeros_like(sizes), sizes, colour, 1.0)


def rings(
    canvas: Picture, points: Tensor, scale: float, colour: Colour, radius: float | NDArray[np.float32] | None = None
) -> None:
    """Hollow rings with a dark rim, wide enough to show around a dot at the same place, in place."""
    xy, sizes = _placed(canvas, points, scale, radius)
    wide = sizes * 1.9
    line = np.clip(wide * 0.22, 0.7, 2.0)
    rim = np.clip(line * 0.5, 0.4, 1.0)
    _stamp(canvas, xy, wide - line - rim, wide + line + rim, OUTLINE, 0.7)
    _stamp(canvas, xy, wide - line, wide + line, colour, 1.0)


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
