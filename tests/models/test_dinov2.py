"""`dinov2`: a block against its formula, positions against torch's bicubic, views against crops, the published keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from papm import models
from papm.models import dinov2
from papm.models.trunks import parameter_shapes, trunk


def test_a_block_is_the_formula() -> None:
    """x + γ₁·W·softmax(q·k/√64)·v, then x + γ₂·W₂·gelu(W₁·x), both of the normalised x, head by head."""
    torch.manual_seed(0)
    block = dinov2.Block().double()
    for parameter in block.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 7, 384, dtype=torch.float64)

    def normed(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight + norm.bias

    qkv = normed(x, block.norm1) @ block.attn.qkv.weight.T + block.attn.qkv.bias
    heads = []
    for k in range(6):
        q, key, v = (qkv[..., 384 * part + 64 * k : 384 * part + 64 * (k + 1)] for part in range(3))
        weights = (q @ key.mT / 8).exp()
        heads.append(weights / weights.sum(-1, keepdim=True) @ v)
    mixed = x + block.ls1.gamma * (torch.cat(heads, -1) @ block.attn.proj.weight.T + block.attn.proj.bias)
    hidden = normed(mixed, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
    gelu = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    expected = mixed + block.ls2.gamma * (gelu @ block.mlp.fc2.weight.T + block.mlp.fc2.bias)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("size", [(37, 37), (32, 32), (5, 51)])
def test_positions_are_resized_bicubically(size: tuple[int, int]) -> None:
    made = trunk("dinov2", (8,))
    grid = made.pos_embed[0, 1:].reshape(37, 37, 384).permute(2, 0, 1)[None]
    expected = F.interpolate(grid, size=size, mode="bicubic", align_corners=False)[0].flatten(1).T[None]
    torch.testing.assert_close(made.positions(*size), expected)


def test_a_patch_is_a_cell_of_8_pixels() -> None:
    """Features at 16 and 32 px are means of those at 8, and a pixel of the last cell moves that cell's patch alone."""
    torch.manual_seed(0)
    made = trunk("dinov2", (8, 16, 32)).eval()
    image = torch.randn(1, 3, 32, 64)
    fine, middle, coarse = made(image)
    assert made.channels == (1536,) * 3 and fine.shape == (1, 1536, 4, 8)
    torch.testing.assert_close(middle, F.avg_pool2d(fine, 2))
    torch.testing.assert_close(coarse, F.avg_pool2d(fine, 4))
    enlarged = F.interpolate(image, scale_factor=1.75, mode="bilinear", align_corners=False)
    patch = made.patch_embed(enlarged)
    assert patch.shape[-2:] == (4, 8)


def test_proposals_stand_on_it_too() -> None:
    network = models.create("p2pnet", trunk="dinov2").eval()
    assert network.receptive_field is None and network.trunk is not None
    with torch.no_grad():
        assert network(torch.randn(1, 3, 20, 40)).points.shape == (1, 5 * 10, 2)


@pytest.mark.realdata
def test_the_published_file_fits_key_by_key(real: Callable[[str], Path]) -> None:
    path = real("dinov2")
    made = trunk("dinov2", (8,)).eval()
    models.load_trunk(made, path, "dinov2")
    assert made.state_dict().keys() == parameter_shapes("dinov2").keys()
    with torch.no_grad():
        found = made(torch.randn(1, 3, 64, 64))[0]
    assert bool(found.isfinite().all()) and 0.5 < float(found.std()) < 5
