"""Moving points: cropping, flipping, and displacing them as an imprecise annotator would."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm import ggd
from papm.errors import ConfigError, unknown
from papm.neighbours import nearest as nearest
from papm.neighbours import spacing as spacing
from papm.structures import PointBatch

DisplacementKind = Literal["ring", "disc", "gaussian", "ggd"]
EdgeRule = Literal["redraw", "clip", "drop", "free"]
Blunder = Literal["missed", "doubled"]
AGAIN = 4.0  # px along x and along y, σ of the way from a click to a second one on the same object


def inside(points: Tensor, size: tuple[int, int]) -> Tensor:
    """bool [n]: points with 0 ≤ x < W and 0 ≤ y < H, for size (H, W)."""
    x, y = points[..., 0], points[..., 1]
    return (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])


def flip(points: Tensor, width: float) -> Tensor:
    """Points after a left-right flip of an image of that width: x → W - x (pixel centres map to pixel centres).

    >>> flip(torch.tensor([[0.5, 3.0]]), width=8)
    tensor([[7.5000, 3.0000]])
    """
    return torch.stack([width - points[..., 0], points[..., 1]], -1)


def crop(points: Tensor, corner: tuple[float, float], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Points of the window with that (x, y) corner and (H, W) size, in its coordinates; and the index of those kept."""
    moved = points - points.new_tensor(corner)
    keep = inside(moved, size).nonzero()[:, 0]
    return moved[keep], keep


def batch_spacing(xy: Tensor, valid: Tensor, neighbours: int = 3) -> Tensor:
    """`spacing` of a padded batch [B, N, 2], [B, N] on any device, without waiting for it; infinite for a point alone.

    >>> batch_spacing(torch.tensor([[[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]]), torch.tensor([[True, True, False]]))[:, :2]
    tensor([[5., 5.]])
    """
    n = xy.shape[1]
    k = min(neighbours, n - 1)
    if k < 1:
        return torch.full_like(xy[..., 0], torch.inf)
    x, y = xy.float().unbind(-1)
    r = ((x[:, :, None] - x[:, None]) ** 2 + (y[:, :, None] - y[:, None]) ** 2).sqrt()
    r = r + torch.diag(torch.full_like(r[0, 0], torch.inf))
    near = r.masked_fill(~valid[:, None], torch.inf).topk(k, dim=-1, largest=False).values
    real = near < torch.inf
    mean = near.masked_fill(~real, 0.0).sum(-1) / real.sum(-1).clamp(min=1)
    return torch.where(real.any(-1), mean, torch.inf)


def _offsets(
    n: int, amount: NDArray[np.float64], kind: str, shape: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    if kind == "ring":
        r = amount
    elif kind == "disc":
        r = amount * np.sqrt(rng.uniform(size=n))
    elif kind == "gaussian":
        r = ggd.radius(rng.standard_exponential(n), amount, 2.0)
    else:
        r = ggd.radius(rng.standard_gamma(2 / shape, n), amount, shape)
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], -1)


def _outside(points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Judged after rounding to float32, the precision points are kept in."""
    return ~inside(torch.from_numpy(points.astype(np.float32)), size).numpy()


def displace(
    points: Tensor,
    size: tuple[int, int],
    amount: float,
    kind: DisplacementKind,
    rng: np.random.Generator,
    *,
    extents: Tensor | None = None,
    shape: float = 8.0,
    edge: EdgeRule = "redraw",
) -> tuple[Tensor, Tensor]:
    """Move every point at random; returns the moved points and the index of those kept.

    `amount` in pixels is the radius of a `ring` (fixed distance, uniform angle) or `disc` (uniform inside), or the σ of a
    `gaussian` (per axis) or `ggd` of exponent `shape`; with `extents` it is a fraction of each object's size. What falls
    outside the image (H, W) is drawn again (at most 100 times, then dropped), clipped to the border, dropped, or left.
    The published noise study does not say; `redraw` keeps the count and plants no points on borders.
    """
    if kind not in get_args(DisplacementKind):
        raise unknown("displacement", kind, get_args(DisplacementKind))
    if edge not in get_args(EdgeRule):
        raise unknown("edge rule", edge, get_args(EdgeRule))
    if not (np.isfinite(amount) and amount >= 0):
        raise ConfigError(f"a displacement must be a finite number of pixels ≥ 0, not {amount}")
    start = points.detach().cpu().numpy().astype(np.float64).reshape(-1, 2)
    n = len(start)
    radius = (
        np.full(n, float(amount)) if extents is None else amount * extents.detach().cpu().numpy().astype(np.float64)
    )
    moved = start + _offsets(n, radius, kind, shape, rng)
    if edge == "redraw":
        for _ in range(100):
            bad = np.flatnonzero(_outside(moved, size))
            if not len(bad):
                break
            moved[bad] = start[bad] + _offsets(len(bad), radius[bad], kind, shape, rng)
    elif edge == "clip":
        upper = np.nextafter(np.array([size[1], size[0]], dtype=np.float32), np.float32(0))
        moved = np.clip(moved, 0, upper.astype(np.float64))
    keep = np.arange(n) if edge == "free" else np.flatnonzero(~_outside(moved, size))
    return torch.from_numpy(moved[keep].astype(np.float32)), torch.from_numpy(keep)


def blunder(
    points: Tensor, size: tuple[int, int], share: float, kind: Blunder, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Leave out, or give a second dot some pixels (σ = `AGAIN`) away, each point with the chance `share`; the points and the
    index of the point that each belongs to.

    Who is chosen with a small share is among those chosen with a larger one.

    >>> xy = torch.full((1000, 2), 50.0)
    >>> [len(blunder(xy, (100, 100), 0.1, kind, np.random.default_rng(0))[0]) for kind in ("missed", "doubled")]
    [911, 1089]
    """
    chosen = torch.from_numpy(rng.random(len(points)) < share)
    if kind == "missed":
        return points[~chosen], (~chosen).nonzero()[:, 0]
    found = chosen.nonzero()[:, 0]
    second, kept = displace(points[found], size, AGAIN, "gaussian", rng)
    return torch.cat([points, second.to(points)]), torch.cat([torch.arange(len(points)), found[kept]])


def as_batch(points: list[Tensor] | tuple[Tensor, ...] | PointBatch, device: torch.device) -> PointBatch:
    """A padded batch on `device` from either form the losses accept."""
    if isinstance(points, PointBatch):
        if points.xy.dtype in (torch.float16, torch.bfloat16):
            points = replace(points, xy=points.xy.float())
        return points if points.xy.device == device else points.to(device)
    return PointBatch.from_list(points, device)
