"""`papm predict --engine ray`: whatever is killed, exactly one row for each image."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.predict.scaleout.on_ray import PREFIX, _environment, _own_folder, connected
from papm.predict.scaleout.run import predict_many

pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'papm[ray]'")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net").is_dir(), reason="looks for processes in /proc"),
]

IMAGES, SHARD = 360, 20


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, another one, and images of which one is none."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "photos").mkdir()
    for seed, name in enumerate(("m.ckpt", "n.ckpt")):
        torch.manual_seed(seed)
        checkpoint.save(folder / name, ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
    drawn = np.random.default_rng(0).integers(0, 256, (IMAGES, 160, 160, 3), dtype=np.uint8)
    for k, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(folder / "photos" / f"{k:04d}.png", compress_level=0)
    (folder / "photos" / "0100.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def expected(root: Path) -> list[dict[str, Any]]:
    """The rows that one process writes."""
    predict_many(root / "m.ckpt", root / "photos", root / "alone", engine="local", shard=SHARD, device="cpu")
    return rows(root / "alone")


@pytest.fixture(scope="module")
def ray(root: Path) -> Iterator[Any]:
    """One Ray for the tests that need one in this process."""
    with connected(None, 2, "cpu") as started:
        yield started


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(out / "counts").to_pylist()
    return found


def parts(out: Path) -> int:
    return len(list((out / "counts").glob("part-*.parquet")))


def processes() -> dict[int, tuple[int, str]]:
    """Parent and name of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(folder.name)] = (
                    parent,
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
            except OSError:
                pass
    return found


def below(pid: int) -> dict[int, str]:
    """The names of the processes that descend from one."""
    everyone, found = processes(), {pid}
    while more := {p for p, (parent, _) in everyone.items() if parent in found} - found:
        found |= more
    return {p: everyone[p][1] for p in found if p in everyone and p != pid}


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 300) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until and process.poll() is None, "it did not come to that"
        time.sleep(0.02)
    return found


def test_a_worker_and_then_the_command_are_killed(
    root: Path, expected: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    out = root / "killed"
    words = ["predict", root / "m.ckpt", root / "photos", "--engine", "ray", "--workers", 2, "--device", "cpu"]
    command = [sys.executable, "-m", "papm", *map(str, words), "--shard", str(SHARD), "--batch", "1", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: parts(out) >= 2, process)
        listening = sockets(below(process.pid) | {process.pid: ""})
        worker = wait_for(lambda: [p for p, name in below(process.pid).items() if "MapWorker" in name], process)[0]
        os.kill(worker, signal.SIGKILL)
        done = parts(out)
        wait_for(lambda: parts(out) >= done + 3, process)  # it went on without
        family = below(process.pid)
    finally:
        process.kill()
        process.communicate()
    assert listening and set(listening) == {"127.0.0.1"}
    assert 0 < parts(out) < IMAGES // SHARD, "the command was to be killed midway"
    assert not (out / "summary.json").exists()
    until = time.monotonic() + 60
    while {p for p, name in family.items() if "MapWorker" in name} & set(processes()):  # Ray ends what nobody waits for
        assert time.monotonic() < until
        time.sleep(0.1)
    request.getfixturevalue("ray")
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "counts").glob("part-*")}
    found = predict_many(root / "m.ckpt", root / "photos", out, resume=True, workers=2, device="cpu")
    assert found.images == IMAGES and found.counted_now == IMAGES - SHARD * len(kept)
    assert {p.name: p.stat().st_mtime_ns for p in (out / "counts").glob("part-*") if p.name in kept} == kept
    made = rows(out)
    assert len({r["image"] for r in made}) == len(made) == IMAGES
    for one, other in zip(made, expected, strict=True):
        assert one.pop("count") == pytest.approx(other["count"], abs=1e-3)
        assert one.items() <= other.items()
    assert [r["fault"] is None for r in made].count(False) == 1 and "0100.png" in found.faults[0]


def sockets(pids: dict[int, str]) -> list[str]:
    """The addresses that processes listen on."""
    held = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                held.add(str(link.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in held:
                number = cells[1].partition(":")[0][-8:]  # IPv4, also where it is written as IPv6
                found.append(".".join(str(b) for b in reversed(bytes.fromhex(number))))
    return found


def test_another_model_is_refused_before_ray_is_asked(
    root: Path, expected: list[dict[str, Any]], run_papm: Any
) -> None:
    words = ("--engine", "ray", "--resume", "--device", "cpu", "--out", root / "alone")
    code, _, said = run_papm("predict", root / "n.ckpt", root / "photos", *words)
    assert code == 2 and "holds counts with another model; choose another --out" in said and said.count("\n") == 1
    code, printed, _ = run_papm("predict", root / "m.ckpt", root / "photos", *words, "--json")
    assert code == 2 and json.loads(printed)["counted_now"] == 0  # all there; an image without a count is told


@pytest.mark.long
def test_what_workers_complain_of_is_one_sentence(root: Path, ray: Any, run_papm: Any, tmp_path: Path) -> None:
    """A model that a machine of a cluster does not have."""
    moved = tmp_path / "moved.ckpt"
    moved.write_bytes((root / "m.ckpt").read_bytes())
    from papm.predict.scaleout import run

    usual = run._counted

    def gone(engine: str, job: Any, *rest: Any) -> Any:
        moved.write_bytes((root / "n.ckpt").read_bytes())
        return usual(engine, job, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_counted", gone)
        words = ("--engine", "ray", "--device", "cpu", "--out", tmp_path / "out")
        code, _, said = run_papm("predict", moved, root / "photos", *words)
    assert code == 2 and "another model than the one of" in said and said.count("\n") == 1
    assert parts(tmp_path / "out") == 0


def test_options_that_do_not_go_together(root: Path, run_papm: Any) -> None:
    for words, said in (
        (("--engine", "ray", "--roi", root / "m.ckpt"), "--roi is not for --engine ray"),
        (("--engine", "ray", "--georeference"), "--georeference is not for --engine ray"),
        (("--workers", "2"), "--workers is an option of --engine ray"),
        (("--engine", "spark"), "unknown engine 'spark'"),
    ):
        code, _, told = run_papm("predict", root / "m.ckpt", root / "photos", *words)
        assert code == 2 and said in told


def test_the_environment_of_our_ray_is_gone_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "mine")
    tokens, before = [], os.environ.get("RAY_AUTH_TOKEN")  # that of this module's Ray, while it runs
    for _ in range(2):  # a process may start several, one after the other, and Ray reads the token once
        with _environment(True):
            tokens.append(os.environ["RAY_AUTH_TOKEN"])
            assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "mine" and os.environ.get("RAY_AUTH_TOKEN") == before
    assert tokens[0] == tokens[1] and len(tokens[0]) == 64


def test_warnings_are_heard_while_ray_runs(ray: Any, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("papm").warning("a warning")
    assert "a warning" in caplog.text


def test_nothing_is_left_behind(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a Ray whose process was killed are removed by the next one, and no others."""
    assert list(Path("/tmp").glob(f"{PREFIX}{os.getpid()}-*")), "this module's, until it ends"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        killed, running = (Path(base) / f"{PREFIX}{pid}-x" for pid in (ended.pid, os.getppid()))
        killed.mkdir()
        running.mkdir()
        own = _own_folder()
        assert {p.name for p in Path(base).iterdir()} == {running.name, own.name}
