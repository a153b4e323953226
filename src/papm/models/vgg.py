"""VGG trunks (Simonyan and Zisserman 2015) with torchvision's layer numbers, cut after the last map asked for."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor, nn

from papm.models.layers import conv_block, he_init, in_strips
from papm.models.trunks import TRUNKS

# Convolutions of each of the five stages; a stage ends with a 2×2 pool. Channels are 64, 128, 256, 512, 512.
_STAGES = {
    "vgg16": (2, 2, 3, 3, 3),
    "vgg16-bn": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
    "vgg19-bn": (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)


class VGGTrunk(nn.Sequential):
    """A VGG with random (He) weights and a map for each stride: of its stage's last convolution, for 32 of the last pool.

    State-dict keys are torchvision's without the leading "features.": a network keeps the trunk as `features`.
    `uncalibrated`: its batch norms do nothing yet, because its weights are those of a trunk without them
    (`papm.models.calibrate_norms`).

    >>> trunk = VGGTrunk("vgg16", (4, 8))
    >>> trunk.channels, trunk.receptive_field, [tuple(f.shape) for f in trunk(torch.zeros(1, 3, 16, 32))]
    ((256, 512), 42, [(1, 256, 4, 8), (1, 512, 2, 4)])
    """

    def __init__(self, arch: str, strides: tuple[int, ...] = (16,)) -> None:
        layers: list[nn.Module] = []
        last: dict[int, tuple[int, int]] = {}  # stride → its last layer and the channels there
        channels, field, early = 3, 0, 0
        for stage, (count, width) in enumerate(zip(_STAGES[arch], _CHANNELS)):
            if 2**stage > strides[-1]:
                break
            for _ in range(count):
                layers += conv_block(channels, width, 3, arch.endswith("-bn"))
                channels, field = width, field + 2**stage
            last[2**stage] = len(layers) - 1, width
            layers.append(nn.MaxPool2d(2, 2))
            early = len(layers) if stage == 1 else early
        last[2 ** len(_CHANNELS)] = len(layers) - 1, channels
        self.strides = tuple(s for s in last if s in strides)
        self.ends, self.channels = zip(*(last[s] for s in self.strides))
        super().__init__(*layers[: self.ends[-1] + 1])
        self.arch, self.receptive_field, self.uncalibrated, self.early = arch, field, False, early
        he_init(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W] → a map [B, channels[i], H/strides[i], W/strides[i]] each."""
        features: list[Tensor] = []
        x, done = images, 0 if self.training or self.ends[0] < self.early else self.early
        if done:
            x = in_strips(self._start, images, 6, 4)
        for index, layer in enumerate(self):
            if index < done:
                continue
            x = layer(x)
            if index in self.ends:
                features.append(x)
        return features

    def _start(self, x: Tensor) -> Tensor:
        """The first two stages and their pools, whose maps are the largest; they see 2 + 2·2 px around a cell."""
        for layer in itertools.islice(self, self.early):
            x = layer(x)
        return x


def convolutions(arch: str) -> list[str]:
    """Names of the convolutions of the whole trunk `arch`, in order: "0", "2", "5", …"""
    with torch.device("meta"):
        return [name for name, layer in VGGTrunk(arch, (32,)).named_children() if isinstance(layer, nn.Conv2d)]


for _arch in _STAGES:
    TRUNKS.register(_arch, partial(VGGTrunk, _arch))
