"""VGG trunks (Simonyan and Zisserman 2015) with torchvision's layer numbers, cut after the last feature asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from papm.errors import ConfigError, unknown
from papm.models.layers import BatchNorm, he_init
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
    """A VGG up to its last tap. `forward` returns one feature map a tap, finest first.

    State-dict keys are torchvision's without the leading "features.": a network keeps the trunk as `features`.
    `uncalibrated`: its batch norms do nothing yet, because its weights are those of a trunk without them
    (`papm.models.calibrate_norms`).
    """

    def __init__(
        self, layers: OrderedDict[str, nn.Module], arch: str, taps: Sequence[str], ends: Sequence[int]
    ) -> None:
        super().__init__(layers)
        self.arch = arch
        self.taps = tuple(taps)
        self.ends = tuple(ends)  # index of the layer whose output is the tap
        self.channels = tuple(_CHANNELS[_stage(tap) - 1] for tap in taps)
        self.strides = tuple(2 ** (_stage(tap) - (not tap.startswith("pool"))) for tap in taps)
        self.uncalibrated = False
        self.receptive_field = 0  # one pixel of its stride for each conv3×3
        stride = 1
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                self.receptive_field += stride
            elif isinstance(layer, nn.MaxPool2d):
                stride *= 2

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W] → a map [B, channels[i], H/strides[i], W/strides[i]] for tap i."""
        features: list[Tensor] = []
        x = images
        for index, layer in enumerate(self):
            x = layer(x)
            if index in self.ends:
                features.append(x)
        return features


def vgg_trunk(arch: str, taps: Sequence[str] | None = None) -> VGGTrunk:
    """A trunk with random (He) weights that returns the features named in `taps`.

    A tap is "convS_K" (convolution K of stage S, after its ReLU) or "poolS". Layers after the last tap are left out.
    The default is the last convolution: stride 16, 512 channels, the fifth pool dropped.

    >>> trunk = vgg_trunk("vgg16", taps=("conv3_3", "conv4_3"))
    >>> trunk.channels, trunk.strides, [tuple(f.shape) for f in trunk(torch.zeros(1, 3, 16, 32))]
    ((256, 512), (4, 8), [(1, 256, 4, 8), (1, 512, 2, 4)])
    """
    if arch not in _STAGES:
        raise unknown("trunk", arch, _STAGES)
    stages = _STAGES[arch]
    taps = (f"conv5_{stages[-1]}",) if taps is None else tuple(taps)
    layers: list[nn.Module] = []
    end_of: dict[str, int] = {}
    channels = 3
    for stage, (count, width) in enumerate(zip(stages, _CHANNELS), start=1):
        for number in range(1, count + 1):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if arch.endswith("-bn"):
                layers.append(BatchNorm(width))
            layers.append(nn.ReLU(inplace=True))
            end_of[f"conv{stage}_{number}"] = len(layers) - 1
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
        end_of[f"pool{stage}"] = len(layers) - 1
    for tap in taps:
        if tap not in end_of:
            raise unknown(f"tap of {arch}", tap, end_of)
    ends = [end_of[tap] for tap in taps]
    if not ends or sorted(set(ends)) != ends:
        raise ConfigError(f"name the taps of {arch} once each, from fine to coarse, not {', '.join(taps) or 'none'}")
    trunk = VGGTrunk(OrderedDict((str(i), m) for i, m in enumerate(layers[: ends[-1] + 1])), arch, taps, ends)
    he_init(trunk)
    return trunk


def convolutions(arch: str) -> list[str]:
    """Names of the convolutions of the whole trunk `arch`, in order: "0", "2", "5", …"""
    with torch.device("meta"):
        return [
            name for name, layer in vgg_trunk(arch, taps=("pool5",)).named_children() if isinstance(layer, nn.Conv2d)
        ]


def _stage(tap: str) -> int:
    return int(tap.removeprefix("conv").removeprefix("pool").split("_")[0])


def vgg_at(arch: str, strides: Sequence[int]) -> VGGTrunk:
    """The trunk with a map at each of these strides: the last convolution of the stage, or after the last pool for 32.

    >>> vgg_at("vgg19", (8, 16, 32)).taps
    ('conv4_4', 'conv5_4', 'pool5')
    """
    stages = _STAGES[arch]
    last = {2**k: f"conv{k + 1}_{count}" for k, count in enumerate(stages)} | {2 ** len(stages): f"pool{len(stages)}"}
    return vgg_trunk(arch, [last[stride] for stride in strides])


for _arch in _STAGES:
    TRUNKS.register(_arch, partial(vgg_at, _arch))
