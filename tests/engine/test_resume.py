"""Nothing is lost: a run that was killed goes on exactly where its last checkpoint stood."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from papm import checkpoint
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.errors import ConfigError

SPEC = "synthetic:train=6,test=2,size=96,count=5-10"
KEYS = {"steps": 12, "crop": 64, "batch": 2, "log_every": 1, "save_every": 4, "eval_every": 6, "select": "last"}


def losses(folder: Path) -> dict[int, str]:
    with (folder / "metrics.csv").open() as stream:
        return {int(r["step"]): r["loss"] for r in csv.DictReader(stream) if r["loss"]}


def config(**more: object) -> engine.TrainConfig:
    return resolve("hd-papm", "tiny", {"data": SPEC, "device": "cpu", **KEYS, **more})


class StopAt:
    """A watcher that ends the process's part of a run as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
        if step == self.step:
            raise MemoryError("crash")

    def on_start(self, sizes: dict[str, int]) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


@pytest.mark.parametrize("crash", [5, 8, 9, 11])
def test_a_crashed_run_resumes_with_the_same_losses_and_weights(tmp_path: Path, crash: int) -> None:
    engine.train(config(), tmp_path / "whole")
    with pytest.raises(MemoryError):
        engine.train(config(), tmp_path / "cut", watcher=StopAt(crash))
    made = engine.train(config(), tmp_path / "cut", resume=True)
    assert made.step == 12
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    whole, cut = (checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("whole", "cut"))
    assert all(torch.equal(whole[k], cut[k]) for k in whole)


def test_a_crash_before_the_first_checkpoint_starts_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        engine.train(config(), tmp_path, watcher=StopAt(2))
    assert not (tmp_path / "last.ckpt").exists()
    assert engine.train(config(), tmp_path, resume=True).step == 12
    assert sorted(losses(tmp_path)) == list(range(1, 13))


def test_a_finished_run_resumes_to_its_result(tmp_path: Path) -> None:
    first = engine.train(config(), tmp_path)
    again = engine.train(config(), tmp_path, resume=True)
    assert first.result is not None and again.result is not None
    assert again.result["mae"] == first.result["mae"]


def test_a_used_folder_is_refused_without_resume_and_with_other_settings(tmp_path: Path) -> None:
    engine.train(config(steps=2), tmp_path)
    with pytest.raises(ConfigError, match="holds a run already"):
        engine.train(config(steps=2), tmp_path)
    with pytest.raises(ConfigError, match=r"started with lr=0\.002, not 0\.1"):
        engine.train(config(steps=2, lr=0.1), tmp_path, resume=True)
    with pytest.raises(ConfigError, match="no run to resume"):
        engine.train(config(steps=2), tmp_path / "elsewhere", resume=True)


def command(folder: Path, *more: str) -> list[str]:
    keys = [f"{k}={v}" for k, v in {**KEYS, "steps": 2000, "device": "cpu", "eval_every": 2000}.items()]
    return [sys.executable, "-m", "papm", "train", SPEC, "--backbone", "tiny", "--out", str(folder), *keys, *more]


def wait_for(condition: object, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.02)
    raise AssertionError("the run did not get there in time")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder), stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    wait_for(lambda: len(losses(folder)) > 3 if (folder / "metrics.csv").exists() else False)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "--resume" in stderr and "Traceback" not in stderr
    step = checkpoint.load(folder / "last.ckpt")[0].step
    assert step == max(losses(folder))


@pytest.mark.slow
def test_kill_9_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(command(folder), stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_for(lambda: (folder / "last.ckpt").exists())
    process.kill()
    process.wait()
    step = checkpoint.load(folder / "last.ckpt")[0].step
    assert step > 0 and step % KEYS["save_every"] == 0
