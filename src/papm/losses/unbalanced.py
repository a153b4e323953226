"""The generalised loss (GL), AL-PAPM's cost inside it, and plain unbalanced transport.

Density z [m] and points (one unit of mass each) are matched by unbalanced transport Π (`papm.transport.unbalanced`), in
coordinates divided by 512, GL's crop:

    ℓ = UOT + w·(Σ_cells (Π1 - z)² + Σ_points |Πᵀ1 - 1|) + ε·mean(Π ln Π),    w = 0.1

Π is a constant times z in the last terms, as published; UOT's gradient is Danskin's. The cost is GL's `perspective`,
without the 4-px shift of its grid; or, for `gl-papm`, κ·(r/σ)²·exp((r²/2σ²)^(s/2)), at most 10ρ, since beyond 2ρ mass is
made and destroyed instead of moved. The paper gives no unit: by default κ makes the cost at r = σ that of `perspective` at
mid-height; κ = (σ/512)² is the literal reading. An image without points costs Σz in each of the three terms.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from papm import ggd
from papm.losses.base import LossContext, masked, with_gradient
from papm.losses.registry import register
from papm.losses.transport import TransportLoss, frame, pooled_stride, sum_pool
from papm.registry import AtLeastOne, NonNegative, Positive
from papm.structures import LossOutput, PointBatch
from papm.transport.costs import Anchor, Cost
from papm.transport.unbalanced import UnbalancedResult, unbalanced
from papm.transport.windows import cell_centres

UNIT = 512.0  # pixels to one unit of distance
LEAST = 1e-8  # people per cell; keeps the gradient of an empty map finite
CHUNK = 1 << 25  # entries of the dense cost held at once, which bounds the memory


@functools.lru_cache(maxsize=64)
def matched_kappa(sigma: float, shape: float) -> float:
    """κ for which κ·(r/σ)²·exp((r²/2σ²)^(s/2)) at r = σ is GL's cost exp(d/0.6) - 1 there.

    >>> round(matched_kappa(16.0, 2.0), 4)
    0.0324
    """
    return _perspective(sigma) * float(ggd.kernel(np.float64(sigma**2), sigma, shape))


def _perspective(r: float) -> float:
    """GL's cost exp(d/0.6) − 1 of r pixels at mid-height."""
    return math.expm1(r / UNIT / 0.6)


def gl(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    anchor: Anchor = "crop",
    reg: Positive = 0.01,
    rho: Positive = 0.5,
    w_pixel: NonNegative = 0.1,
    w_point: NonNegative = 0.1,
    w_entropy: NonNegative = 1.0,
    ot_stride: AtLeastOne = 8,
    context: LossContext | None = None,
) -> LossOutput:
    """GL: unbalanced transport at the perspective cost exp(d/η) − 1, with cell, point and entropy terms (Wan et al. 2021).

    Density [B, 1, h, w], points B × [n, 2]; d in units of 512 px. `anchor`: heights in the crop (published) or the image.

    >>> from papm.losses import functional
    >>> functional.gl(torch.full((1, 1, 2, 2), 0.25), [torch.tensor([[4.0, 4.0]])])
    tensor(0.0215)
    """
    weights = {"transport": 1.0, "pixel": w_pixel, "point": w_point, "entropy": w_entropy}
    cost = Cost("perspective", anchor=anchor, unit=UNIT)
    return _unbalanced(density, points, cost, reg, rho, weights, stride, ot_stride, context)


def gl_papm(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 16.0,
    shape: Positive = 2.0,
    kappa: Positive | None = None,
    reg: Positive = 0.01,
    rho: Positive = 0.5,
    w_pixel: NonNegative = 0.1,
    w_point: NonNegative = 0.1,
    w_entropy: NonNegative = 1.0,
    ot_stride: AtLeastOne = 8,
    context: LossContext | None = None,
) -> LossOutput:
    """GL-PAPM: `gl` at the GGD cost κ·(r/σ)²·exp((r²/2σ²)^(s/2)), at most 10ρ; κ None is `matched_kappa` (paper, Table 1).

    Density [B, 1, h, w], points B × [n, 2]; σ in input pixels.

    >>> from papm.losses import functional
    >>> functional.gl_papm(torch.full((1, 1, 2, 2), 0.25), [torch.tensor([[4.0, 4.0]])])
    tensor(0.0072)
    """
    weights = {"transport": 1.0, "pixel": w_pixel, "point": w_point, "entropy": w_entropy}
    factor = matched_kappa(sigma, shape) if kappa is None else kappa
    cost = Cost("ggd-l2", sigma, shape, scale=factor / sigma**2, cap=10 * rho)
    return _unbalanced(density, points, cost, reg, rho, weights, stride, ot_stride, context)


def uot(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 16.0,
    reg: Positive = 0.01,
    rho: Positive = 0.5,
    w_count: NonNegative = 1.0,
    ot_stride: AtLeastOne = 8,
    context: LossContext | None = None,
) -> LossOutput:
    """Plain unbalanced transport and count: UOT + w_count·|Σz − n|, at a cost c·r² whose value at σ is that of `gl`.

    Density z [B, 1, h, w], points B × [n, 2]; σ in input pixels (Chizat et al. 2018).

    >>> from papm.losses import functional
    >>> functional.uot(torch.full((1, 1, 2, 2), 0.25), [torch.tensor([[4.0, 4.0]])])
    tensor(0.0132)
    """
    cost = Cost("l2", scale=_perspective(sigma) / sigma**2, cap=10 * rho)
    weights = {"transport": 1.0, "count": w_count}
    return _unbalanced(density, points, cost, reg, rho, weights, stride, ot_stride, context)


def _unbalanced(
    density: Tensor,
    points: PointBatch,
    cost: Cost,
    reg: float,
    rho: float,
    weights: dict[str, float],
    stride: int,
    ot_stride: int,
    context: LossContext | None,
) -> LossOutput:
    ot_stride = pooled_stride(ot_stride, stride)
    pooled = sum_pool(masked(density, context, stride), ot_stride // stride)
    z, xy = pooled.flatten(1), points.xy.to(pooled)
    top, height = frame(cost, pooled, ot_stride, context)
    cells = cell_centres((pooled.shape[-2], pooled.shape[-1]), ot_stride, xy)
    step = max(1, CHUNK // max(1, xy.shape[1] * z.shape[1]))
    parts: list[dict[str, Tensor]] = []
    for s in (slice(k, k + step) for k in range(0, len(z), step)):
        table = cost.pairwise(xy[s], cells, None if top is None else top[s], None if height is None else height[s])
        result = unbalanced(points.valid[s].to(z), z[s].detach().clamp(min=0), table, reg, rho, least=LEAST)
        parts.append({k: with_gradient(value, z[s], gradient) for k, (value, gradient) in _terms(result).items()})
    total = z.sum(1)
    some = points.valid.any(1)
    empty = dict.fromkeys(("transport", "pixel", "point"), total.abs()) | {"entropy": torch.zeros_like(total)}
    terms = {k: torch.where(some, torch.cat([p[k] for p in parts]), empty[k]).mean() for k in empty}
    terms["count"] = (total - points.valid.sum(1).to(total)).abs().mean()
    return LossOutput.of(terms, {k: w for k, w in weights.items() if w})


@torch.no_grad()
def _terms(result: UnbalancedResult) -> dict[str, tuple[Tensor, Tensor]]:
    """Each term's value [B] and its derivative by the density [B, m]."""
    b, eps = result.b, result.reg
    counts = (result.a > 0).sum(1).clamp(min=1)
    missing = torch.where(result.a > 0, result.received() - 1, 0.0)  # Πᵀ1 of GL: what each point gets
    # With p = Π/z: Σp, Σ±p and Σ p·ln p of each cell.
    share, signed, entropy = result.sent(missing.sign())
    sent = share * b
    area = (counts * b.shape[1]).to(b)[:, None]
    some = b > 0
    logs = torch.where(some, entropy + share * b.clamp(min=torch.finfo(b.dtype).tiny).log(), 0.0)  # Σ p·ln Π
    return {
        "transport": (result.value, result.column_gradient),
        "pixel": ((sent - b).square().sum(1), 2 * (b - sent)),
        "point": (missing.abs().sum(1), signed),
        "entropy": (eps * (b * logs).sum(1) / area[:, 0], eps * (share + logs) / area),
    }


register("gl", gl, TransportLoss)
register("gl-papm", gl_papm, TransportLoss)
register("uot", uot, TransportLoss)
