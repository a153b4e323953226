from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from papm import models
from papm.errors import ConfigError
from papm.models.base import DensityNetwork


@pytest.fixture(scope="module")
def network() -> DensityNetwork:
    torch.manual_seed(0)
    made = models.create("csrnet")
    assert isinstance(made, DensityNetwork)
    return made.eval()


def test_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        network = models.create("csrnet")
    assert sum(p.numel() for p in network.parameters()) == 16_263_489  # CSRNet: 16.26 M
    assert sum(p.numel() for p in network.parameter_groups()["trunk"]) == 7_635_264  # VGG16's first ten convolutions


@torch.no_grad()
def test_forward_equals_the_layers_written_out(network: DensityNetwork) -> None:
    state = network.state_dict()
    x = image = torch.randn(1, 3, 40, 24)
    for number in (0, 2, "pool", 5, 7, "pool", 10, 12, 14, "pool", 17, 19, 21):
        if number == "pool":
            x = F.max_pool2d(x, 2)
        else:
            x = F.conv2d(x, state[f"features.{number}.weight"], state[f"features.{number}.bias"], padding=1).relu()
    for number, channels in zip(range(0, 12, 2), (512, 512, 512, 256, 128, 64)):
        weight, bias = state[f"back_end.{number}.weight"], state[f"back_end.{number}.bias"]
        x = F.conv2d(x, weight, bias, padding=2, dilation=2).relu()
        assert x.shape == (1, channels, 5, 3)
    x = F.conv2d(x, state["output.weight"], state["output.bias"]).relu()
    torch.testing.assert_close(network(image).density, x)


def test_an_output_sees_the_receptive_field_and_no_more(network: DensityNetwork) -> None:
    """Every path of 3×3 kernels reaches one dilation further: gradients end exactly there, with no ReLU in the way."""
    open_network = models.create("csrnet", activation="none")
    with torch.no_grad():
        for parameter in open_network.parameters():
            parameter.abs_()  # all activations positive: every ReLU passes
    width = 8 * 41
    image = torch.rand(1, 3, 8, width).requires_grad_()
    open_network(image).density[..., 20].sum().backward()
    assert image.grad is not None and open_network.receptive_field == 42 + 6 * 2 * 8
    seen = image.grad.abs().sum((0, 1, 2)).nonzero()[:, 0]
    # Max-pooling passes the gradient to one pixel of its window, so that the far edge may miss a few.
    assert 20 * 8 - open_network.receptive_field <= seen.min() <= 20 * 8 - open_network.receptive_field + 7
    assert 21 * 8 + open_network.receptive_field - 8 <= seen.max() < 21 * 8 + open_network.receptive_field


def test_starts_small_and_normal(network: DensityNetwork) -> None:
    for key, value in network.state_dict().items():
        if key.startswith("features."):
            continue
        if key.endswith("bias"):
            assert not value.any() or key == "output.bias"
        elif value.numel() > 10_000:
            assert abs(value.std().item() - 0.01) < 2e-4
            assert abs(value.mean().item()) < 2e-4


@torch.no_grad()
def test_relu_starts_alive_and_none_may_be_negative() -> None:
    image = torch.randn(1, 3, 64, 64)
    signs = set()
    for seed in range(3):
        torch.manual_seed(seed)
        assert bool((models.create("csrnet")(image).density > 0).all())
        torch.manual_seed(seed)
        plain = models.create("csrnet", activation="none")(image).density
        torch.manual_seed(seed)
        torch.testing.assert_close(models.create("csrnet", activation="abs")(image).density, plain.abs())
        signs |= set(plain.sign().flatten().tolist())
    assert -1.0 in signs


@torch.no_grad()
def test_relu_starts_near_the_density_of_a_crowd() -> None:
    """From a map of nearly nothing, transport losses, whose gradient goes with one over the count, can end in zeros."""
    torch.manual_seed(0)
    image = torch.randn(1, 3, 128, 128)
    crowd = 500 * 8 * 8 / (768 * 1024)  # a cell of a photograph of ShanghaiTech A
    assert crowd / 4 < models.create("csrnet")(image).density.mean().item() < crowd * 4
    assert not models.create("csrnet", activation="none").state_dict()["output.bias"].any()  # as published


def test_unknown_activation() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown activation of network 'csrnet' 'gelu'; .*nown: abs, none, relu, relu-live"
    ):
        models.create("csrnet", activation="gelu")
