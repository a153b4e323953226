"""`papm robustness` end to end, on drawn scenes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from papm.cli.jobs import JobBars
from papm.report.page import figure
from papm.study.queue import Job

Papm = Callable[..., tuple[int, str, str]]

DATA = "synthetic:train=6,test=6,size=64,count=4-9"
SMALL = ("crop=64", "batch=1", "steps=3", "device=cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Trainings are processes of their own; they must find the package that is tested.
    import papm

    monkeypatch.setenv("PYTHONPATH", str(Path(papm.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.slow
def test_a_dry_run_says_what_and_how_long_and_writes_nothing(run_papm: Papm, here: Path) -> None:
    code, out, _ = run_papm("robustness", DATA, "--dry-run", *SMALL)
    assert code == 0 and "¼, ½ and 1 × the median distance between neighbouring training dots" in out
    assert "4 methods (gaussian, hd-papm, dm-count, al-papm) × 4 distances" in out and "16 trainings on tiny" in out
    assert "About " in out and list(here.iterdir()) == []
    words = ["--methods", "gaussian,p2p-papm", "--distances", "0,3,5", "--seeds", "0,1", "--dry-run", "--json"]
    code, out, _ = run_papm("robustness", DATA, *words, *SMALL)
    planned = json.loads(out)
    assert code == 0 and planned["trainings"] == 12 == len(planned["missing"]) and planned["distances"] == [0, 3, 5]
    assert any(name.startswith("synthetic/p2pnet-p2p-papm") for name in planned["missing"])
    each = planned["seconds_each"]
    assert planned["seconds"] == pytest.approx(6 * sum(each.values()), abs=1) and min(each.values()) > 0


def test_images_that_are_not_used_are_told_once(run_papm: Papm, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not again for every method that is timed."""
    assert run_papm("data", "split", DATA, "--out", "divided")[0] == 0
    words = ["--methods", "gaussian,hd-papm", "--distances", "0,3", "--dry-run"]
    assert run_papm("robustness", "divided", *words, *SMALL)[0] == 0
    assert len([m for m in caplog.messages if "'val' teach and choose nothing" in m]) == 1


@pytest.mark.slow
def test_stopped_it_shows_what_is_done_and_goes_on(run_papm: Papm, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["robustness", DATA, "--methods", "gaussian,hd-papm", "--distances", "5", "--jobs", "2", *SMALL]
    with monkeypatch.context() as patched:

        def interrupt(bars: JobBars, running: Sequence[Job]) -> None:
            if bars.done and running:
                raise KeyboardInterrupt

        patched.setattr(JobBars, "tick", interrupt)
        patched.setattr("papm.study.timing._timed", lambda task, splits: 60.0)
        code, out, err = run_papm(*words)
    folder = here / "robustness"
    done = len(list((folder / "results").rglob("*.json")))
    assert code == 1 and f"Stopped; {done} of 4 trainings done. The same command goes on." in err and 0 < done < 4
    assert "4 trainings on tiny, of which 0 are done" in err and "About 4 min 32 s one after another" in err
    assert "gaussian" in out and "not measured yet" in out
    assert f"{4 - done} of 4 cells are not measured yet" in (folder / "robustness.html").read_text(encoding="utf-8")

    code, out, err = run_papm(*words, "--json")
    said = json.loads(out)
    assert code == 0 and f"of which {done} are done" in err and err.count(": started") == 4 - done, err
    assert said["distances"] == [0, 5] and said["methods"] == ["gaussian", "hd-papm"] and said["seeds"] == [0]
    check_files(folder, said)

    # Nothing is trained twice, and the folder is of these images.
    code, out, err = run_papm(*words)
    assert code == 0 and "of which 4 are done" in err and "started" not in err
    assert "exact dots" in out and said["conclusion"] in out and said["cost"] in out
    code, out, err = run_papm("robustness", DATA + ",seed=1", *words[2:])
    assert code == 2 and out == "" and "choose another --out" in err


def check_files(folder: Path, said: dict[str, Any]) -> None:
    """The three files and what was printed tell the same."""
    kept = json.loads((folder / "robustness.json").read_text())
    assert sorted((r["method"], r["noise"]) for r in kept) == [(m, d) for m in ("gaussian", "hd-papm") for d in (0, 5)]
    assert all(r["noise_kind"] == "ring" and r["split"] == "test" and r["images"] == 6 for r in kept)
    lines = list(csv.DictReader((folder / "robustness.csv").open()))
    figures = {(r["method"], r["noise"]): r["mae"] for r in kept}
    assert len(lines) == len(said["table"]) == 4
    for line, row in zip(lines, said["table"]):
        assert float(line["mae"]) == row["mae"] == figures[line["method"], float(line["distance"])]
    change = next(float(r["change"]) for r in lines if r["method"] == "hd-papm" and r["change"])
    assert change == pytest.approx(figures["hd-papm", 5] / figures["hd-papm", 0] - 1)
    html = (folder / "robustness.html").read_text(encoding="utf-8")
    assert said["conclusion"] in html and said["cost"] in html and "not measured yet" not in html
    assert html.count("<svg") == 2 and html.count('<img src="data:image/jpeg') == 1 and "moved by 5 px" in html
    for value in figures.values():
        assert f">{figure(value)}" in html
    assert "://" not in html.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.slow
def test_a_training_that_fails_is_named(run_papm: Papm, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.study.timing._timed", lambda task, splits: 1.0)
    monkeypatch.setattr("papm.study.run.train_words", lambda task, resume: ["train", "nowhere", "--out", "x"])
    code, out, err = run_papm("robustness", DATA, "--methods", "gaussian", "--distances", "0", *SMALL)
    assert code == 1 and "failed: nowhere: no such file" in err and "0 of 1 training done" in err
    assert "No distance is measured" in out


def test_what_cannot_start_is_refused_before_anything_is_written(run_papm: Papm, here: Path) -> None:
    (here / "bad.ckpt").write_text("x")
    code, out, err = run_papm("robustness", DATA, "--methods", "gaussian", *SMALL, "init=bad.ckpt")
    assert code == 2 and "bad.ckpt" in err and out == "" and not (here / "robustness").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        ([DATA, "--methods", "hd-pamp"], "unknown method 'hd-pamp'; did you mean 'hd-papm'"),
        ([DATA, "--distances", "far"], "--distances is pixels separated by commas"),
        ([DATA, "--distances", "0,-4"], "--distances is pixels separated by commas"),
        ([DATA, "--distances", "400"], "400 px is more than half of an image"),
        ([DATA, "--kind", "square"], "unknown kind of displacement 'square'"),
        ([DATA, "--backbone", "vgg91"], "unknown network 'vgg91'"),
        ([DATA, "--backbone", "p2pnet"], "'gaussian' trains networks that give density maps"),
        ([DATA, "--seeds", "one"], "--seeds is whole numbers"),
        ([DATA, "--jobs", "0"], "at least one job at a time"),
        ([DATA, "--weights", "nowhere.pth"], "--weights nowhere.pth: no such file"),
        ([DATA, "noise=4"], "give noise as --distances"),
        ([DATA, "method=gl"], "give method as --methods"),
        ([DATA, "stesp=3"], "unknown key 'stesp'; did you mean 'steps'"),
        ([DATA, "select=best"], "select is one of val, last, test"),
        ([DATA, "data.lok=cells"], "unknown option of synthetic 'lok'"),
        ([DATA, "val_fraction=x"], "val_fraction is a number"),
        (["synthetic:test=0"], "no test images to measure on"),
        (["synthetic:trains=4"], "unknown option of synthetic 'trains'"),
    ],
)
def test_bad_requests_are_one_sentence(run_papm: Papm, here: Path, words: list[str], message: str) -> None:
    code, out, err = run_papm("robustness", *words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1 and out == ""
    assert list(here.iterdir()) == []
