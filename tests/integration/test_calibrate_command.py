"""`papm calibrate`, and what `papm eval` says of a calibrated model."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.predict.predictor import Counter

Papm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model, and six images with about twice the objects that it counts."""
    torch.manual_seed(0)
    network = models.create("tiny", activation="abs")
    spec = ModelSpec("tiny", {"activation": "abs"}, "hd-papm", {}, 7, network.inference)
    checkpoint.save(tmp_path / "run" / "best.ckpt", spec, network.state_dict())
    counter = Counter.load(tmp_path / "run", "cpu")
    (tmp_path / "new").mkdir()
    for k in range(6):
        pixels = torch.randint(0, 256, (32 + 8 * k, 48, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / "new" / f"{k}.png")
        n = round(2 * counter.predict(tmp_path / "new" / f"{k}.png").count)
        (tmp_path / "new" / f"{k}.txt").write_text("".join(f"{3.5 + i % 40} {i % 30}.5\n" for i in range(n)))
    return tmp_path


def test_calibrate_eval_and_off(place: Path, run_papm: Papm) -> None:
    run, new = place / "run", place / "new"
    code, said, _ = run_papm("calibrate", run, new)
    assert code == 0 and "from 6 checked images" in said and f"Stored in {run / 'best.ckpt'}" in said
    code, said, _ = run_papm("eval", run, new, "--out", place / "counts.csv")
    assert code == 0 and "Calibrated: counts are multiplied by " in said and "MAE without it" in said
    row = next(csv.DictReader((place / "counts.csv").open()))
    factor = float(row["predicted"]) / float(row["raw_count"])
    made = json.loads(run_papm("eval", run, new, "--json")[1])
    assert made["calibration"] == pytest.approx(factor, abs=1e-3) and made["mae"] < made["raw"]["mae"] / 3
    both = json.loads(run_papm("calibrate", run, new, "--out", place / "b.ckpt", "--json")[1])
    assert both["calibration"]["scale"] == pytest.approx(factor, abs=1e-3) and both["model"] == str(place / "b.ckpt")
    code, said, _ = run_papm("calibrate", run, "--off")
    assert code == 0 and "not calibrated" in said
    assert "raw" not in json.loads(run_papm("eval", run, new, "--json")[1])
    together = json.loads(run_papm("eval", run, new, "--with", place / "b.ckpt", "--json")[1])
    assert list(together["calibration"]) == ["b.ckpt"] and together["raw"]["mae"] > together["mae"]


def test_an_interval_and_what_it_holds(place: Path, run_papm: Papm) -> None:
    run, new = place / "run", place / "new"
    code, _, said = run_papm("calibrate", run, new, "--interval")
    assert code == 2 and "needs 9 checked images" in said and "check 3 more images" in said
    for k in range(6, 12):
        shutil.copy(new / f"{k - 6}.txt", new / f"{k}.txt")
        Image.open(new / f"{k - 6}.png").rotate(180).save(new / f"{k}.png")
    code, said, _ = run_papm("calibrate", run, new, "--interval")
    assert code == 0 and "Interval of 90 % from 12 checked images: a count of 100 is " in said
    assert json.loads(run_papm("eval", run, new, "--json")[1])["interval"]["coverage"] >= 0.9
    assert "Intervals of 90 % hold the truth of" in run_papm("eval", run, new)[1]
    code, said, _ = run_papm("predict", run, new / "0.png", "--out", place / "out")
    assert code == 0 and " to " in said.splitlines()[0]
    found = json.loads(run_papm("predict", run, new / "0.png", "--out", place / "out", "--json")[1])[0]
    assert found["interval"][0] < found["count"] < found["interval"][1]


def test_wrong_usage_is_one_sentence(place: Path, run_papm: Papm) -> None:
    run, new = place / "run", place / "new"
    for words, why in (
        ((run,), "give checked images"),
        ((run, new, "--off"), "--off takes no data"),
        ((run, new, "--out", place / "b.txt"), "ends in .ckpt"),
        ((run, new, "--split", "val"), "split"),
    ):
        code, _, said = run_papm("calibrate", *words)
        assert code == 2 and why in said
    (new / "5.png").unlink()
    (new / "5.txt").unlink()
    (new / "4.png").unlink()
    (new / "4.txt").unlink()
    code, _, said = run_papm("calibrate", run, new)
    assert code == 2 and "5 checked images or more, not 4: check 1 more" in said
