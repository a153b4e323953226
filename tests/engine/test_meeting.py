"""What is wrong with several machines is told before a training begins."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from papm import data
from papm.api import Choice, configure
from papm.data.convert import write_folder
from papm.engine.data import CountingData
from papm.engine.meeting import SPARE, Facts, compare, met
from papm.errors import ConfigError, DataError

from .test_distributed import MACHINES, on_machines

GOOD = Facts(0, "a", memory=9 * SPARE, needed=SPARE, settings="s", data="d", images=8)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"papm": "9.9"}, "rank 1 on b has papm 9.9, rank 0 on a .*; install one version"),
        ({"torch": "2.6.0"}, "has torch 2.6.0"),
        ({"python": "3.9"}, "has python 3.9"),
        ({"backend": "nccl"}, "rank 1 on b would use nccl, rank 0 on a gloo"),
        ({"settings": "t"}, "other settings"),
        ({"data": "e", "images": 7}, r"sees other data than rank 0 on a \(7 images, not 8"),
        ({"sees_folder": False}, "rank 1 on b does not see what rank 0 on a wrote .* storage that all machines share"),
        ({"memory": SPARE // 2}, "0.5 GB of memory for a process that needs 1.1"),
        ({"error": "photos: no such folder", "data": "", "settings": ""}, "^rank 1 on b: photos: no such folder$"),
    ],
)
def test_a_fault_is_a_sentence(changed: dict[str, Any], said: str) -> None:
    other = replace(GOOD, rank=1, host="b")
    assert compare([GOOD, other]) == []
    (fault,) = compare([GOOD, replace(other, **changed)])
    assert re.search(said, fault), fault


def test_one_process_agrees_with_itself(tmp_path: Path) -> None:
    chosen = Choice(configure("synthetic:train=2,test=1,size=64", "hd-papm", "tiny", {"steps": 1}).config)
    assert met(lambda: chosen, tmp_path / "run") is chosen and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rank", "said"), [("0", "not all of 2 processes came to"), ("1", "rank 0 cannot be reached at")]
)
def test_processes_that_do_not_come_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, said: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for key, value in {**MACHINES, "SLURM_NODEID": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(key, value)
    for key in ("LOCAL_RANK", "NODE_RANK"):  # what is set now is gone after the test
        monkeypatch.setenv(key, "")

    def look() -> Choice:
        raise DataError("nothing there")

    with pytest.raises(ConfigError, match=said):
        met(look, tmp_path / "run", patience=1.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_machines_are_told_what_differs(tmp_path: Path) -> None:
    """Each with a folder of its own, where the other does not write, and one image fewer on the second."""
    folders = [tmp_path / name for name in "ab"]
    for k, folder in enumerate(folders):
        for split, dataset in data.open("synthetic", train=8 - k, test=4, size=64, count="3-8").items():
            write_folder(dataset, folder / "photos" / split)
    words = ["train", "photos", "--backbone", "tiny", "--dry-run", "--out", "runs/far", "device=cpu", "devices=2"]
    words += ["select=last", "steps=3", "crop=64", "batch=2"]
    (first, _, said), (second, printed, other) = on_machines(*words, folders=folders)
    lines = said.strip().splitlines()
    assert first == second == 2 and printed == other.strip() == "", other  # one speaks for all
    assert sum("sees other data than" in line for line in lines) == 1, said
    assert sum("does not see what" in line for line in lines) == 1 and len(lines) == 2, said
    assert not (folders[0] / "runs").exists()
    found = on_machines(*words[:1], str(folders[0] / "photos"), *words[2:], folders=folders[:1] * 2)
    assert [code for code, *_ in found] == [0, 0], found
    assert "A step of 4 crops" in found[0][1] and found[1][1] == ""


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = configure("synthetic:train=4,test=1,size=64", "hd-papm", "tiny", {"steps": 1, "device": "cpu"})
    assert chosen.splits is not None
    counting = CountingData(chosen.splits, chosen.config)
    monkeypatch.setattr("papm.engine.data.available_memory", lambda: 3 * 4 * 64 * 64 * 3)
    assert counting.place(torch.device("cpu")) == "memory"
    counting.config = replace(chosen.config, devices=2)
    assert counting.place(torch.device("cpu")) == "disk"
