"""Small things that several networks share: published starts, resizing, batch norm, checkpointing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def normal_init(module: nn.Module, std: float = 0.01) -> None:
    """Every convolution N(0, std²), biases zero: the start of CSRNet, MCNN, CAN and SFANet."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def he_init(module: nn.Module) -> None:
    """He's initialisation of every convolution, N(0, 2/fan-in), biases zero: a ReLU network keeps its scale."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def upsampled(x: Tensor, mode: str = "bilinear") -> Tensor:
    """Twice the rows and columns.

    "bilinear-aligned" puts corner on corner (DM-Count, BL): the step between samples then depends on the size of the
    map, so that a crop and the whole image see different features. "bilinear" and "nearest" (GL, NoiseCC) do not do so.
    """
    return _interpolated(x, mode, scale_factor=2.0)


def resize(x: Tensor, like: Tensor, mode: str = "bilinear") -> Tensor:
    """x at the rows and columns of `like`; `mode` as in `upsampled`.

    The size, not a factor, is what is given: exported programs can then join both maps for every image size.
    """
    return _interpolated(x, mode, size=like.shape[-2:])


SPAN = 2**18  # pixels of a strip: 256 rows of 1024; 64 and 128 rows were no faster with two threads (docs/speed.md)


def in_strips(part: Callable[[Tensor], Tensor], images: Tensor, field: int, stride: int) -> Tensor:
    """`part(images)`, strip by strip where images are counted on a CPU: first layers, which see `field` px around a cell.

    Maps of whole images in the first layers are larger than any cache, and memory of that size is taken from the system and
    given back in every forward pass, which can take as long as the convolutions. Strips overlap by what a cell sees, so that
    the result is the same. Sides of images and of strips are multiples of `stride`.

    >>> with torch.no_grad():
    ...     conv, images = nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.randn(1, 3, 1024, 1024)
    ...     torch.allclose(in_strips(conv, images, 1, 2), conv(images), atol=1e-5)
    True
    """
    batch, _, height, width = images.shape
    if images.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return part(images)
    halo = -(-field // stride) * stride
    rows = max(8 * halo, SPAN // (batch * width) // stride * stride)
    if height <= rows + 2 * halo:
        return part(images)
    pieces = []
    for start in range(0, height, rows):
        top, end = max(0, start - halo), min(start + rows, height)
        made = part(images[..., top : min(end + halo, height), :])
        pieces.append(made[..., (start - top) // stride : (end - top) // stride, :])
    return torch.cat(pieces, -2)


def _interpolated(x: Tensor, mode: str, **to: Any) -> Tensor:
    if mode == "nearest":
        return F.interpolate(x, mode="nearest", **to)
    return F.interpolate(x, mode="bilinear", align_corners=mode == "bilinear-aligned", **to)


def checkpointed(active: bool, function: Callable[..., Any], *inputs: Any) -> Any:
    """function(*inputs), keeping nothing but the inputs for the backward pass, which computes the rest again."""
    if active and torch.is_grad_enabled():
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation that can train on one value a channel, and knows when its forward pass runs twice.

    One value (the global pool of a batch of one) has no deviation: the running statistics take its place. Inside a
    checkpointed part the same batch comes twice a step; a momentum of 1 − √(1 − m) then moves the running statistics
    exactly as far as m would have once.
    """

    def __init__(self, channels: int, recomputed: bool = False) -> None:
        super().__init__(channels)
        self.recomputed = recomputed

    def forward(self, x: Tensor) -> Tensor:
        batch = self.training and x.shape[0] * x.shape[2] * x.shape[3] > 1
        assert self.momentum is not None
        twice = self.recomputed and torch.is_grad_enabled()
        momentum = 1 - math.sqrt(1 - self.momentum) if twice else self.momentum
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, batch, momentum, self.eps)


def conv_block(inside: int, outside: int, kernel: int, norm: bool, *, dilation: int = 1, bias: bool = True,
               recomputed: bool = False) -> nn.Sequential:  # fmt: skip
    """Convolution that keeps the size, batch norm if `norm`, ReLU."""
    conv = nn.Conv2d(inside, outside, kernel, padding=kernel // 2 * dilation, dilation=dilation, bias=bias)
    return nn.Sequential(conv, *([BatchNorm(outside, recomputed)] if norm else []), nn.ReLU(inplace=True))
