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

import math

import torch
from torch import Tensor

from papm.errors import ConfigError
from papm.losses.base import CountingLoss, LossContext, masked, register, with_gradient
from papm.losses.transport import pooled_stride, sum_pool
from papm.structures import LossOutput, PointBatch
from papm.transport.costs import Anchor, Cost
from papm.transport.unbalanced import UnbalancedResult, unbalanced
from papm.transport.windows import cell_centres

UNIT = 512.0  # pixels to one unit of distance
LEAST = 1e-8  # people a cell; keeps the gradient of an empty map finite
CHUNK = 1 << 25  # entries of the dense cost held at once, which bounds the memory


def matched_kappa(sigma: float, shape: float) -> float:
    """κ for which κ·(r/σ)²·exp((r²/2σ²)^(s/2)) at r = σ is GL's cost exp(d/0.6) - 1 there.

    >>> round(matched_kappa(16.0, 2.0), 4)
    0.0324
    """
    return math.expm1(sigma / UNIT / 0.6) / math.exp(0.5 ** (shape / 2))


class UnbalancedLoss(CountingLoss):
    """Unbalanced transport of the density onto the points, with GL's cell, point and entropy terms and a count term."""

    def __init__(
        self,
        stride: int = 8,
        *,
        cost: Cost,
        reg: float = 0.01,
        rho: float = 0.5,
        w_pixel: float = 0.1,
        w_point: float = 0.1,
        w_entropy: float = 1.0,
        w_count: float = 0.0,
        ot_stride: int = 8,
        extra: int = 0,
    ) -> None:
        super().__init__(stride)
        self.cost, self.reg, self.rho, self.extra = cost, float(reg), float(rho), int(extra)
        self.weights = {
            "transport": 1.0, "pixel": float(w_pixel), "point": float(w_point),
            "entropy": float(w_entropy), "count": float(w_count),
        }  # fmt: skip
        self.ot_stride = pooled_stride(ot_stride, self.stride)

    def _frame(self, density: Tensor, context: LossContext | None) -> tuple[Tensor | None, Tensor]:
        """Top [B] of the crop in the frame that heights refer to, and the frame's height [B]."""
        if self.cost.radial or self.cost.anchor == "crop":
            return None, density.new_full((len(density),), density.shape[-2] * self.ot_stride)
        if context is None or context.offsets is None or context.sizes is None:
            raise ConfigError("a perspective relative to the image needs the crop's offset and the image's size")
        return context.offsets[:, 1].to(density), context.sizes[:, 0].to(density)

    @torch.no_grad()
    def _terms(self, result: UnbalancedResult) -> dict[str, tuple[Tensor, Tensor]]:
        """Each term's value [B] and its derivative by the density [B, m]."""
        b, eps = result.b, self.reg
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

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        density = masked(density, context, self.stride)
        pooled = sum_pool(density, self.ot_stride // self.stride)
        size = (pooled.shape[-2], pooled.shape[-1])
        z, xy = pooled.flatten(1), points.xy.to(pooled)
        top, height = self._frame(pooled, context)
        cells = cell_centres(size, self.ot_stride, xy)
        step = max(1, CHUNK // max(1, xy.shape[1] * z.shape[1]))
        parts: list[dict[str, Tensor]] = []
        for s in (slice(k, k + step) for k in range(0, len(z), step)):
            cost = self.cost.pairwise(xy[s], cells, None if top is None else top[s], height[s])
            mass = z[s].detach().clamp(min=0)
            result = unbalanced(points.valid[s].to(z), mass, cost, self.reg, self.rho, extra=self.extra, least=LEAST)
            terms = {k: with_gradient(value, z[s], gradient) for k, (value, gradient) in self._terms(result).items()}
            parts.append(terms)
        total = z.sum(1)
        some = points.valid.any(1)
        empty = {
            "transport": total.abs(),
            "pixel": total.abs(),
            "point": total.abs(),
            "entropy": torch.zeros_like(total),
        }
        values = {k: torch.where(some, torch.cat([p[k] for p in parts]), empty[k]).mean() for k in empty}
        values["count"] = (total - points.valid.sum(1).to(total)).abs().mean()
        weights = {k: w for k, w in self.weights.items() if w}
        loss = torch.stack([w * values[k] for k, w in weights.items()]).sum()
        return LossOutput(loss, {k: values[k].detach() for k in weights}, weights)

    def extra_repr(self) -> str:
        return f"cost={self.cost}, reg={self.reg}, rho={self.rho}, stride={self.stride}"


def _gl(
    stride: int = 8,
    *,
    reg: float = 0.01,
    rho: float = 0.5,
    anchor: Anchor = "crop",
    w_pixel: float = 0.1,
    w_point: float = 0.1,
    w_entropy: float = 1.0,
    ot_stride: int = 8,
) -> UnbalancedLoss:
    cost = Cost("perspective", anchor=anchor, unit=UNIT)
    return UnbalancedLoss(
        stride, cost=cost, reg=reg, rho=rho, w_pixel=w_pixel, w_point=w_point, w_entropy=w_entropy, ot_stride=ot_stride
    )


def _gl_papm(
    stride: int = 8,
    *,
    sigma: float = 16.0,
    shape: float = 2.0,
    kappa: float | None = None,
    reg: float = 0.01,
    rho: float = 0.5,
    w_pixel: float = 0.1,
    w_point: float = 0.1,
    w_entropy: float = 1.0,
    ot_stride: int = 8,
) -> UnbalancedLoss:
    factor = matched_kappa(sigma, shape) if kappa is None else kappa
    cost = Cost("ggd-l2", sigma, shape, scale=factor / sigma**2, cap=10 * rho)
    return UnbalancedLoss(
        stride, cost=cost, reg=reg, rho=rho, w_pixel=w_pixel, w_point=w_point, w_entropy=w_entropy, ot_stride=ot_stride
    )


def _uot(
    stride: int = 8,
    *,
    sigma: float = 16.0,
    reg: float = 0.01,
    rho: float = 0.5,
    w_count: float = 1.0,
    ot_stride: int = 8,
) -> UnbalancedLoss:
    """Squared distance whose value at σ is GL's cost there; no cell, point or entropy terms."""
    scale = math.expm1(sigma / UNIT / 0.6) / sigma**2
    cost = Cost("l2", scale=scale, cap=10 * rho)
    return UnbalancedLoss(
        stride,
        cost=cost,
        reg=reg,
        rho=rho,
        w_pixel=0.0,
        w_point=0.0,
        w_entropy=0.0,
        w_count=w_count,
        ot_stride=ot_stride,
    )


register("gl", _gl)
register("gl-papm", _gl_papm)
register("uot", _uot)
