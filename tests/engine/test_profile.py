"""What a training leaves in the model about itself: what its images were like, and how far its counts may be off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from papm import data
from papm.config import from_mapping
from papm.data.splits import choose
from papm.engine import profile
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.profile import _fit, _usual, profile_of
from papm.metrics.conformal import coverage
from papm.models import create
from papm.predict.predictor import Counter
from papm.report.calibrated import calibrated_figures
from papm.report.load import read_run

SETTINGS: dict[str, Any] = {"steps": 3, "crop": 64, "batch": 2, "device": "cpu", "select": "last"}


def folder(root: Path, **splits: int) -> Path:
    """Images of noise with a few dots."""
    rng = np.random.default_rng(0)
    for name, number in splits.items():
        (root / name).mkdir(parents=True)
        for k in range(number):
            Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(root / name / f"{name}{k}.png")
            dots = "".join(f"{x:.1f} {y:.1f}\n" for x, y in rng.uniform(1, 47, (3 + k % 4, 2)))
            (root / name / f"{name}{k}.txt").write_text(dots)
    return root


@pytest.mark.slow
def test_spare_images_give_an_interval_and_the_training_images_a_profile(tmp_path: Path) -> None:
    place = folder(tmp_path / "photos", train=9, val=10, test=6)
    run = engine.train(resolve("hd-papm", "tiny", {**SETTINGS, "data": str(place)}), tmp_path / "run")
    counter = Counter.load(tmp_path / "run", "cpu")
    known, profile = counter.inference.interval, counter.inference.profile
    assert known is not None and known.images == 10 and profile is not None and profile.images == 9
    val, test = (data.open_spec(str(place))[split] for split in ("val", "test"))
    held = coverage([known.around(counter.predict(s.image).count) for s in val], [s.count for s in val])
    assert held >= 0.9, "of the images that it is from"
    assert run.result is not None and run.result["interval"]["split"] == "val"
    ends = [known.around(counter.predict(s.image).count) for s in test]
    assert run.result["interval"]["coverage"] == pytest.approx(coverage(ends, [s.count for s in test]))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["interval"] == run.result["interval"]
    assert any("hold the truth" in name for name, _ in calibrated_figures(read_run(tmp_path / "run")))


@pytest.mark.slow
def test_too_few_spare_images_give_none_and_say_how_many_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = folder(tmp_path / "photos", train=3, val=5, test=2)
    run = engine.train(resolve("hd-papm", "tiny", {**SETTINGS, "data": str(place)}), tmp_path / "run")
    inference = Counter.load(tmp_path / "run", "cpu").inference
    assert inference.interval is None and inference.profile is None
    assert run.result is not None and "interval" not in run.result
    assert any("counts have no interval" in m and "check 4 more images" in m for m in caplog.messages)


@pytest.mark.parametrize("select", ["last", "val", "test"])
def test_only_images_that_choose_nothing_are_spare(tmp_path: Path, select: str) -> None:
    opened = data.open_spec(str(folder(tmp_path / "a", train=3, val=2, test=2)))
    found = choose(opened, select, 0.1, 0)
    names = {s.name for part in (found.train, found.monitor, found.test) for s in part or ()}
    assert (found.spare is None) == (select == "val")
    assert not names & {s.name for s in found.spare or ()}
    alone = data.open_spec(str(folder(tmp_path / "b", train=3, val=2)))
    assert choose(alone, "last", 0.1, 0).spare is None, "then they are the test images"


def test_what_is_usual_holds_most_of_what_it_is_from() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4)) @ np.diag([1.0, 5.0, 0.2, 0.0])
    usual = _usual(rows, 0.1)
    assert np.mean([usual.excess(row) > 1 for row in rows]) <= 0.02
    assert usual.excess(np.array([0.0, 40.0, 0.0, 0.0])) > 1 and usual.excess(np.array([0.0, 0.0, 0.0, 2.0])) > 1
    far = np.concatenate([rows, np.full((1, 4), 1e3)])
    assert np.allclose(_fit(far, 0.1)[0], rows.mean(0), atol=1.0), "one that is far off does not move it"


def test_sizes_that_training_varies_are_usual() -> None:
    scenes = data.open_spec("synthetic:look=vehicles,train=12,test=1,size=96x96,count=3-6")["train"]
    torch.manual_seed(0)
    one, several = (
        profile_of(create("tiny"), scenes, from_mapping({"scale_min": low, "scale_max": high}), "32")
        for low, high in ((1.0, 1.0), (0.5, 2.0))
    )
    assert one is not None and several is not None
    spread = [np.linalg.inv(np.reshape(p.usual["sharpness"].precision, (5, 5))).trace() for p in (one, several)]
    assert spread[1] > 1.2 * spread[0]


def test_only_the_middle_of_a_large_image_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every image that is held, also of those that are changed."""
    monkeypatch.setattr(profile, "SIDE", 40)
    torch.manual_seed(0)
    network, found = create("tiny").eval(), []
    for dark in (False, True):
        root = folder(tmp_path / str(dark), train=8)
        for file in (root / "train").glob("*.png") if dark else ():
            pixels = np.array(Image.open(file))
            pixels[:4] = pixels[-4:] = pixels[:, :12] = pixels[:, -12:] = 0
            Image.fromarray(pixels).save(file)
        found.append(profile_of(network, data.open_spec(str(root))["train"], from_mapping({}), "32"))
    assert found[0] is not None and found[0] == found[1]
