"""A frame around images that are counted: what a network trained with a margin saw beyond their borders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.engine.build import build_network, resolve
from papm.errors import CheckpointError
from papm.inference import Inference
from papm.predict.tiling import infer
from papm.structures import DensityOutput, PointProposals

SMALL: list[tuple[str, dict[str, Any]]] = [("tiny", {"stride": 8}), ("tiny", {"stride": 2}), ("mcnn", {})]


def made(name: str, **options: Any) -> models.Network:
    torch.manual_seed(0)
    return models.create(name, **options).eval()


@pytest.mark.parametrize("name, options", SMALL)
@pytest.mark.parametrize("size", [(64, 80), (61, 83)])
def test_it_is_the_network_on_the_framed_image(name: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    network, image = made(name, **options), torch.randn(2, 3, *size)
    plain = network(image).density
    framed = network(F.pad(image, (32, 32, 32, 32))).density
    network.inference = Inference(frame=32)
    found = network(image).density
    n, (rows, columns) = 32 // network.stride, plain.shape[-2:]
    torch.testing.assert_close(found, framed[..., n : n + rows, n : n + columns])
    assert found.shape == plain.shape and not torch.allclose(found, plain)
    network.train()
    assert torch.equal(network(image).density, plain)  # training has frames of its own: margins


def test_points_stay_where_they_are_in_the_image() -> None:
    network, image = made("p2pnet", trunk="tiny"), torch.randn(1, 3, 61, 83)
    plain, framed = network(image), network(F.pad(image, (32, 32, 32, 32)))
    network.inference = Inference(frame=32)
    found = network(image)
    assert isinstance(found, PointProposals) and torch.equal(found.reference, plain.reference)
    inside = (framed.reference >= 32).all(-1) & (framed.reference < torch.tensor([32 + 83.0, 32 + 61.0])).all(-1)
    torch.testing.assert_close(found.points, framed.points[:, inside] - 32)
    torch.testing.assert_close(found.logits, framed.logits[:, inside])


@pytest.mark.slow
def test_attention_takes_a_frame_too() -> None:
    """As padding in training: it lies around the image, and no token attends to it."""
    network, image = made("man"), torch.randn(2, 3, 64, 81)
    around = (32, 32 + 15, 32, 32)  # the frame goes on up to a multiple of 32
    framed = network(F.pad(image, around), mask=F.pad(torch.ones(2, 64, 81), around) > 0).density
    network.inference = Inference(frame=16)
    assert network.frame == network.multiple == 32  # whole multiples: cells must not shift
    torch.testing.assert_close(network(image).density, framed[..., 2:6, 2:8])


def test_tiles_are_framed_as_the_whole_is() -> None:
    network = made("tiny", stride=8)
    network.inference = Inference(frame=32)
    image = torch.randint(0, 256, (3, 400, 560), dtype=torch.uint8)
    whole, tiled = infer(network, image, "none"), infer(network, image, 320)
    assert isinstance(whole, DensityOutput) and isinstance(tiled, DensityOutput)
    torch.testing.assert_close(tiled.density, whole.density, rtol=1e-4, atol=1e-6)


def test_the_frame_is_that_of_the_training(tmp_path: Path) -> None:
    for given, frame in (
        ({"margin": 0}, 0),
        ({"margin": 16}, 16),
        ({"correct": 20, "margin": 0}, 32),
        ({"correct": 20, "margin": 48}, 48),
    ):
        config = resolve("al-papm", "tiny", {"crop": 192, **given})
        network = build_network(config)
        assert network.frame == frame
        stored = ModelSpec("tiny", dict(config.network), inference=network.inference)
        before_the_contract = ModelSpec("tiny", dict(config.network), config={k: getattr(config, k) for k in given})
        for spec in (stored, before_the_contract):
            checkpoint.save(tmp_path / "m.ckpt", spec, network.state_dict())
            assert checkpoint.build(*checkpoint.load(tmp_path / "m.ckpt")).frame == frame


@pytest.mark.parametrize("margin", [-16, 1e9, "wide", [16], float("nan"), float("inf")])
def test_a_file_cannot_ask_for_any_frame(margin: Any, tmp_path: Path) -> None:
    spec, file = ModelSpec("tiny", config={"margin": margin}), tmp_path / "m.ckpt"
    checkpoint.save(file, spec, {})
    with pytest.raises(CheckpointError, match="its margin is no number of pixels from 0 to 1024"):
        checkpoint.load(file)
    torch.save({"papm": {**ModelSpec("tiny").to_mapping(), "inference": {"frame": margin}}, "state_dict": {}}, file)
    with pytest.raises(CheckpointError, match="frame is a number of pixels from 0 to 1024"):
        checkpoint.load(file)
