"""KDMG: regression of a density map whose kernels are learned together with the network.

A small network looks at the image and gives every point a kernel of s × s cells around its own; kernels are shifted to be
positive and divided by their sum, so that the target

    T = Σ_i k_i(x - cell of p_i),    Σ k_i = 1

always sums to the number of points. The loss is the published one, a sum over cells and the angle between the maps:

    ℓ = Σ (z - T)² + 10·(1 - cos(z, T))

Both sides follow its gradient: the counter moves its map towards the target, the generator shapes the kernels so that the
target is one the counter can reach. Neither can cheat on the count: only where a point's mass lies, within its window, is
learned. The generator is the published one. It belongs to the loss (`loss.parameters()`), so an optimiser must have it
too. Where the pixels are not given (`LossContext.images`), all points have the kernel of a plain grey image: one kernel is
learned for all of them.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.losses.base import CountingLoss, LossContext, cell_mask, register
from papm.structures import LossOutput, PointBatch

GENERATOR_STRIDE = 16  # four max-pools
LEAST = 1e-3  # of a kernel's range, in every cell of it, so that a kernel cut by the border has mass to keep
SHORTEST = 1e-2  # of a map's norm, in the cosine; keeps the gradient of an empty map finite


class KernelGenerator(nn.Module):
    """Images [B, 3, H, W] → kernels [B, s², ceil(H/16), ceil(W/16)] before their normalisation.

    KDMG's: 3×3 convolutions to c, 2c, 4c, 4c and s² channels, c = 32, between them LeakyReLU (0.01) and a 2×2 max-pool; weights
    from N(0, 0.01), biases zero. (Its pools drop an odd last row or column, which crops do not have.)
    """

    def __init__(self, side: int, channels: int = 32) -> None:
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


class KernelLoss(CountingLoss):
    """2 × ½Σ(z - T)² + 10·(1 - cos(z, T)), the target's kernels made from the image by a network of the loss's own."""

    needs_images = True

    def __init__(
        self, stride: int = 8, *, side: int = 5, w_density: float = 2.0, w_cosine: float = 10.0, channels: int = 32
    ) -> None:
        super().__init__(stride)
        if int(side) != side or side < 1 or side % 2 == 0:
            raise ConfigError(f"side of a KDMG kernel is an odd number of cells, not {side}")
        if int(channels) != channels or channels < 1:
            raise ConfigError(f"channels of KDMG's generator is a whole number ≥ 1, not {channels}")
        if w_density < 0 or w_cosine < 0 or not w_density + w_cosine > 0:
            raise ConfigError(f"KDMG's weights must not be negative, nor both zero: {w_density}, {w_cosine}")
        self.side = int(side)
        self.weights = {"density": float(w_density), "cosine": float(w_cosine)}
        self.generator = KernelGenerator(self.side, int(channels))

    def kernels(self, images: Tensor, points: PointBatch) -> Tensor:
        """Kernel [B, N, s²] of each point: that of its place in the generator's map."""
        made = self.generator(images.to(next(self.generator.parameters())))
        h, w = made.shape[-2:]
        xy = torch.where(points.valid[..., None], points.xy, 0.0)
        cell = torch.floor(xy / GENERATOR_STRIDE).long()
        index = cell[..., 1].clamp(0, h - 1) * w + cell[..., 0].clamp(0, w - 1)
        raw = made.flatten(2).gather(2, index[:, None].expand(-1, made.shape[1], -1))
        return normalized(raw.mT)

    def target(self, density: Tensor, points: PointBatch, context: LossContext | None) -> Tensor:
        """The map to learn, [B, 1, h, w]; differentiable by the generator's parameters."""
        images = None if context is None else context.images
        h, w = density.shape[-2:]
        if images is None:
            images = density.new_zeros(len(density), 3, h * self.stride, w * self.stride)
        if images.dim() != 4 or (-(-images.shape[-2] // self.stride), -(-images.shape[-1] // self.stride)) != (h, w):
            raise ConfigError(f"images of {list(images.shape)} do not fit {h}×{w} cells of stride {self.stride}")
        if not points.valid.shape[1]:
            # One row of padding keeps the generator's parameters in the graph, as multi-device training asks.
            points = PointBatch(F.pad(points.xy, (0, 0, 0, 1)), F.pad(points.valid, (0, 1)))
        return place(points, self.kernels(images, points), (h, w), self.stride)[:, None]

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        target = self.target(density, points, context).to(density)
        mask = cell_mask(context, density, self.stride)
        if mask is not None:
            density, target = density * mask, target * mask
        z, t = density.flatten(1), target.flatten(1)
        norms = [torch.linalg.vector_norm(v, dim=1).clamp(min=SHORTEST) for v in (z, t)]
        cosine = (z * t).sum(1) / (norms[0] * norms[1])
        # An empty target has no direction.
        some = (t.detach() > 0).any(1)
        terms = {
            "density": 0.5 * (z - t).square().sum(1).mean(),
            "cosine": torch.where(some, 1 - cosine, 0.0).mean(),
        }
        weights = {k: w for k, w in self.weights.items() if w}
        total = torch.stack([w * terms[k] for k, w in weights.items()]).sum()
        return LossOutput(total, {k: terms[k].detach() for k in weights}, weights)

    def extra_repr(self) -> str:
        return f"side={self.side}, stride={self.stride}"


register("kdmg", KernelLoss)
