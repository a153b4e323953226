"""A training whose maps became empty says so while it runs, once."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from papm.config import TrainConfig
from papm.engine import fallen as module
from papm.engine import objective
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.fallen import Fallen, objects_of_a_crop


def warnings(
    errors: list[float], caplog: pytest.LogCaptureFixture, objects: float = 10.0, **given: object
) -> list[str]:
    config = TrainConfig(**{"warmup": 300, **given})  # type: ignore[arg-type]
    fallen = Fallen(objects, config)
    with caplog.at_level(logging.WARNING):
        for row, error in enumerate(errors, 1):
            fallen.look(row * config.log_every, error)
    return [r.getMessage() for r in caplog.records]


def test_long_empty_maps_are_named_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    said = warnings([30.0] * 6 + [9.5] * 60, caplog, backbone="vgg19")
    assert len(said) == 1
    assert said[0].startswith("step 1300: the maps are almost empty")
    assert "off by 9.5, and crops hold 10.0" in said[0]
    assert said[0].endswith("train again with trunk_lr=1e-05")


@pytest.mark.parametrize("given", [{"backbone": "tiny"}, {"backbone": "vgg19", "trunk_lr": 1e-5}])
def test_a_slow_trunk_or_none_leaves_the_rate(given: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    assert warnings([9.5] * 60, caplog, lr=1e-4, **given)[0].endswith("train again with lr=1e-05")


@pytest.mark.parametrize(
    "errors",
    [
        [5.0] * 60,  # learns
        [9.5] * 15 + [4.0] * 4 + [9.5] * 15,  # was right in between
        [9.5] * 12 + [6.0] * 60,  # the warm-up does not count, and it gets better
        [12.0] * 6 + [3.0] * 60,
    ],
)
def test_a_training_that_learns_is_left_alone(errors: list[float], caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings(errors, caplog)


def test_images_without_objects_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings([0.3] * 60, caplog, objects=0.0)


def test_objects_of_a_crop_go_with_its_area() -> None:
    points = [np.zeros((400, 3)), np.zeros((10, 3))]
    data = SimpleNamespace(config=TrainConfig(crop=256), points=points, sizes=[(512, 1024), (100, 128)])
    assert objects_of_a_crop(data) == pytest.approx((400 / 8 + 10) / 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "said"), [(6.0, 1), (1.0, 0)])
def test_a_training_looks_at_itself(
    error: float, said: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STEPS", 4)
    monkeypatch.setattr(objective, "count_error", lambda *_: torch.tensor(error))
    given = {"data": "synthetic:train=2,test=1,size=64,count=6-6", "device": "cpu", "crop": 64, "margin": 0, "batch": 2}
    config = resolve("hd-papm", "tiny", {**given, "steps": 8, "log_every": 2, "warmup": 0, "select": "last"})
    engine.train(config, tmp_path / "run")
    assert sum("the maps are almost empty" in r.getMessage() for r in caplog.records) == said
