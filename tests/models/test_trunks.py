"""Trunks: every registered one keeps the protocol, and heads sit on any that has their strides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from papm import models
from papm.errors import ConfigError
from papm.models.trunks import TRUNKS, Trunk, trunk


@pytest.mark.parametrize("name", sorted(TRUNKS))
def test_maps_are_as_promised(name: str) -> None:
    made = trunk(name, (8, 16))
    assert isinstance(made, Trunk) and made.strides == (8, 16)
    assert (made.receptive_field is None) == (name == "dinov2")
    maps = made(torch.randn(1, 3, 32, 48))
    assert [tuple(m.shape[1:]) for m in maps] == [(c, 32 // s, 48 // s) for c, s in zip(made.channels, made.strides)]


class Pooled(nn.Module):
    """A new trunk in a dozen lines."""

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.strides, self.channels, self.receptive_field = strides, (4,) * len(strides), 0
        self.mix = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in strides)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [conv(nn.functional.avg_pool2d(images, s)).relu() for conv, s in zip(self.mix, self.strides)]


@pytest.fixture
def pooled() -> Iterator[None]:
    TRUNKS.register("pooled", Pooled)
    yield
    del TRUNKS._items["pooled"]


@pytest.mark.parametrize("name", ["vgg19", "csrnet", "p2pnet", "msfanet", "man"])
def test_density_point_and_context_heads_sit_on_a_new_trunk(name: str, pooled: None) -> None:
    network = models.create(name, trunk="pooled")
    assert network.trunk is None and not network.parameter_groups()["trunk"]  # it starts from nothing
    network.train()(torch.randn(2, 3, 64, 64))
    assert (network.receptive_field is None) == (name in ("msfanet", "man"))
    with pytest.raises(ConfigError, match="with trunk=pooled has no ImageNet weights"):
        models.create(name, weights="imagenet", trunk="pooled")


@pytest.mark.parametrize("trunk", ["lite", "dinov2"])
@pytest.mark.parametrize("name", ["vgg19", "csrnet", "man"])
def test_published_heads_sit_on_modern_trunks(name: str, trunk: str) -> None:
    network = models.create(name, trunk=trunk).eval()
    assert network.trunk is not None and network.trunk.arch == trunk
    with torch.no_grad():
        assert bool(network(torch.randn(1, 3, 40, 72)).density.isfinite().all())


def test_a_trunk_without_the_strides_is_refused() -> None:
    with pytest.raises(ConfigError, match="trunk 'tiny' has maps at strides 8, 16; this network needs 2, 4, 8, 16"):
        models.create("msfanet", trunk="tiny")
    with pytest.raises(ConfigError, match="unknown trunk 'vgg91'; did you mean 'vgg19'"):
        models.create("vgg19", trunk="vgg91")
