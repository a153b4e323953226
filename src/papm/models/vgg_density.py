"""`vgg19`: the network of BL, DM-Count and AL-PAPM; all 16 convolutions of VGG19, then a small regression head."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from papm.models import trunks
from papm.models.base import DensityNetwork
from papm.models.head import Activation, DensityHead, Upsampling
from papm.models.registry import Classes, register
from papm.models.trunks import Trunk, outside


class VGGDensity(DensityNetwork):
    """A trunk to stride 16 (VGG without its last pool), upsampled to stride 8, and a head of three convolutions."""

    def __init__(self, features: Trunk, head: DensityHead, stride: int, num_classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.stride = stride
        self.num_classes = num_classes
        self.multiple = features.strides[-1]
        self.receptive_field = outside(features.receptive_field, head.receptive_field)

    def density(self, images: Tensor) -> Tensor:
        density: Tensor = self.head(self.features(images)[-1])
        return density


@register(
    "vgg19",
    kind="density",
    stride=8,
    trunk="vgg19",
    summary="VGG19 with a regression head (BL, DM-Count): the network of the paper's main tables",
)
def vgg19(
    *,
    num_classes: Classes = 1,
    stride: Literal[8, 4, 2] = 8,
    activation: Activation = "relu",
    upsample: Upsampling = "bilinear",
    head_init: Literal["positive", "default", "normal"] = "positive",
    trunk: str = "vgg19",
) -> DensityNetwork:
    """DM-Count's with `upsample="bilinear-aligned", head_init="default"`; BL's with `activation="abs"` as well.

    GL's and NoiseCC's with `activation="abs", upsample="nearest", head_init="normal"`. `trunk="vgg19-bn"` has batch norm;
    any other trunk with a map at stride 16 goes too.
    """
    features = trunks.trunk(trunk, (16,))
    head = DensityHead(features.channels[-1], num_classes, stride, activation, upsample, head_init)
    return VGGDensity(features, head, stride, num_classes)
