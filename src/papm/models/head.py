"""From features to a density map: upsampling, the regression head of BL and DM-Count, a non-negative output."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.layers import normal_init, upsampled

Activation = Literal["relu", "abs", "relu-live"]
SignedActivation = Literal["relu", "abs", "relu-live", "none"]
Upsampling = Literal["bilinear", "bilinear-aligned", "nearest"]
# People a pixel where a map may start, those of a photograph of ShanghaiTech A: from much less, transport losses leave counts
# near zero for long (docs/networks.md).
CROWD = 500 / (768 * 1024)


class _LiveReLU(torch.autograd.Function):
    """max(x, 0) whose derivative below zero is 1 where the loss asks for more, and 0 where it asks for less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x > 0) | (grads[0] < 0), grads[0], 0.0)


def activate(x: Tensor, activation: str) -> Tensor:
    """max(x, 0) ("relu", DM-Count), |x| ("abs", BL and GL), max(x, 0) that cannot die ("relu-live"), or x as it is ("none").

    A ReLU passes no gradient where its input is negative: a map that was driven below zero everywhere stays there. |x| does
    not know that trap, but turns every small negative output into a positive count. "relu-live" lets a cell that is too
    low rise again and is a ReLU otherwise (the gradient of descent projected onto maps ≥ 0). "none" is what CSRNet and
    M-SFANet published, negative densities included.
    """
    if activation == "none":
        return x
    if activation == "abs":
        return x.abs()
    if activation == "relu-live" and torch.is_grad_enabled():
        live: Tensor = _LiveReLU.apply(x)  # type: ignore[no-untyped-call]
        return live
    return F.relu(x)


def start_positive(output: nn.Conv2d, bias: float = 0.0, scale: float = 1.0) -> None:
    """Make the last convolution's weights positive (and `scale` times as large): a final ReLU then passes gradients.

    Its inputs are outputs of ReLUs, much alike in every cell, so that one random sum of them has the same sign nearly
    everywhere: with weights of both signs about every second start is a map of zeros which never learns.
    """
    with torch.no_grad():
        output.weight.abs_().mul_(scale)
        if output.bias is not None:
            nn.init.constant_(output.bias, bias)


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
        init: str = "positive",
    ) -> None:
        super().__init__()
        self.activation = activation
        self.mode = upsample
        # Each ×2 looks one cell of its input further, each conv3×3 one cell of its own stride. Corner on corner, what a cell
        # sees depends on the size of the whole map.
        further = {8: 16 + 2 * 8, 4: 16 + 2 * 8 + 8 + 4, 2: 16 + 2 * 8 + 8 + 4 + 4 + 2}[stride]
        self.receptive_field = None if upsample == "bilinear-aligned" else further
        self.regress = nn.Sequential(
            nn.Conv2d(channels, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 128, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        extra = int(math.log2(8 // stride))
        self.refine = nn.ModuleList(nn.Conv2d(128 >> i, 64 >> i, 3, padding=1) for i in range(extra))
        self.output = nn.Conv2d(128 >> extra, num_classes, 1)
        if init == "positive":
            start_positive(self.output, scale=0.1)
        if init == "normal":  # GL and NoiseCC
            normal_init(self)

    def forward(self, features: Tensor) -> Tensor:
        """[B, channels, h, w] → [B, classes, 16·h/stride, 16·w/stride], non-negative."""
        x: Tensor = self.regress(upsampled(features, self.mode))
        for conv in self.refine:
            x = F.relu(conv(upsampled(x, self.mode)), inplace=True)
        return activate(self.output(x), self.activation)
