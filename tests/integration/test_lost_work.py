"""`papm train` on a disk that fills up, with weights that break, and stopped between two rows of its log: nothing is lost."""

from __future__ import annotations

import csv
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from papm import checkpoint
from papm.checkpoint import ModelSpec
from papm.engine.optimizer import Optimizer
from papm.engine.training import Training
from papm.errors import WriteError

Run = Callable[..., tuple[int, str, str]]

DATA = ["train", "synthetic:train=6,test=2,size=64,count=5-10", "--backbone", "tiny"]
TRAIN = [*DATA, "device=cpu", "crop=64", "batch=2", "lr=0.01", "select=test"]
SHORT = ["steps=8", "log_every=3", "save_every=4", "eval_every=2"]
# In kB. best.ckpt has 0.38 MB, last.ckpt 1.5 MB, pictures and report 1.2 MB, and each is written beside the one it replaces.
SIZES = {"room for nothing": 300, "best.ckpt": 1100, "both, once": 1920, "both, and a better best.ckpt": 2300}


@contextmanager
def filled(folder: Path, kilobytes: int) -> Iterator[None]:
    """Nothing is flushed to a folder that holds more than so much."""
    flush = os.fsync

    def full(handle: int) -> None:
        flush(handle)
        if sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) > 1000 * kilobytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", full)
        yield


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of both checkpoints of a finished run."""
    states = {name: checkpoint.load(folder / f"{name}.ckpt")[1] for name in ("best", "last")}
    return {f"{name}.{k}": v for name, state in states.items() for k, v in state.items()}


def same(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def finite(path: Path) -> bool:
    return all(bool(torch.isfinite(v).all()) for v in checkpoint.load(path)[1].values())


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the seconds, which no two runs share."""
    with (folder / "metrics.csv").open(encoding="utf-8") as stream:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was left alone."""
    from papm.cli import main as entry

    folder = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(1)
    with pytest.raises(SystemExit) as stopped:
        entry.main([*TRAIN, *SHORT, "--out", str(folder)])
    assert not stopped.value.code
    return folder


def do_as_told(run_papm: Run, whole: Path, folder: Path, code: int, err: str) -> None:
    """Once there is room, the command that the last sentence asks for leads to the same weights."""
    last = err.strip().splitlines()[-1]
    assert code == 0 or (code == 2 and last.startswith("papm: ") and "make room, and" in last), err
    again = ["--resume"] if code == 0 or "--resume" in last else []
    assert bool(again) == (folder / "config.yaml").exists() and (again or not folder.exists())
    code, _, err = run_papm(*TRAIN, *SHORT, "--out", folder, *again)
    assert code == 0 and same(whole, folder), err
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_after_a_full_disk_a_run_goes_on_or_starts_anew(run_papm: Run, whole: Path, tmp_path: Path, size: int) -> None:
    with filled(tmp_path, size):
        code, _, err = run_papm(*TRAIN, *SHORT, "--out", tmp_path / "run")
    do_as_told(run_papm, whole, tmp_path / "run", code, err)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1100, 2200])
def test_a_real_full_disk(run_papm: Run, whole: Path, tmp_path: Path, size: int) -> None:
    def mount(option: str) -> bool:
        words = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(tmp_path)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    if os.name != "posix" or not mount(f"size={size}k"):
        pytest.skip("may not mount a tmpfs")
    try:
        code, _, err = run_papm(*TRAIN, *SHORT, "--out", tmp_path / "run")
        assert mount("remount,size=64m")
        do_as_told(run_papm, whole, tmp_path / "run", code, err)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def steps_taken(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[int]:
    """Grows by the number of every step of training; in one of them somebody presses Ctrl-C."""
    taken: list[int] = []
    step = Training.take

    def counted(self: Training, item: Any) -> None:
        taken.append(self.done)
        if self.done == stop_at and taken.count(stop_at) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        step(self, item)

    monkeypatch.setattr(Training, "take", counted)
    return taken


def test_without_room_for_the_first_checkpoint_a_run_ends_there(
    run_papm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its last step: there is nothing to go on from, so that all the others would be lost."""
    taken = steps_taken(monkeypatch)
    with filled(tmp_path, 300):
        code, _, err = run_papm(*TRAIN, *SHORT, "--out", tmp_path / "run")
    assert code == 2 and len(taken) == 2 and list(tmp_path.iterdir()) == [], err
    assert err.endswith(
        "best.ckpt: cannot be written (No space left on device); make room, and give the same command again\n"
    )


@pytest.mark.slow
def test_a_later_full_disk_is_told_and_the_end_says_what_to_do(
    run_papm: Run, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path, 3200):
        code, _, err = run_papm(*TRAIN, *SHORT, "--out", tmp_path / "run")
    assert code == 0 and "last.ckpt: cannot be written (No space left on device)" in caplog.text, err
    assert "last.ckpt: is of an earlier step; make room, and --resume brings it to step 8" in caplog.text
    assert checkpoint.load(tmp_path / "run" / "last.ckpt")[0].step < 8
    do_as_told(run_papm, whole, tmp_path / "run", code, err)


def test_stopped_on_a_full_disk_a_run_does_not_say_that_it_was_saved(
    run_papm: Run, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = steps_taken(monkeypatch, stop_at=5)
    with filled(tmp_path, 2600):
        code, _, err = run_papm(*TRAIN, *SHORT, "--out", tmp_path / "run")
    assert code == 2 and taken[-1] == 5 and "Stopped" not in err, err
    assert err.endswith("what was there before is kept; make room, and --resume goes on from last.ckpt\n")
    do_as_told(run_papm, whole, tmp_path / "run", code, err)


@pytest.mark.slow
def test_the_chosen_weights_are_those_that_were_best_though_they_had_to_wait(
    run_papm: Run, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for best.ckpt while it is the best, and room later: it must not be left out, nor be that of another step."""
    folder, save, refused = tmp_path / "run", checkpoint.save, list[int]()

    def full(path: Path, spec: ModelSpec, state: Any) -> None:
        if (folder / "last.ckpt").exists() and len(refused) < 2:  # when it is evaluated, and when last.ckpt is due
            refused.append(spec.step)
            raise WriteError(f"{path}: no room")
        save(path, spec, state)

    best = checkpoint.load(whole / "best.ckpt")[0].step
    monkeypatch.setattr(checkpoint, "save", full)
    code, _, err = run_papm(*TRAIN, *SHORT, "select=test", "save_every=1", "--out", folder)
    assert code == 0 and len(refused) == 2 and checkpoint.load(folder / "best.ckpt")[0].step == best, err
    assert same(whole, folder)


@pytest.mark.parametrize("broken", [1, 4], ids=["before the first checkpoint", "later"])
def test_weights_that_are_no_numbers_leave_the_last_checkpoint_good(
    run_papm: Run, whole: Path, tmp_path: Path, broken: int
) -> None:
    update = Optimizer._update

    def spoil(self: Optimizer, gradients: list[torch.Tensor], skipped: torch.Tensor) -> None:
        update(self, gradients, skipped)
        if int(self.taken) == broken:
            self.parameters[0].fill_(torch.nan)

    folder, every = tmp_path / "run", f"save_every={max(1, broken // 2)}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Optimizer, "_update", spoil)
        code, _, err = run_papm(*TRAIN, *SHORT, "eval_every=8", every, "--out", folder)
    assert code == 2 and f"not finite at step {broken}" in err and "smaller lr, or clip=1" in err
    if broken == 1:
        assert not folder.exists() and "--resume" not in err
        return
    assert "--resume goes on" in err and finite(folder / "last.ckpt")
    assert checkpoint.load(folder / "last.ckpt")[0].step == broken // 2
    code, _, err = run_papm(*TRAIN, *SHORT, "--out", folder, "--resume")
    assert code == 0 and same(whole, folder), err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None], ids=["Ctrl-C", "SIGTERM", "crash"])
def test_the_log_of_a_stopped_run_is_that_of_a_whole_one(
    run_papm: Run, whole: Path, tmp_path: Path, number: signal.Signals | None
) -> None:
    """Stopped at step 5, or fallen there with a checkpoint of step 4; rows are written at 3, 6 and 8."""
    step = Training.take

    def stop(self: Training, item: Any) -> None:
        if self.done == 4 and number is not None:
            os.kill(os.getpid(), number)
        if self.done == 5 and number is None:
            raise MemoryError("as if it were killed")
        step(self, item)

    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Training, "take", stop)
        if number is None:
            with pytest.raises(MemoryError):
                run_papm(*TRAIN, *SHORT, "--out", folder)
        else:
            assert run_papm(*TRAIN, *SHORT, "--out", folder)[0] == 1
    code, _, err = run_papm(*TRAIN, *SHORT, "--out", folder, "--resume")
    assert code == 0 and rows(folder) == rows(whole), err


def test_a_draft_of_a_killed_start_is_cleared(run_papm: Run, tmp_path: Path) -> None:
    """Killed while config.yaml was written for the first time: what is there is no run, and a draft."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.yaml.abc123.tmp").write_text("data: sy")
    (folder / ".mine.tmp").write_text("")
    assert run_papm(*TRAIN, "steps=1", "--out", folder)[0] == 0
    assert [p.name for p in folder.glob(".*")] == [".mine.tmp"]
