"""`vgg19`: the network of BL, DM-Count and AL-PAPM; all 16 convolutions of VGG19, then a small regression head."""

from __future__ import annotations

from torch import Tensor

from papm.models.base import DensityNetwork, register, require
from papm.models.head import DensityHead
from papm.models.vgg import VGGTrunk, vgg_trunk


class VGGDensity(DensityNetwork):
    """VGG without its last pool (stride 16), upsampled to stride 8, and a head of three convolutions."""

    features: VGGTrunk

    def __init__(self, features: VGGTrunk, head: DensityHead, stride: int, num_classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.stride = stride
        self.num_classes = num_classes
        self.multiple = features.strides[-1]
        self.receptive_field = None if head.receptive_field is None else features.receptive_field + head.receptive_field

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
    num_classes: int = 1,
    stride: int = 8,
    activation: str = "relu",
    upsample: str = "bilinear",
    head_init: str = "positive",
    trunk: str = "vgg19",
) -> DensityNetwork:
    """DM-Count's with `upsample="bilinear-aligned", head_init="default"`; BL's with `activation="abs"` as well.

    GL's and NoiseCC's with `activation="abs", upsample="nearest", head_init="normal"`. `trunk="vgg19-bn"` has batch norm.
    """
    require("trunk", trunk, ("vgg19", "vgg19-bn"))
    head = DensityHead(512, num_classes, stride, activation, upsample, head_init)
    return VGGDensity(vgg_trunk(trunk), head, stride, num_classes)
