from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from papm import models


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_size(stride: int) -> None:
    assert 50_000 <= sum(p.numel() for p in models.create("tiny", stride=stride).parameters()) <= 150_000


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_width_multiplies_the_channels(stride: int) -> None:
    network, wider = (models.create("tiny", stride=stride, width=width) for width in (1, 2))
    sizes, wide = ({k: tuple(v.shape) for k, v in n.state_dict().items()} for n in (network, wider))
    assert sizes.keys() == wide.keys()
    assert all(
        w[0] == (s[0] if k.startswith("output") else 2 * s[0]) for (k, s), w in zip(sizes.items(), wide.values())
    )


@pytest.mark.parametrize("stride", [2, 4, 8])
@pytest.mark.parametrize("seed, width", [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)])
def test_every_cell_starts_alive(stride: int, seed: int, width: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        density = models.create("tiny", stride=stride, width=width)(3 * torch.randn(2, 3, 64, 64)).density
    assert bool((density > 0).all())


def scenes(count: int, size: int, stride: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bright squares on dark noise, and the map with 1 in the cell of each centre."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, size, size, generator=generator) * 0.3 - 1
    target = torch.zeros(count, 1, size // stride, size // stride)
    for image, cells in zip(images, target):
        for _ in range(int(torch.randint(0, 12, (), generator=generator))):
            y, x = torch.randint(3, size - 3, (2,), generator=generator).tolist()
            image[:, y - 3 : y + 3, x - 3 : x + 3] = 1.5
            cells[0, y // stride, x // stride] += 1
    return images, target


@pytest.mark.parametrize("stride", [*(pytest.param(stride, marks=pytest.mark.slow) for stride in (2, 4)), 8])
def test_learns_to_count(stride: int) -> None:
    torch.manual_seed(0)
    network = models.create("tiny", stride=stride)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    images, target = scenes(64, 64, stride, seed=0)
    blur = torch.nn.AvgPool2d(3, 1, 1) if stride < 8 else torch.nn.Identity()
    for step in range(120):
        pick = torch.arange(8) + 8 * (step % 8)
        density = network(images[pick]).density
        counts = density.sum((1, 2, 3)) - target[pick].sum((1, 2, 3))
        loss = (density - blur(target[pick])).square().sum((1, 2, 3)).mean() + 0.02 * counts.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, target = scenes(32, 64, stride, seed=1)
    with torch.no_grad():
        counts, truth = network(images).density.sum((1, 2, 3)), target.sum((1, 2, 3))
    blind = (truth - truth.median()).abs().mean()
    assert (counts - truth).abs().mean() < 0.5 * blind


def test_fast_enough_for_a_demo() -> None:
    """Measured 31 ms on one thread of a 2-core machine; the bound is for a busy one."""
    network = models.create("tiny")
    images = torch.randn(8, 3, 128, 128)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        network(images).density.sum().backward()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
