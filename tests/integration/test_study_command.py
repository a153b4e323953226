"""`papm study …` end to end, on a study of one's own and on the paper's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Papm = Callable[..., tuple[int, str, str]]

MINE = """
title: Two targets on drawn cells
metrics: [mae, game1]
all:
  {dataset: synthetic, backbone: tiny, data.train: 4, data.test: 2, data.size: 64, data.count: 3-9, crop: 64, batch: 1,
   steps: 2, device: cpu}
rows:
  - {name: Gaussian, method: gaussian, paper: [1.5/2.5]}
  - {name: HD-PAPM, method: hd-papm}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAPM_DATA", raising=False)  # it would be trained on
    (tmp_path / "mine.yaml").write_text(MINE, encoding="utf-8")
    # Trainings are processes of their own; they must find the package that is tested.
    import papm

    monkeypatch.setenv("PYTHONPATH", str(Path(papm.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.slow
def test_list(run_papm: Papm, here: Path) -> None:
    code, out, _ = run_papm("study", "list", "--json")
    rows = {r["name"]: r for r in json.loads(out)}
    assert code == 0 and rows["crowds"]["cells"] == 123 and rows["noise"]["measured"] == 0
    code, out, err = run_papm("study", "list")
    assert code == 0 and "hd-papm-shape" in out and err.startswith("There is no folder results here")
    (here / "results").mkdir()
    assert run_papm("study", "list")[2] == ""


def test_show_the_paper(run_papm: Papm, here: Path) -> None:
    code, out, _ = run_papm("study", "show", "noise", "--markdown", "--only", "DM-Count")
    assert code == 0 and "| DM-Count | 32 px | 70.4 / 115.3 |" in out and "Missing: 5 cells of 5" in out
    code, out, _ = run_papm("study", "show", "noise", "--latex", "--only", "AL-PAPM")
    assert code == 0 and out.startswith("% ") and out.endswith("\\end{tabular}\n")
    code, out, _ = run_papm("study", "show", "noise", "--html", "noise.html")
    assert code == 0 and "61.8 / 99.0" in (here / "noise.html").read_text(encoding="utf-8")


def test_settings_of_datasets_are_shown_and_trained(run_papm: Papm, here: Path) -> None:
    only = (
        "--only",
        "vgg19,msfanet,p2pnet",
        "--only",
        "al-papm,p2p-papm",
        "--only",
        "shanghaitech-a,shanghaitech-b,ucf-qnrf",
    )
    data = [word for d in ("shanghaitech-a", "shanghaitech-b", "ucf-qnrf") for word in ("--data", f"{d}={here}")]
    code, out, _ = run_papm("study", "run", "crowds", "--dry-run", *data, *only)
    commands = {(c.split()[2].partition(":")[0], c.split()[6]): c.split() for c in out.splitlines()}
    assert code == 0 and len(commands) == 9
    for (dataset, backbone), words in commands.items():
        crop = {"msfanet": 512, "p2pnet": 128}.get(backbone, 512 if dataset == "ucf-qnrf" else 256)
        assert [w for w in words if w.startswith("crop=")] == [f"crop={crop}"]
        assert {"steps", "batch"} <= {w.partition("=")[0] for w in words}  # or `papm train` would choose them
        qnrf = {"msfanet": ["network.form=qnrf"], "p2pnet": ["network.references=4x2"]}.get(backbone, [])
        assert [w for w in words if w.startswith("network.")] == (qnrf if dataset == "ucf-qnrf" else [])
    code, out, _ = run_papm("study", "show", "crowds", *only)
    said = " ".join(out.split())
    assert code == 0 and "Own settings: crop=512 (column UCF-QNRF; backbone mcnn, vgg19, csrnet)." in said
    assert "Own settings: network.form=qnrf (column UCF-QNRF; backbone msfanet)." in said and "crop=384" not in said
    code, out, _ = run_papm("study", "show", "crowds", "--json", *only)
    crops = {(x["column"], x["settings"]["backbone"]): x["settings"].get("crop") for x in json.loads(out)["lines"]}
    assert crops["UCF-QNRF", "vgg19"] == 512 and crops["ShTech B", "vgg19"] is crops["UCF-QNRF", "p2pnet"] is None


@pytest.mark.slow
def test_run_then_show(run_papm: Papm, here: Path) -> None:
    code, out, _ = run_papm("study", "run", "mine.yaml", "--dry-run")
    assert code == 0 and out.count("papm train synthetic") == 2 and not (here / "runs").exists()
    code, out, err = run_papm("study", "run", "mine.yaml", "--jobs", 2, "--json")
    ended = json.loads(out)
    assert code == 0 and [e["outcome"] for e in ended] == ["done", "done"], err
    code, out, _ = run_papm("study", "show", "mine.yaml", "--json")
    shown = json.loads(out)
    assert code == 0 and shown["missing"] == []
    by_row = {line["row"]: line["measured"]["metrics"] for line in shown["lines"]}
    for row in ("Gaussian", "HD-PAPM"):
        kept = json.loads(next(Path(e["result"]) for e in ended if row.lower() in e["name"]).read_text())
        assert by_row[row]["mae"]["mean"] == kept["mae"] and by_row[row]["game1"]["mean"] == kept["game"]["1"]
        assert kept["game"]["1"] >= kept["game"]["0"] == pytest.approx(kept["mae"], abs=1e-3)
    code, out, _ = run_papm("study", "run", "mine.yaml")
    assert code == 0 and "Nothing to train" in out
    # What was asked for differently has no result yet.
    code, out, _ = run_papm("study", "show", "mine.yaml", "steps=3", "--markdown")
    assert "Missing: 2 cells of 2" in out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_study_goes_on(run_papm: Papm, here: Path, number: signal.Signals) -> None:
    """Killed, it cannot tell its training to stop; the training stops all the same, and saves itself."""
    words = ["study", "run", "mine.yaml", "--only", "Gaussian", "steps=400", "save_every=400"]
    process = subprocess.Popen([sys.executable, "-m", "papm", *words], stderr=subprocess.PIPE, text=True)
    metrics = None
    for _ in range(600):
        metrics = next(iter((here / "runs").glob("synthetic/*/metrics.csv")), None)
        if metrics is not None or process.poll() is not None:
            break
        time.sleep(0.1)
    assert metrics is not None, "no training had begun after a minute"
    log = metrics.parent.with_name(f"{metrics.parent.name}.log")
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == 1 and "The same command goes on" in said
    elif sys.platform == "linux":
        for _ in range(300):
            if not (metrics.parent / ".lock").exists():
                break
            time.sleep(0.1)
    else:
        pytest.skip("only Linux tells a process that its parent was killed")
    assert not (metrics.parent / "result.json").exists() and (metrics.parent / "last.ckpt").exists()
    code, out, err = run_papm(*words)
    assert code == 0 and "1 of 1 training done" in out, err
    assert "Stopped at step" in log.read_text()
    assert len(list((here / "results").rglob("*.json"))) == 1


@pytest.mark.slow
def test_a_training_that_fails_is_named(run_papm: Papm, here: Path) -> None:
    (here / "empty").mkdir()
    only = ["--data", "trancos=empty", "--only", "al-papm"]
    code, _, err = run_papm("study", "run", "trancos", *only, "--weights", "none")
    assert code == 1 and "trancos/vgg19-al-papm" in err and "failed:" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "crowd"], "unknown study 'crowd'; did you mean 'crowds'"),
        (["show", "crowds", "--select", "best"], "unknown selection 'best'"),
        (["show", "crowds", "--json", "--markdown"], "give one of --markdown, --latex, --json and --html"),
        (["show", "crowds", "--latex", "--all"], "leave out --all or --latex"),
        (["show", "crowds", "stesp=3"], "unknown key 'stesp'; did you mean 'steps'"),
        (["show", "crowds", "select=test"], "give select as --select"),
        (["show", "crowds", "method=gl"], "choose cells with --only"),
        (["show", "crowds", "--results", "nowhere"], "nowhere: no such folder of results"),
        (["show", "crowds", "--only", "vgg91"], "no cell of 'crowds' answers to vgg91"),
        (["show", "noise", "loss.sigm=3"], "unknown option of loss"),
        (["run", "noise"], "study 'noise' needs shanghaitech-a; give --data shanghaitech-a=FOLDER"),
        (["run", "noise", "--data", "shanghaitech-a"], "not of the form --data DATASET=FOLDER"),
        (["run", "noise", "--data", "shanghaitech-a=nowhere"], "nowhere: no such folder"),
        (["run", "mine.yaml", "--seeds", "one"], "--seeds is whole numbers"),
        (["run", "mine.yaml", "--weights", "nowhere.pth"], "--weights nowhere.pth: no such file"),
        (["run", "mine.yaml", "--jobs", "0"], "at least one job at a time"),
        (["run", "mine.yaml", "seed=3"], "give seed as --seeds"),
    ],
)
def test_bad_requests_are_one_sentence(run_papm: Papm, here: Path, words: list[str], message: str) -> None:
    code, out, err = run_papm("study", *words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1 and out == ""
    assert not (here / "runs").exists()
