"""Modules that look far: the scale context of CAN (Liu et al. 2019) and atrous pyramid pooling (Chen et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.layers import conv_block, normal_init, resize

SIZES = (1, 2, 3, 6)  # bins a side of CAN's four averages


def average_bins(x: Tensor, bins: int) -> Tensor:
    """Means over bins × bins parts of a map, [B, C, h, w] → [B, C, bins, bins]: adaptive average pooling.

    Part i covers rows ⌊i·h/bins⌋ … ⌈(i+1)·h/bins⌉ − 1; parts overlap when bins does not divide h. Written as two matrix
    products: they export for every size, and their gradient is the same in every run.

    >>> average_bins(torch.arange(4.0).reshape(1, 1, 1, 4), 2)
    tensor([[[[0.5000, 2.5000],
              [0.5000, 2.5000]]]])
    """
    planes = x.flatten(0, 1)
    rows, columns = (_bin_weights(length, bins, x).expand(planes.shape[0], -1, -1) for length in x.shape[-2:])
    # bmm, not @: the reshaping inside @ makes torch.export ask about sizes what it cannot know.
    return torch.bmm(torch.bmm(rows, planes), columns.mT).view(*x.shape[:2], bins, bins)


def _bin_weights(length: int, bins: int, like: Tensor) -> Tensor:
    """[bins, length]: row i is one over the length of part i inside it, zero outside."""
    number = torch.arange(bins, device=like.device)[:, None]
    start, end = (number * length) // bins, ((number + 1) * length + bins - 1) // bins
    position = torch.arange(length, device=like.device)
    return ((position >= start) & (position < end)).to(like.dtype) / (end - start).to(like.dtype)


class ScaleContext(nn.Module):
    """CAN's context: averages cₛ over parts of four sizes s, mixed cell by cell.

    cₛ = up(Wₛ·mean_s(x)), wₛ = sigmoid(V·(x − cₛ) + b): how far a cell differs from its surroundings says which size
    suits it. Returns ReLU(U·[Σ wₛcₛ / Σ wₛ, x] + d).
    """

    def __init__(self, channels: int = 512) -> None:
        super().__init__()
        self.scales = nn.ModuleList(nn.Conv2d(channels, channels, 1, bias=False) for _ in SIZES)
        self.weight = nn.Conv2d(channels, channels, 1)
        self.join = nn.Conv2d(2 * channels, channels, 1)
        normal_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] → the same shape."""
        contexts = [resize(conv(average_bins(x, size)), x) for conv, size in zip(self.scales, SIZES)]
        # softmax(log w) = w / Σ w, without 0/0 where all sigmoids vanish in half precision.
        shares = torch.stack([F.logsigmoid(self.weight(x - c)) for c in contexts]).softmax(0)
        mixed = (shares * torch.stack(contexts)).sum(0).to(x.dtype)
        return F.relu(self.join(torch.cat([mixed, x], 1)), inplace=True)


class ASPP(nn.Module):
    """A 1×1 convolution, three dilated 3×3 ones and the mean of the whole map, 256 channels each, joined into 256.

    A dilated convolution starts as a 1×1 one. On a training crop whose map is not larger than the dilation its outer weights
    meet nothing but padding, so they keep their start for ever; a whole image then meets them (docs/networks.md).
    """

    def __init__(self, rates: Sequence[int], channels: int = 512, width: int = 256, norm: bool = True) -> None:
        super().__init__()
        kernels = [(1, 1), *((3, rate) for rate in rates)]
        self.branches = nn.ModuleList(
            conv_block(channels, width, kernel, norm, dilation=rate, bias=False) for kernel, rate in kernels
        )
        self.pooled = conv_block(channels, width, 1, norm, bias=False)
        self.join = conv_block((len(kernels) + 1) * width, width, 1, norm, bias=False)
        self.dropout = nn.Dropout(0.5)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                middle = layer.kernel_size[0] // 2
                nn.init.zeros_(layer.weight)
                nn.init.kaiming_normal_(layer.weight.data[..., middle : middle + 1, middle : middle + 1])

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, h, w] → [B, width, h, w]."""
        whole = self.pooled(x.mean((-2, -1), keepdim=True)).expand(-1, -1, *x.shape[-2:])
        joined: Tensor = self.dropout(self.join(torch.cat([*(branch(x) for branch in self.branches), whole], 1)))
        return joined
