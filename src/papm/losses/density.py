"""Regression of a map: the Gaussian baselines and HD-PAPM.

    ℓ = 1/2B Σ_b Σ_cells (A_est − A_gt)²        (paper, eq. 3)

The sum runs over cells, not their mean: with a mean the gradient is so small that a ReLU head dies. The target is the
points' kernel map at full resolution, block-summed to the network's stride; σ is in input pixels.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from papm import ggd
from papm.losses.base import LossContext, masked
from papm.losses.registry import Function, FunctionLoss, register
from papm.points import batch_spacing
from papm.registry import AtLeastOne, Positive
from papm.structures import LossOutput, PointBatch
from papm.targets import MAX_RADIUS, Domain, density_maps, sigma_from_spacing


def hd_papm(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 4.0,
    shape: Positive = 8.0,
    scale: Positive = 1.0,
    context: LossContext | None = None,
) -> LossOutput:
    """HD-PAPM: ½ Σ_cells (z − A)², mean over images; A is the map of GGD(σ, s) kernels (paper, eq. 3 and Table 7).

    Density z [B, 1, h, w], points B × [n, 2]; σ in input pixels. `scale` multiplies both maps.

    >>> import torch
    >>> from papm.losses import functional
    >>> functional.hd_papm(torch.zeros(1, 1, 4, 4), [torch.tensor([[12.0, 12.0]])])
    tensor(0.2396)
    """
    return _regression(density, target(density, points, context, stride, sigma, shape), context, stride, scale)


def gaussian(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 4.0,
    scale: Positive = 1.0,
    context: LossContext | None = None,
) -> LossOutput:
    """The Gaussian baseline: ½ Σ_cells (z − A)², mean over images; A is the map of Gaussians of σ input pixels.

    Density z [B, 1, h, w], points B × [n, 2]. `scale` multiplies both maps (Lempitsky and Zisserman 2010).

    >>> import torch
    >>> from papm.losses import functional
    >>> functional.gaussian(torch.zeros(1, 1, 4, 4), [torch.tensor([[12.0, 12.0]])])
    tensor(0.1343)
    """
    return _regression(density, target(density, points, context, stride, sigma, 2.0), context, stride, scale)


def gaussian_adaptive(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    scale: Positive = 1.0,
    context: LossContext | None = None,
) -> LossOutput:
    """The geometry-adaptive Gaussian: as `gaussian`, σ = 0.3 × the mean distance to the three nearest points (MCNN, CSRNet).

    Density [B, 1, h, w], points B × [n, 2]; `PointBatch.extents` is the spacing where it was measured in the whole image.

    >>> import torch
    >>> from papm.losses import functional
    >>> functional.gaussian_adaptive(torch.zeros(1, 1, 4, 4), [torch.tensor([[12.0, 12.0], [20.0, 12.0]])])
    tensor(0.7532)
    """
    return _regression(density, target(density, points, context, stride, None, 2.0), context, stride, scale)


def target(
    density: Tensor, points: PointBatch, context: LossContext | None, stride: int, sigma: float | None, shape: float
) -> Tensor:
    """The map to learn, [B, 1, h, w]; σ None is the geometry-adaptive Gaussian's."""
    size = (density.shape[-2] * stride, density.shape[-1] * stride)
    domain = None
    if context is not None and None not in (context.halo, context.offsets, context.sizes):
        assert context.halo is not None and context.offsets is not None and context.sizes is not None
        points = context.halo
        domain = Domain(-context.offsets, context.sizes.flip(-1) - context.offsets)
    if sigma is not None:
        return density_maps(points, size, "ggd", sigma, shape, stride, domain)[:, None]
    # Where the points were read, their spacing was measured in the whole image.
    distance = batch_spacing(points.xy, points.valid) if points.extents is None else points.extents
    return density_maps(points, size, "gaussian", sigma_from_spacing(distance, size), 2.0, stride, domain)[:, None]


def _regression(density: Tensor, wanted: Tensor, context: LossContext | None, stride: int, scale: float) -> LossOutput:
    difference = masked(density - wanted.to(density), context, stride)
    return LossOutput.of({"density": 0.5 * scale**2 * difference.square().sum((1, 2, 3)).mean()})


class DensityLoss(FunctionLoss):
    """The module of a regression: its halo is as wide as the kernel."""

    def __init__(self, function: Function, stride: int = 8, **options: Any) -> None:
        super().__init__(function, stride, **options)
        sigma, shape = self.options.get("sigma"), self.options.get("shape", 2.0)
        if sigma is None:  # geometry-adaptive
            self.halo = 64.0
        else:
            # A Gaussian neighbour beyond three bandwidths adds nothing worth the points carried along; tails of s < 2 reach
            # farther.
            self.halo = min(max(3 * sigma, ggd.support_radius(sigma, shape, 0.01)), MAX_RADIUS * sigma)


register("hd-papm", hd_papm, DensityLoss)
register("gaussian", gaussian, DensityLoss)
register("gaussian-16", functools.partial(gaussian, sigma=16.0), DensityLoss)
register("gaussian-adaptive", gaussian_adaptive, DensityLoss)
