"""Learnable region attention (MAN, Lin et al. 2022): every token chooses a box of the image to attend to.

Of each token two softmax maps say where two corners of its box lie. With p and q their probabilities, the chance that
cell j lies between the corners is

    r(j) = P(p ≤ j)·P(q ≥ j) + P(p ≥ j)·P(q ≤ j),        ≤ and ≥ in rows and in columns,

sums over quarter planes, i.e. cumulative sums along both axes. It gates the local attention; the global one enters with
a tenth: weights = softmax((0.1·q_g·k_g + r ∘ q_l·k_l) / √d).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.base import _is_exporting
from papm.models.layers import checkpointed

GLOBAL_SHARE = 0.1  # of the global logits (MAN)
# Rows of attention are computed together while batch × heads × rows × tokens stays below this, about 0.8 GB at a time.
ENTRIES = 1 << 24


def between(first: Tensor, second: Tensor, shape: tuple[int, int]) -> Tensor:
    """r(j) of corner maps p and q [..., h·w] on a grid of shape (h, w): the chance that j lies between both corners.

    >>> corner = torch.eye(6)  # on a grid of 2 × 3: from cell 0 to cell 4 (second row, second column)
    >>> between(corner[0], corner[4], (2, 3)).reshape(2, 3)
    tensor([[1., 1., 0.],
            [1., 1., 0.]])
    """
    p, q = (corner.reshape(*corner.shape[:-1], *shape) for corner in (first, second))
    return (_up_to(p) * _from(q) + _from(p) * _up_to(q)).flatten(-2)


def _up_to(p: Tensor) -> Tensor:
    """Chance that the corner lies at or before a cell, in rows and columns."""
    return p.cumsum(-1).cumsum(-2)


def _from(p: Tensor) -> Tensor:
    """Chance that the corner lies at or behind a cell."""
    return _up_to(p.flip(-1, -2)).flip(-1, -2)


class RegionAttention(nn.Module):
    """Multi-head attention gated by a learned box a token and head; nine projections of the tokens."""

    def __init__(self, width: int = 512, heads: int = 2, dropout: float = 0.1, checkpoint: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.checkpoint = heads, dropout, checkpoint
        # Four queries and four keys (global, first corner, second corner, local), and the values.
        self.project = nn.Linear(width, 9 * width)
        self.output = nn.Linear(width, width)
        for layer in (self.project, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self, tokens: Tensor, shape: tuple[int, int], valid: Tensor | None = None, regions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, h·w, D] of a grid of shape (h, w) → the same; and with `regions` the sum of tokens of each box.

        `valid` [B, h·w] says which tokens are part of an image; the others are attended to by none.
        """
        batch, length, width = tokens.shape
        parts = self.project(tokens).view(batch, length, 9, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts[:4], parts[4:8], parts[8]
        rows = length if _is_exporting() else max(1, ENTRIES // max(1, batch * self.heads * length))
        if rows >= length:
            mixed, region = checkpointed(
                self.checkpoint, self.rows, queries, keys, values, tokens, shape, valid, regions
            )
        else:
            made = [
                checkpointed(self.checkpoint, self.rows, q, keys, values, tokens, shape, valid, regions)
                for q in queries.split(rows, 3)
            ]
            mixed = torch.cat([m for m, _ in made], 2)
            region = torch.cat([r for _, r in made], 1) if regions else None
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.output(mixed), region

    def rows(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        tokens: Tensor,
        shape: tuple[int, int],
        valid: Tensor | None,
        regions: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of some of the queries [4, B, heads, t, d] over all keys."""
        weights, region = self.weights(queries, keys, shape, valid)
        mixed = F.dropout(weights, self.dropout, self.training).to(values.dtype) @ values
        if not regions:
            return mixed, None
        box = region.sum(1)
        if valid is not None:
            box = box * valid[:, None]
        with torch.autocast(tokens.device.type, enabled=False):
            return mixed, box @ tokens.to(box.dtype)

    def weights(
        self, queries: Tensor, keys: Tensor, shape: tuple[int, int], valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention weights and boxes r, [B, heads, t, h·w] each, in float32 or better: the corners' softmax is sharp."""
        kind = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            whole, first, second, near = (queries.to(kind) @ keys.to(kind).mT).unbind(0)
            if valid is not None:
                hidden = ~valid[:, None, None]
                first, second = first.masked_fill(hidden, -torch.inf), second.masked_fill(hidden, -torch.inf)
            region = between(first.softmax(-1), second.softmax(-1), shape)  # MAN does not scale these two by 1/√d
            logits = (GLOBAL_SHARE * whole + near * region) * queries.shape[-1] ** -0.5
            if valid is not None:
                logits = logits.masked_fill(hidden, -torch.inf)
            return logits.softmax(-1), region


class EncoderLayer(nn.Module):
    """Attention, then two linear layers, each added to its input and normalised after (post-norm)."""

    def __init__(self, width: int = 512, heads: int = 2, dropout: float = 0.1, checkpoint: bool = False) -> None:
        super().__init__()
        self.attention = RegionAttention(width, heads, dropout, checkpoint)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tensor, shape: tuple[int, int], valid: Tensor | None = None, regions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        mixed, region = self.attention(tokens, shape, valid, regions)
        tokens = self.norm1(tokens + self.dropout(mixed))
        return self.norm2(tokens + self.dropout(self.feed(tokens))), region


def disagreement(regions: Tensor, valid: Tensor | None = None) -> Tensor:
    """Σᵢ 1 − cos(fᵢ, mean f) over the region features fᵢ [B, T, D] of an image, [B]: MAN's region loss of one layer."""
    share = regions.new_ones(regions.shape[:2]) if valid is None else valid.to(regions.dtype)
    mean = (regions * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
    return ((1 - F.cosine_similarity(regions, mean, dim=-1, eps=1e-5)) * share).sum(1)
