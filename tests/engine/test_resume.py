"""Nothing is lost: a run that was killed goes on exactly where its last checkpoint stood."""

from __future__ import annotations

import csv
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from papm import checkpoint, models
from papm.engine import evaluate, ranks, run_folder, watch
from papm.engine import train as engine
from papm.engine.build import CPU_BF16, resolve
from papm.engine.dry_run import dry_run
from papm.engine.keep import Keeper
from papm.engine.log import Log
from papm.engine.training import Training
from papm.errors import CheckpointError, ConfigError, DataError
from papm.models.weights import sha256_of
from papm.predict.predictor import Counter
from papm.study import training

SPEC = "synthetic:train=6,test=2,size=96,count=5-10"
KEYS = {"steps": 12, "crop": 64, "batch": 2, "log_every": 1, "save_every": 4, "eval_every": 6, "select": "last"}


def losses(folder: Path) -> dict[int, str]:
    with (folder / "metrics.csv").open() as stream:
        return {int(r["step"]): r["loss"] for r in csv.DictReader(stream) if r["loss"]}


def evaluations(folder: Path) -> dict[int, str]:
    with (folder / "metrics.csv").open() as stream:
        return {int(r["step"]): r["mae"] for r in csv.DictReader(stream) if r["mae"]}


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


@pytest.mark.parametrize("crash", [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (8, 9, 11))])
def test_a_crashed_run_resumes_with_the_same_losses_and_weights(tmp_path: Path, crash: int) -> None:
    engine.train(config(), tmp_path / "whole")
    with pytest.raises(MemoryError):
        engine.train(config(), tmp_path / "cut", watcher=StopAt(crash))
    made = engine.train(config(), tmp_path / "cut", resume=True)
    assert made.step == 12
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    whole, cut = (checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("whole", "cut"))
    assert all(torch.equal(whole[k], cut[k]) for k in whole)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [4, 12])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_a_step_is_evaluated_loses_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, crash: int
) -> None:
    """The step of a checkpoint is evaluated too, and is the best so far: killed before its figure is known, or after that
    but before best.ckpt is written, the evaluation must come again."""
    crashes = [False]
    noted, written = Log.evaluation, Keeper.write_best

    def falling(self: Log, step: int, values: dict[str, float]) -> None:
        if crashes[0] and when == "before" and step == crash:
            raise MemoryError("crash")
        noted(self, step, {**values, "mae": 20.0 - step})

    def write(self: Keeper, step: int) -> None:
        if crashes[0] and when == "after" and step == crash:
            raise MemoryError("crash")
        written(self, step)

    monkeypatch.setattr(Log, "evaluation", falling)
    monkeypatch.setattr(Keeper, "write_best", write)
    keys = {"select": "test", "eval_every": 4}
    whole = engine.train(config(**keys), tmp_path / "whole").result
    crashes[0] = True
    with pytest.raises(MemoryError):
        engine.train(config(**keys), tmp_path / "cut")
    crashes[0] = False
    cut = engine.train(config(**keys), tmp_path / "cut", resume=True).result
    assert evaluations(tmp_path / "cut") == {4: "16", 8: "12", 12: "8"}
    assert whole is not None and cut is not None
    for key in ("mae", "mae_last", "mae_best_on_test", "selected_step"):
        assert cut[key] == whole[key], key


class Interrupt(StopAt):
    """A watcher that presses Ctrl-C."""

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6])
def test_an_interruption_loses_no_evaluation(tmp_path: Path, step: int) -> None:
    engine.train(config(), tmp_path / "whole")
    made = engine.train(config(), tmp_path / "cut", watcher=Interrupt(step))
    assert made.interrupted and made.step == step
    assert checkpoint.load(tmp_path / "cut" / "last.ckpt")[0].step == step
    assert not evaluations(tmp_path / "cut")  # that of step 6 is made when the run goes on
    engine.train(config(), tmp_path / "cut", resume=True)
    assert evaluations(tmp_path / "cut") == evaluations(tmp_path / "whole")


class Pressing:
    """Ctrl-C at a call of a function, which is made all the same."""

    def __init__(self, function: Callable[..., Any], call: int, number: signal.Signals = signal.SIGINT) -> None:
        self.function, self.call, self.number, self.calls = function, call, number, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.call:
            os.kill(os.getpid(), self.number)
        return self.function(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("image", "step"), [(2, 6), (6, 12)])
def test_an_evaluation_is_given_up_and_made_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int, step: int, number: signal.Signals
) -> None:
    """In the middle of training, and after its last step, where there is none left that would end in an evaluation."""
    keys = {"data": SPEC.replace("test=2", "test=4"), "select": "test"}
    whole = engine.train(config(**keys), tmp_path / "whole").result
    with monkeypatch.context() as patched:
        pressing = Pressing(watch.infer, image, number)
        patched.setattr(watch, "infer", pressing)
        made = engine.train(config(**keys), tmp_path / "cut")
    assert made.interrupted and (made.step, pressing.calls) == (step, image)  # of 4 images an evaluation
    assert checkpoint.load(tmp_path / "cut" / "last.ckpt")[0].step == step
    assert set(evaluations(tmp_path / "cut")) == {6} - {step}
    with monkeypatch.context() as patched:  # and once more, in the evaluation that the run goes on with
        patched.setattr(watch, "infer", Pressing(watch.infer, 1, number))
        made = engine.train(config(**keys), tmp_path / "cut", resume=True)
    assert made.interrupted and made.step == step and set(evaluations(tmp_path / "cut")) == {6} - {step}
    result = engine.train(config(**keys), tmp_path / "cut", resume=True).result
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert evaluations(tmp_path / "cut") == evaluations(tmp_path / "whole")
    assert whole is not None and result is not None
    for key in ("mae", "mae_last", "mae_best_on_test", "selected_step"):
        assert result[key] == whole[key], key
    weights, same = (checkpoint.load(tmp_path / n / "best.ckpt")[1] for n in ("whole", "cut"))
    assert all(torch.equal(weights[k], same[k]) for k in weights)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_last_figure_may_be_waited_for_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "infer", Pressing(evaluate.infer, 1, number))
        made = engine.train(config(), tmp_path)
    assert made.interrupted and made.step == 12 and not (tmp_path / "result.json").exists()
    assert engine.train(config(), tmp_path, resume=True).result is not None


def test_a_made_up_evaluation_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is stopped in the evaluation of step 6, goes on with it, and crashes before the next checkpoint."""
    with monkeypatch.context() as patched:
        patched.setattr(watch, "infer", Pressing(watch.infer, 1))
        assert engine.train(config(save_every=100), tmp_path).interrupted
    with pytest.raises(MemoryError):
        engine.train(config(save_every=100), tmp_path, resume=True, watcher=StopAt(8))
    engine.train(config(save_every=100), tmp_path, resume=True)
    steps = [r["step"] for r in csv.DictReader((tmp_path / "metrics.csv").open()) if r["mae"]]
    assert steps == ["6", "12"]


@pytest.mark.slow
def test_signals_are_as_they_were_and_networks_are_let_go(tmp_path: Path) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(m) is Training for m in gc.get_objects())

    before, handlers = alive(), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    engine.train(config(), tmp_path)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert alive() == before


def test_ctrl_c_after_the_last_evaluation_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"select": "test", "steps": 6}
    with monkeypatch.context() as patched:
        pressing = Pressing(Keeper.write_best, 1)
        patched.setattr(Keeper, "write_best", lambda keeper, step: pressing(keeper, step))
        made = engine.train(config(**keys), tmp_path)
    assert made.interrupted and made.step == 6 and not (tmp_path / "result.json").exists()
    assert engine.train(config(**keys), tmp_path, resume=True).result is not None


def without(run: Path, *keys: str) -> None:
    """Let the environment of a run be one that an older papm wrote, which stored less."""
    stored = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({k: v for k, v in stored.items() if k not in keys}))


OLD = """step,epoch,seconds,loss,count_error,lr,mae,rmse,nae,bias,terms
2,,0.5,1.25,3,0.001,,,,,pixel=1.25
4,,1,0.75,2,0.001,3.5,4,0.5,0.1,pixel=0.75
6,,1.5,0.5,1,0.001,,,,,pixel=0.5
"""


def test_metrics_have_no_empty_column_and_older_ones_are_read_and_go_on(tmp_path: Path) -> None:
    """Earlier run folders have a column `epoch` that was never filled."""
    path = tmp_path / "metrics.csv"
    path.write_text(OLD, encoding="utf-8")
    before = run_folder.read_metrics(path)
    assert [r["step"] for r in before] == [2, 4, 6] and before[1]["mae"] == 3.5 and "epoch" not in before[0]
    file = run_folder.MetricsFile(path)
    file.truncate_after(4)  # what resuming does first
    new = {"step": 6, "seconds": 1.75, "loss": 0.25, "count_error": 1.0, "lr": 0.001, "pixel": 0.25}
    file.append({**new, "mae": 1.0, "rmse": 1.0, "nae": 0.5, "bias": 0.0})
    after = run_folder.read_metrics(path)
    assert after[:2] == before[:2] and after[2]["loss"] == 0.25 and after[2]["terms"] == {"pixel": 0.25}
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [name for name in rows[0] if not any(r[name] for r in rows)] == []


def test_a_crash_while_metrics_are_shortened_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_folder.MetricsFile(tmp_path / "metrics.csv")
    for step in (1, 2, 3):
        file.append({"step": step, "loss": 0.5 / step, "tv": 1.0})
    before = file.path.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            file.truncate_after(2)
    assert file.path.read_text() == before
    file.truncate_after(2)
    assert file.path.read_text() == before[: before.rindex("3,")]


def test_processes_and_batch_may_change_together(tmp_path: Path) -> None:
    run_folder.create(tmp_path, config(batch=4, devices=1))
    run_folder.check(tmp_path, config(batch=2, devices=2), resume=True)
    with pytest.raises(ConfigError, match="started with devices=1, not 2"):
        run_folder.check(tmp_path, config(batch=4, devices=2), resume=True)


def test_a_crash_before_the_first_checkpoint_starts_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        engine.train(config(), tmp_path, watcher=StopAt(2))
    assert not (tmp_path / "last.ckpt").exists()
    assert engine.train(config(), tmp_path, resume=True).step == 12
    assert sorted(losses(tmp_path)) == list(range(1, 13))


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut") / "run"
    with pytest.raises(MemoryError):
        engine.train(config(), folder, watcher=StopAt(5))
    return folder


def test_a_dry_run_times_what_is_left(cut_short: Path) -> None:
    found = dry_run(config(), steps=1, warmup=1, resumed=cut_short)
    assert found["steps"] == 8 and found["evaluations"] == 3  # of 12 after 4: at 6, at 12, and the last figure
    whole = dry_run(config(), steps=1, warmup=1)
    assert whole["steps"] == 12 and whole["evaluations"] == 3


def test_a_run_goes_on_without_the_weights_file_it_started_from(tmp_path: Path) -> None:
    file, run = tmp_path / "start.safetensors", tmp_path / "run"
    network = models.create("tiny")
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, file)
    with pytest.raises(MemoryError):
        engine.train(config(weights=str(file)), run, watcher=StopAt(5))
    used = sha256_of(file)
    file.unlink()
    made = engine.train(config(weights=str(file)), run, resume=True)
    assert made.result is not None and made.result["weights_sha256"] == used
    with pytest.raises(CheckpointError, match=r"start\.safetensors"):
        engine.train(config(weights=str(file)), tmp_path / "another")


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_of_an_older_papm_is_not_recorded_as_one_without_pretrained_weights(tmp_path: Path, gone: bool) -> None:
    file, run = tmp_path / "start.safetensors", tmp_path / "run"
    save_file({k: v.contiguous() for k, v in models.create("tiny").state_dict().items()}, file)
    with pytest.raises(MemoryError):
        engine.train(config(weights=str(file)), run, watcher=StopAt(5))
    without(run, "weights_sha256")
    used = "unknown" if gone else sha256_of(file)
    if gone:
        file.unlink()
    made = engine.train(config(weights=str(file)), run, resume=True)
    assert made.result is not None and made.result["weights_sha256"] == used
    assert training.done(made.result)["weights"] == training.PRETRAINED


@pytest.mark.parametrize("older", [False, True])
def test_a_run_goes_on_in_its_precision_on_a_machine_that_would_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, older: bool
) -> None:
    """Also one of an older papm, which did not store it and trained in float32 on every CPU."""
    for name in CPU_BF16:
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda: False, raising=False)
    engine.train(config(), tmp_path / "whole")
    with pytest.raises(MemoryError):
        engine.train(config(), tmp_path / "cut", watcher=StopAt(5))
    if older:
        without(tmp_path / "cut", "precision")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert not caplog.text
    made = engine.train(config(), tmp_path / "cut", resume=True)
    assert made.result is not None and made.result["precision"] == "32"
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert "the run goes on with precision=32, as it began; a new run takes bf16 on this machine" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("change", [
    *(pytest.param((key, None), id=f"no {key}") for key in ("step", "network", "optimizer", "loss", "log")),
    *(pytest.param((key, {}), id=f"empty {key}") for key in ("network", "optimizer", "log", "state_dict")),
    *(pytest.param((key, []), id=f"list {key}") for key in ("network", "optimizer", "step", "log")),
    pytest.param(("sums", "x"), id="wrong sums"),
])  # fmt: skip
def test_an_altered_last_ckpt_is_one_sentence(tmp_path: Path, cut_short: Path, change: tuple[str, Any]) -> None:
    """Nothing is resumed from half of a state: it would be another run."""
    folder = tmp_path / "run"
    shutil.copytree(cut_short, folder)
    values = torch.load(folder / "last.ckpt", weights_only=True)
    key, value = change
    part = values if key in values else values["training"]
    part |= {key: value}
    if value is None:
        del part[key]
    torch.save(values, folder / "last.ckpt")
    with pytest.raises(
        CheckpointError, match=r"last\.ckpt: a run cannot go on from this file \(it.*; start again"
    ) as caught:
        engine.train(config(), folder, resume=True)
    assert "\n" not in str(caught.value)
    assert losses(folder) == losses(cut_short)


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


HOLD = """
import filelock, sys
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_training_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with pytest.raises(MemoryError):
        engine.train(config(), folder, watcher=StopAt(6))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        before = (folder / "metrics.csv").read_bytes()
        for resume in (False, True):
            with pytest.raises(ConfigError, match="another training"):
                engine.train(config(), folder, resume=resume)
        assert (folder / ".lock").exists() and (folder / "metrics.csv").read_bytes() == before
    finally:
        other.kill()
        other.communicate()
    # A killed process holds nothing, though its file is there.
    assert (folder / ".lock").exists()
    assert engine.train(config(), folder, resume=True).step == 12
    assert not (folder / ".lock").exists()


def test_a_process_has_one_training_in_a_folder(tmp_path: Path) -> None:
    """A second one in the same process is refused, which must not let others in."""
    with run_folder.alone(tmp_path / "run"):
        with pytest.raises(ConfigError, match="another training"), run_folder.alone(tmp_path / "." / "run"):
            pass
        look = "import filelock, sys; filelock.FileLock(sys.argv[1], blocking=False).acquire()"
        other = subprocess.run([sys.executable, "-c", look, str(tmp_path / "run" / ".lock")], capture_output=True)
        assert b"Timeout" in other.stderr
    with run_folder.alone(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_loader_process_does_not_keep_the_lock_of_a_killed_training(tmp_path: Path) -> None:
    """Loader processes are forks, and outlive a killed training for some seconds."""
    code = """
import os, signal, sys, time
from pathlib import Path
from papm.engine import run_folder
with run_folder.alone(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("forked", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    training = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert training.stdout is not None and training.stdout.readline() == b"forked\n"
        training.wait(timeout=60)
        with run_folder.alone(tmp_path / "run"):
            pass
    finally:
        os.killpg(training.pid, signal.SIGKILL)


def test_a_folder_that_was_replaced_does_not_hide_what_happened(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DataError, match="what happened"), run_folder.alone(folder):
        shutil.rmtree(folder)
        folder.write_text("a file")
        raise DataError("what happened")


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"):
        engine.train(config(), tmp_path / "runs" / "one", resume=True)
    assert not (tmp_path / "runs").exists()


def test_a_crash_ends_the_other_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone:
        """As Fabric, of one process, which has started two others."""

        global_rank, world_size = 0, 1
        launch = staticmethod(lambda: None)

    ended: list[object] = []
    monkeypatch.setattr(ranks, "_fabric", lambda devices, device, patience: Alone())
    monkeypatch.setattr(ranks, "end_others", ended.append)
    two = {"devices": 2, "select": "test"}
    with pytest.raises(MemoryError):
        engine.train(config(**two), tmp_path / "run", watcher=StopAt(3))
    assert len(ended) == 1
    monkeypatch.setattr(Training, "take", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        dry_run(config(**two))
    assert len(ended) == 2


def test_a_run_of_an_older_papm_is_not_resumed_but_its_models_count(tmp_path: Path) -> None:
    engine.train(config(), tmp_path)
    values = checkpoint.read(tmp_path / "last.ckpt")
    older = {**{k: values[k] for k in ("papm", "state_dict")}, "optimizer_states": [], "global_step": 12, "loops": {}}
    torch.save(older, tmp_path / "last.ckpt")
    with (tmp_path / "config.yaml").open("a", encoding="utf-8") as stream:
        stream.write("region: 0\n")  # a setting that is gone since
    with pytest.raises(CheckpointError, match=r"last\.ckpt: .*\(this run was started by an older papm\); start again"):
        engine.train(config(), tmp_path, resume=True)
    assert Counter.load(tmp_path / "last.ckpt", "cpu").predict(torch.zeros(3, 64, 64, dtype=torch.uint8)).count >= 0


def command(folder: Path, *more: str) -> list[str]:
    keys = [f"{k}={v}" for k, v in {**KEYS, "steps": 2000, "device": "cpu", "eval_every": 2000}.items()]
    return [sys.executable, "-m", "papm", "train", SPEC, "--backbone", "tiny", "--out", str(folder), *keys, *more]


def wait_for(condition: object, seconds: float = 240) -> None:
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_run_saves_too(tmp_path: Path, number: signal.Signals) -> None:
    """A terminal and a scheduler signal loader processes as well, which must not end before the training has."""
    folder = tmp_path / "run"
    more = ("cache=disk", "workers=1", "save_every=100000", "steps=100000", "eval_every=100000")
    process = subprocess.Popen(
        command(folder, *more),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PAPM_CACHE": str(tmp_path / "cache")},
        start_new_session=True,
    )
    wait_for(lambda: len(losses(folder)) > 3 if (folder / "metrics.csv").exists() else False)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and "--resume" in stderr, stderr
    assert checkpoint.load(folder / "last.ckpt")[0].step == max(losses(folder))


@pytest.mark.slow
def test_kill_9_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(command(folder), stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_for(lambda: (folder / "last.ckpt").exists())
    process.kill()
    process.wait()
    step = checkpoint.load(folder / "last.ckpt")[0].step
    assert step > 0 and step % KEYS["save_every"] == 0
