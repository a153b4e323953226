"""`dinov2`: a vision transformer, ViT-S/14, that 142 million photographs taught without labels (Oquab et al. 2023).

An image is enlarged 1.75 times, so that a patch of 14 px is a cell of 8 px, counted in windows of the size it was trained on:
positions and attention then mean what they meant there.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import DensityNetwork
from papm.models.head import Activation
from papm.models.pyramid import PyramidDensity
from papm.models.registry import Classes, register
from papm.models.trunks import TRUNKS, trunk

WIDTH, DEPTH, HEADS, PATCH, CELL = 384, 12, 6, 14, 8
GRID = 37  # cells per side of the published positions
LAYERS = (2, 5, 8, 11)  # blocks whose outputs are the features, a quarter of the depth apart


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, T, WIDTH] → the same shape."""
        queries, keys, values = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected


class Scale(nn.Module):
    """A factor for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """x + γ₁·attention(norm(x)), then the same with two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn, self.ls1, self.ls2 = Attention(), Scale(), Scale()
        layers = {"fc1": nn.Linear(WIDTH, 4 * WIDTH), "act": nn.GELU(), "fc2": nn.Linear(4 * WIDTH, WIDTH)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class DinoTrunk(nn.Module):
    """The normalised tokens of four blocks side by side at stride 8, and their averages at 16 and 32."""

    arch = "dinov2"
    receptive_field = None  # attention

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.strides = tuple(s for s in (8, 16, 32) if s in strides)
        self.channels = (len(LAYERS) * WIDTH,) * len(self.strides)
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(3, WIDTH, PATCH, PATCH)))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W] → a map [B, 1536, H/strides[i], W/strides[i]] each."""
        batch, (rows, columns) = images.shape[0], (side // CELL for side in images.shape[-2:])
        enlarged = F.interpolate(images, size=(rows * PATCH, columns * PATCH), mode="bilinear", align_corners=False)
        patches = self.patch_embed(enlarged).flatten(2).mT + self.positions(rows, columns)
        x = torch.cat([(self.cls_token + self.pos_embed[:, :1]).expand(batch, -1, -1).to(patches.dtype), patches], 1)
        found = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in LAYERS:
                found.append(self.norm(x)[:, 1:])
        cells = torch.cat(found, -1).mT.contiguous().view(batch, len(LAYERS) * WIDTH, rows, columns)
        return [cells if s == CELL else F.avg_pool2d(cells, s // CELL) for s in self.strides]

    def positions(self, rows: int, columns: int) -> Tensor:
        """Embeddings of the positions of rows × columns cells, [1, rows·columns, WIDTH]: the published ones, bicubic.

        Two matrix products, as their gradient is the same in every run.
        """
        down, along = (_bicubic(n, self.pos_embed).expand(WIDTH, -1, -1) for n in (rows, columns))
        grid = self.pos_embed[0, 1:].mT.reshape(WIDTH, GRID, GRID)
        return torch.bmm(torch.bmm(down, grid), along.mT).flatten(1).mT[None]


def _bicubic(length: int, like: Tensor) -> Tensor:
    """[length, GRID]: what each of `length` new positions takes of the old ones."""
    each = torch.eye(GRID, device=like.device)[None, :, :, None]
    return F.interpolate(each, size=(length, 1), mode="bicubic", align_corners=False)[0, :, :, 0].mT.to(like.dtype)


TRUNKS.register("dinov2", DinoTrunk)


@register(
    "dinov2",
    kind="density",
    stride=CELL,
    trunk="dinov2",
    windows=True,  # positions and attention are learned on crops
    summary="DINOv2's ViT-S/14 at 8 px per patch, counted in windows of the training size",
)
def dinov2(*, num_classes: Classes = 1, activation: Activation = "relu-live") -> DensityNetwork:
    """Tokens of four blocks, a head of 256 channels at stride 8."""
    return PyramidDensity(trunk("dinov2", (CELL,)), 256, num_classes, activation)
