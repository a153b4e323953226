"""From a step's number to the crops of its batch, on the host; `papm.data.crops` makes their pixels.

Batch k is a pure function of (seed, k, rank): resuming, both data paths and distributed training agree on it. The plan is
one small float tensor, so that a step costs one copy to the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from papm import imagenet
from papm.graphs import round_up
from papm.text import Brief

HEAD = 8  # numbers of a plan's row before its points: image, x, y, scale, turn, grey, contrast, brightness
# A turn is the sum of: 1 left becomes right, 2 top becomes bottom, 4 then rows become columns; 0 to 7 are all eight ways to
# lay a square crop.


@dataclass(frozen=True)
class Augment:
    """What may happen to a crop; the fields mean what they mean in `config.TrainConfig`."""

    crop: int
    flip: float = 0.5
    turn: bool = False
    grey: float = 0.0
    colour: float = 0.0
    scale_min: float = 1.0
    scale_max: float = 1.0
    scale_share: float = 1.0
    positions: str = "border"
    margin: int = 0
    halo: float = 0.0  # points this far outside the crop travel along, for targets that reach across its border
    labelled: bool = False  # the class of each point travels along
    mean: tuple[float, float, float] = imagenet.MEAN  # of the network: crops are (pixel/255 − mean)/std
    std: tuple[float, float, float] = imagenet.STD

    @property
    def columns(self) -> int:
        """Numbers of a point: x, y, extent and, where wanted, its class."""
        return 4 if self.labelled else 3

    @property
    def resizes(self) -> bool:
        """Whether a crop may be of another scale than its image."""
        return (self.scale_min != 1 or self.scale_max != 1) and self.scale_share > 0


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Brief):
    """A batch before its pixels: `rows` [B, HEAD + columns·N] and how many points each crop has inside and in all."""

    rows: Tensor  # the HEAD numbers, then N × (x, y, extent[, class]); points of the crop first, then its halo
    counts: Tensor  # [B, 2] float: points inside the crop, points in all

    def to(self, device: torch.device) -> Plan:
        """The same plan on another device."""
        return Plan(self.rows.to(device, non_blocking=True), self.counts.to(device, non_blocking=True))

    def pin_memory(self) -> Plan:
        """The same plan in memory that a GPU copies from without waiting."""
        return Plan(self.rows.pin_memory(), self.counts.pin_memory())


def sample_order(seed: int, first: int, count: int, images: int) -> np.ndarray:
    """Image indices of samples first … first+count-1 of an endless shuffled sequence in which every epoch sees all once."""
    out = np.empty(count, dtype=np.int64)
    for k in range(count):
        epoch, place = divmod(first + k, images)
        out[k] = _permutation(seed, epoch, images)[place]
    return out


@functools.lru_cache(8)
def _permutation(seed: int, epoch: int, images: int) -> np.ndarray:
    order = np.random.default_rng([seed, epoch, 1]).permutation(images)
    order.flags.writeable = False  # it is shared
    return order


def plan(
    step: int,
    augment: Augment,
    sizes: Sequence[tuple[int, int]],
    points: Sequence[np.ndarray],
    *,
    seed: int,
    batch: int,
    rank: int = 0,
    world: int = 1,
    turns: Sequence[int] | None = None,
) -> Plan:
    """Decide the crops of a step. `points` are arrays [n, 3] (x, y, extent), or [n, 4] with the class if the crops are to be
    labelled, inside their images; `sizes` are their (H, W). `turns`: the images of an epoch, where some come more than once.

    An image smaller than the crop is placed at random inside it. In a larger one crops may reach beyond its border and are
    then moved inside, at most a sixth of them at each end: drawn uniformly they would show the outermost pixels an eighth as
    often as the middle, and counts come out too low there (docs/notebook/counts-too-low.md); `positions="uniform"` does so.
    """
    first = (step * world + rank) * batch
    order = sample_order(seed, first, batch, len(sizes if turns is None else turns))
    order = order if turns is None else np.asarray(turns)[order]
    heads = np.zeros((batch, HEAD), dtype=np.float32)
    inner: list[np.ndarray] = []
    outer: list[np.ndarray] = []
    for b, image in enumerate(order):
        height, width = sizes[image]
        # Keyed by the sample's place in the whole sequence: two processes of four crops see what one of eight sees.
        rng = np.random.default_rng([seed, first + b, 2])
        s = math.exp(rng.uniform(math.log(augment.scale_min), math.log(augment.scale_max)))
        # Always the same number of draws a sample, so that one option does not shift the others' randomness.
        u, v, flip, grey, contrast, brightness, way, native = rng.uniform(size=8)
        s = s if native < augment.scale_share else 1.0
        # In float32, as `cut_crops` rounds them: both must agree on the size of the scaled image.
        h, w = (max(1, int(np.rint(np.float32(side) * np.float32(s)))) for side in (height, width))
        border = augment.positions == "border"
        x = _corner(u, w, augment.crop, augment.margin, border)
        y = _corner(v, h, augment.crop, augment.margin, border)
        more, lighter = 1 + augment.colour * (2 * contrast - 1), augment.colour * (brightness - 0.5)
        turn = int(way * 8) if augment.turn else int(flip < augment.flip)
        heads[b] = image, x, y, s, turn, grey < augment.grey, more, lighter
        near, far = _crop_points(points[image], (x, y), s, (w, h), turn, augment)
        inner.append(near)
        outer.append(far)
    counts = np.array([[len(p), len(p) + len(q)] for p, q in zip(inner, outer)], dtype=np.float32)
    length = round_up(int(counts[:, 1].max(initial=0)))  # one of few, so that a GPU sees few shapes
    rows = np.zeros((batch, HEAD + augment.columns * length), dtype=np.float32)
    rows[:, :HEAD] = heads
    for b, (p, q) in enumerate(zip(inner, outer)):
        both = np.concatenate([p, q]).reshape(-1)
        rows[b, HEAD : HEAD + len(both)] = both
    return Plan(torch.from_numpy(rows), torch.from_numpy(counts))


def _corner(u: float, length: int, crop: int, margin: int, border: bool = True) -> int:
    low, high = -margin, length - crop + margin
    if high <= low:  # the image and its margins are no larger than the crop
        return high + min(int(u * (low - high + 1)), low - high)
    beyond = (
        min(crop // 2, (high - low) // 4) if border else 0
    )  # more would put most crops of a small image on two places
    return min(max(low, low - beyond + int(u * (high - low + 2 * beyond + 1))), high)


def _crop_points(
    points: np.ndarray, corner: tuple[int, int], scale: float, size: tuple[int, int], turn: int, augment: Augment
) -> tuple[np.ndarray, np.ndarray]:
    """Points of the loss's part of a crop, and those around it within the halo, as [n, columns] (x, y, extent, class).

    `corner` is (x, y) of the crop in the scaled image, whose `size` is (W, H).
    """
    p = points[:, : augment.columns].copy()
    p[:, :3] *= np.float32(scale)
    start, sides = list(corner), list(size)
    for axis in (0, 1):
        p[:, axis] -= start[axis]
        if turn & (1 << axis):
            p[:, axis] = augment.crop - p[:, axis]
            start[axis] = sides[axis] - augment.crop - start[axis]
    if turn & 4:
        p[:, :2] = p[:, 1::-1].copy()
        start, sides = start[::-1], sides[::-1]
    # The scaled size is rounded, and a flip takes x = 0 to the far edge, which no longer counts as inside.
    first = np.array(start, dtype=p.dtype)
    edge = np.nextafter(np.array(sides, dtype=p.dtype) - first, p.dtype.type(-np.inf))
    p[:, :2] = np.clip(p[:, :2], -first, edge)
    low, high = augment.margin, augment.crop - augment.margin
    xy = p[:, :2]
    near = ((xy >= low) & (xy < high)).all(1)
    far = ((xy >= low - augment.halo) & (xy < high + augment.halo)).all(1) & ~near
    return p[near], p[far]
