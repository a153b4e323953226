"""`csrnet`: the first ten convolutions of VGG16, six dilated ones, and a density at stride 8 (Li et al. 2018)."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from papm.models.base import DensityNetwork
from papm.models.head import CROWD, start_positive
from papm.models.layers import SignedActivation, activate, normal_init
from papm.models.registry import Classes, register
from papm.models.vgg import VGGTrunk, vgg_trunk

BACK_END = (512, 512, 512, 256, 128, 64)  # channels of the dilated convolutions (CSRNet's configuration B)
DILATION = 2


class CSRNet(DensityNetwork):
    """VGG16 up to conv4_3, then 3×3 convolutions of dilation 2, and 1×1 to the density."""

    features: VGGTrunk

    def __init__(self, num_classes: int, activation: str) -> None:
        super().__init__()
        self.features = vgg_trunk("vgg16", taps=("conv4_3",))
        self.num_classes, self.activation = num_classes, activation
        self.stride = self.multiple = self.features.strides[-1]
        layers: list[nn.Module] = []
        for inside, outside in pairwise((self.features.channels[-1], *BACK_END)):
            layers += [nn.Conv2d(inside, outside, 3, padding=DILATION, dilation=DILATION), nn.ReLU(inplace=True)]
        self.back_end = nn.Sequential(*layers)
        self.output = nn.Conv2d(BACK_END[-1], num_classes, 1)
        self.receptive_field = self.features.receptive_field + len(BACK_END) * DILATION * self.stride
        normal_init(self.back_end)
        normal_init(self.output)
        if activation == "relu":
            start_positive(self.output, CROWD * self.stride**2)  # six layers of N(0, 0.01²) give next to nothing

    def density(self, images: Tensor) -> Tensor:
        return activate(self.output(self.back_end(self.features(images)[-1])), self.activation)


@register(
    "csrnet",
    kind="density",
    stride=8,
    trunk="vgg16",
    summary="VGG16's first ten convolutions and six dilated ones (CSRNet)",
)
def csrnet(*, num_classes: Classes = 1, activation: SignedActivation = "relu") -> DensityNetwork:
    """The published network ends without activation, `activation="none"`; "abs" is that of KDMG."""
    return CSRNet(num_classes, activation)
