"""Processes that a scheduler started instead of papm."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment

import papm
from papm.config import TrainConfig
from papm.engine.ranks import (
    Ranks,
    is_first_process,
    join_started,
    local_rank,
    machines,
    node_rank,
    processes_here,
)
from papm.engine.train import own_device
from papm.errors import ConfigError, PapmError

NAMES = (
    *("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
)
STEP = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "3", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
BATCH = {"SLURM_JOB_ID": "41", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NAME": "x"}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sets, or the code under it, is gone after it."""
    for name in (*NAMES, *(k for k in os.environ if k.startswith("SLURM_"))):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def given(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for key, value in values.items():
        monkeypatch.setenv(key, value)


def test_a_task_of_srun_knows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **STEP, SLURM_PROCID="1", SLURM_LOCALID="1")
    join_started(2)
    assert (local_rank(), is_first_process(), os.environ["MASTER_ADDR"]) == (1, False, "127.0.0.1")
    assert 15_000 <= int(os.environ["MASTER_PORT"]) < 30_000


def test_a_task_of_srun_on_another_machine_knows_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    given(monkeypatch, **{**STEP, **tasks}, SLURM_STEP_NODELIST="gpu[07-08]")
    given(monkeypatch, SLURM_PROCID="2", SLURM_LOCALID="0", SLURM_NODEID="1")
    join_started(4)
    assert (local_rank(), node_rank(), is_first_process(), os.environ["MASTER_ADDR"]) == (0, 1, False, "gpu07")
    assert machines(4) == 2 and processes_here(4) == 2 and processes_here(3) == 3


def test_a_process_of_torchrun_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_RANK": "0"}
    given(monkeypatch, TORCHELASTIC_RUN_ID="a", **there, MASTER_ADDR="gpu07", MASTER_PORT="29500")
    assert not is_first_process()
    join_started(4)
    assert (node_rank(), processes_here(4), os.environ["MASTER_ADDR"]) == (1, 2, "gpu07")


def test_a_batch_script_without_srun_is_a_process_like_any(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **BATCH)
    join_started(2)
    assert is_first_process() and "MASTER_PORT" not in os.environ


@pytest.mark.parametrize(
    ("values", "devices", "said"),
    [
        ({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, 1, "srun started 2 processes .* give devices=2"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 1, "give devices=8, or start each training by its own srun --ntasks=1"),
        ({**STEP, "SLURM_STEP_NUM_NODES": "2"}, 2, "SLURM_STEP_NODELIST= of the environment names no machine"),
        (
            {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2"},
            3,
            "3 processes on 2 machines, not as many on each",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "3,1"},
            4,
            "not as many on each; srun has --ntasks-per-node",
        ),
        ({"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, 2, "1 process of .* leave torchrun out"),
        ({"SLURM_STEP_NUM_TASKS": "2(x3)"}, 1, r"SLURM_STEP_NUM_TASKS=2\(x3\) of the environment is no number"),
        ({"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2"}, 3, "not as many on each"),
    ],
)
def test_what_does_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], devices: int, said: str
) -> None:
    given(monkeypatch, **values)
    with pytest.raises(ConfigError, match=said):
        join_started(devices)


def test_an_interactive_shell_of_several_tasks_is_a_process_like_any(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **STEP, SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_PTY_PORT="34889")
    join_started(1)
    assert is_first_process() and "MASTER_PORT" not in os.environ


def test_variables_that_are_empty_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SLURM_STEP_NUM_TASKS="", LOCAL_RANK="", NODE_RANK="")
    join_started(1)
    assert is_first_process() and local_rank() == 0


def test_torchrun_trains_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning takes WORLD_SIZE away when a training ends."""
    given(monkeypatch, TORCHELASTIC_RUN_ID="a", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", LOCAL_RANK="1")
    join_started(2)
    LightningEnvironment().teardown()
    assert "WORLD_SIZE" not in os.environ
    join_started(2)


def test_tensors_are_averaged_in_their_places_and_in_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other of two processes has zeros; weights may lie otherwise in memory than they are indexed."""
    exchanged: list[int] = []
    monkeypatch.setattr("papm.engine.ranks.dist.all_reduce", lambda t: exchanged.append(t.numel()))
    there = [
        torch.arange(96.0).view(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.ones(5),
        torch.tensor(3.0),
    ]
    before = [t.clone() for t in there]
    Ranks(0, 2).mean_of(there)
    assert exchanged == [102] and all(torch.equal(t, b / 2) for t, b in zip(there, before))
    Ranks().mean_of(there)
    assert len(exchanged) == 1 and Ranks().any(True) and not Ranks().any(False)


@pytest.mark.slow
def test_several_processes_need_fabric_alone() -> None:
    code = "import sys, torch; from papm.engine.ranks import _fabric; _fabric(2, torch.device('cpu'))"
    code += "; assert 'lightning_fabric' in sys.modules and not {'lightning', 'pytorch_lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_a_process_that_does_not_see_its_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"devices=2, and this process sees 1 GPU; .*--gpus-per-node"):
        own_device(TrainConfig(device="cuda", devices=2))


@pytest.mark.parametrize("number", ["0", "1"])
@pytest.mark.parametrize("variable", ["SLURM_LOCALID", "SLURM_NODEID"])
def test_a_process_knows_its_number_before_it_joins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, number: str
) -> None:
    """One that comes late finds the folder in which the first has begun, and must not refuse it."""
    for name, value in {**STEP, "SLURM_LOCALID": "0", "SLURM_NODEID": "0", variable: number}.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() == (number == "0")
    (tmp_path / "config.yaml").touch()
    words = "holds a run already" if number == "0" else "no/such/folder"
    with pytest.raises(PapmError, match=words):
        papm.train("no/such/folder", out=tmp_path, steps=1)
    monkeypatch.setenv("SLURM_PTY_PORT", "1")
    assert is_first_process(), "the shell of srun --pty"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["srun", "batch", "torchrun"])
def test_two_processes_of_a_scheduler_train_one_network(tmp_path: Path, who: str) -> None:
    words = ["-m", "papm", "train", "synthetic:train=8,test=4,size=64,count=3-8", "--backbone", "tiny", "--out"]
    words += [str(tmp_path / "run"), "device=cpu", "devices=2", "select=last", "steps=3", "log_every=1", "batch=2"]
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    if who == "srun":
        with socket.socket() as free:  # the usual port follows from the job's number, which other tests have too
            free.bind(("127.0.0.1", 0))
            plain["MASTER_PORT"] = str(free.getsockname()[1])
        asked = [{**plain, **STEP, "SLURM_PROCID": k, "SLURM_LOCALID": k} for k in "01"]
        commands = [[sys.executable, *words]] * 2
    elif who == "batch":
        asked, commands = [{**plain, **BATCH}], [[sys.executable, *words]]
    else:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        asked, commands = [plain], [[sys.executable, *start, *words]]
    started = [
        subprocess.Popen(c, env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c, e in zip(commands, asked)
    ]
    try:
        said = [p.communicate(timeout=200) for p in started]
    finally:
        for p in started:
            p.kill()
    assert [p.returncode for p in started] == [0] * len(started), said
    assert "".join(out for out, _ in said).count("test MAE") == 1
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["options"]["batch"] == 2 and result["steps"] == 3
