"""What the looks share: the options of a scene, its layout (the exact truth), and how objects are scattered.

A scene is made in two steps. `layout` decides where every object is and how large; it touches no pixel and is the truth.
`paint` draws that layout. Each step has random streams of its own, so that the same scene can be painted with and without
its objects, or with other noise, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papm.data.scenes.canvas import Array
from papm.text import Brief

Floats = NDArray[np.float64]
# Positions are multiples of 1/64 pixel: exact in float32, and the same however a platform's libm rounds the last bit.
GRID = 64
STREAMS = ("layout", "background", "objects", "clutter", "noise")
SPLITS = ("train", "test", "val")


@dataclass(frozen=True)
class Key:
    """What the randomness of one scene is derived from."""

    seed: int
    split: str
    index: int

    def rng(self, stream: str) -> np.random.Generator:
        """The generator of one step of this scene: PCG64 seeded by (seed; split, index, step)."""
        place = (SPLITS.index(self.split), self.index, STREAMS.index(stream))
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=place)))


@dataclass(frozen=True)
class Style:
    """The options of a scene that a look draws by; `extent` is the typical object size in pixels."""

    size: tuple[int, int]
    extent: float
    variation: float
    clutter: float
    occlusion: float
    noise: float


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Brief):
    """Where the objects are, exactly; in drawing order.

    An object is an ellipse or a rounded rectangle with full axes `axes` (along and across its direction `angles`), about
    `centres`. `corner` is the rounding of a rectangle's corners as a fraction of the shorter axis, or None for ellipses.
    `ground` holds what the look needs to paint its background.
    """

    centres: Floats  # [n, 2]
    axes: Floats  # [n, 2]
    angles: Floats  # [n], radians
    corner: float | None = None
    ground: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "centres", np.floor(self.centres.reshape(-1, 2) * GRID) / GRID)
        object.__setattr__(self, "axes", np.maximum(np.rint(self.axes.reshape(-1, 2) * GRID), 1) / GRID)

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def extents(self) -> Floats:
        """[n] size of each object: √(length · width), so that an ellipse has the area of a disc of that diameter."""
        size: Floats = np.sqrt(self.axes.prod(1))
        return size

    @property
    def boxes(self) -> Floats:
        """[n, 4] the axis-parallel box around each whole object, also where it reaches over the image's border."""
        cos, sin = np.abs(np.cos(self.angles))[:, None], np.abs(np.sin(self.angles))[:, None]
        a, b = self.axes[:, :1] / 2, self.axes[:, 1:] / 2
        if self.corner is None:
            half = np.hstack([np.sqrt((a * cos) ** 2 + (b * sin) ** 2), np.sqrt((a * sin) ** 2 + (b * cos) ** 2)])
        else:
            r = 2 * np.minimum(a, b) * self.corner
            half = np.hstack([(a - r) * cos + (b - r) * sin + r, (a - r) * sin + (b - r) * cos + r])
        return np.hstack([self.centres - half, self.centres + half])


@dataclass(frozen=True)
class Look:
    """One kind of picture: its usual object size, how it is laid out and how it is painted."""

    name: str
    extent: float  # pixels, when the user names none
    layout: Callable[[Style, int, np.random.Generator], Layout]
    paint: Callable[[Style, Layout, Key, bool], Array]  # the flag: with the objects, or all but them


def scatter(
    n: int, propose: Callable[[int], Floats], clash: Callable[[Floats, Floats], NDArray[np.bool_]]
) -> Floats | None:
    """n candidates no two of which clash, by throwing darts; None when they do not fit within some batches of up to 128.

    `propose(m)` gives candidates [m, k]; `clash(a, b)` says which rows of a and b exclude each other, bool [m, p].
    """
    kept = propose(0)
    for _ in range(60 + n // 8):
        if len(kept) >= n:
            break
        batch = propose(min(max(n, 16), 128))
        if len(kept):
            batch = batch[~clash(batch, kept).any(1)]
        hits = clash(batch, batch)
        chosen: list[int] = []
        for i in range(len(batch)):
            if not hits[i, chosen].any():
                chosen.append(i)
        kept = np.vstack([kept, batch[chosen[: n - len(kept)]]])
    return kept if len(kept) >= n else None


def scatter_smaller(
    n: int,
    extent: float,
    scale: float,
    propose: Callable[[float, int], Floats],
    clash: Callable[[Floats, Floats], NDArray[np.bool_]],
) -> tuple[Floats, float]:
    """`scatter` of objects of the typical size extent·scale, a tenth smaller until they fit; and the size they have."""
    while (found := scatter(n, partial(propose, extent * scale), clash)) is None:
        scale *= 0.9
    return found, extent * scale


def spots(rng: np.random.Generator, size: tuple[int, int], top: float = 0.0) -> Floats:
    """A few hot spots of an uneven crowd: rows (x, y, spread_x, spread_y), below `top`."""
    h, w = size
    k = int(rng.integers(2, 5))
    x, y = rng.random(k) * w, top + rng.random(k) * (h - top)
    return np.stack([x, y, (0.08 + 0.14 * rng.random(k)) * w, (0.06 + 0.12 * rng.random(k)) * (h - top)], 1)


def clumped(rng: np.random.Generator, m: int, size: tuple[int, int], hot: Floats, share: float, top: float) -> Floats:
    """m positions [m, 2] inside the image below `top`: a `share` of them around the hot spots, the rest anywhere."""
    h, w = size
    anywhere = np.stack([rng.random(m) * w, top + rng.random(m) * (h - top)], 1)
    spot = hot[rng.integers(0, len(hot), m)]
    near = spot[:, :2] + rng.standard_normal((m, 2)) * spot[:, 2:]
    good = (rng.random(m) < share) & (near[:, 0] >= 0) & (near[:, 0] < w) & (near[:, 1] >= top) & (near[:, 1] < h)
    return np.where(good[:, None], near, anywhere)


def fit(size: tuple[int, int], n: int, extent: float, fill: float) -> float:
    """The factor ≤ 1 by which objects shrink so that n of them fill at most the fraction `fill` of the image."""
    return float(min(1.0, np.sqrt(fill * size[0] * size[1] / (max(n, 1) * extent**2))))
