"""Resized training, GAME, submissions, comparisons and the page of a dataset, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from papm import checkpoint, data, models
from papm.config import from_mapping, load
from papm.data.convert import pool
from papm.data.resize import Resize
from papm.engine import train as engine
from papm.engine.build import resolve, with_bounds
from papm.engine.evaluate import evaluate
from papm.engine.result import scores
from papm.inference import Inference
from papm.metrics.game import game
from papm.predict.predictor import Counter

Run = Callable[..., tuple[int, str, str]]
SCENES = "synthetic:look=cells,train=4,test=3,size=72x96,count=4-9"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of images at half their size, decoded once to disk."""
    folder = tmp_path_factory.mktemp("small")
    given = {
        "data": SCENES,
        "options": {"max_side": 48},
        "steps": 12,
        "crop": 32,
        "batch": 2,
        "device": "cpu",
        "cache": "disk",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPM_CACHE", str(folder / "cache"))
        engine.train(resolve("hd-papm", "tiny", given), folder / "run")
    return folder / "run"


def test_a_model_remembers_its_size(small: Path, run_papm: Run, tmp_path: Path) -> None:
    assert from_mapping(load(small / "config.yaml")).options == {"max_side": 48}
    assert list((small.parent / "cache").rglob("*.rgb")), "decoded to disk"
    counter = Counter.load(small, "cpu")
    assert counter.resize == Resize(max_side=48)
    sample = data.open_spec(SCENES)["test"][0]
    found = counter.predict(sample.image)
    assert found.size == sample.size and found.density is not None and found.points is not None
    assert found.density.shape[1:] == (-(-72 // found.stride), -(-96 // found.stride))
    assert float(found.density.sum()) == pytest.approx(found.count, rel=1e-4)
    opened = data.open_spec(SCENES, max_side=48)["test"]
    expected = evaluate(counter.network, opened)
    assert found.count == pytest.approx(expected.predicted[0], rel=1e-4)
    assert expected.truth == [float(s.count) for s in data.open_spec(SCENES)["test"]]
    code, out, _ = run_papm("eval", small, SCENES, "--json")
    assert code == 0 and json.loads(out)["mae"] == pytest.approx(expected.score.mae)
    code, out, _ = run_papm("eval", small, SCENES, "resize=none", "--json")
    plain = evaluate(counter.network, data.open_spec(SCENES)["test"]).score.mae
    assert code == 0 and json.loads(out)["mae"] == pytest.approx(plain), "at their own size, when asked for"
    code, out, _ = run_papm("eval", small, SCENES, "--localization", "nwpu", "--json")
    assert code == 0 and json.loads(out)["sigma_l"]["f1"] >= 0, "compared in pixels of the files"


def noise(path: Path, width: int, height: int) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_an_image_that_the_rule_would_shrink_more_than_any_of_the_training_is_tiled_and_told(
    small: Path, run_papm: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rule that halved every training image would make a mosaic's objects tiny."""
    assert Counter.load(small, "cpu").inference.scales == pytest.approx((0.5, 0.5, 0.5))
    mosaics = [noise(tmp_path / f"mosaic{k}.png", 960, 640) for k in range(2)]
    words = ("predict", small, "--device", "cpu", "--out", tmp_path / "out")
    code, out, err = run_papm(*words, *mosaics, noise(tmp_path / "usual.png", 96, 72), "--json")
    found = json.loads(out)
    assert code == 0 and [f["scale"] for f in found] == [0.5, 0.5, 0.5]
    said = "counted at 480×320, in tiles where that is large: max_side=48 of the training would shrink it 20 times, and its "
    said += "training images were shrunk 2 times at most; if it shows the same scene at a higher resolution, try --scale 0.05"
    assert [f.get("warning", "") for f in found] == [said, said, ""]
    assert [f.get("unlike") for f in found] == [["size"], ["size"], None]
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage().startswith(f"mosaic0.png: {said}")
    assert "WARNING: 2 of 3 images are unlike the training images; results.json says why\n" in err
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [f.get("warning") for f in kept] == [f.get("warning") for f in found]

    caplog.clear()
    code, out, _ = run_papm(*words, mosaics[0], "--scale", "0.5", "--tile", "256", "--json")
    (tiled,) = json.loads(out)
    assert code == 0 and tiled["scale"] == 0.5 and "warning" not in tiled and not caplog.records
    plain = Counter.load(small, "cpu", scale=1)
    with Image.open(mosaics[0]) as im:
        half = im.resize((480, 320), Image.Resampling.BICUBIC)
    assert tiled["count"] == pytest.approx(plain.predict(half).count, rel=1e-3) == found[0]["count"], (
        "the mosaic as training saw such images"
    )
    assert Counter.load(small, "cpu", scale=0.05).predict(mosaics[0]).scale == pytest.approx(0.05), (
        "where it is asked for"
    )


def test_a_model_that_does_not_know_its_training_sizes_goes_by_the_factor(
    run_papm: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = models.create("tiny")
    spec = checkpoint.ModelSpec("tiny", method="hd-papm", inference=Inference(resize=Resize(max_side=64)))
    checkpoint.save(tmp_path / "old.ckpt", spec, network.state_dict())
    for width, warned in ((250, False), (300, True)):
        caplog.clear()
        image = noise(tmp_path / f"{width}.png", width, 64)
        code, out, _ = run_papm("predict", tmp_path / "old.ckpt", image, "--out", tmp_path / "out", "--json")
        assert code == 0 and ("warning" in json.loads(out)[0]) == ("shrunk 4.69 times" in caplog.text) == warned
    assert "how its training images were resized is not known" in caplog.text and "--scale 1" in caplog.text
    for wrong in ("0", "-1", "nan", "17"):
        code, _, err = run_papm("predict", tmp_path / "old.ckpt", image, "--scale", wrong)
        assert code == 2 and "scale is a factor" in err and err.count("\n") == 1
    code, _, err = run_papm("predict", tmp_path / "old.ckpt", image, "--scale", "1", "--with", tmp_path / "b.ckpt")
    assert code == 2 and "--scale is for one model" in err


def test_eval_names_the_image_that_is_shrunk_most(small: Path, run_papm: Run, tmp_path: Path) -> None:
    for name, width in (("usual", 96), ("large", 400), ("larger", 600)):
        noise(tmp_path / f"{name}.png", width, 72)
        (tmp_path / f"{name}.txt").write_text("3 4\n")
    code, _, err = run_papm("eval", small, tmp_path, "--split", "all", "--device", "cpu")
    assert code == 0 and "WARNING: larger (and 1 more of 3): counted at 300×36" in err
    code, _, err = run_papm("eval", small, tmp_path, "resize=none", "--split", "all", "--device", "cpu")
    assert code == 0 and "counted at" not in err


def test_usual_sizes_are_spelt_out_and_resumable(tmp_path: Path) -> None:
    config = from_mapping({"data": "synthetic", "options": {"resize": "usual", "max_side": 640}})
    assert with_bounds(config).options == {"max_side": 640}
    assert with_bounds(with_bounds(config)) == with_bounds(config)


def trancos(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "image_sets").mkdir()
    rng = np.random.default_rng(0)
    for name, numbers in {"training": [1], "validation": [2], "trainval": [1, 2], "test": [3, 4, 5]}.items():
        (root / "image_sets" / f"{name}.txt").write_text("".join(f"image-1-{n:06d}.jpg\n" for n in numbers))
    for n in range(1, 6):
        stem = root / "images" / f"image-1-{n:06d}"
        Image.fromarray(rng.integers(0, 256, (60, 84, 3), dtype=np.uint8)).save(f"{stem}.jpg")
        points = rng.random((12, 2)) * (84, 60)
        Path(f"{stem}.txt").write_text("".join(f"{x:.2f} {y:.2f}\n" for x, y in points + 1))
        mask = np.zeros((60, 84), np.uint8)
        mask[9:51, 7:60] = 1
        scipy.io.savemat(f"{stem}mask.mat", {"BW": mask})
    return root


@pytest.mark.parametrize("options", [(), ("max_side=84",)])
def test_game_of_data_with_regions(small: Path, run_papm: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    spec = f"trancos:{trancos(tmp_path / 'TRANCOS')}"
    code, out, _ = run_papm("eval", small, spec, *options, "--json")
    result = json.loads(out)
    assert code == 0 and list(result["game"]) == ["0", "1", "2", "3"] and result["images"] == 3
    errors = list(result["game"].values())
    assert errors == sorted(errors), "never falls"
    if options:  # the images' own size: everything can be done by hand
        assert errors[0] == pytest.approx(result["mae"], abs=1e-4)
        counter = Counter.load(small, "cpu")
        test = data.open_spec(spec)["test"]
        with torch.no_grad():
            from papm.predict.predictor import infer

            outputs = [infer(counter.network, s.image) for s in test]
        expected = [
            game(o.density[0], s.points, size=s.size, stride=o.stride, roi=s.roi, whole_cells=True)[3]  # type: ignore[union-attr]
            for o, s in zip(outputs, test)
        ]
        assert errors[3] == pytest.approx(np.mean(expected), abs=1e-4)
    code, out, _ = run_papm("eval", small, spec, *options)
    assert code == 0 and all(f"GAME({k})" in out for k in range(4))
    code, out, _ = run_papm("eval", small, spec, "roi=false", "--json")
    assert "game" not in json.loads(out)
    code, out, _ = run_papm("eval", small, spec, "roi=false", "--game", "--json")
    assert list(json.loads(out)["game"]) == ["0", "1", "2", "3"]


def nwpu(root: Path) -> Path:
    for folder in ("images", "jsons"):
        (root / folder).mkdir(parents=True)
    for n in (1, 2, 3110, 3111, 3610, 3611, 3612):
        Image.new("RGB", (96, 72), (n % 256, 90, 20)).save(root / "images" / f"{n:04d}.jpg")
        if n < 3610:
            content = {"human_num": 1, "points": [[10, 20]], "boxes": [[5, 15, 15, 25]]}
            (root / "jsons" / f"{n:04d}.json").write_text(json.dumps(content))
    return root


def test_submission_files(small: Path, run_papm: Run, tmp_path: Path) -> None:
    spec = f"nwpu:{nwpu(tmp_path / 'NWPU-Crowd')}"
    code, out, err = run_papm("eval", small, spec, "--split", "test-hidden")
    assert code == 2 and "not published" in err
    code, out, _ = run_papm("eval", small, spec, "--split", "test-hidden", "--submission", tmp_path / "mine", "--json")
    assert code == 0 and json.loads(out)["images"] == 3 and "mae" not in json.loads(out)
    counts = [line.split() for line in (tmp_path / "mine" / "counting.txt").read_text().splitlines()]
    points = [line.split() for line in (tmp_path / "mine" / "localization.txt").read_text().splitlines()]
    assert [c[0] for c in counts] == [p[0] for p in points] == ["3610", "3611", "3612"]
    counter = Counter.load(small, "cpu")
    for (name, count), (_, n, *xy) in zip(counts, points):
        found = counter.predict(tmp_path / "NWPU-Crowd" / "images" / f"{name}.jpg")
        assert float(count) == pytest.approx(found.count, abs=1e-3) and found.points is not None
        assert int(n) == len(found.points) and len(xy) == 2 * int(n)
    code, out, _ = run_papm("eval", small, spec, "--split", "val", "--submission", tmp_path / "val", "--json")
    assert code == 0 and json.loads(out)["images"] == 2 and json.loads(out)["mae"] >= 0
    code, _, err = run_papm("eval", small, SCENES, "--submission", tmp_path / "no")
    assert code == 2 and "is its number" in err
    (tmp_path / "file").write_text("")
    code, _, err = run_papm("eval", small, spec, "--split", "val", "--submission", tmp_path / "file")
    assert code == 2 and "--submission is a folder" in err
    code, _, err = run_papm("eval", small, spec, "--submission", tmp_path / "x", "--localization", "nwpu")
    assert code == 2 and "--submission" in err


@pytest.mark.parametrize("option", ["max_side=40", "resize=none", "min_side=20"])
@pytest.mark.parametrize("more", [("--localization", "nwpu"), ("--submission", "mine")])
def test_where_the_model_resizes_no_other_size_is_taken(
    small: Path, run_papm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, more: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_papm("eval", small, SCENES, option, *more)
    assert code == 2 and not out and err.count("\n") == 1
    assert f"{option.partition('=')[0]} does not go with {more[0]}" in err
    assert not list(tmp_path.iterdir())


def fake_run(folder: Path, predicted: list[float], truth: list[float], **more: Any) -> Path:
    from papm import config as configuration
    from papm.engine.evaluate import Evaluation, write_evaluation
    from papm.files import write_json, write_text

    folder.mkdir(parents=True)
    write_text(folder / "config.yaml", configuration.to_yaml(from_mapping({"data": "synthetic", "backbone": "tiny"})))
    found = Evaluation([f"{k}.jpg" for k in range(len(truth))], predicted, truth, truth)
    write_evaluation(folder / "predictions.csv", found)
    write_json(folder / "result.json", {"dataset": "d", "split": "test", "select": "last", **scores(found), **more})
    return folder


def test_two_runs_are_compared_image_by_image(run_papm: Run, tmp_path: Path) -> None:
    truth = [float(t) for t in range(10, 90)]
    noise = np.random.default_rng(0).normal(0, 5, 80)
    first = fake_run(tmp_path / "a" / "run", [t + e for t, e in zip(truth, noise)], truth)
    better = fake_run(tmp_path / "b" / "run", [t + 0.8 * e for t, e in zip(truth, noise)], truth)
    other = fake_run(tmp_path / "c", [1.0], [2.0], dataset="else")
    code, out, _ = run_papm("report", first, better, other, "--json")
    result = json.loads(out)
    assert code == 0 and Path(result["page"]).is_file() and Path(result["page"]).parent == tmp_path / "a"
    versus = [r["against_first"] for r in result["runs"]]
    assert versus[0] is None and versus[2] is None
    assert (
        versus[1]["difference"] == pytest.approx(-0.2 * float(np.abs(noise).mean()), abs=2e-3)
        and versus[1]["significant"]
    )
    (joint,) = result["mean_of_counts"]
    assert joint["runs"] == 2 and joint["mae"] == pytest.approx(0.9 * float(np.abs(noise).mean()), abs=2e-3)
    code, out, _ = run_papm("report", first, better, "--out", tmp_path / "page.html")
    assert code == 0 and "better" in out and "b/run" in out and "mean of 2" in out
    assert "The mean of the counts of 2 runs" in (tmp_path / "page.html").read_text(encoding="utf-8")
    code, _, err = run_papm("report", first, first)
    assert code == 2 and "twice" in err
    code, _, err = run_papm("report", first, "--json")
    assert code == 2 and "several runs" in err
    (better / "result.json").unlink()
    code, _, err = run_papm("report", first, better)
    assert code == 2 and "has not finished" in err


def test_the_page_of_a_dataset(run_papm: Run, tmp_path: Path) -> None:
    code, out, err = run_papm("data", "stats", SCENES, "--html", tmp_path / "page.html")
    assert code == 0 and out == "" and "page.html" in err
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    code, out, _ = run_papm(
        "data", "stats", SCENES, "max_side=40", "--split", "test", "--html", tmp_path / "p.html", "--json"
    )
    assert code == 0 and list(json.loads(out)) == ["test"]
    code, _, err = run_papm("data", "stats", SCENES, "--html", tmp_path)
    assert code == 2 and "is a folder" in err


def test_resized_data_can_be_written_anew(run_papm: Run, tmp_path: Path) -> None:
    assert run_papm("data", "convert", SCENES, "--out", tmp_path / "small", "max_side=48")[0] == 0
    opened, expected = data.open_spec(str(tmp_path / "small"))["test"], data.open_spec(SCENES, max_side=48)["test"]
    for a, b in zip(opened, expected):
        assert a.size == b.size == (36, 48) and torch.equal(a.image, b.image) and torch.equal(a.points, b.points)
    assert run_papm("data", "info", SCENES, "max_side=8")[0] == 2
    code, _, err = run_papm("data", "info", SCENES, "max_sid=48")
    assert code == 2 and "max_sid" in err


def test_overlapping_splits_are_pooled_once() -> None:
    scenes = data.open_spec(SCENES)
    train, test = scenes["train"], scenes["test"]
    overlapping = {"all": train, "fold1": train[:2], "fold2": train[2:], "test": test}
    assert len(pool(overlapping)) == len(train) + len(test)
    assert len(pool({"a": train, "b": train})) == len(train)
    names = [s.name for s in pool({"train": train, "test": test})]
    assert len(set(names)) == len(names)
