"""Any loss on blocks of a crop: a large crop for context, the loss on blocks of it for fine supervision.

A count term over a whole crop is one number, which a network with few images can memorise; over blocks it is many.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.losses.base import CountingLoss, LossContext, WrappingLoss
from papm.losses.forward import ForwardLoss
from papm.structures import LossOutput, PointBatch


def split_map(maps: Tensor, block: int) -> Tensor:
    """[B, C, h, w] → [B·k, C, block, block], blocks row by row; the map is padded with zeros to whole blocks."""
    b, c, h, w = maps.shape
    rows, columns = -(-h // block), -(-w // block)
    maps = nn.functional.pad(maps, (0, columns * block - w, 0, rows * block - h))
    maps = maps.view(b, c, rows, block, columns, block).permute(0, 2, 4, 1, 3, 5)
    return maps.reshape(b * rows * columns, c, block, block)


def split_points(points: PointBatch, corners: Tensor, side: int, halo: float = 0.0) -> PointBatch:
    """Points of B crops → points of B·k blocks with those (x, y) corners [k, 2], in each block's coordinates."""
    xy = points.xy[:, None] - corners[None, :, None]  # [B, k, N, 2]
    inside = ((xy >= -halo) & (xy < side + halo)).all(-1)
    return replace(points.repeat(len(corners)), xy=xy.flatten(0, 1)).keep(inside.flatten(0, 1))


class RegionLoss(WrappingLoss):
    """`loss` on square blocks of `region` input pixels, inside a margin; its terms are means over blocks × blocks a crop.

    Multiplying by the number of blocks keeps the size of the gradient that each cell gets from per-cell terms.
    """

    def __init__(self, loss: CountingLoss, region: int, margin: int = 0) -> None:
        if region < 1 or margin < 0 or region % loss.stride or margin % loss.stride:
            raise ConfigError(
                f"region={region} (above 0) and margin={margin} must be multiples of the map's stride {loss.stride}"
            )
        if getattr(loss, "reduction", "mean") != "mean":
            raise ConfigError("blocks need a loss that averages over images; leave loss.reduction at mean")
        if isinstance(loss, ForwardLoss):  # dots cross the borders of blocks
            raise ConfigError(
                "a correction of displaced dots goes around the loss on blocks: ForwardLoss(RegionLoss(…))"
            )
        super().__init__(loss, loss.maps)
        self.region, self.margin = region, margin

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        m = self.margin // self.stride
        inner = density[..., m : density.shape[-2] - m, m : density.shape[-1] - m]
        if 0 in inner.shape:
            raise ConfigError(f"a margin of {self.margin} leaves nothing of a map of {list(density.shape[-2:])} cells")
        block = self.region // self.stride
        rows, columns = -(-inner.shape[-2] // block), -(-inner.shape[-1] // block)
        places = [torch.arange(n, device=density.device, dtype=density.dtype) for n in (rows, columns)]
        y, x = torch.meshgrid(*places, indexing="ij")
        corners = torch.stack([x, y], -1).reshape(-1, 2) * self.region + self.margin
        made = self.inner(
            split_map(inner, block),
            split_points(points, corners, self.region),
            None if context is None else self._context(context, corners),
        )
        k = len(corners)
        return replace(made, total=made.total * k, weights={n: v * k for n, v in made.weights.items()})

    def _context(self, context: LossContext, corners: Tensor) -> LossContext:
        k, m = len(corners), self.margin

        def blocks(pixels: Tensor) -> Tensor:
            return split_map(pixels[..., m : pixels.shape[-2] - m, m : pixels.shape[-1] - m], self.region)

        mask = None if context.mask is None else blocks(context.mask[:, None].float())[:, 0] > 0
        offsets = context.offsets
        if offsets is not None:
            offsets = (offsets[:, None] + corners[None]).flatten(0, 1)
        return LossContext(
            mask=mask,
            offsets=offsets,
            sizes=None if context.sizes is None else context.sizes.repeat_interleave(k, 0),
            halo=None if context.halo is None else split_points(context.halo, corners, self.region, self.halo),
            images=blocks(context.images) if self.needs_images and context.images is not None else None,
        )
