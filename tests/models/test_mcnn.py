from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from papm import models
from papm.errors import ConfigError
from papm.imagenet import normalize
from papm.models.mcnn import COLUMNS


def test_as_many_parameters_as_published() -> None:
    network = models.create("mcnn")
    assert sum(p.numel() for p in network.parameters()) == 127_953  # MCNN: 0.13 M
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}  # a file holds weights only


@torch.no_grad()
def test_forward_equals_the_columns_written_out() -> None:
    torch.manual_seed(0)
    network = models.create("mcnn")
    pixels = torch.randint(0, 256, (1, 3, 24, 32), dtype=torch.uint8)
    red, green, blue = pixels.float().unbind(1)
    grey = (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]
    seen = []
    state = network.state_dict()
    for column, (kernels, channels) in enumerate(COLUMNS):
        x = grey
        for layer, kernel, outside in zip((0, 3, 6, 8), kernels, channels):
            weight, bias = (state[f"columns.{column}.{layer}.{part}"] for part in ("weight", "bias"))
            assert weight.shape == (outside, x.shape[1], kernel, kernel)
            x = F.conv2d(x, weight, bias, padding=(kernel - 1) // 2).relu()
            if layer < 6:
                x = F.max_pool2d(x, 2)
        seen.append(x)
    expected = F.conv2d(torch.cat(seen, 1), state["output.weight"], state["output.bias"]).relu()
    assert expected.shape == (1, 1, 6, 8)
    torch.testing.assert_close(network(normalize(pixels)).density, expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_colours_of_one_grey_are_one() -> None:
    network = models.create("mcnn", activation="abs")
    red, green = torch.zeros(2, 3, 16, 16)
    red[0], green[1] = 100 / 255, 100 * 0.299 / 0.587 / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    first, second = (network(((x - mean) / std)[None]).density for x in (red, green))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-7)
    assert first.std() > 0


def test_an_output_sees_34_pixels_around_its_cell() -> None:
    network = models.create("mcnn")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()
    image = torch.rand(1, 3, 4, 4 * 41).requires_grad_()
    network(image).density[..., 20].sum().backward()
    assert image.grad is not None and network.receptive_field == 34
    seen = image.grad.abs().sum((0, 1, 2)).nonzero()[:, 0]
    assert 80 - 34 <= seen.min() <= 80 - 34 + 3
    assert 84 + 34 - 4 <= seen.max() < 84 + 34


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_starts_alive_and_stays_so(seed: int) -> None:
    torch.manual_seed(seed)
    network = models.create("mcnn")
    images = torch.randn(2, 3, 64, 64)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    with torch.no_grad():
        start = network(images).density
    assert bool((start > 0).all()) and 0.005 < start.mean() < 0.5
    for _ in range(10):  # pulled down as hard as an image without people pulls
        optimizer.zero_grad()
        network(images).density.sum().backward()
        optimizer.step()
    assert 0 < network(images).density.mean() < start.mean()


def test_a_map_of_zeros_learns_again() -> None:
    """With ReLU's own gradient al-papm on real crops ended in zeros."""
    torch.manual_seed(0)
    network = models.create("mcnn")
    nn.init.constant_(network.get_parameter("output.bias"), -1.0)
    output = network(torch.randn(1, 3, 32, 32))
    assert not output.density.any()
    (output.density.sum() - 5).abs().backward()
    gradient = network.get_parameter("output.bias").grad
    assert gradient is not None and gradient.item() < 0
    dead = models.create("mcnn", activation="relu")
    dead.load_state_dict(network.state_dict())
    (dead(torch.randn(1, 3, 32, 32)).density.sum() - 5).abs().backward()
    assert not dead.get_parameter("output.bias").grad.any()  # type: ignore[union-attr]


def test_nothing_is_published_to_load() -> None:
    with pytest.raises(ConfigError, match="no ImageNet weights"):
        models.create("mcnn", weights="imagenet")
    assert not any(isinstance(m, nn.BatchNorm2d) for m in models.create("mcnn").modules())
