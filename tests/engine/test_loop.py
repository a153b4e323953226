"""How often a run evaluates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.spec import open_spec
from papm.engine import build
from papm.engine.build import resolve
from papm.engine.loop import evaluate_every
from papm.engine.ranks import Ranks
from papm.engine.run_folder import read_metrics
from papm.engine.train import train
from papm.structures import Sample


def images(n: int, side: int) -> Dataset:
    sample = Sample("one", lambda: torch.zeros(3, side, side, dtype=torch.uint8), torch.zeros(0, 2), (side, side))
    return Dataset([sample] * n, "mine", "test")


def test_many_large_images_are_counted_less_often() -> None:
    config = TrainConfig(backbone="tiny", steps=6000, crop=160, batch=8)
    assert evaluate_every(config, images(10, 256)) == 300
    assert evaluate_every(config, images(80, 4000)) == 1500
    between = evaluate_every(config, images(100, 1000))
    assert 300 < between < 1500
    counted, trained = 6000 // between * 100 * 1000**2, 6000 * 8 * 160**2
    assert counted <= 0.25 * 3 * trained


def test_steps_in_half_precision_are_shorter() -> None:
    """Their evaluations are not: on a CPU they are in float32."""
    config, many = TrainConfig(backbone="tiny", steps=6000, crop=160, batch=8), images(100, 1000)
    assert evaluate_every(config, many, shorter=True) == pytest.approx(2 * evaluate_every(config, many), rel=0.2)


def test_there_are_never_more_than_twenty() -> None:
    assert 39 // evaluate_every(TrainConfig(steps=39), images(1, 64)) <= 20


@pytest.mark.parametrize("steps", [39, 600, 2000, 2001, 2500, 6000])
@pytest.mark.parametrize("number", [20, 60, 100, 200])
def test_the_last_of_them_is_at_the_end(steps: int, number: int) -> None:
    """There the learning rate is lowest: the best weights are rarely those of earlier steps."""
    every = evaluate_every(TrainConfig(backbone="tiny", steps=steps, crop=160, batch=8), images(number, 700))
    assert steps % every < 20 and 4 <= steps // every <= 20


def test_processes_on_unlike_machines_evaluate_at_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process trains in half precision, as its CPU has units for it: this one evaluates when that one does."""
    spec = "synthetic:train=2,test=2,size=64,count=3-6"
    asked = resolve("hd-papm", "tiny", {"data": spec, "device": "cpu", "precision": "auto", "select": "last"})
    config = dataclasses.replace(asked, steps=20, crop=64, margin=0, batch=1)
    opened = open_spec(spec)
    alone, together = (evaluate_every(config, opened["test"], shorter) for shorter in (False, True))
    assert alone < together
    monkeypatch.setattr(build, "has_bf16_units", lambda device: False)
    another = iter([True])
    monkeypatch.setattr(Ranks, "any", lambda self, flag: next(another, flag))
    train(config, tmp_path / "run")
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.csv") if "mae" in row]
    assert steps == list(range(together, 21, together))


def test_what_is_asked_for_stays() -> None:
    assert evaluate_every(TrainConfig(eval_every=7), images(80, 4000)) == 7
    assert evaluate_every(TrainConfig(steps=3), images(80, 4000)) == 1
