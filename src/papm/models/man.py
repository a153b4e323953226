"""`man`: VGG19 down to stride 32, four layers of region attention, a regression head at stride 16 (Lin et al. 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.errors import DataError
from papm.models import trunks
from papm.models.attention import EncoderLayer, disagreement
from papm.models.base import DensityNetwork, in_half_on_cpu
from papm.models.head import CROWD, Activation, DensityHead, Upsampling
from papm.models.registry import Classes, Weight, register
from papm.models.trunks import Trunk
from papm.structures import DensityOutput, PointBatch
from papm.targets import touched_cells

LAYERS = 4


class MAN(DensityNetwork):
    """A trunk to stride 32 (VGG19 with its five pools), tokens without positions, an encoder, ×2, three convolutions.

    An image is padded to multiples of 32 only, so that every token holds a real pixel. Where images of several sizes
    were padded to one batch, as crops of small images are, `mask` tells: tokens of padding alone are attended to by none,
    and neither are those of a frame.
    While training, `aux["region0"]` … `aux["region3"]` [B, tokens, channels] hold the region features of the layers, and with a
    mask `aux["real"]` [B, tokens] which tokens are real.
    """

    receptive_field = None  # attention
    takes_mask = True

    def __init__(
        self, features: Trunk, head: DensityHead, num_classes: int, stride: int, weight: float, checkpoint: bool
    ) -> None:
        super().__init__()
        self.features = features
        self.encoder = nn.ModuleList(EncoderLayer(features.channels[-1], checkpoint=checkpoint) for _ in range(LAYERS))
        self.head = head
        self.num_classes, self.stride, self.region_weight = num_classes, stride, weight
        self.multiple = features.strides[-1]

    def forward(self, images: Tensor, mask: Tensor | None = None) -> DensityOutput:
        """Images [B, 3, H, W] and, where they are padded, which pixels are real, bool [B, H, W]."""
        valid, frame = None, self.frame_now if mask is None else 0
        framed = self.framed(images, frame)
        height, width = images.shape[-2:]
        if frame:
            rows, columns = (self._inside(n, frame, images.device) for n in (height, width))
            valid = (rows[:, None] & columns).expand(len(images), -1, -1)
        if mask is not None:
            if mask.shape != (len(images), height, width):
                raise DataError(f"a mask of {list(mask.shape)} does not fit images of {list(images.shape)}")
            valid = touched_cells(mask, self.multiple)
            valid = valid | ~valid.flatten(1).any(1)[:, None, None]  # an image without a real pixel attends to itself
        if valid is not None and in_half_on_cpu(images):  # a narrow image was made wider
            valid = _widened(valid, framed.shape[-1] // self.multiple)
        density, aux = self.encode(framed, None if valid is None else valid.flatten(1))
        return self.output_of(density, aux, height, width, frame)

    def _inside(self, length: int, frame: int, device: torch.device) -> Tensor:
        """bool: which tokens along a side of so many pixels, framed, hold some of them."""
        first = torch.arange(-(-(length + 2 * frame) // self.multiple), device=device) * self.multiple
        return (first >= frame) & (first < frame + length)

    def encode(self, images: Tensor, valid: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Images with sides of multiples of 32 → density and what `auxiliary_losses` needs."""
        features = self.features(images)[-1]
        shape = (features.shape[-2], features.shape[-1])
        tokens = features.flatten(2).mT
        wanted = self.training and self.region_weight > 0
        aux: dict[str, Tensor] = {}
        for number, layer in enumerate(self.encoder):
            tokens, regions = layer(tokens, shape, valid, wanted)
            if regions is not None:
                aux[f"region{number}"] = regions
        if aux and valid is not None:
            aux["real"] = valid
        density: Tensor = self.head(tokens.mT.contiguous().view(features.shape))
        return density, aux

    def auxiliary_losses(
        self, output: DensityOutput, points: PointBatch, mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The region loss: tokens of one image, those with a pixel that counts, should choose boxes of alike content."""
        regions = [features for name, features in output.aux.items() if name.startswith("region")]
        if not regions:
            return {}
        valid = output.aux.get("real")
        if mask is not None:
            cells = touched_cells(mask, self.multiple)
            counted = _widened(cells, regions[0].shape[1] // cells.shape[1]).flatten(1)
            valid = counted if valid is None else valid & counted
        return {"region": self.region_weight * torch.stack([disagreement(r, valid) for r in regions]).sum(0).mean()}


def _widened(cells: Tensor, columns: int) -> Tensor:
    """Which cells count, bool [B, h, w], of an image that was made so many columns wide: those that were added do not."""
    return F.pad(cells, (0, columns - cells.shape[-1]))


@register(
    "man",
    kind="density",
    stride=16,
    trunk="vgg19",
    summary="VGG19 and four layers of learnable region attention, at stride 16 (MAN)",
)
def man(
    *,
    num_classes: Classes = 1,
    stride: Literal[16, 8, 4] = 16,
    activation: Activation = "relu",
    upsample: Upsampling = "bilinear",
    region_loss: bool = True,
    region_weight: Weight = 1.0,
    checkpoint: bool = False,
    trunk: str = "vgg19",
) -> DensityNetwork:
    """As published with `upsample="bilinear-aligned"`; stride 8 or 4 adds one or two steps up to the head.

    `region_loss` adds MAN's region loss to whatever the method descends. `checkpoint` computes attention again in the
    backward pass instead of keeping its maps, whose size grows with the square of the image's area.
    Any `trunk` with stride 32 goes.
    """
    features = trunks.trunk(trunk, (32,))
    # Its input is twice as coarse as vgg19's.
    head = DensityHead(features.channels[-1], num_classes, stride // 2, activation, upsample)
    assert head.output.bias is not None
    nn.init.constant_(head.output.bias, CROWD * stride**2)
    return MAN(features, head, num_classes, stride, region_weight if region_loss else 0.0, checkpoint)
