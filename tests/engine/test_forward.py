"""`correct` in a run: what the network sees grows, the loss keeps its part, and files say what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from papm import config as configuration
from papm import data
from papm.data.splits import choose
from papm.engine import run_folder
from papm.engine import train as engine
from papm.engine.build import build_loss, resolve
from papm.engine.data import CountingData
from papm.errors import ConfigError
from papm.losses.classes import ClassLoss
from papm.losses.forward_correction import ForwardLoss
from papm.losses.transport import TransportLoss
from papm.study import training

SPEC = "synthetic:train=6,test=3,size=96,count=5-10"


def config(method: str = "al-papm", **more: Any) -> configuration.TrainConfig:
    keys = {"data": SPEC, "device": "cpu", "steps": 4, "crop": 64, "batch": 4, "log_every": 2, "select": "last"}
    return resolve(method, "tiny", {**keys, **more})


def test_the_loss_of_a_configuration() -> None:
    assert isinstance(build_loss(config(), 8), TransportLoss)
    loss = build_loss(config(correct=12.0, correct_kind="disc"), 8)
    assert isinstance(loss, ForwardLoss) and isinstance(loss.loss, TransportLoss)
    assert (loss.distance, loss.kind, loss.margin) == (12.0, "disc", 16)
    loss = build_loss(config(correct=12.0, network={"num_classes": 2}), 8)
    assert isinstance(loss, ForwardLoss) and isinstance(loss.loss, ClassLoss)
    assert loss.margin == 16 and loss.maps == 2


def test_the_network_sees_a_frame_of_the_displacement_and_the_loss_what_it_saw_before() -> None:
    made = {}
    for key, c in {"plain": config(), "corrected": config(correct=20.0)}.items():
        counting = CountingData(choose(data.open_spec(SPEC), "last", 0.1, 0), c)
        counting.load(torch.device("cpu"))
        made[key] = counting.render(counting.plan(0))
    assert made["plain"].images.shape[-1] == 64 and made["corrected"].images.shape[-1] == 128
    mask = made["corrected"].mask
    assert mask is not None and mask.any(2).sum(1).max() == 64
    xy = made["corrected"].points.xy[made["corrected"].points.valid]
    assert len(xy) and (xy >= 32).all() and (xy < 96).all()


def test_a_displacement_is_of_images_as_they_are() -> None:
    """A recipe's scales make way for it; scales that are asked for contradict it."""
    assert resolve("al-papm", "vgg19", {}).resizes and not resolve("al-papm", "vgg19", {"correct": 16.0}).resizes
    with pytest.raises(ConfigError, match="leave them at 1"):
        resolve("al-papm", "vgg19", {"correct": 16.0, "scale_max": 1.5})


@pytest.mark.slow
def test_a_corrected_run_trains_resumes_and_says_so(tmp_path: Path) -> None:
    asked = config(correct=12.0, noise=12.0)
    made = engine.train(asked, tmp_path)
    assert made.result is not None
    learned = json.loads((tmp_path / "result.json").read_text())["options"]["training"]
    assert (learned["correct"], learned["correct_kind"], learned["margin"]) == (12.0, "ring", 0)
    stored = run_folder.stored_config(tmp_path)
    assert stored == asked and stored.crop == 64 and stored.view == 96  # the same command resumes it
    assert engine.train(asked, tmp_path, resume=True).result is not None
    with pytest.raises(ConfigError, match=r"was started with correct=12\.0, not 0\.0"):
        engine.train(config(noise=12.0), tmp_path, resume=True)


def test_a_captured_step_is_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config("hd-papm", correct=12.0, noise=12.0)
    engine.train(asked, tmp_path / "plain")
    monkeypatch.setattr("papm.engine.training.can_capture", lambda training: True)
    monkeypatch.setattr("papm.engine.graphed.capture", lambda function, warm, pool: (function, None))
    engine.train(asked, tmp_path / "whole")
    rows = [run_folder.read_metrics(tmp_path / name / "metrics.csv") for name in ("plain", "whole")]
    for a, b in zip(*rows, strict=True):
        assert set(a) == set(b)
        for key in set(a) - {"seconds"}:
            assert b[key] == pytest.approx(a[key], rel=1e-4, abs=1e-5)


def test_points_are_not_corrected() -> None:
    for method in ("p2pnet", "p2p-papm"):
        with pytest.raises(ConfigError, match="correct is for losses on density maps") as caught:
            resolve(method, "p2pnet", {"correct": 8.0})
        assert "\n" not in str(caught.value)
    assert resolve("p2p-papm", "p2pnet", {"correct": 0.0}).correct == 0


def test_a_corrected_result_belongs_to_no_cell_that_does_not_ask_for_it(tmp_path: Path) -> None:
    result = engine.train(config(correct=12.0, noise=12.0, steps=2), tmp_path).result
    assert result is not None
    have = training.done(result)
    cell = {"dataset": result["dataset"], "backbone": "tiny", "method": "al-papm", "noise": 12.0}
    assert "correct" in training.differences(training.required(cell), have)
    wanted = training.required({**cell, "correct": 12.0})
    assert not {k for k, v in wanted.items() if have.get(k) != v}
