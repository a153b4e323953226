"""Models as .safetensors: what was saved counts the same, what is damaged or none of ours is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, PapmError
from papm.inference import Inference
from papm.models.weights import read_weights
from papm.predict.predictor import Counter
from papm.untrusted import LONGEST_HEADER

SPEC = ModelSpec("tiny", {"stride": 8}, "hd-papm", {"data": "x"}, 12, Inference(frame=16, classes=()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, SPEC, models.create("tiny", stride=8).state_dict(), "a card")
    return path


def rewritten(path: Path, **about: str) -> Path:
    """The same tensors with another description."""
    tensors = load_file(path)
    save_file(tensors, path, about)
    return path


def test_it_is_half_as_large_and_counts_the_same(model: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = tmp_path / "x.ckpt"
    checkpoint.save(whole, SPEC, models.create("tiny", stride=8).state_dict())
    assert model.stat().st_size < 0.6 * whole.stat().st_size
    spec, state = checkpoint.load(model)
    assert spec == checkpoint.load(whole)[0] and all(v.dtype == torch.float32 for v in state.values())
    kinds = {k: v.dtype for k, v in load_file(model).items()}
    assert kinds["down2.weight"] == torch.float16 and kinds["down2.bias"] == torch.float32
    image = torch.randint(0, 255, (3, 90, 70), dtype=torch.uint8)
    a, b = (Counter.load(p, "cpu").predict(image).count for p in (model, whole))
    assert a == pytest.approx(b, rel=1e-3) and checkpoint.read(model)["card"] == "a card"


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    state = models.create("tiny", stride=8).state_dict()
    state["down2.weight"][0] = 1e6
    with pytest.raises(CheckpointError, match=r"'network.down2.weight'|'down2.weight' do not fit"):
        checkpoint.save(tmp_path / "x.safetensors", SPEC, state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("papm", "words"),
    [
        ("{", "not a readable checkpoint"),
        ("[" * 100_000, "not a readable checkpoint: nested too deeply"),
        ("[1]", "not a papm checkpoint"),
        ('{"backbone": NaN}', "NaN is no number"),
        ('{"format": 99, "version": "9"}', "written by a newer papm"),
        ('{"backbone": "tiny", "inference": {"frame": -3}}', "frame is a number of pixels"),
        ('{"backbone": "tiny", "options": {"weights": "/etc/passwd"}}', "unknown option"),
        (json.dumps({"backbone": "tiny", "config": {"a": [0] * 100_000}}), "more than 100,000 values"),
        (json.dumps({"backbone": "vgg19"}), "belongs to another network"),
    ],
)
def test_descriptions_of_strangers(model: Path, papm: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=rf"x\.safetensors: .*{words}"):
        spec, state = checkpoint.load(rewritten(model, papm=papm))
        checkpoint.build(spec, state, model)


@pytest.mark.parametrize("cut", [0, 4, 8, 100, 3000, -1])
def test_a_file_that_was_cut_off(model: Path, cut: int) -> None:
    model.write_bytes(model.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"x\.safetensors: not a readable checkpoint"):
        checkpoint.load(model)


def test_a_header_without_bounds(model: Path) -> None:
    model.write_bytes((LONGEST_HEADER + 1).to_bytes(8, "little") + b" " * (LONGEST_HEADER + 1))
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        checkpoint.load(model)


def test_weights_of_a_trunk_are_no_model_and_a_model_no_trunk(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="is a papm checkpoint, not weights of a trunk; start from it with --init"
    ):
        read_weights(model)
    with pytest.raises(CheckpointError, match="not a papm checkpoint; trunk weights are given with --weights"):
        checkpoint.load(rewritten(model, format="pt"))


def test_weights_that_are_not_finite(model: Path) -> None:
    tensors: dict[str, Any] = load_file(model)
    tensors["down2.bias"][0] = torch.nan
    about = {"papm": json.dumps(SPEC.to_mapping())}
    save_file(tensors, model, about)
    with pytest.raises(PapmError, match="not finite"):
        Counter.load(model, "cpu")
