"""The transport losses: DM-Count and AL-PAPM, and the counting part they share (SC).

    ℓ = w_ot · OT(points, density) + |Σz - n| + w_tv · n·‖z/Σz - dots/n‖₁

OT moves the normalised density z/Σz onto the points, at cost r² (DM-Count) or r²·exp((r²/2σ²)^(s/2)) (AL-PAPM), in input
pixels, with ε = 10, 100 iterations and the published dustbin (`papm.transport.reference`). Its gradient is Danskin's, not
that of the iterations: with potentials β of the cells and Z = Σz,

    ∂OT/∂z = β·Z/(Z² + 1e-8) - ⟨z, β⟩/(Z² + 1e-8)

The term that is logged is the transport value ⟨C, T⟩ in px². All terms are means over images; the published weight of OT,
0.1 *summed* over a batch of 10 whose other terms are averaged, is 1.0 here. `published=True` is the published sum.

∂OT/∂z goes with 1/Z, that of the count is ±1: where crops are sparse, transport outweighs the count, and counts come out too
low (docs/notebook/counts-too-low.md). `mass` multiplies OT by Z/mass where that is below 1, a constant to the gradient.

Even so, OT pushes each cell far from all points down by more than the count pulls it up. It is indifferent to the sum of z, but
not to what all cells have in common, and that goes down: counts come out too low once more. With `keeps` no cell is asked for
less while the count is too low: OT's gradient is cut where it exceeds the count's. Mass is then called for where it lacks, and
taken away, where it is wrong first, once there is too much. No recipe sets it: it raises counts that are too high as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.errors import ConfigError
from papm.losses.base import LossContext, masked, with_gradient
from papm.losses.registry import Function, FunctionLoss, register, variant
from papm.registry import AtLeastOne, NonNegative, Positive
from papm.structures import LossOutput, PointBatch
from papm.targets import dot_maps
from papm.transport import Cost, TransportResult, create_cost, grid_sinkhorn
from papm.transport.costs import Anchor, CostName
from papm.transport.solve import Solver, dustbin_cost

# GL's cost is 0.0535 at 16 px and mid-height; this makes it 256 there, as r² is, so that ε = 10 means the same.
PERSPECTIVE_SCALE = 256 / 0.0535
PUBLISHED_WEIGHT = 0.1  # of the sum over a batch of 10 (DM-Count)
EMPTY = 1e-12  # share of the mass that stands in for none: too little to change the plan, enough to ask what more would cost


def pooled_stride(asked: int, stride: int) -> int:
    """The stride at which mass is moved: that of the network, or a multiple of it."""
    if asked < 1 or (asked > stride and asked % stride):
        raise ConfigError(f"ot_stride {asked} must be a multiple of the network's stride {stride}")
    return max(int(asked), stride)


def sum_pool(density: Tensor, factor: int) -> Tensor:
    """[B, 1, h, w] → [B, 1, ceil(h/f), ceil(w/f)], cells added up: the count is kept.

    >>> sum_pool(torch.ones(1, 1, 3, 4), 2)[0, 0]
    tensor([[4., 4.],
            [2., 2.]])
    """
    if factor == 1:
        return density
    h, w = density.shape[-2:]
    return F.avg_pool2d(F.pad(density, (0, -w % factor, 0, -h % factor)), factor) * factor**2


def sc(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    w_tv: NonNegative = 0.01,
    context: LossContext | None = None,
) -> LossOutput:
    """SC, DM-Count without its transport: |Σz − n| + w_tv·n·‖z/Σz − dots/n‖₁, mean over images (paper, Table 1).

    Density z [B, 1, h, w], points B × [n, 2].

    >>> from papm.losses import functional
    >>> functional.sc(torch.full((1, 1, 2, 2), 0.5), [torch.tensor([[4.0, 4.0]])])
    tensor(1.0150)
    """
    return LossOutput.of(*_counted(masked(density, context, stride), points, stride, w_tv))


def dm_count(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    cost: CostName = "l2",
    sigma: Positive = 16.0,
    shape: Positive = 2.0,
    stretched: bool = False,
    anchor: Anchor = "crop",
    reg: Positive = 10.0,
    iterations: AtLeastOne = 100,
    w_ot: NonNegative = 1.0,
    w_tv: NonNegative = 0.01,
    mass: NonNegative = 0.0,
    keeps: bool = False,
    published: bool = False,
    ot_stride: AtLeastOne = 8,
    reach: Positive | None = None,
    dustbin: Positive | None = None,
    solver: Solver = "auto",
    context: LossContext | None = None,
) -> LossOutput:
    """DM-Count: `sc` + w_ot·⟨C, T⟩, T the entropic transport of z/Σz onto the points at cost r² (Wang et al. 2020).

    Density z [B, 1, h, w], points B × [n, 2]; distances in input pixels, mass moved at `ot_stride`. `published` sums the
    transport over the batch with weight 0.1·w_ot, as the authors' code does, where other terms are means. With `mass` the
    transport of an image weighs min(1, Σz/mass): an object then weighs the same in all crops of fewer objects than that. With
    `keeps` no cell is asked for less while Σz is below the number of points.

    >>> from papm.losses import functional
    >>> functional.dm_count(torch.full((1, 1, 2, 2), 0.25), [torch.tensor([[4.0, 4.0]])])
    tensor(64.0150)
    """
    density = masked(density, context, stride)
    terms, weights = _counted(density, points, stride, w_tv)
    scale = PERSPECTIVE_SCALE if cost == "perspective" else 1.0
    made = create_cost(cost, sigma, shape, stretched=stretched, scale=scale, anchor=anchor)
    pooled = sum_pool(density, pooled_stride(ot_stride, stride) // stride)
    top, height = frame(made, pooled, max(ot_stride, stride), context)
    weights["transport"] = PUBLISHED_WEIGHT * w_ot if published else w_ot
    total = density.detach().sum((1, 2, 3))
    share = (total / mass).clamp(max=1) if mass else torch.ones_like(total)
    most = None
    if keeps:
        # What a gradient of one of OT weighs beside the count's ±1.
        against = share * weights["transport"] * (len(total) if published else 1)
        most = torch.where(total < points.valid.sum(1), 1 / against.clamp(min=1e-12), torch.inf)
    values = _transported(
        pooled, points,
        lambda z: grid_sinkhorn(
            points, z[:, 0], max(ot_stride, stride), made, reg, iterations, solver,
            dustbin=dustbin, reach=reach, top=top, height=height,
        ),
        most,
    )  # fmt: skip
    values = values * share
    terms["transport"] = values.sum() if published else values.mean()
    return LossOutput.of(terms, weights)


al_papm = variant(
    dm_count,
    "al_papm",
    """AL-PAPM: `dm_count` with the GGD cost, r²·exp((r²/2σ²)^(s/2)) (paper, eq. 6; σ = 16, s = 2).

    Density z [B, 1, h, w], points B × [n, 2]; σ in input pixels. The other options are those of `dm_count`.

    >>> import torch
    >>> functional.al_papm(torch.full((1, 1, 2, 2), 0.25), [torch.tensor([[4.0, 4.0]])], sigma=16.0, shape=2.0)
    tensor(77.3646)
    """,
    cost="ggd-l2",
)


def _counted(
    density: Tensor, points: PointBatch, stride: int, w_tv: float
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Terms and weights of count and total variation."""
    counts = points.valid.sum(1).to(density)
    total = density.sum((1, 2, 3))
    terms, weights = {"count": (total - counts).abs().mean()}, {"count": 1.0}
    if w_tv:
        size = (density.shape[-2] * stride, density.shape[-1] * stride)
        dots = dot_maps(points, size, stride)[:, None].to(density)
        share = density / (total[:, None, None, None] + 1e-6)
        wanted = dots / (counts[:, None, None, None] + 1e-6)
        terms["tv"] = ((share - wanted).abs().sum((1, 2, 3)) * counts).mean()
        weights["tv"] = w_tv
    return terms, weights


def _transported(
    pooled: Tensor, points: PointBatch, solve: Callable[[Tensor], TransportResult], most: Tensor | None
) -> Tensor:
    """⟨C, T⟩ [B], with Danskin's gradient, cut at `most` [B]; zero for an image without points.

    The gradient at an empty cell is that of the transport alone. ε·ln v has the derivative of the entropy in it, which is −∞
    there: it calls for mass in every empty cell, be it a missed object or the sky.
    """
    with torch.no_grad():
        z = pooled.detach().clamp(min=0)
        total = z.sum((1, 2, 3), keepdim=True)
        result = solve(torch.maximum(z, EMPTY * total))
        beta = result.beta.to(z).view_as(z)
        inner = (z * beta).sum((1, 2, 3), keepdim=True)
        relative = _relative(result).to(z).view_as(z)
        level = (z * relative).sum((1, 2, 3), keepdim=True)
        wanted = torch.where(z > 0, beta * total - inner, relative * total - level)
        gradient = wanted / (total.square() + 1e-8)
        if most is not None:
            gradient = gradient.clamp(max=most[:, None, None, None])
        some = points.valid.any(1).to(z)
        gradient = gradient * some[:, None, None, None]
    return with_gradient(result.value.to(z) * some, pooled, gradient)


def _relative(result: TransportResult) -> Tensor:
    """Potentials of the cells relative to their mass, ε·ln(v/b) [B, m]: what one more unit there would cost to move."""
    tiny = torch.finfo(result.b.dtype).tiny
    return torch.where(result.b > 0, result.reg * (result.log_v - result.b.clamp(min=tiny).log()), 0.0)


def frame(cost: Cost, density: Tensor, stride: int, context: LossContext | None) -> tuple[Tensor | None, Tensor | None]:
    """Top [B] of the crop in the frame that heights refer to, and that frame's height [B]; for the perspective cost only."""
    if cost.radial:
        return None, None
    if cost.anchor == "crop":
        return None, density.new_full((len(density),), density.shape[-2] * stride)
    if context is None or context.offsets is None or context.sizes is None:
        raise ConfigError("a perspective relative to the image needs the crop's offset and the image's size")
    return context.offsets[:, 1].to(density), context.sizes[:, 0].to(density)


class TransportLoss(FunctionLoss):
    """The module of a transport loss: options that contradict each other are refused when it is made."""

    def __init__(self, function: Function, stride: int = 8, **options: Any) -> None:
        super().__init__(function, stride, **options)
        o = self.options
        pooled_stride(o["ot_stride"], self.stride)
        if "dustbin" in o:
            cost = create_cost(o["cost"], o["sigma"], o["shape"], stretched=o["stretched"], anchor=o["anchor"])
            dustbin_cost(o["reg"], cost, o["dustbin"], o["reach"])


register("sc", sc)
register("dm-count", dm_count, TransportLoss)
register("al-papm", al_papm, TransportLoss)
