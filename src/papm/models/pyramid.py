"""Feature maps joined at the finest one's stride, and a light density head on them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import DensityNetwork
from papm.models.head import CROWD, activate, start_positive
from papm.models.layers import resize
from papm.models.trunks import Trunk, outside


class Pyramid(nn.Module):
    """The fine level of a feature pyramid: 1×1 convolutions, the coarse map (if there is one) enlarged, sum, 3×3 smoothing."""

    def __init__(self, channels: tuple[int, ...], width: int, mode: str = "nearest") -> None:
        super().__init__()
        self.mode = mode
        self.fine = nn.Conv2d(channels[0], width, 1)
        self.coarse = nn.Conv2d(channels[1], width, 1) if len(channels) > 1 else None
        self.smooth = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        """[B, c₀, h, w] and [B, c₁, h/n, w/n] → [B, width, h, w]."""
        x: Tensor = self.fine(features[0])
        if self.coarse is not None:
            x = x + resize(self.coarse(features[1]), x, self.mode)
        smooth: Tensor = self.smooth(x)
        return smooth


class PyramidDensity(DensityNetwork):
    """A trunk with one map or two, their pyramid, a 3×3 convolution, and 1×1 to the density at the finer stride."""

    def __init__(self, features: Trunk, width: int, num_classes: int, activation: str) -> None:
        super().__init__()
        self.features = features
        self.stride, self.multiple = features.strides[0], features.strides[-1]
        self.num_classes, self.activation = num_classes, activation
        # Density goes with the area of a cell; with this factor Adam's steps do so too, and no step ends below zero everywhere.
        self.gain = (self.stride / 8) ** 2 / 10
        self.pyramid = Pyramid(features.channels, width, "bilinear")
        self.regress = nn.Conv2d(width, width, 3, padding=1)
        self.output = nn.Conv2d(width, num_classes, 1)
        start_positive(self.output, CROWD * self.stride**2 / self.gain, scale=0.1)
        # Between coarse cells: up to 1½ of them less a fine one; then two 3×3 convolutions.
        self.receptive_field = outside(features.receptive_field, 3 * self.multiple // 2 + self.stride)

    def density(self, images: Tensor) -> Tensor:
        x = F.relu(self.pyramid(self.features(images)), inplace=True)
        return self.gain * activate(self.output(F.relu(self.regress(x), inplace=True)), self.activation)
