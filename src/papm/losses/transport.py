"""The transport losses: DM-Count and AL-PAPM, and the counting part they share (SC).

    ℓ = w_ot · OT(points, density) + |Σz - n| + w_tv · n·‖z/Σz - dots/n‖₁

OT moves the normalised density z/Σz onto the points, at cost r² (DM-Count) or r²·exp((r²/2σ²)^(s/2)) (AL-PAPM), in input
pixels, with ε = 10, 100 iterations and the published dustbin (`papm.transport.reference`). Its gradient is Danskin's, not
that of the iterations: with potentials β of the cells and Z = Σz,

    ∂OT/∂z = β·Z/(Z² + 1e-8) - ⟨z, β⟩/(Z² + 1e-8)

The term that is logged is the transport value ⟨C, T⟩ in px². All terms are means over images; the published weight of OT,
0.1 *summed* over a batch of 10 whose other terms are averaged, is 1.0 here. `reduction="sum"` is the published sum.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.errors import ConfigError, unknown
from papm.losses.base import CountingLoss, LossContext, masked, register, with_gradient
from papm.structures import LossOutput, PointBatch
from papm.targets import dot_maps
from papm.transport import Cost, TransportResult, create_cost, grid_sinkhorn
from papm.transport.costs import Anchor
from papm.transport.solve import Solver, check_settings, dustbin_cost

# GL's cost is 0.0535 at 16 px and mid-height; this makes it 256 there, as r² is, so that ε = 10 means the same.
PERSPECTIVE_SCALE = 256 / 0.0535


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


class TransportLoss(CountingLoss):
    """Transport of the density onto the points, count, and total variation; `cost` None leaves the transport out (SC)."""

    def __init__(
        self,
        stride: int = 8,
        *,
        cost: Cost | None,
        reg: float = 10.0,
        iterations: int = 100,
        w_ot: float = 1.0,
        w_tv: float = 0.01,
        reduction: Literal["mean", "sum"] = "mean",
        ot_stride: int = 8,
        reach: float | None = None,
        dustbin: float | None = None,
        solver: Solver = "auto",
    ) -> None:
        super().__init__(stride)
        if reduction not in ("mean", "sum"):
            raise unknown("reduction", reduction, ("mean", "sum"))
        if cost is not None:
            check_settings(reg, iterations, solver)
            # With an infinite one a cell without mass would have an infinite potential.
            if math.isinf(dustbin_cost(reg, cost, dustbin, reach)):
                raise ConfigError("the dustbin of a loss must have a finite cost")
        self.cost, self.reg, self.iterations = cost, float(reg), int(iterations)
        self.w_ot, self.w_tv, self.reduction = float(w_ot), float(w_tv), reduction
        self.ot_stride = pooled_stride(ot_stride, self.stride)
        self.reach, self.dustbin, self.solver = reach, dustbin, solver

    def solve(self, density: Tensor, points: PointBatch, context: LossContext | None = None) -> TransportResult:
        """The transport between the points and a density [B, 1, h, w] at `ot_stride`."""
        if self.cost is None:
            raise ConfigError("the loss 'sc' has no transport")
        top = height = None
        if not self.cost.radial:
            whole = self.cost.anchor == "image"
            if whole and (context is None or context.offsets is None or context.sizes is None):
                raise ConfigError("a perspective relative to the image needs the crop's offset and the image's size")
            top = context.offsets[:, 1].to(density) if whole and context and context.offsets is not None else None
            if whole and context and context.sizes is not None:
                height = context.sizes[:, 0].to(density)
            else:
                height = density.new_full((len(density),), density.shape[-2] * self.ot_stride)
        return grid_sinkhorn(
            points, density[:, 0], self.ot_stride, self.cost, self.reg, self.iterations, self.solver,
            dustbin=self.dustbin, reach=self.reach, top=top, height=height,
        )  # fmt: skip

    def transport(self, density: Tensor, points: PointBatch, context: LossContext | None) -> Tensor:
        """⟨C, T⟩ [B], with Danskin's gradient; zero for an image without points."""
        pooled = sum_pool(density, self.ot_stride // self.stride)
        with torch.no_grad():
            z = pooled.detach().clamp(min=0)
            result = self.solve(z, points, context)
            beta = result.beta.to(z).view_as(z)
            total = z.sum((1, 2, 3), keepdim=True)
            inner = (z * beta).sum((1, 2, 3), keepdim=True)
            gradient = (beta * total - inner) / (total.square() + 1e-8)
            some = points.valid.any(1).to(z)
            gradient = gradient * some[:, None, None, None]
        return with_gradient(result.value.to(z) * some, pooled, gradient)

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        density = masked(density, context, self.stride)
        counts = points.valid.sum(1).to(density)
        total = density.sum((1, 2, 3))
        terms = {"count": (total - counts).abs().mean()}
        weights = {"count": 1.0}
        if self.w_tv:
            size = (density.shape[-2] * self.stride, density.shape[-1] * self.stride)
            dots = dot_maps(points, size, self.stride)[:, None].to(density)
            share = density / (total[:, None, None, None] + 1e-6)
            target = dots / (counts[:, None, None, None] + 1e-6)
            terms["tv"] = ((share - target).abs().sum((1, 2, 3)) * counts).mean()
            weights["tv"] = self.w_tv
        if self.cost is not None:
            values = self.transport(density, points, context)
            terms["transport"] = values.mean() if self.reduction == "mean" else values.sum()
            weights["transport"] = self.w_ot
        loss = torch.stack([weights[k] * t for k, t in terms.items()]).sum()
        return LossOutput(loss, {k: t.detach() for k, t in terms.items()}, weights)

    def extra_repr(self) -> str:
        return f"cost={self.cost}, reg={self.reg}, w_ot={self.w_ot}, w_tv={self.w_tv}, stride={self.stride}"


def _sc(stride: int = 8, *, w_tv: float = 0.01) -> TransportLoss:
    return TransportLoss(stride, cost=None, w_tv=w_tv)


def _transport(
    stride: int = 8,
    *,
    cost: str = "l2",
    sigma: float = 16.0,
    shape: float = 2.0,
    stretched: bool = False,
    anchor: Anchor = "crop",
    reg: float = 10.0,
    iterations: int = 100,
    w_ot: float = 1.0,
    w_tv: float = 0.01,
    reduction: Literal["mean", "sum"] = "mean",
    ot_stride: int = 8,
    reach: float | None = None,
    dustbin: float | None = None,
    solver: Solver = "auto",
) -> TransportLoss:
    scale = PERSPECTIVE_SCALE if cost == "perspective" else 1.0
    made = create_cost(cost, sigma, shape, stretched=stretched, scale=scale, anchor=anchor)
    return TransportLoss(
        stride, cost=made, reg=reg, iterations=iterations, w_ot=w_ot, w_tv=w_tv, reduction=reduction,
        ot_stride=ot_stride, reach=reach, dustbin=dustbin, solver=solver,
    )  # fmt: skip


register("sc", _sc)
register("dm-count", _transport)
register("al-papm", functools.partial(_transport, cost="ggd-l2"))
