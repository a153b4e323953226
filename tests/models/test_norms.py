"""Other weights, the same function."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from papm import data, models
from papm.engine import train as engine
from papm.engine.build import build_network, resolve, settle_norms
from papm.errors import CheckpointError
from papm.models.vgg import VGGTrunk


def plain_file(arch: str, path: Path) -> Path:
    torch.manual_seed(3)
    state = VGGTrunk(arch, (32,)).state_dict()
    for key in state:
        if key.endswith("bias"):
            state[key] = 0.1 * torch.randn_like(state[key])
    save_file({f"features.{key}": value for key, value in state.items()}, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["vgg16", "vgg19"])
def test_a_trunk_with_norms_takes_the_file_of_one_without(arch: str, tmp_path: Path) -> None:
    """At every stage of it the function is that of the plain trunk: loaded, settled, and on the batch it was settled on."""
    path = plain_file(arch, tmp_path / "plain.safetensors")
    strides = (4, 8)
    plain, normed = VGGTrunk(arch, strides).eval(), VGGTrunk(f"{arch}-bn", strides).eval()
    models.load_trunk(plain, path, arch)
    models.load_trunk(normed, path, f"{arch}-bn")
    assert normed.uncalibrated and not plain.uncalibrated
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        wanted = plain(images)
        torch.testing.assert_close(normed(images), wanted, rtol=1e-3, atol=1e-3)
        models.calibrate_norms(normed, images.split(1))
        assert not normed.uncalibrated and not normed.training
        torch.testing.assert_close(normed(images), wanted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(normed.train()(images), wanted, rtol=1e-2, atol=1e-2)
    first = next(iter(normed))
    assert isinstance(first, nn.Conv2d) and float(first.weight.detach().square().mean().sqrt()) == pytest.approx(
        (2 / 27) ** 0.5
    )
    means = [norm.running_mean for norm in normed if isinstance(norm, nn.BatchNorm2d)]
    assert all(m is not None and float(m.abs().max()) > 0 for m in means)


def test_a_file_of_another_trunk_is_refused_as_before(tmp_path: Path) -> None:
    path = plain_file("vgg19", tmp_path / "plain.safetensors")
    with pytest.raises(CheckpointError, match="but a vgg19 trunk"):
        models.load_trunk(VGGTrunk("vgg16-bn"), path, "vgg16-bn")


def test_a_channel_that_never_fires_does_no_harm() -> None:
    trunk = VGGTrunk("vgg16-bn", (1,)).eval()
    with torch.no_grad():
        next(iter(trunk.parameters()))[0].zero_()
        models.calibrate_norms(trunk, [torch.randn(1, 3, 8, 8)])
        for state in (trunk, trunk.train()):
            assert torch.isfinite(state(torch.randn(2, 3, 8, 8))[0]).all()


@pytest.mark.slow
def test_training_settles_the_norms_on_the_training_images(tmp_path: Path) -> None:
    """Before the first step the network counts what it would without norms, in training mode as well."""
    weights = str(plain_file("vgg16", tmp_path / "plain.safetensors"))
    spec = "synthetic:train=6,test=2,size=64,count=3-9"
    keys = {"data": spec, "weights": weights, "network": {"trunk": "vgg16-bn", "width": 16}, "crop": 64, "batch": 2}
    config = resolve("p2pnet", "p2pnet", {**keys, "steps": 2, "eval_every": 2, "select": "last", "device": "cpu"})
    network = build_network(config)
    assert isinstance(network.trunk, models.VGGTrunk) and network.trunk.uncalibrated
    settle_norms(network, data.open_spec(spec)["train"], torch.device("cpu"))
    assert not network.trunk.uncalibrated
    again = build_network(config)
    assert isinstance(again.trunk, models.VGGTrunk)
    images = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(network.trunk.eval()(images), again.trunk.eval()(images), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    made = engine.train(config, tmp_path / "run")
    assert made.result is not None
    # A checkpoint to start from brings its own norms: there is nothing to settle, though the trunk file had none.
    start = build_network(dataclasses.replace(config, init=str(tmp_path / "run")))
    before = {key: value.clone() for key, value in start.state_dict().items()}
    settle_norms(start, data.open_spec(spec)["train"], torch.device("cpu"))
    assert all(torch.equal(value, before[key]) for key, value in start.state_dict().items())
