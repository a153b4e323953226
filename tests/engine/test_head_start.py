"""What a run on a CPU starts from where nothing is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from papm import api, checkpoint, data, methods, ready
from papm.data.base import Dataset
from papm.engine import head_start as module
from papm.engine.head_start import ROUGHLY, error_of, head_start
from papm.errors import ConfigError, DataError
from papm.models.trunks import parameter_shapes
from papm.models.weights import WeightsUsed
from papm.ready import Card, Ready
from papm.structures import Sample

CELLS = "synthetic:look=cells,train=4,test=1,size=128,count=8-20"
CROWD = "synthetic:look=crowd,train=4,test=1,size=192"


def train(spec: str) -> Dataset:
    return data.open_spec(spec)["train"]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of `lite`, as if they had been downloaded."""
    file = tmp_path / "lite.safetensors"
    save_file({k: torch.zeros(shape) for k, shape in parameter_shapes("lite").items()}, file)
    monkeypatch.setattr(module, "fetch", lambda arch, progress: WeightsUsed(file, "0" * 64))
    return file


def test_images_that_the_model_of_cells_counts_start_from_it() -> None:
    assert error_of("cells", train(CELLS)) < ROUGHLY < error_of("cells", train(CROWD))
    settings, reasons = head_start(train(CELLS))
    assert settings == {"init": "cells"} and "off by" in reasons[0]


def test_a_run_that_starts_from_it_has_its_network(tmp_path: Path) -> None:
    chosen = api.configure(CELLS, "auto", "auto", {"device": "cpu"}).config
    its = checkpoint.load(ready.find("cells").path)[0].options
    assert chosen.network == its and its["width"] == 2
    assert chosen.steps == methods.length("tiny", its)[1] < methods.length("tiny")[1]
    assert api.train(CELLS, out=tmp_path / "run", device="cpu", steps=1).result["init"] == "cells"


def test_only_what_lies_in_a_region_of_interest_is_compared() -> None:
    def marked_in_a_part(sample: Sample) -> Sample:
        region = torch.zeros(sample.size, dtype=torch.bool)
        region[: sample.size[0] // 2] = True
        inside = sample.points[:, 1] < sample.size[0] // 2
        return dataclasses.replace(sample.keep(inside), roi_source=lambda: region)

    part = Dataset([marked_in_a_part(s) for s in train(CELLS)])
    assert error_of("cells", part) < ROUGHLY < error_of("cells", Dataset([without_region(s) for s in part]))


def without_region(sample: Sample) -> Sample:
    return dataclasses.replace(sample, roi_source=None)


def test_a_ready_model_of_another_licence_is_named_and_not_taken(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, state = checkpoint.load(ready.find("cells").path)
    own = tmp_path / "slides.safetensors"
    checkpoint.save(own, spec, state, Card("cells on slides", "for research only").write())
    models = {"cells": ready.find("cells").path, "slides": own}
    monkeypatch.setattr(ready, "known", lambda: models)
    monkeypatch.setattr(ready, "find", lambda name: Ready(name, models[name]))
    errors = {"cells": 0.9, "slides": 0.2}
    monkeypatch.setattr(module, "error_of", lambda name, images: errors[name])
    settings, reasons = head_start(train(CROWD))
    assert settings == {"backbone": "lite", "weights": "imagenet"}
    said = "the ready model slides is off by 20 % on the training images (its licence: papm models info slides)"
    assert reasons[-1] == f"without a training, {said}"
    errors["slides"] = 0.6
    assert len(head_start(train(CROWD))[1]) == 1


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
    assert config.steps == methods.length("lite", on_cpu=True)[1] and config.select == "last"
    assert chosen.why[0] == "hd-papm with lite: for a CPU" and chosen.why[1].startswith("weights=imagenet: ")
    assert any(line.startswith(f"steps={config.steps:,}: minutes on a CPU") for line in chosen.why)


def test_what_is_given_is_neither_chosen_nor_explained(published: Path) -> None:
    chosen = api.configure(CROWD, "auto", "auto", {"device": "cpu", "steps": 3000})
    assert chosen.config.backbone == "lite" and chosen.config.steps == 3000
    assert not any(line.startswith("steps=") for line in chosen.why)


def test_from_scratch_a_cpu_takes_as_long_as_the_data_ask_for() -> None:
    """The minutes that published weights take teach nothing to a trunk that starts from random ones."""
    chosen = api.configure("synthetic:train=100,test=1,size=256", "hd-papm", "lite", {"device": "cpu"})
    assert chosen.config.weights is None and chosen.config.steps == methods.length("lite")[1]


def test_only_lite_trains_within_minutes() -> None:
    """The longest training of VGG19 takes days on a CPU."""
    large = "synthetic:train=500,test=1,size=640"
    chosen = api.configure(large, "hd-papm", "vgg19", {"device": "cpu", "weights": "imagenet"})
    assert chosen.config.steps == methods.length("vgg19")[2]
    assert not any("minutes" in line for line in chosen.why)


def test_without_its_weights_the_small_network_is_trained_from_scratch(caplog: pytest.LogCaptureFixture) -> None:
    settings, reasons = head_start(train(CROWD))
    assert settings == {} and "from scratch" in reasons[0] and "PAPM_OFFLINE is set" in caplog.text
    chosen = api.configure(CROWD, "auto", "auto", {"device": "cpu"})
    assert (chosen.config.backbone, chosen.config.weights, chosen.config.init) == ("tiny", None, None)


def test_all_that_auto_chooses_may_be_given(published: Path) -> None:
    given = {"device": "cpu", "crop": 64, "batch": 2, "steps": 7, "select": "last", "turn": False}
    for data_ in (CROWD, data.open_spec(CROWD)):
        config = api.configure(data_, "auto", "auto", given).config
        assert (config.backbone, config.weights, config.steps, config.crop) == ("lite", "imagenet", 7, 64)


def test_what_is_given_is_not_changed(published: Path) -> None:
    for method, backbone, given in (("hd-papm", "auto", {}), ("auto", "tiny", {}), ("auto", "auto", {"init": None})):
        config = api.configure(CROWD, method, backbone, {"device": "cpu", **given}).config
        assert (config.backbone, config.weights, config.init) == ("tiny", None, None)


def test_processes_that_cannot_have_the_weights_do_not_choose_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "started_processes", lambda: 2)
    with pytest.raises(ConfigError, match="several processes must start from the same: name --backbone"):
        head_start(train(CROWD))


def test_what_would_be_refused_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object) -> None:
        raise AssertionError("weights were fetched")

    monkeypatch.setattr(module, "fetch", fetch)
    sample = Sample("one", lambda: torch.zeros(3, 64, 64, dtype=torch.uint8), torch.rand(6, 2), (64, 64))
    with pytest.raises(DataError, match="fractions of the image"):
        api.train({"train": Dataset([sample], "mine", "train")}, out=tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="no run to resume"):
        api.train(CROWD, out=tmp_path / "run", resume=True, device="cpu")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.ckpt").touch()
    with pytest.raises(ConfigError, match=r"no run to resume here \(no config\.yaml\)"):
        api.train(CROWD, out=tmp_path / "run", resume=True, device="cpu")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "config.yaml").write_text("steps: 5\n")
    with pytest.raises(ConfigError, match="holds a run already"):
        api.train(CROWD, out=tmp_path / "used", device="cpu")
