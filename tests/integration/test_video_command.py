"""`papm predict` with videos: counts over time, a page, a video of what was seen."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.data.readers.regions import inside
from papm.inference import Inference
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.video import Video, VideoWriter
from papm.report.video import over_time

pytest.importorskip("cv2")
Run = Callable[..., tuple[int, str, str]]
CORNERS = [[8.0, 4.0], [60.0, 4.0], [60.0, 40.0], [8.0, 40.0]]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """clip.webm, 12 frames in 3 seconds; photo.png; a model."""
    torch.manual_seed(0)
    scene = torch.randint(0, 256, (3, 48, 200), dtype=torch.uint8)
    with VideoWriter(tmp_path / "clip.webm", 4.0) as writer:
        for k in range(12):
            writer.write(scene[:, :, 10 * k : 10 * k + 80].contiguous())
    Image.fromarray(scene.permute(1, 2, 0).numpy()).save(tmp_path / "photo.png")
    for name, seed in (("m", 0), ("n", 1)):
        torch.manual_seed(seed)
        checkpoint.save(tmp_path / f"{name}.ckpt", ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predict(run_papm: Run, world: Path, *words: object) -> tuple[int, str, str]:
    return run_papm("predict", world / "m.ckpt", *words, "--out", world / "out", "--device", "cpu")


def test_every_frame_is_counted_by_itself(world: Path, run_papm: Run) -> None:
    code, said, _ = predict(run_papm, world, world / "clip.webm", world / "photo.png", "--json")
    photo, film = json.loads(said)
    counter = Counter.load(world / "m.ckpt", "cpu")
    with Video(world / "clip.webm") as video:
        expected = [counter.predict(f.image) for f in video.read(1.0)]
    counts = [p.count for p in expected]
    assert code == 0 and photo["image"] == "photo.png" and film["video"] == "clip.webm"
    assert [(f["frame"], f["seconds"]) for f in film["frames"]] == [(0, 0.0), (4, 1.0), (8, 2.0)]
    assert [f["count"] for f in film["frames"]] == pytest.approx(counts, abs=1e-3)
    assert (film["lowest"], film["highest"]) == pytest.approx((min(counts), max(counts)), abs=1e-3)
    assert film["mean"] == pytest.approx(sum(counts) / 3, abs=1e-3)
    folder = world / "out" / "videos" / "clip"
    assert sorted(p.name for p in folder.iterdir()) == ["counts.csv", "overlay.webm", "points.csv", "video.html"]
    assert [float(r["count"]) for r in rows(folder / "counts.csv")] == pytest.approx(counts, abs=1e-3)
    assert [r["frame"] for r in rows(folder / "counts.csv")] == ["0", "4", "8"]
    points = rows(folder / "points.csv")
    assert len(points) == sum(0 if p.points is None else len(p.points) for p in expected)
    assert {r["image"] for r in points} <= {"000000", "000004", "000008"}
    with Video(folder / "overlay.webm") as shown:
        assert shown.frames == 3 and shown.size == (48, 80)
    page = (folder / "video.html").read_text(encoding="utf-8")
    assert "3 frames of 2.0 s" in page and 'href="overlay.webm"' in page and "The most: " in page
    assert [r["image"] for r in rows(world / "out" / "counts.csv")] == ["photo.png"]


def test_what_is_said_and_left_out(world: Path, run_papm: Run) -> None:
    code, said, _ = predict(
        run_papm, world, world / "clip.webm", "--every", 0, "--no-overlays", "--no-points", "--with", world / "n.ckpt"
    )
    folder = world / "out" / "videos" / "clip"
    assert code == 0 and "clip.webm: mean of 12 frames, " in said and not (world / "out" / "counts.csv").exists()
    assert sorted(p.name for p in folder.iterdir()) == ["counts.csv", "video.html"]
    assert list(rows(folder / "counts.csv")[0]) == ["frame", "seconds", "count", "by_m.ckpt", "by_n.ckpt"]
    assert "overlay.webm" not in (folder / "video.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["polygons", "mask"])
def test_a_region_counts_in_every_frame(world: Path, run_papm: Run, kind: str) -> None:
    region = inside([np.array(CORNERS)], (48, 80))
    if kind == "polygons":
        (world / "roi.json").write_text(json.dumps({"clip.webm": [CORNERS]}))
    else:
        Image.fromarray(region.numpy().astype(np.uint8) * 255).save(world / "roi.png")
    roi = world / ("roi.json" if kind == "polygons" else "roi.png")
    code, said, _ = predict(run_papm, world, world / "clip.webm", "--roi", roi, "--json")
    counter = Counter.load(world / "m.ckpt", "cpu")
    with Video(world / "clip.webm") as video:
        expected = [counter.predict(f.image, roi=region).count for f in video.read(1.0)]
    assert code == 0 and [f["count"] for f in json.loads(said)[0]["frames"]] == pytest.approx(expected, abs=1e-3)


def test_a_bad_video_is_named_and_the_rest_is_counted(world: Path, run_papm: Run) -> None:
    (world / "bad.mp4").write_bytes(b"no video" * 50)
    code, said, error = predict(run_papm, world, world / "bad.mp4", world / "photo.png", world / "clip.webm")
    assert code == 2 and "photo.png" in said and "clip.webm: mean of 3 frames" in said
    assert [line for line in error.splitlines() if line.startswith("papm: ")] == [
        f"papm: {world / 'bad.mp4'}: cannot be read as a video; is it whole?"
    ]
    assert not (world / "out" / "videos" / "bad").exists()
    code, said, error = predict(run_papm, world, world / "bad.mp4")
    assert (code, said) == (2, "") and len(error.splitlines()) == 1
    code, _, error = predict(run_papm, world, world / "clip.webm", "--every", -1)
    assert code == 2 and "--every is a number of seconds" in error


def test_a_list_that_names_another_video_is_refused(world: Path, run_papm: Run) -> None:
    (world / "list.mp4").write_text("ffconcat version 1.0\nfile clip.webm\n")
    code, said, error = predict(run_papm, world, world / "list.mp4")
    assert (code, said) == (2, "") and error == f"papm: {world / 'list.mp4'}: cannot be read as a video; is it whole?\n"


@pytest.mark.parametrize("overlays", ["--overlays", "--no-overlays"])
def test_where_nothing_can_be_written_no_result_is_told(world: Path, run_papm: Run, overlays: str) -> None:
    (world / "out").write_text("a file")
    code, said, error = predict(run_papm, world, world / "clip.webm", overlays)
    assert (code, said) == (2, "") and len(error.splitlines()) == 1 and "cannot be written" in error


def test_a_place_that_the_pictures_cannot_take_costs_no_counts(world: Path, run_papm: Run) -> None:
    folder = world / "out" / "videos" / "clip"
    (folder / "overlay.webm").mkdir(parents=True)
    code, said, error = predict(run_papm, world, world / "clip.webm")
    assert (code, said) == (2, "") and "overlay.webm: cannot be written" in error
    assert len(rows(folder / "counts.csv")) == 3 and "overlay.webm" not in (folder / "video.html").read_text("utf-8")
    assert sorted(p.name for p in folder.iterdir()) == ["counts.csv", "overlay.webm", "points.csv", "video.html"]


def test_json_has_the_counts_of_classes_and_models(world: Path, run_papm: Run) -> None:
    for name in ("m", "n"):
        network = models.create("tiny", num_classes=2)
        spec = ModelSpec("tiny", {"num_classes": 2}, "hd-papm", inference=Inference(classes=("car", "bus")))
        checkpoint.save(world / f"{name}.ckpt", spec, network.state_dict())
    code, said, _ = predict(run_papm, world, world / "clip.webm", "--every", 9, "--with", world / "n.ckpt", "--json")
    (frame,) = json.loads(said)[0]["frames"]
    assert code == 0 and list(frame["classes"]) == ["car", "bus"] and list(frame["models"]) == ["m.ckpt", "n.ckpt"]
    assert sum(frame["classes"].values()) == pytest.approx(frame["count"], abs=2e-3)
    assert sum(frame["models"].values()) / 2 == pytest.approx(frame["count"], abs=2e-3)


def test_lines_of_the_chart_bear_their_names() -> None:
    found = [
        Prediction(3.0, (8, 8), by_class=(1.0, 2.0), models=("a", "b"), by_model=(2.5, 3.5)),
        Prediction(0.0, (8, 8), models=("a", "b"), by_model=(0.0, 0.0)),
    ]
    chart = over_time([0.0, 1.0], found).svg
    for words in ("count: 3 at", "0: 1 at", "1: 2 at", "a: 2.5 at", "b: 3.5 at"):
        assert f"{words} seconds 0<" in chart


def test_an_interruption_keeps_the_frames_before_it(
    world: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = Counter.predict, []

    def tired(self: Counter, *args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Counter, "predict", tired)
    code, _, error = predict(run_papm, world, world / "clip.webm")
    folder = world / "out" / "videos" / "clip"
    assert code == 1 and "Stopped after 2 frames of clip.webm; what was counted is in" in error
    assert len(rows(folder / "counts.csv")) == 2 and Video(folder / "overlay.webm").frames == 2
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
