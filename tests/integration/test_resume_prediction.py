"""`papm predict --resume`: no image twice, none lost, the tables of an uninterrupted prediction."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.predict.journal import JOURNAL
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter

Run = Callable[..., tuple[int, str, str]]
TABLES = ("counts.csv", "points.csv", "results.json")


def save(path: Path, seed: int = 0, **options: object) -> Path:
    torch.manual_seed(seed)
    network = models.create("tiny", **options)
    checkpoint.save(path, ModelSpec("tiny", options, "hd-papm"), network.state_dict())
    return path


def make_photos(folder: Path, number: int, side: int = 24) -> Path:
    folder.mkdir()
    for k in range(number):
        pixels = torch.randint(0, 256 if k != 1 else 8, (side, side + k, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{k}.png")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four images, one of them nearly black."""
    return make_photos(tmp_path / "photos", 4)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that are counted."""
    names: list[str] = []
    predict = Counter.predict

    def noted(self: Counter, *args: Any, **asked: Any) -> Prediction:
        names.append(asked["name"])
        found: Prediction = predict(self, *args, **asked)
        return found

    monkeypatch.setattr(Counter, "predict", noted)
    return names


def tables(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in TABLES}


@pytest.mark.parametrize("classes", [1, 2])
def test_a_journal_cut_anywhere_gives_the_same_tables(
    tmp_path: Path, photos: Path, seen: list[str], run_papm: Run, classes: int
) -> None:
    out = tmp_path / "out"
    model = save(tmp_path / "m.ckpt", num_classes=classes)
    words = ("predict", model, photos, "--out", out, "--device", "cpu", "--json")
    code, printed, _ = run_papm(*words)
    assert code == 0 and seen == ["0.png", "1.png", "2.png", "3.png"]
    whole, text = tables(out), (out / JOURNAL).read_bytes()
    ends = [k + 1 for k, byte in enumerate(text) if byte == ord("\n")]
    assert len(ends) == 5
    cuts = [(0, 0), (ends[0] - 1, 0), (ends[0], 0), (ends[2], 2), (ends[2] + 40, 2), (ends[3] - 1, 2), (ends[4], 4)]
    for cut, known in cuts:
        for name in TABLES:
            (out / name).unlink()
        (out / JOURNAL).write_bytes(text[:cut])
        seen.clear()
        code, again, told = run_papm(*words, "--resume")
        assert code == 0 and again == printed and tables(out) == whole and (out / JOURNAL).read_bytes() == text
        assert seen == [f"{k}.png" for k in range(known, 4)]
        assert f"{known} of 4 images counted before" in told and "1.png is nearly black" in told


def test_what_changed_is_counted_again_and_what_is_new_too(
    tmp_path: Path, photos: Path, seen: list[str], run_papm: Run
) -> None:
    model, out = save(tmp_path / "m.ckpt"), tmp_path / "out"
    words = ("predict", model, photos, "--device", "cpu", "--out")
    (photos / "9.png").write_bytes(b"no image")
    assert run_papm(*words, out)[0] == 2
    Image.new("RGB", (30, 30), (200, 10, 10)).save(photos / "2.png")  # another image
    Image.new("RGB", (30, 30), (90, 90, 90)).save(photos / "00.png")  # comes first
    Image.new("RGB", (30, 30), (9, 90, 90)).save(photos / "9.png")  # mended
    (photos / "0.png").unlink()
    (out / "overlays" / "3.png").unlink()
    seen.clear()
    assert run_papm(*words, out, "--resume")[0] == 0 and seen == ["00.png", "2.png", "3.png", "9.png"]
    assert run_papm(*words, tmp_path / "fresh")[0] == 0 and tables(out) == tables(tmp_path / "fresh")
    seen.clear()
    assert run_papm(*words, out, "--resume")[0] == 0 and seen == []


def test_another_model_or_option_is_refused_in_a_sentence(tmp_path: Path, photos: Path, run_papm: Run) -> None:
    model, other, out = save(tmp_path / "m.ckpt"), save(tmp_path / "n.ckpt", seed=1), tmp_path / "out"
    mask = tmp_path / "roi.json"
    mask.write_text(json.dumps({"0.png": [[[0, 0], [20, 0], [20, 20]]]}))
    assert run_papm("predict", model, photos, "--out", out, "--device", "cpu")[0] == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for words, why in (
        ((other,), "with another model;"),
        ((model, "--tile", "256"), "with tile=auto, not 256;"),
        ((model, "--no-points"), "with points=True, not False;"),
        ((model, "--scale", "0.5"), "with scale=none, not 0.5;"),
        ((model, "--with", other), "with another model;"),
        ((model, "--roi", mask), "with another roi;"),
    ):
        code, _, said = run_papm("predict", *words, photos, "--out", out, "--device", "cpu", "--resume")
        assert code == 2 and why in said and said.count("\n") == 1 and "choose another --out" in said
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    (out / JOURNAL).write_text('{"mine": 1}\n')
    code, _, said = run_papm("predict", model, photos, "--out", out, "--device", "cpu", "--resume")
    assert code == 2 and "is no journal of papm predict" in said


def test_a_stopped_prediction_is_not_replaced_in_silence(tmp_path: Path, photos: Path, run_papm: Run) -> None:
    model, out = save(tmp_path / "m.ckpt"), tmp_path / "out"
    words = ("predict", model, photos, "--out", out, "--device", "cpu", "--no-overlays")
    assert "before" in run_papm(*words, "--resume")[2]  # nothing there: begins
    for name in TABLES:
        (out / name).unlink()
    assert "--resume would go on with it" in run_papm(*words)[2]


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_prediction_goes_on(tmp_path: Path, run_papm: Run, seen: list[str]) -> None:
    photos, model = make_photos(tmp_path / "photos", 24, side=256), save(tmp_path / "m.ckpt")
    words = [str(w) for w in ("predict", model, photos, "--device", "cpu", "--out")]
    journal = tmp_path / "killed" / JOURNAL
    process = subprocess.Popen([sys.executable, "-m", "papm", *words, str(journal.parent)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 4):
        assert time.monotonic() < until
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (journal.parent / "counts.csv").exists()
    assert run_papm(*words, journal.parent, "--resume")[0] == 0 and 0 < len(seen) <= 21
    assert run_papm(*words, tmp_path / "whole")[0] == 0 and tables(journal.parent) == tables(tmp_path / "whole")
    pictures = [
        {p.name: p.read_bytes() for p in (f / "overlays").iterdir()} for f in (journal.parent, tmp_path / "whole")
    ]
    assert pictures[0] == pictures[1] and len(pictures[0]) == 24
