"""What a run on a CPU starts from where nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from papm import api, data
from papm.data.base import Dataset
from papm.engine import head_start as module
from papm.engine.head_start import ROUGHLY, error_of, head_start
from papm.models.trunks import parameter_shapes
from papm.models.weights import WeightsUsed

CELLS = "synthetic:look=cells,train=4,test=1,size=128,count=8-20"
CROWD = "synthetic:look=crowd,train=4,test=1,size=192"


def train(spec: str) -> Dataset:
    return data.open_spec(spec)["train"]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of `lite`, as if they had been downloaded."""
    file = tmp_path / "lite.safetensors"
    save_file({k: torch.zeros(shape) for k, shape in parameter_shapes("lite").items()}, file)
    monkeypatch.setattr(module, "fetch", lambda arch: WeightsUsed(file, "0" * 64))
    return file


def test_images_that_the_model_of_cells_counts_start_from_it() -> None:
    assert error_of("cells", train(CELLS)) < ROUGHLY < error_of("cells", train(CROWD))
    settings, reason = head_start(train(CELLS))
    assert settings == {"init": "cells"} and "off by" in reason


def test_images_without_objects_are_of_nothing_known() -> None:
    assert error_of("cells", train("synthetic:train=3,test=1,size=64,count=0")) == float("inf")


def test_the_middle_of_a_large_image_is_compared_with_the_points_there() -> None:
    whole = train("synthetic:look=cells,train=2,test=1,size=1200x1300,count=150-200,extent=20")
    assert error_of("cells", whole) < ROUGHLY


def test_other_images_get_a_network_that_knows_photographs(published: Path) -> None:
    assert head_start(train(CROWD))[0] == {"backbone": "lite", "weights": "imagenet"}
    chosen = api.configure(CROWD, "auto", "auto", {"device": "cpu", "seed": 3})
    config = chosen.config
    assert (config.backbone, config.weights, config.method, config.seed) == ("lite", "imagenet", "hd-papm", 3)
    assert 600 <= config.steps <= 1000 and config.select == "last"
    assert chosen.why[0] == "hd-papm with lite: for a CPU" and chosen.why[1].startswith("weights=imagenet: ")


def test_without_its_weights_the_small_network_is_trained_from_scratch() -> None:
    settings, reason = head_start(train(CROWD))
    assert settings == {} and "from scratch" in reason and "PAPM_OFFLINE is set" in reason
    chosen = api.configure(CROWD, "auto", "auto", {"device": "cpu"})
    assert (chosen.config.backbone, chosen.config.weights, chosen.config.init) == ("tiny", None, None)


def test_what_is_given_is_not_changed(published: Path) -> None:
    for method, backbone, given in (("hd-papm", "auto", {}), ("auto", "tiny", {}), ("auto", "auto", {"init": None})):
        config = api.configure(CROWD, method, backbone, {"device": "cpu", **given}).config
        assert (config.backbone, config.weights, config.init) == ("tiny", None, None)
