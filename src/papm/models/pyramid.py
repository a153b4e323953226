"""Two feature maps joined at the finer one's stride, and a light density head on them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import DensityNetwork
from papm.models.head import CROWD, non_negative, start_positive
from papm.models.layers import resize
from papm.models.trunks import Trunk, outside


class Pyramid(nn.Module):
    """The fine level of a feature pyramid: 1×1 convolutions, the coarse map enlarged, sum, 3×3 smoothing."""

    def __init__(self, channels: tuple[int, ...], width: int, mode: str = "nearest") -> None:
        super().__init__()
        self.mode = mode
        self.fine, self.coarse = (nn.Conv2d(c, width, 1) for c in channels)
        self.smooth = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        """[B, c₀, h, w] and [B, c₁, h/n, w/n] → [B, width, h, w]."""
        fine, coarse = (conv(x) for conv, x in zip((self.fine, self.coarse), features))
        x: Tensor = self.smooth(fine + resize(coarse, fine, self.mode))
        return x


class PyramidDensity(DensityNetwork):
    """A trunk with two maps, their pyramid, a 3×3 convolution, and 1×1 to the density at the finer stride."""

    def __init__(self, features: Trunk, width: int, num_classes: int, activation: str) -> None:
        super().__init__()
        self.features = features
        self.stride, self.multiple = features.strides
        self.num_classes, self.activation = num_classes, activation
        self.pyramid = Pyramid(features.channels, width, "bilinear")
        self.regress = nn.Conv2d(width, width, 3, padding=1)
        self.output = nn.Conv2d(width, num_classes, 1)
        start_positive(self.output, CROWD * self.stride**2, scale=0.01)  # a pretrained trunk gives some 0.02 more
        # Between coarse cells: up to 1½ of them less a fine one; then two 3×3 convolutions.
        self.receptive_field = outside(features.receptive_field, 3 * self.multiple // 2 + self.stride)

    def density(self, images: Tensor) -> Tensor:
        x = F.relu(self.pyramid(self.features(images)), inplace=True)
        return non_negative(self.output(F.relu(self.regress(x), inplace=True)), self.activation)
