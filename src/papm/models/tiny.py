"""`tiny`: about 90 thousand parameters, trained from nothing in seconds on a CPU; for demos, tests and first looks.

With twice the channels (`width=2`, 367 thousand) it tells touching cells apart better, in two to three times the time: the
ready model `cells` (docs/notebook/touching-cells.md).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import DensityNetwork
from papm.models.head import Activation, activate
from papm.models.layers import he_init, upsampled
from papm.models.registry import Classes, register


class Tiny(DensityNetwork):
    """Three strided convolutions, a dilated residual context at stride 8 (it sees 140 px), and a way back up.

    No normalisation layers: statistics of a crop and of a whole image differ, and counts would with them.
    """

    def __init__(self, num_classes: int, stride: int, activation: str, width: int = 1) -> None:
        super().__init__()
        self.num_classes, self.stride, self.activation = num_classes, stride, activation
        self.multiple = 8
        # 1 + 2 + 4 down, 8·(1 + 2 + 4) of context, then one coarse cell for each ×2 up.
        self.receptive_field = {8: 63, 4: 63 + 8, 2: 63 + 8 + 4}[stride]
        # Density goes with the area of a cell; with this factor Adam's steps do so too. Without it the first steps at
        # stride 2 can overshoot below zero everywhere, and the last ReLU stays dead (seen with one of three seeds).
        self.gain = stride**2 / 256
        half, quarter, eighth = 16 * width, 32 * width, 48 * width  # channels at each stride
        self.down2 = nn.Conv2d(3, half, 3, stride=2, padding=1)
        self.down4 = nn.Conv2d(half, quarter, 3, stride=2, padding=1)
        self.down8 = nn.Conv2d(quarter, eighth, 3, stride=2, padding=1)
        self.context = nn.ModuleList(nn.Conv2d(eighth, eighth, 3, padding=d, dilation=d) for d in (1, 2, 4))
        # Each step up: fuse the coarse map (its channels) with the finer one met on the way down (its channels).
        up4, up2 = (eighth, quarter, quarter), (quarter, half, half)
        steps = {8: (), 4: (up4,), 2: (up4, up2)}[stride]
        self.coarse = nn.ModuleList(nn.Conv2d(c, out, 1) for c, _, out in steps)
        self.fine = nn.ModuleList(nn.Conv2d(f, out, 3, padding=1, bias=False) for _, f, out in steps)
        self.output = nn.Conv2d(steps[-1][2] if steps else eighth, num_classes, 1)
        he_init(self)
        with torch.no_grad():
            for weight in self.context.parameters():
                weight.mul_(0.5)  # residual branches: three of them would otherwise multiply the scale by 2^1.5
            # Features are ≥ 0, so with positive weights and bias every cell starts positive, whatever the image, and the
            # last ReLU passes gradients.
            self.output.weight.abs_().mul_(0.03)
            nn.init.constant_(self.output.bias, 0.1)  # type: ignore[arg-type]

    @property
    def described(self) -> nn.Module:
        return self.context[-1]

    def density(self, images: Tensor) -> Tensor:
        x2 = F.relu(self.down2(images), inplace=True)
        x4 = F.relu(self.down4(x2), inplace=True)
        x = F.relu(self.down8(x4), inplace=True)
        for conv in self.context:
            x = x + F.relu(conv(x))
        for coarse, fine, skip in zip(self.coarse, self.fine, (x4, x2)):
            x = F.relu(upsampled(coarse(x)) + fine(skip), inplace=True)
        return self.gain * activate(self.output(x), self.activation)


@register("tiny", kind="density", stride=4, summary="a small network for CPUs, demos and tests; no pretrained weights")
def tiny(
    *,
    num_classes: Classes = 1,
    stride: Literal[2, 4, 8] = 4,
    activation: Activation = "relu",
    width: Literal[1, 2] = 1,
) -> DensityNetwork:
    """A `Tiny` of stride 2, 4 or 8; `width`: how many times the channels."""
    return Tiny(num_classes, stride, activation, width)
