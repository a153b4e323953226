"""A training whose maps became empty restarts with a slower trunk, or says so while it runs, once."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from papm import checkpoint
from papm.config import TrainConfig
from papm.engine import fallen as module
from papm.engine import objective, run_folder
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.data import CountingData
from papm.engine.fallen import Fallen, objects_of_a_crop
from papm.engine.keep import Keeper
from papm.engine.training import Training
from papm.errors import ConfigError
from papm.study import training


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


# -- restarting ----------------------------------------------------------------------------------------------------------


def transport_on_a_trunk(**given: object) -> TrainConfig:
    """A few steps of a network whose pretrained part has no norms; six objects an image."""
    some = {"data": "synthetic:train=2,test=1,size=64,count=6-6", "device": "cpu", "crop": 64, "batch": 2, "warmup": 0}
    plain = {
        **some,
        "steps": 8,
        "log_every": 2,
        "save_every": 2,
        "eval_every": 8,
        "select": "last",
        "network": {"trunk": "tiny"},
    }
    return resolve("al-papm", "vgg19", {**plain, **given})


def empty_until_slower(monkeypatch: pytest.MonkeyPatch, alive: float = 3e-5) -> list[float | None]:
    """Counts are off by all there is unless the trunk is as slow as `alive`; the rates that were tried."""
    tried: list[float | None] = []
    build = Training.__init__

    def built(self: Training, config: TrainConfig, *rest: object) -> None:
        tried.append(config.trunk_lr)
        build(self, config, *rest)  # type: ignore[arg-type]

    def error(*_: object) -> torch.Tensor:
        return torch.tensor(1.0 if (tried[-1] or 1.0) <= alive else 6.0)

    monkeypatch.setattr(Training, "__init__", built)
    monkeypatch.setattr(module, "STEPS", 4)
    monkeypatch.setattr(objective, "count_error", error)
    return tried


def test_empty_maps_restart_with_a_slower_trunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = empty_until_slower(monkeypatch)
    ended = engine.train(transport_on_a_trunk(), tmp_path / "run")
    assert tried == [None, 3e-5]
    assert ended.result is not None and ended.step == 8
    assert ended.result["options"]["training"]["trunk_lr"] == 3e-5
    assert ended.result["asked"] == {"trunk_lr": None}
    assert training.done(ended.result)["trunk_lr"] is None  # what a study asks for
    said = [r.getMessage() for r in caplog.records if "almost empty" in r.getMessage()]
    assert len(said) == 1 and said[0].endswith("; restarting with trunk_lr=3e-05")
    steps = [row.split(",")[0] for row in (tmp_path / "run/metrics.csv").read_text().splitlines()[1:]]
    assert steps[:4] == ["2", "4", "6", "8"]  # nothing of the first attempt
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1


def test_it_learns_what_the_slower_trunk_learns_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_until_slower(monkeypatch)
    engine.train(transport_on_a_trunk(), tmp_path / "restarted")
    engine.train(transport_on_a_trunk(trunk_lr=3e-5), tmp_path / "slow")
    ours, theirs = (checkpoint.load(tmp_path / name / "best.ckpt")[1] for name in ("restarted", "slow"))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


@pytest.mark.parametrize("stored", [True, False])
def test_a_run_that_restarted_is_resumed_by_the_same_command_or_none(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = empty_until_slower(monkeypatch)
    write = Keeper.save

    def then_stop(self: Keeper, step: int, *rest: object, **more: object) -> None:
        write(self, step, *rest, **more)  # type: ignore[arg-type]
        if tried[-1] is not None and step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "save", then_stop)
    with pytest.raises(KeyboardInterrupt):
        engine.train(transport_on_a_trunk(), tmp_path / "run")
    monkeypatch.setattr(Keeper, "save", write)
    again = run_folder.stored_config(tmp_path / "run") if stored else transport_on_a_trunk()
    ended = engine.train(again, tmp_path / "run", resume=True)
    assert tried == [None, 3e-5, 3e-5] and ended.step == 8
    assert ended.result is not None and ended.result["asked"] == {"trunk_lr": None}
    with pytest.raises(ConfigError, match="was started with trunk_lr"):
        engine.train(transport_on_a_trunk(trunk_lr=1e-4), tmp_path / "run", resume=True)


def test_a_run_that_goes_on_restarts_where_one_that_was_not_stopped_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = empty_until_slower(monkeypatch)
    write = Keeper.save

    def then_stop(self: Keeper, step: int, *rest: object, **more: object) -> None:
        write(self, step, *rest, **more)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "save", then_stop)
    with pytest.raises(KeyboardInterrupt):
        engine.train(transport_on_a_trunk(), tmp_path / "run")
    monkeypatch.setattr(Keeper, "save", write)
    ended = engine.train(transport_on_a_trunk(), tmp_path / "run", resume=True)
    assert tried == [None, None, 3e-5]
    assert ended.result is not None and ended.result["asked"] == {"trunk_lr": None}
    assert [r.getMessage()[:7] for r in caplog.records if "restarting" in r.getMessage()] == ["step 4:"]
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1  # nothing of the first attempt


@pytest.mark.parametrize(("stopped", "loads"), [(None, 2), ((1, 2), 3), ((2, 4), 3)])
def test_the_seconds_of_a_run_are_those_of_all_its_parts_and_attempts(
    stopped: tuple[int, int] | None, loads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading takes 100 s, a step 1 s. The first attempt ends at step 4; an attempt is `stopped` at a step, and goes on."""
    tried = empty_until_slower(monkeypatch)
    clock, load, take, write = [0.0], CountingData.load, Training.take, Keeper.save

    def slow_load(self: CountingData, *rest: Any) -> None:
        clock[0] += 100
        load(self, *rest)

    def slow_take(self: Training, item: Any) -> None:
        clock[0] += 1
        take(self, item)

    def then_stop(self: Keeper, step: int, *rest: Any, **more: Any) -> None:
        write(self, step, *rest, **more)
        if (len(tried), step) == stopped:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(CountingData, "load", slow_load)
    monkeypatch.setattr(Training, "take", slow_take)
    if stopped is not None:
        monkeypatch.setattr(Keeper, "save", then_stop)
        with pytest.raises(KeyboardInterrupt):
            engine.train(transport_on_a_trunk(), tmp_path / "run")
    ended = engine.train(transport_on_a_trunk(), tmp_path / "run", resume=stopped is not None)
    assert ended.result is not None and ended.result["seconds"] == loads * 100 + 4 + 8


def test_a_second_fall_is_only_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = empty_until_slower(monkeypatch, alive=0.0)
    assert engine.train(transport_on_a_trunk(), tmp_path / "run").step == 8
    assert tried == [None, 3e-5]
    assert caplog.records[-1].getMessage().endswith("train again with trunk_lr=1e-05")


@pytest.mark.parametrize("given", [{"trunk_lr": 1e-4}, {"method": "hd-papm", "loss": {}}])
def test_a_rate_that_was_given_or_another_kind_of_loss_is_left_alone(
    given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = empty_until_slower(monkeypatch)
    engine.train(dataclasses.replace(transport_on_a_trunk(), **given), tmp_path / "run")  # type: ignore[arg-type]
    assert len(tried) == 1


def test_norms_keep_a_trunk_alive() -> None:
    config = transport_on_a_trunk()
    assert Fallen(6.0, config, torch.nn.Conv2d(3, 8, 3)).slower is not None
    assert Fallen(6.0, config, torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))).slower is None
    assert Fallen(6.0, dataclasses.replace(config, devices=2), torch.nn.Conv2d(3, 8, 3)).slower is None


def test_half_of_a_training_is_not_thrown_away(caplog: pytest.LogCaptureFixture) -> None:
    config, plain = transport_on_a_trunk(steps=4000, log_every=50), torch.nn.Conv2d(3, 8, 3)
    early, late = (Fallen(6.0, config, plain) for _ in range(2))
    with pytest.raises(module.EmptyMaps):
        for step in range(50, 2001, 50):
            early.look(step, 6.0)
    for step in range(50, 4001, 50):
        late.look(step, 1.0 if step < 1500 else 6.0)
    assert "train again with trunk_lr=1e-05" in caplog.text
