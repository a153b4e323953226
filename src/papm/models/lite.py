"""`lite`: EfficientNet-Lite0 (Tan and Le 2019, Google's form for phones), an ImageNet trunk that a CPU can train."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm import imagenet
from papm.models.base import DensityNetwork
from papm.models.depthwise import relu6_depthwise, same_padding, usable
from papm.models.head import Activation
from papm.models.layers import he_init, in_strips
from papm.models.pyramid import PyramidDensity
from papm.models.registry import Classes, register
from papm.models.trunks import TRUNKS, trunk

EPSILON = 1e-3  # of the norms
EARLY, EARLY_FIELD = (
    3,
    9,
)  # blocks up to stride 4, whose maps are the largest, and the pixels that they and the stem see around
# Of each stage: blocks, side of the kernel, stride of the first block, how many times wider inside, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class FrozenNorm(nn.Module):
    """Batch norm with ImageNet's statistics for ever; scale and shift learn.

    Statistics of a few crops are noise, and differ from those of the whole image that is counted.
    """

    running_mean: Tensor
    running_var: Tensor
    folded: tuple[Tensor, Tensor] | None = (
        None  # weight and bias of convolution and norm together, for counting (`fold`)
    )

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def train(self, mode: bool = True) -> FrozenNorm:
        if mode:
            self.folded = None
        return super().train(mode)

    def _apply(self, *how: Any, **more: Any) -> Any:  # to another device or precision
        self.folded = None
        return super()._apply(*how, **more)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *what: Any, **more: Any) -> None:
        self.folded = None
        super()._load_from_state_dict(*what, **more)


def together(conv: nn.Conv2d, norm: FrozenNorm) -> tuple[Tensor, Tensor]:
    """Weight and bias of the one convolution that a convolution and its norm are."""
    scale = norm.weight * (norm.running_var + EPSILON).rsqrt()
    return conv.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def convolve(x: Tensor, conv: nn.Conv2d, norm: FrozenNorm) -> Tensor:
    """Convolution with SAME padding and its norm, as one convolution."""
    if conv.groups > 1 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # Gradients of a convolution of each channel are twice as slow in bf16.
        with torch.autocast("cpu", enabled=False):
            return convolve(x.to(conv.weight.dtype), conv, norm)
    weight, bias = norm.folded or together(conv, norm)
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    if stride == 1:
        return F.conv2d(x, weight, bias, padding=kernel // 2, groups=conv.groups)
    rows, columns = (same_padding(n, kernel, stride) for n in x.shape[-2:])
    return F.conv2d(F.pad(x, (*columns, *rows)), weight, bias, stride, groups=conv.groups)


class Block(nn.Module):
    """1×1 to more channels, a convolution of each channel, 1×1 back; added to its input where that has the same shape."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, wider: int) -> None:
        super().__init__()
        hidden = inside * wider
        self.widens, self.adds = wider > 1, stride == 1 and inside == outside
        if self.widens:
            self._expand_conv, self._bn0 = nn.Conv2d(inside, hidden, 1, bias=False), FrozenNorm(hidden)
        self._depthwise_conv = nn.Conv2d(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        self._bn1 = FrozenNorm(hidden)
        self._project_conv, self._bn2 = nn.Conv2d(hidden, outside, 1, bias=False), FrozenNorm(outside)

    def pairs(self) -> list[tuple[nn.Conv2d, FrozenNorm]]:
        """Convolutions and their norms."""
        first = [(self._expand_conv, self._bn0)] if self.widens else []
        return [*first, (self._depthwise_conv, self._bn1), (self._project_conv, self._bn2)]

    def forward(self, x: Tensor) -> Tensor:
        y = self._middle(convolve(x, self._expand_conv, self._bn0) if self.widens else x)
        y = convolve(y, self._project_conv, self._bn2)
        return x + y if self.adds else y

    def _middle(self, x: Tensor) -> Tensor:
        """The convolution of each channel and its activation, and before them that of the 1×1 that widens, if there is one."""
        conv, norm = self._depthwise_conv, self._bn1
        if usable(x, conv.kernel_size[0]):
            return relu6_depthwise(x, *(norm.folded or together(conv, norm)), conv.stride[0], clip=self.widens)
        return F.relu6(convolve(F.relu6(x, inplace=True) if self.widens else x, conv, norm), inplace=True)


class LiteTrunk(nn.Module):
    """The blocks up to the last stride asked for, of 2, 4, 8, 16 and 32; its parameters have the published file's names."""

    arch = "lite"
    colour: Tensor
    shift: Tensor

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        # It learned from (pixel − 127)/128; images come as (pixel/255 − mean)/std.
        mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in (imagenet.MEAN, imagenet.STD))
        self.register_buffer("colour", 255 * std / 128, persistent=False)
        self.register_buffer("shift", (255 * mean - 127) / 128, persistent=False)
        self._conv_stem, self._bn0 = nn.Conv2d(3, 32, 3, 2, bias=False), FrozenNorm(32)
        blocks: list[Block] = []
        last: dict[int, tuple[int, int]] = {}  # stride → its last block and the channels there
        channels, at, field = 32, 2, 1
        for count, kernel, stride, wider, outside in STAGES:
            if at * stride > strides[-1]:
                break
            for number in range(count):
                step = stride if number == 0 else 1
                blocks.append(Block(channels, outside, kernel, step, wider))
                field += kernel // 2 * at
                channels, at = outside, at * step
            last[at] = len(blocks) - 1, channels
        self._blocks = nn.ModuleList(blocks)
        self.strides = tuple(s for s in last if s in strides)
        self.channels = tuple(last[s][1] for s in self.strides)
        self.ends = tuple(last[s][0] for s in self.strides)
        self.receptive_field = field
        he_init(self)

    def fold(self) -> None:
        """Join every convolution with its norm once, instead of in every forward pass; until weights move, load or train."""
        pairs = [(self._conv_stem, self._bn0)]
        pairs += [pair for block in self._blocks if isinstance(block, Block) for pair in block.pairs()]
        with torch.no_grad():
            for conv, norm in pairs:
                weight, bias = together(conv, norm)
                norm.folded = weight.contiguous(memory_format=torch.channels_last), bias

    def _start(self, images: Tensor, blocks: int) -> Tensor:
        """The stem and the first blocks."""
        x = torch.addcmul(self.shift, images, self.colour)
        x = F.relu6(convolve(x, self._conv_stem, self._bn0), inplace=True)
        for block in self._blocks[:blocks]:
            x = block(x)
        return x

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W] → a map [B, channels[i], H/strides[i], W/strides[i]] each."""
        done = EARLY if self.ends[0] >= EARLY - 1 else 0
        x = in_strips(partial(self._start, blocks=done), images, EARLY_FIELD, 4) if done else self._start(images, 0)
        maps = [x] if done - 1 in self.ends else []
        for number, block in enumerate(self._blocks[done:], done):
            x = block(x)
            if number in self.ends:
                maps.append(x)
        return maps


def fold(network: nn.Module) -> None:
    """Make a network that only counts from now on do so faster: `LiteTrunk.fold` wherever there is one."""
    for part in network.modules():
        if isinstance(part, LiteTrunk):
            part.fold()


TRUNKS.register("lite", LiteTrunk)


@register(
    "lite",
    kind="density",
    stride=8,
    trunk="lite",
    summary="EfficientNet-Lite0 and a light head: photographs on a CPU, few training images",
)
def lite(
    *, num_classes: Classes = 1, stride: Literal[8, 4] = 8, activation: Activation = "relu-live"
) -> DensityNetwork:
    """Features of stride 16 and of the output's join; no deeper ones, whose cells see 425 px around them."""
    return PyramidDensity(trunk("lite", (stride, 16)), 96, num_classes, activation)
