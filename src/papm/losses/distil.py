"""Distillation: any loss on maps, and beside it a pull towards the maps of teachers, networks that are trained already.

    ℓ = ℓ_dots(z) + w · ½ Σ_blocks (z − t)²,     t = the mean of the teachers' maps on the same pixels

Dots say where objects are in the images at hand, which are few; a teacher says it for every crop, scale and contrast that
augmentation makes of them. Blocks have the side of the coarsest map, and every map is summed over them: mass is kept. The
square is least at the mean, so that a student who cannot tell two cases apart counts right on average; the absolute
difference is least at the median, which is too low where objects are sparse.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from papm.errors import ConfigError
from papm.losses.base import CountingLoss, LossContext, PointLoss, WrappingLoss, cell_mask
from papm.structures import Batch, DensityOutput, LossOutput, PointBatch

Colours = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std that images are normalised with


class Teacher:
    """A trained density network that is asked and never changed: no module, so that a training neither saves nor moves it."""

    def __init__(self, network: torch.nn.Module, stride: int, colours: Colours, factor: float = 1.0) -> None:
        self.network, self.stride, self.colours = network.eval().requires_grad_(False), stride, colours
        self.factor = factor  # of a calibrated model

    @torch.no_grad()
    def __call__(self, images: Tensor, colours: Colours, real: Tensor | None) -> Tensor:
        """The map [B, C, h, w] of images that were normalised with `colours`; beyond `real` pixels is its own mean colour."""
        self.network.to(images.device)
        if colours != self.colours:
            images = recoloured(images, colours, self.colours)
            images = images if real is None else images * real[:, None]
        half = images.is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
            output = self.network(images)
        if not isinstance(output, DensityOutput):
            raise ConfigError("a teacher gives a density map; this network gives points")
        return self.factor * output.density.float()


def recoloured(images: Tensor, before: Colours, after: Colours) -> Tensor:
    """Images [B, 3, H, W] normalised with another mean and std.

    >>> recoloured(torch.zeros(1, 3, 1, 1), ((0.5,) * 3, (0.25,) * 3), ((0.0,) * 3, (1.0,) * 3)).flatten().tolist()
    [0.5, 0.5, 0.5]
    """
    (mean, std), (other, spread) = (
        tuple(images.new_tensor(c)[:, None, None] for c in pair) for pair in (before, after)
    )
    return (images * std + mean - other) / spread


def in_blocks(maps: Tensor, times: int) -> Tensor:
    """Maps [B, C, h, w] summed over blocks of times × times cells; the last block may be smaller.

    >>> in_blocks(torch.ones(1, 1, 3, 4), 2).squeeze().tolist()
    [[4.0, 4.0], [2.0, 2.0]]
    """
    if times == 1:
        return maps
    h, w = maps.shape[-2:]
    return F.avg_pool2d(F.pad(maps, (0, -w % times, 0, -h % times)), times) * times**2


class DistilLoss(WrappingLoss):
    """`loss`, and `weight` times the squared distance to the mean map of the teachers; `colours` are those of the student."""

    needs_images = True

    def __init__(self, loss: CountingLoss, teachers: Sequence[Teacher], weight: float, colours: Colours) -> None:
        if isinstance(loss, PointLoss):
            raise ConfigError("teachers are for losses on density maps; this one matches points")
        super().__init__(loss, loss.maps)
        self.needs_images, self.capturable = True, False
        self.teachers, self.weight, self.colours = tuple(teachers), float(weight), colours
        self.side = max([loss.stride, *(t.stride for t in self.teachers)])
        for stride in (loss.stride, *(t.stride for t in self.teachers)):
            if self.side % stride:
                raise ConfigError(
                    f"maps of stride {stride} and {self.side} have no common cells; choose another teacher"
                )

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        if context is None or context.images is None:
            raise ConfigError("a loss with teachers needs the images (LossContext.images)")
        found = self.inner(density, points, context)
        wanted, mine = self.target(context), in_blocks(density, self.side // self.stride)
        if wanted.shape != mine.shape:
            raise ConfigError(f"a teacher's map is {list(wanted.shape)}, the student's {list(mine.shape)}")
        mask = cell_mask(context, mine, self.side)
        gap = mine - wanted if mask is None else (mine - wanted) * mask
        term = 0.5 * gap.square().sum((1, 2, 3)).mean()
        terms, weights = {**found.terms, "teachers": term.detach()}, {**found.weights, "teachers": self.weight}
        return LossOutput(found.total + self.weight * term, terms, weights)

    def target(self, context: LossContext) -> Tensor:
        """The mean map of the teachers in blocks of `side` pixels, [B, C, h, w]."""
        assert context.images is not None
        real = context.real if isinstance(context, Batch) else None
        images = context.images.float()
        maps = [in_blocks(t(images, self.colours, real), self.side // t.stride) for t in self.teachers]
        return torch.stack(maps).mean(0)
