"""From features to a density map: upsampling, the regression head of BL and DM-Count, a non-negative output."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import require, require_count

ACTIVATIONS = ("relu", "abs")
UPSAMPLINGS = ("bilinear", "bilinear-aligned", "nearest")


def non_negative(x: Tensor, activation: str) -> Tensor:
    """max(x, 0) ("relu", DM-Count) or |x| ("abs", BL and GL: no region without gradient)."""
    return x.abs() if activation == "abs" else F.relu(x)


def upsample(x: Tensor, mode: str = "bilinear") -> Tensor:
    """Twice the rows and columns.

    "bilinear-aligned" puts corner on corner (DM-Count, BL): the step between samples then depends on the size of the
    map, so that a crop and the whole image see different features. "bilinear" and "nearest" (GL, NoiseCC) do not do so.
    """
    if mode == "nearest":
        return F.interpolate(x, scale_factor=2.0, mode="nearest")
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=mode == "bilinear-aligned")


class DensityHead(nn.Module):
    """Features at stride 16 → density at stride 8, 4 or 2.

    ×2, conv3×3 → 256, conv3×3 → 128 (stride 8); for each further halving of the stride ×2 and a conv3×3 that halves the
    channels; conv1×1 → classes; `activation`. ReLU between. The stride-8 form is that of BL and DM-Count.
    """

    def __init__(
        self,
        channels: int = 512,
        num_classes: int = 1,
        stride: int = 8,
        activation: str = "relu",
        upsample: str = "bilinear",
        init: str = "default",
    ) -> None:
        super().__init__()
        require_count("num_classes", num_classes)
        require("stride", stride, (8, 4, 2))
        require("activation", activation, ACTIVATIONS)
        require("upsample", upsample, UPSAMPLINGS)
        require("head_init", init, ("default", "normal"))
        self.activation = activation
        self.mode = upsample
        # Each ×2 looks one cell of its input further, each conv3×3 one cell of its own stride.
        self.reach = {8: 16 + 2 * 8, 4: 16 + 2 * 8 + 8 + 4, 2: 16 + 2 * 8 + 8 + 4 + 4 + 2}[stride]
        self.regress = nn.Sequential(
            nn.Conv2d(channels, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 128, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        extra = int(math.log2(8 // stride))
        self.refine = nn.ModuleList(nn.Conv2d(128 >> i, 64 >> i, 3, padding=1) for i in range(extra))
        self.output = nn.Conv2d(128 >> extra, num_classes, 1)
        if init == "normal":  # GL and NoiseCC
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.normal_(layer.weight, std=0.01)
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """[B, channels, h, w] → [B, classes, 16·h/stride, 16·w/stride], non-negative."""
        x: Tensor = self.regress(upsample(features, self.mode))
        for conv in self.refine:
            x = F.relu(conv(upsample(x, self.mode)), inplace=True)
        return non_negative(self.output(x), self.activation)
