"""`csrnet`: the first ten convolutions of VGG16, six dilated ones, and a density at stride 8 (Li et al. 2018)."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from papm.models import trunks
from papm.models.base import DensityNetwork
from papm.models.head import CROWD, SignedActivation, activate, start_positive
from papm.models.layers import normal_init
from papm.models.registry import Classes, register
from papm.models.trunks import Trunk, outside

BACK_END = (512, 512, 512, 256, 128, 64)  # channels of the dilated convolutions (CSRNet's configuration B)
DILATION = 2


class CSRNet(DensityNetwork):
    """A trunk to stride 8 (VGG16 up to conv4_3), then 3×3 convolutions of dilation 2, and 1×1 to the density."""

    def __init__(self, features: Trunk, num_classes: int, activation: str) -> None:
        super().__init__()
        self.features = features
        self.num_classes, self.activation = num_classes, activation
        self.stride = self.multiple = features.strides[-1]
        layers: list[nn.Module] = []
        for before, after in pairwise((features.channels[-1], *BACK_END)):
            layers += [nn.Conv2d(before, after, 3, padding=DILATION, dilation=DILATION), nn.ReLU(inplace=True)]
        self.back_end = nn.Sequential(*layers)
        self.output = nn.Conv2d(BACK_END[-1], num_classes, 1)
        self.receptive_field = outside(features.receptive_field, len(BACK_END) * DILATION * self.stride)
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
def csrnet(*, num_classes: Classes = 1, activation: SignedActivation = "relu", trunk: str = "vgg16") -> DensityNetwork:
    """The published network ends without activation, `activation="none"`; "abs" is that of KDMG. `trunk`: any with stride 8."""
    return CSRNet(trunks.trunk(trunk, (8,)), num_classes, activation)
