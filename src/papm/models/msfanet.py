"""`msfanet`: a VGG with scale context, atrous pyramid and decoders up to stride 2 (Thanasutives et al. 2021).

Two forms go by the name. "shanghaitech": VGG16 with batch norm, and two decoders; one learns where people are, and its
sigmoid multiplies the features of the other. "qnrf": VGG19 and one decoder, no batch norm.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models import trunks
from papm.models.base import DensityNetwork
from papm.models.context import ASPP, ScaleContext
from papm.models.head import SignedActivation, Upsampling, activate, start_positive
from papm.models.layers import BatchNorm, checkpointed, conv_block, normal_init, resize
from papm.models.registry import Classes, Weight, register
from papm.structures import DensityOutput, PointBatch
from papm.targets import density_maps, touched_cells

# A pixel is near a person where a Gaussian density map exceeds this (SFANet): within 8.6 px of a lone point.
ATTENTION_SIGMA, ATTENTION_LEVEL = 4.0, 0.001


class Decoder(nn.Module):
    """Three steps up, from the deepest features to stride 2: join, 1×1, 3×3; 32 channels in the end."""

    def __init__(self, channels: tuple[int, ...], deep: int, norm: bool, mode: str, recomputed: bool) -> None:
        super().__init__()
        self.mode = mode
        c2, c4, c8, _ = channels  # of the trunk's maps

        def step(inside: int, *outside: int) -> nn.Sequential:
            layers = [conv_block(inside, outside[0], 1, norm, recomputed=recomputed)]
            for a, b in pairwise(outside):
                layers.append(conv_block(a, b, 3, norm, recomputed=recomputed))
            return nn.Sequential(*layers)

        self.up8 = step(deep + c8, 256, 256)
        self.up4 = step(256 + c4 + deep, 128, 128)
        self.up2 = step(128 + c2, 64, 64, 32)

    def forward(self, x2: Tensor, x4: Tensor, x8: Tensor, deep: Tensor) -> Tensor:
        """Features at strides 2, 4, 8, and the deep ones (stride 16 or 8) → [B, 32, H/2, W/2]."""
        x: Tensor = self.up8(torch.cat([resize(deep, x8, self.mode), x8], 1))
        x = self.up4(torch.cat([resize(x, x4, self.mode), x4, resize(deep, x4, self.mode)], 1))
        fine: Tensor = self.up2(torch.cat([resize(x, x2, self.mode), x2], 1))
        return fine


class MSFANet(DensityNetwork):
    """What both forms share: trunk, scale context on conv4, ASPP on conv5, a decoder, a 1×1 convolution."""

    stride = 2
    multiple = 16
    receptive_field = None  # ASPP and the context average over the whole image

    def __init__(self, trunk: str, num_classes: int, activation: str, upsample: str, checkpoint: bool) -> None:
        super().__init__()
        self.features = trunks.trunk(trunk, (2, 4, 8, 16))
        self.channels: tuple[int, ...] = self.features.channels
        self.num_classes, self.activation, self.mode, self.checkpoint = num_classes, activation, upsample, checkpoint
        self.context = ScaleContext(self.channels[2])
        self.output = nn.Conv2d(32, num_classes, 1)

    def start(self) -> None:
        if self.activation == "relu":
            # Batch norm makes 32 features of about 0.2 each: N(0, 0.01²) turned positive would start at 0.05 a cell, ten
            # times the density of a crowd at stride 2.
            start_positive(self.output, scale=0.1)


class ShanghaiTechForm(MSFANet):
    """Batch norm, two decoders. `aux["attention"]`: logits [B, 1, H/2, W/2] of "a person is near"."""

    def __init__(
        self, trunk: str, num_classes: int, activation: str, upsample: str, weight: float, checkpoint: bool
    ) -> None:
        super().__init__(trunk, num_classes, activation, upsample, checkpoint)
        self.attention_weight = weight
        self.pyramid = ASPP((6, 12, 18), self.channels[3])
        self.where = Decoder(self.channels, 256, True, upsample, recomputed=checkpoint)
        self.how_many = Decoder(self.channels, 256, True, upsample, recomputed=checkpoint)
        self.attention = nn.Sequential(nn.Conv2d(32, 1, 1), BatchNorm(1))
        for part in (self.where, self.how_many, self.attention, self.output):
            normal_init(part)
        self.start()

    def density_and_aux(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x2, x4, x8, x16 = self.features(images)
        maps = (x2, x4, self.context(x8), self.pyramid(x16))
        logits: Tensor = self.attention(checkpointed(self.checkpoint, self.where, *maps))
        features = checkpointed(self.checkpoint, self.how_many, *maps) * logits.sigmoid()
        return activate(self.output(features), self.activation), {"attention": logits}

    def auxiliary_losses(
        self, output: DensityOutput, points: PointBatch, mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Mean cross-entropy of the attention with `attention_target` over cells that count, times its weight."""
        if not self.attention_weight:
            return {}
        logits = output.aux["attention"][:, 0]
        target = attention_target(points, (logits.shape[-2], logits.shape[-1]), output.stride)
        if mask is None:
            loss = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))
        else:
            share = touched_cells(mask, output.stride).to(logits.dtype)
            entropy = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), share, reduction="sum")
            loss = entropy / share.sum().clamp(min=1)
        return {"attention": self.attention_weight * loss}


class QNRFForm(MSFANet):
    """No batch norm, one decoder; the deep features are those of the pyramid and of BL's regression branch."""

    def __init__(self, trunk: str, num_classes: int, activation: str, upsample: str, checkpoint: bool) -> None:
        super().__init__(trunk, num_classes, activation, upsample, checkpoint)
        self.pyramid = ASPP((12, 24, 36), self.channels[3], norm=False)
        self.regress = nn.Sequential(conv_block(self.channels[3], 256, 3, False), conv_block(256, 128, 3, False))
        self.how_many = Decoder(self.channels, 256 + 128, False, upsample, recomputed=checkpoint)
        self.start()

    def density(self, images: Tensor) -> Tensor:
        x2, x4, x8, x16 = self.features(images)
        deep = [resize(self.pyramid(x16), x8, self.mode), self.regress(resize(x16, x8, self.mode))]
        features = checkpointed(self.checkpoint, self.how_many, x2, x4, self.context(x8), torch.cat(deep, 1))
        return activate(self.output(features), self.activation)


def attention_target(points: PointBatch, cells: tuple[int, int], stride: int) -> Tensor:
    """1 in the cells where the Gaussian density map of the points (σ = 4) exceeds 0.001 a pixel, else 0; [B, h, w].

    >>> target = attention_target(PointBatch.from_list([torch.tensor([[16.0, 16.0]])]), (16, 16), stride=2)
    >>> int(target.sum())  # a disc of radius 8.6 px has 58 cells of 2×2 pixels
    60
    """
    size = (cells[0] * stride, cells[1] * stride)
    maps = density_maps(points, size, "gaussian", ATTENTION_SIGMA, stride=stride)
    return (maps > ATTENTION_LEVEL * stride**2).to(maps.dtype)


@register(
    "msfanet",
    kind="density",
    stride=2,
    trunk="vgg16-bn",
    windows=True,
    summary="VGG with scale context, atrous pyramid and attention, at stride 2 (M-SFANet)",
)
def msfanet(
    *,
    num_classes: Classes = 1,
    form: Literal["shanghaitech", "qnrf"] = "shanghaitech",
    trunk: str | None = None,
    activation: SignedActivation | None = None,
    upsample: Upsampling = "bilinear",
    attention_weight: Weight = 0.1,
    checkpoint: bool = False,
) -> DensityNetwork:
    """`form` "shanghaitech" (trunk vgg16-bn, relu) or "qnrf" (trunk vgg19, abs).

    As published: `upsample="bilinear-aligned"`, and `activation="none"` for the first form. `trunk` takes another one with
    maps at strides 2, 4, 8 and 16, e.g. where only the weights of vgg16 are at hand. `checkpoint` keeps only the inputs of the
    decoders, whose maps at stride 2 are most of the memory of a training step, and computes them again.
    """
    if form == "qnrf":
        return QNRFForm(trunk or "vgg19", num_classes, activation or "abs", upsample, checkpoint)
    return ShanghaiTechForm(
        trunk or "vgg16-bn", num_classes, activation or "relu", upsample, attention_weight, checkpoint
    )
