"""KDMG: regression of a density map whose kernels are learned together with the network.

A small network looks at the image and gives every point a kernel of s × s cells around its own; kernels are shifted to be
positive and divided by their sum, so that the target

    T = Σ_i k_i(x - cell of p_i),    Σ k_i = 1

always sums to the number of points. The loss is the published one, a sum over cells and the angle between the maps:

    ℓ = Σ (z - T)² + 10·(1 - cos(z, T))

Both sides follow its gradient: the counter moves its map towards the target, the generator shapes the kernels so that the
target is one the counter can reach. Neither can cheat on the count: only where a point's mass lies, within its window, is
learned. The generator is the published one. It belongs to the loss (`loss.parameters()`), so an optimiser must have it too; as
a function the loss is given one, `functional.kdmg(…, generator=KernelGenerator())`. Where the pixels are not given
(`LossContext.images`), all points have the kernel of a plain grey image: one kernel is learned for all of them.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.losses.base import LossContext, masked
from papm.losses.registry import Function, FunctionLoss, register
from papm.registry import AtLeastOne, NonNegative, Range
from papm.structures import LossOutput, PointBatch

GENERATOR_STRIDE = 16  # four max-pools
LEAST = 1e-3  # of a kernel's range, in every cell of it, so that a kernel cut by the border has mass to keep
Odd = Annotated[int, Range("is an odd number of cells", 1)]
SHORTEST = 1e-2  # of a map's norm, in the cosine; keeps the gradient of an empty map finite


class KernelGenerator(nn.Module):
    """Images [B, 3, H, W] → kernels [B, s², ceil(H/16), ceil(W/16)] before their normalisation.

    KDMG's: 3×3 convolutions to c, 2c, 4c, 4c and s² channels, c = 32, between them LeakyReLU (0.01) and a 2×2 max-pool; weights
    from N(0, 0.01), biases zero. (Its pools drop an odd last row or column, which crops do not have.)
    """

    def __init__(self, side: int = 5, channels: int = 32) -> None:
        super().__init__()
        widths = (3, channels, 2 * channels, 4 * channels, 4 * channels)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 1, 1), nn.LeakyReLU(0.01), nn.MaxPool2d(2, ceil_mode=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], side * side, 3, 1, 1))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        kernels: Tensor = self.layers(images)
        return kernels


def normalized(raw: Tensor) -> Tensor:
    """Kernels [..., s²], shifted to be positive and divided by their sum.

    >>> normalized(torch.tensor([-1.0, 0.0, 1.0])).sum()
    tensor(1.)
    """
    low = raw.amin(-1, keepdim=True)
    high = raw.amax(-1, keepdim=True)
    positive = raw - low + LEAST * (high - low) + 1e-6
    return positive / positive.sum(-1, keepdim=True)


def place(points: PointBatch, kernels: Tensor, size: tuple[int, int], stride: int) -> Tensor:
    """Map [B, h, w] of points with kernels [B, N, s²] around the cell of each; what the border cuts off is made up for.

    Points outside the map are left out, so the sum is the number of those inside.
    """
    h, w = size
    side = round(kernels.shape[-1] ** 0.5)
    xy = torch.where(points.valid[..., None], points.xy, -1.0)
    column, row = torch.floor(xy / stride).long().unbind(-1)
    valid = points.valid & (column >= 0) & (column < w) & (row >= 0) & (row < h)
    offset = torch.arange(side, device=xy.device) - side // 2
    rows = (row[..., None, None] + offset[:, None]).expand(*row.shape, side, side).flatten(2)
    columns = (column[..., None, None] + offset).expand(*row.shape, side, side).flatten(2)
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w) & valid[..., None]
    mass = torch.where(inside, kernels, 0.0)
    mass = mass / torch.where(valid, mass.sum(-1), 1.0)[..., None]
    index = torch.where(inside, rows * w + columns, 0).flatten(1)
    return mass.new_zeros(len(mass), h * w).scatter_add(1, index, mass.flatten(1)).view(-1, h, w)


def kdmg(
    density: Tensor,
    points: PointBatch,
    *,
    generator: KernelGenerator,
    stride: AtLeastOne = 8,
    w_density: NonNegative = 2.0,
    w_cosine: NonNegative = 10.0,
    context: LossContext | None = None,
) -> LossOutput:
    """KDMG: w_density·½Σ(z − T)² + w_cosine·(1 − cos(z, T)), mean over images; `generator` makes T (Wan et al. 2020).

    Density z [B, 1, h, w], points B × [n, 2], `context.images` [B, 3, H, W]. The generator learns with the counter: make one
    (`KernelGenerator(side=5)`), keep it, and give its parameters to the optimiser.

    >>> from papm.losses import functional
    >>> generator = KernelGenerator(side=1)
    >>> functional.kdmg(torch.zeros(1, 1, 2, 2), [torch.tensor([[4.0, 4.0]])], generator=generator).detach()
    tensor(11.)
    """
    wanted = masked(target(density, points, context, stride, generator).to(density), context, stride)
    z, t = masked(density, context, stride).flatten(1), wanted.flatten(1)
    norms = [torch.linalg.vector_norm(v, dim=1).clamp(min=SHORTEST) for v in (z, t)]
    cosine = (z * t).sum(1) / (norms[0] * norms[1])
    # An empty target has no direction.
    some = (t.detach() > 0).any(1)
    terms = {
        "density": 0.5 * (z - t).square().sum(1).mean(),
        "cosine": torch.where(some, 1 - cosine, 0.0).mean(),
    }
    return LossOutput.of(terms, {k: w for k, w in (("density", w_density), ("cosine", w_cosine)) if w})


def kernels(generator: KernelGenerator, images: Tensor, points: PointBatch) -> Tensor:
    """Kernel [B, N, s²] of each point: that of its place in the generator's map."""
    made = generator(images.to(next(generator.parameters())))
    h, w = made.shape[-2:]
    xy = torch.where(points.valid[..., None], points.xy, 0.0)
    cell = torch.floor(xy / GENERATOR_STRIDE).long()
    index = cell[..., 1].clamp(0, h - 1) * w + cell[..., 0].clamp(0, w - 1)
    raw = made.flatten(2).gather(2, index[:, None].expand(-1, made.shape[1], -1))
    return normalized(raw.mT)


def target(
    density: Tensor, points: PointBatch, context: LossContext | None, stride: int, generator: KernelGenerator
) -> Tensor:
    """The map to learn, [B, 1, h, w]; differentiable by the generator's parameters."""
    images = None if context is None else context.images
    h, w = density.shape[-2:]
    if images is None:
        images = density.new_zeros(len(density), 3, h * stride, w * stride)
    if images.dim() != 4 or (-(-images.shape[-2] // stride), -(-images.shape[-1] // stride)) != (h, w):
        raise ConfigError(f"images of {list(images.shape)} do not fit {h}×{w} cells of stride {stride}")
    if not points.valid.shape[1]:
        # One row of padding keeps the generator's parameters in the graph, as multi-device training asks.
        points = PointBatch(F.pad(points.xy, (0, 0, 0, 1)), F.pad(points.valid, (0, 1)))
    return place(points, kernels(generator, images, points), (h, w), stride)[:, None]


class KernelLoss(FunctionLoss):
    """The module: it owns the generator, of kernels of `side` × `side` cells."""

    needs_images = True

    def __init__(
        self, function: Function, stride: int = 8, *, side: Odd = 5, channels: AtLeastOne = 32, **options: Any
    ) -> None:
        super().__init__(function, stride, **options)
        if side % 2 == 0:
            raise ConfigError(f"side of a KDMG kernel is an odd number of cells, not {side}")
        if not self.options["w_density"] + self.options["w_cosine"]:
            raise ConfigError("one of KDMG's weights must not be zero")
        self.generator = KernelGenerator(side, channels)

    def compute(self, prediction: Any, points: PointBatch, context: LossContext | None) -> LossOutput:
        given = {"stride": self.stride, "context": context, "generator": self.generator}
        return self.function(prediction, points, **given, **self.options)


register("kdmg", kdmg, KernelLoss)
