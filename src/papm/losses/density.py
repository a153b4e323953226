"""Regression of a map: the Gaussian baselines and HD-PAPM.

    ℓ = 1/2B Σ_b Σ_cells (A_est − A_gt)²        (paper, eq. 3)

The sum runs over cells, not their mean: with a mean the gradient is so small that a ReLU head dies. The target is the
points' kernel map at full resolution, block-summed to the network's stride; σ is in input pixels.

Where people are counted, deviations grow with the count: the squared error of a crowded crop outweighs that of all others. With
`balance` = 1 each image's sum is divided by 1 + its number of points, which is least squares weighted by the variance of a
count; 0 is the paper's loss. `w_count` adds |Σ A_est − Σ A_gt| of each image, as the transport losses have it; the paper has
none (0).
"""

from __future__ import annotations

import functools
import math
from typing import get_args

from torch import Tensor

from papm import ggd
from papm.errors import ConfigError, unknown
from papm.losses.base import CountingLoss, LossContext, cell_mask, register
from papm.points import batch_spacing
from papm.structures import LossOutput, PointBatch
from papm.targets import MAX_RADIUS, Domain, Kernel, density_maps, sigma_from_spacing


class DensityLoss(CountingLoss):
    """½ Σ (density − target)² / (1 + n)^balance + w_count·|Σ density − Σ target|, means over images.

    `scale` multiplies both maps in the first term.
    """

    def __init__(
        self,
        stride: int = 8,
        *,
        kernel: Kernel = "ggd",
        sigma: float = 4.0,
        shape: float = 8.0,
        scale: float = 1.0,
        balance: float = 0.0,
        w_count: float = 0.0,
    ) -> None:
        super().__init__(stride)
        if kernel not in get_args(Kernel):
            raise unknown("kernel", kernel, get_args(Kernel))
        for name, value in (("sigma", sigma), ("shape", shape), ("scale", scale)):
            if not value > 0:
                raise ConfigError(f"{name} of a density loss must be positive, not {value}")
        if not 0 <= balance <= 2:
            raise ConfigError(f"balance of a density loss lies between 0 and 2, not {balance}")
        self.kernel, self.sigma, self.shape, self.scale = kernel, float(sigma), float(shape), float(scale)
        if not 0 <= w_count < math.inf:
            raise ConfigError(f"w_count of a density loss must not be negative, but is {w_count}")
        self.balance, self.w_count = float(balance), float(w_count)
        # A Gaussian neighbour beyond three bandwidths adds nothing worth the points carried along; tails of s < 2 reach
        # farther.
        reach = max(3 * self.sigma, ggd.support_radius(self.sigma, self.shape, 0.01))
        self.halo = 64.0 if kernel == "adaptive" else min(reach, MAX_RADIUS * self.sigma)

    def target(self, density: Tensor, points: PointBatch, context: LossContext | None) -> Tensor:
        """The map to learn, [B, 1, h, w]."""
        size = (density.shape[-2] * self.stride, density.shape[-1] * self.stride)
        domain = None
        if (
            context is not None
            and context.halo is not None
            and context.offsets is not None
            and context.sizes is not None
        ):
            points = context.halo
            domain = Domain(-context.offsets, context.sizes.flip(-1) - context.offsets)
        if self.kernel != "adaptive":
            return density_maps(points, size, self.kernel, self.sigma, self.shape, self.stride, domain)[:, None]
        # Where the points were read, their spacing was measured in the whole image.
        distance = batch_spacing(points.xy, points.valid) if points.extents is None else points.extents
        sigma = sigma_from_spacing(distance, size)
        return density_maps(points, size, "gaussian", sigma, 2.0, self.stride, domain)[:, None]

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        difference = density - self.target(density, points, context).to(density)
        mask = cell_mask(context, density, self.stride)
        if mask is not None:
            difference = difference * mask
        errors = difference.square().sum((1, 2, 3))
        if self.balance:
            errors = errors / (1 + points.counts).to(errors) ** self.balance
        density_term = 0.5 * self.scale**2 * errors.mean()
        if not self.w_count:
            return LossOutput(density_term, {"density": density_term.detach()})
        count_term = difference.sum((1, 2, 3)).abs().mean()
        terms = {"density": density_term.detach(), "count": count_term.detach()}
        return LossOutput(density_term + self.w_count * count_term, terms, {"density": 1.0, "count": self.w_count})

    def __repr__(self) -> str:
        return f"DensityLoss({self.kernel}, sigma={self.sigma}, shape={self.shape}, stride={self.stride})"


def _gaussian(
    stride: int = 8, *, sigma: float = 4.0, scale: float = 1.0, balance: float = 0.0, w_count: float = 0.0
) -> DensityLoss:
    more = {"scale": scale, "balance": balance, "w_count": w_count}
    return DensityLoss(stride, kernel="gaussian", sigma=sigma, shape=2.0, **more)


def _adaptive(stride: int = 8, *, scale: float = 1.0, balance: float = 0.0, w_count: float = 0.0) -> DensityLoss:
    return DensityLoss(stride, kernel="adaptive", scale=scale, balance=balance, w_count=w_count)


def _hd_papm(
    stride: int = 8,
    *,
    sigma: float = 4.0,
    shape: float = 8.0,
    scale: float = 1.0,
    balance: float = 0.0,
    w_count: float = 0.0,
) -> DensityLoss:
    more = {"scale": scale, "balance": balance, "w_count": w_count}
    return DensityLoss(stride, kernel="ggd", sigma=sigma, shape=shape, **more)


register("gaussian", _gaussian)
register("gaussian-16", functools.partial(_gaussian, sigma=16.0))
register("gaussian-adaptive", _adaptive)
register("hd-papm", _hd_papm)
