"""`man`: VGG19 down to stride 32, four layers of region attention, a regression head at stride 16 (Lin et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.errors import ConfigError, DataError
from papm.models.attention import EncoderLayer, disagreement
from papm.models.base import DensityNetwork, check_images, pad_to_multiple, register, require
from papm.models.head import DensityHead
from papm.models.layers import start_positive
from papm.models.vgg import VGGTrunk, vgg_trunk
from papm.structures import DensityOutput, PointBatch

LAYERS = 4


class MAN(DensityNetwork):
    """All five pools of VGG19, tokens of 512 channels without positions, an encoder, ×2, three convolutions.

    An image is padded to multiples of 32 only, so that every token holds a real pixel. Where images of several sizes
    were padded to one batch, `mask` tells: tokens of padding alone are attended to by none.
    While training, `aux["region"]` [B] holds the disagreement of the region features, summed over tokens and layers.
    """

    features: VGGTrunk
    reach = None  # attention

    def __init__(self, head: DensityHead, num_classes: int, stride: int, weight: float, checkpoint: bool) -> None:
        super().__init__()
        self.features = vgg_trunk("vgg19", taps=("pool5",))
        self.encoder = nn.ModuleList(EncoderLayer(checkpoint=checkpoint) for _ in range(LAYERS))
        self.head = head
        self.num_classes, self.stride, self.region_weight = num_classes, stride, weight
        self.multiple = self.features.strides[-1]

    def forward(self, images: Tensor, mask: Tensor | None = None) -> DensityOutput:
        """Images [B, 3, H, W] and, where they are padded, which pixels are real, bool [B, H, W]."""
        check_images(images)
        height, width = images.shape[-2:]
        valid = None
        if mask is not None:
            if mask.shape != (len(images), height, width):
                raise DataError(f"a mask of {list(mask.shape)} does not fit images of {list(images.shape)}")
            real = pad_to_multiple(mask[:, None].to(images.dtype), self.multiple)
            valid = F.max_pool2d(real, self.multiple).flatten(1) > 0
            valid = valid | ~valid.any(1, keepdim=True)  # an image without a real pixel attends to itself
        density, aux = self.encode(pad_to_multiple(images, self.multiple), valid)
        return self.output_of(density, aux, height, width)

    def encode(self, images: Tensor, valid: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Images with sides of multiples of 32 → density and what `auxiliary_losses` needs."""
        features = self.features(images)[-1]
        shape = (features.shape[-2], features.shape[-1])
        tokens = features.flatten(2).mT
        wanted = self.training and self.region_weight > 0
        terms: list[Tensor] = []
        for layer in self.encoder:
            tokens, regions = layer(tokens, shape, valid, wanted)
            if regions is not None:
                terms.append(disagreement(regions, valid))
        density: Tensor = self.head(tokens.mT.contiguous().view(features.shape))
        return density, {"region": torch.stack(terms).sum(0)} if terms else {}

    def auxiliary_losses(self, output: DensityOutput, points: PointBatch) -> dict[str, Tensor]:
        """The region loss: tokens of one image should choose boxes whose content is alike."""
        if "region" not in output.aux:
            return {}
        return {"region": self.region_weight * output.aux["region"].mean()}


@register(
    "man",
    kind="density",
    stride=16,
    trunk="vgg19",
    local=False,
    summary="VGG19 and four layers of learnable region attention, at stride 16 (MAN)",
)
def man(
    *,
    num_classes: int = 1,
    stride: int = 16,
    activation: str = "relu",
    upsample: str = "bilinear",
    region_loss: bool = True,
    region_weight: float = 1.0,
    checkpoint: bool = False,
) -> DensityNetwork:
    """As published with `upsample="bilinear-aligned"`; stride 8 or 4 adds one or two steps up to the head.

    `region_loss` adds MAN's region loss to whatever the method descends. `checkpoint` computes attention again in the
    backward pass instead of keeping its maps, whose size grows with the square of the image's area.
    """
    require("stride", stride, (16, 8, 4))
    if region_weight < 0:
        raise ConfigError(f"region_weight must not be negative, but is {region_weight}")
    head = DensityHead(512, num_classes, stride // 2, activation, upsample)  # its input is twice as coarse as vgg19's
    if activation == "relu":
        start_positive(head.output)
    return MAN(head, num_classes, stride, region_weight if region_loss else 0.0, checkpoint)
