"""`mcnn`: three small columns with kernels of three sizes on the grey image, a density at stride 4 (Zhang et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from papm import imagenet
from papm.models.base import DensityNetwork
from papm.models.head import Activation, activate, start_positive
from papm.models.layers import normal_init
from papm.models.registry import Classes, register

# Of each column: sides of its four kernels and their channels; a 2×2 pool follows each of the first two.
COLUMNS = (
    ((9, 7, 7, 7), (16, 32, 16, 8)),
    ((7, 5, 5, 5), (20, 40, 20, 10)),
    ((5, 3, 3, 3), (24, 48, 24, 12)),
)
GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as every reader of grey JPEGs uses
BIAS = 0.01  # about the density of a stride-4 cell of ShanghaiTech A: 500 people in 768×1024 pixels


class MCNN(DensityNetwork):
    """Three columns see heads of three sizes; a 1×1 convolution joins their 30 channels."""

    colour: Tensor
    black: Tensor

    def __init__(self, num_classes: int, activation: str) -> None:
        super().__init__()
        self.num_classes, self.activation = num_classes, activation
        self.stride = self.multiple = 4
        # Normalised RGB → grey of 0 … 255, what the published network was trained on.
        colour = [255 * share * std for share, std in zip(GREY, imagenet.STD)]
        black = 255 * sum(share * mean for share, mean in zip(GREY, imagenet.MEAN))
        self.register_buffer("colour", torch.tensor(colour).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("black", torch.tensor(black), persistent=False)
        self.columns = nn.ModuleList(_column(kernels, channels) for kernels, channels in COLUMNS)
        self.output = nn.Conv2d(sum(channels[-1] for _, channels in COLUMNS), num_classes, 1)
        self.receptive_field = max(
            sum(k // 2 * stride for k, stride in zip(kernels, (1, 2, 4, 4))) for kernels, _ in COLUMNS
        )
        normal_init(self)
        if activation in ("relu", "relu-live"):
            start_positive(self.output, BIAS)

    def density(self, images: Tensor) -> Tensor:
        grey = (images * self.colour).sum(1, keepdim=True) + self.black
        return activate(self.output(torch.cat([column(grey) for column in self.columns], 1)), self.activation)


def _column(kernels: tuple[int, ...], channels: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = 1
    for number, (kernel, outside) in enumerate(zip(kernels, channels)):
        layers += [nn.Conv2d(inside, outside, kernel, padding=kernel // 2), nn.ReLU(inplace=True)]
        if number < 2:
            layers.append(nn.MaxPool2d(2, 2))
        inside = outside
    return nn.Sequential(*layers)


@register("mcnn", kind="density", stride=4, summary="three columns of small convolutions on the grey image (MCNN)")
def mcnn(*, num_classes: Classes = 1, activation: Activation = "relu-live") -> DensityNetwork:
    """Starts from random weights, all columns together; `relu` is published, and can die (docs/networks.md)."""
    return MCNN(num_classes, activation)
