"""Every network on images nobody plans for, in every precision: a map of the right shape and a count that is a number."""

from __future__ import annotations

import functools

import pytest
import torch

from papm import models
from papm.predict.predictor import counts
from papm.structures import DensityOutput, PointProposals

SIZES = [(1, 1), (1, 7), (3, 5), (17, 1), (31, 33), (64, 65), (7, 257), (4097, 13)]
VARIANTS = [
    *((name, ()) for name in models.names()),
    ("msfanet", (("form", "qnrf"),)),
    ("p2pnet", (("trunk", "tiny"),)),
]
IDS = ["-".join([name, *(v for _, v in options)]) for name, options in VARIANTS]


@functools.lru_cache(maxsize=1)  # the tests of one network follow each other
def build(name: str, options: tuple[tuple[str, str], ...]) -> models.Network:
    torch.manual_seed(0)
    return models.create(name, **dict(options)).eval()


HALVES = {"bf16": torch.bfloat16, "16": torch.float16}


@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@torch.no_grad()
def test_every_size_has_a_count(name: str, options: tuple[tuple[str, str], ...], precision: str) -> None:
    network = build(name, options)
    for height, width in SIZES if precision != "16" else SIZES[:6]:  # float16 is slow on a CPU
        images = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))
        with torch.autocast("cpu", dtype=HALVES.get(precision), enabled=precision in HALVES):
            output = network(images)
            count = counts(output, network.inference)
        assert count.shape == (1,) and bool(count.isfinite()) and float(count) >= 0, (height, width)
        if isinstance(output, DensityOutput):
            stride = network.stride
            assert output.density.shape == (1, 1, (height + stride - 1) // stride, (width + stride - 1) // stride)
            assert bool((output.density >= 0).all()), (height, width)
            assert output.density.dtype == torch.float32
        else:
            side = 8 // 2  # two reference points per side of a cell, at 2 and 6 px of 8
            inside = [len([p for p in range(side // 2, n + 8, side) if p < n]) for n in (height, width)]
            assert output.points.shape == (1, inside[0] * inside[1], 2), (height, width)
            assert bool(output.points.isfinite().all()) and bool(output.logits.isfinite().all())
            assert output.points.dtype == output.logits.dtype == torch.float32


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@torch.no_grad()
def test_narrow_images_in_half_precision(name: str, options: tuple[tuple[str, str], ...]) -> None:
    """Maps one cell wide come out wrong on CPUs with AMX; images are padded until none is so narrow."""
    network = build(name, options)
    images = torch.randn(1, 3, 200, 13, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        padded = network.framed(images, network.frame)
        half = values(network(padded))
    full = values(network(padded))
    assert (half - full).abs().max() <= 0.1 * full.abs().max()


def values(output: DensityOutput | PointProposals) -> torch.Tensor:
    return output.density if isinstance(output, DensityOutput) else output.logits


@pytest.mark.parametrize("name", models.names())
def test_one_pixel_can_be_learned_from(name: str) -> None:
    """A backward pass on the smallest image leaves finite gradients, batch norm of one value and softmax of one included."""
    network = build(name, ()).train()
    output = network(torch.randn(1, 3, 1, 1))
    made = output.density if isinstance(output, DensityOutput) else output.points
    made.square().sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in network.parameters())
    network.zero_grad(set_to_none=True)
    network.eval()
