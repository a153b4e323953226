"""Two processes train and count as one does."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import papm
from papm import checkpoint
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.oom import with_memory
from papm.errors import ConfigError, PapmError

SPEC = "synthetic:train=7,test=5,size=96,count=5-10"


MACHINES = {  # two of them, by srun, which are this one
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": str(os.getpid() % 1000),  # of which the port follows
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "localhost,other",
    "SLURM_LOCALID": "0",
}


def on_machines(*words: str, folders: Sequence[Path] | None = None) -> list[tuple[int, str, str]]:
    """Exit code and output of `papm …` on each of two machines, started in these folders."""
    command = [sys.executable, "-m", "papm", *words]
    source = str(Path(papm.__file__).parents[1])  # also where PYTHONPATH is relative
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, **MACHINES}
    started = [
        subprocess.Popen(
            command,
            env={**plain, "SLURM_NODEID": k, "SLURM_PROCID": k},
            cwd=None if folders is None else folders[int(k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in "01"
    ]
    try:
        said = [p.communicate(timeout=240) for p in started]
    finally:
        for p in started:
            p.kill()
    return [(p.returncode, *both) for p, both in zip(started, said)]


def run(folder: Path, *settings: str, machines: bool = False) -> tuple[list[float], list[float], dict[str, float]]:
    command = ["train", SPEC, "--backbone", "tiny", "--out", str(folder), "device=cpu"]
    command += ["steps=6", "crop=64", "log_every=1", "eval_every=3", "select=last", "precision=32", *settings]
    if machines:
        for code, _, said in on_machines(*command):
            assert code == 0, said
    else:
        environment, words = {**os.environ, "OMP_NUM_THREADS": "1"}, [sys.executable, "-m", "papm", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    with (folder / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    losses, watched = ([float(r[k]) for r in rows if r[k]] for k in ("loss", "mae"))
    return losses, watched, json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_two_processes_give_the_metrics_of_one(tmp_path: Path) -> None:
    losses, one, single = run(tmp_path / "one", "batch=4")
    shared, two, double = run(tmp_path / "two", "batch=2", "devices=2")
    assert len(one) == 2 and len(losses) == 6
    assert shared == pytest.approx(losses, rel=1e-4)  # of all crops, not those of the process that writes
    # Five test images on two processes: an average of averages, or an image counted twice, would differ in the first digit.
    assert two == pytest.approx(one, rel=1e-4)
    assert double["mae"] == pytest.approx(single["mae"], rel=1e-4)
    alone, here = (checkpoint.load(tmp_path / name / "best.ckpt")[1] for name in ("one", "two"))
    for name, value in alone.items():
        torch.testing.assert_close(here[name], value, rtol=1e-3, atol=1e-5)
    # Two machines with a process each are as two processes of one: to the last bit.
    assert run(tmp_path / "far", "batch=2", "devices=2", machines=True)[:2] == (shared, two)
    far = checkpoint.load(tmp_path / "far" / "best.ckpt")[1]
    assert all(torch.equal(far[name], value) for name, value in here.items())


@pytest.mark.slow
def test_a_dry_run_of_two_processes_speaks_once() -> None:
    command = [sys.executable, "-m", "papm", "train", SPEC, "--backbone", "tiny", "--dry-run", "--json"]
    keys = ["device=cpu", "steps=6", "crop=64", "batch=2", "devices=2", "select=last"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *keys], capture_output=True, text=True, timeout=240, env=environment, check=True)
    found = json.loads(done.stdout)
    assert found["images_per_second"] == pytest.approx(4e3 / found["step_ms"], rel=0.02)  # of both processes


def test_memory_that_one_of_several_processes_lacks_ends_the_run() -> None:
    """The others wait for it in the middle of a step: starting again with a smaller batch would wait for ever."""
    tried: list[int] = []

    def attempt(config: engine.TrainConfig) -> None:
        tried.append(config.batch)
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = resolve("hd-papm", "tiny", {"data": SPEC, "batch": 8, "devices": 2})
    with pytest.raises(PapmError, match="batch=4"):
        with_memory(config, attempt)
    assert tried == [8]


@pytest.mark.slow
def test_an_interruption_stops_both_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        "steps=4000",
        "crop=64",
        "batch=2",
        "devices=2",
        "device=cpu",
        "log_every=1",
        "select=last",
        "eval_every=4000",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "papm", "train", SPEC, "--backbone", "tiny", "--out", str(folder), *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for _ in range(1200):
        if (folder / "metrics.csv").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # to one of the two only
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1 and "--resume" in stderr, stderr
    assert (folder / "last.ckpt").exists()


def test_more_processes_than_images_to_watch_are_refused(tmp_path: Path) -> None:
    """A process without an image would end in the middle of the start, and the others with it."""
    config = resolve("hd-papm", "tiny", {"data": SPEC, "steps": 2, "devices": 2, "device": "cpu", "select": "val"})
    with pytest.raises(ConfigError, match="only 1 image"):
        engine.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
