"""A calibrated model gives one count for one image, whoever asks; maps and regions follow, points stay."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.data.base import Dataset
from papm.data.resize import Resize
from papm.inference import Calibration, CountInterval
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.results import write_results
from papm.structures import Sample

HALF_MORE = Calibration(1.5, 1.2, 1.7, 8, 9.0, 4.0)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("tiny", {"activation": "abs"}),
    ("tiny", {"activation": "abs", "num_classes": 2}),
    ("p2pnet", {"trunk": "tiny", "decode": "threshold"}),
    ("p2pnet", {"trunk": "tiny", "num_classes": 2, "decode": "threshold"}),
    ("p2pnet", {"trunk": "tiny", "num_classes": 2, "decode": "expected"}),
]


def pair(backbone: str, seed: int = 0, decode: str = "sum", **options: Any) -> tuple[Counter, Counter]:
    """The same model, raw and calibrated; it resizes images."""

    def made(calibration: Calibration | None) -> Counter:
        torch.manual_seed(seed)
        network = models.create(backbone, **options)
        if backbone == "p2pnet":  # sure of a car everywhere
            last = [p for name, p in network.named_parameters() if name.endswith("bias") and "offsets" not in name][-1]
            last.data[1] += 2.0
        classes = ("car", "bus")[: options.get("num_classes", 0)]
        rule = {"decode": decode, "classes": classes, "resize": Resize(max_side=64), "calibration": calibration}
        return Counter(network, ModelSpec(backbone, options, inference=replace(network.inference, **rule)), "cpu")

    return made(None), made(HALF_MORE)


def picture(h: int = 45, w: int = 70) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("backbone", "options"), KINDS)
def test_counts_maps_regions_and_classes_scale_and_points_stay(backbone: str, options: dict[str, Any]) -> None:
    raw, counter = pair(backbone, **options)
    region = torch.zeros(45, 70, dtype=torch.bool)
    region[:, 30:] = True
    for roi in (None, region):
        before, after = raw.predict(picture(), roi=roi), counter.predict(picture(), roi=roi)
        assert before.count > 1 and before.raw_count is None
        assert after.count == pytest.approx(1.5 * before.count) and after.raw_count == before.count
        assert after.class_counts == pytest.approx([1.5 * c for c in before.class_counts])
        assert len(after.class_counts) == options.get("num_classes", 0)
        assert before.points is not None and after.points is not None and torch.equal(before.points, after.points)
        if before.density is not None and after.density is not None:
            assert torch.allclose(after.density, 1.5 * before.density)
    many = counter.predict([picture(), picture()], batch=2)
    assert [p.count for p in many] == pytest.approx([counter.predict(picture(), points=False).count] * 2, rel=1e-5)


@pytest.mark.parametrize(("backbone", "options"), KINDS)
def test_evaluation_counts_the_same_and_keeps_what_was_before(backbone: str, options: dict[str, Any]) -> None:
    _, counter = pair(backbone, **options)
    one = Sample("one", picture, torch.tensor([[4.0, 5.0], [60.0, 30.0]]), (45, 70))
    found, made = papm.evaluate(counter, Dataset([one]), protocol="game"), counter.predict(picture())
    assert found.predicted == pytest.approx([made.count], rel=1e-5) and found.raw == pytest.approx([made.raw_count])
    assert found.game[0] == pytest.approx(found.mae, rel=1e-4) and not found.readings


def test_several_models_give_the_mean_of_their_calibrated_counts() -> None:
    names = {"num_classes": 2}
    (_, first), (second, _) = pair("tiny", activation="abs", **names), pair("tiny", 1, activation="abs", **names)
    alone = [first.predict(picture()), second.predict(picture())]
    both = Ensemble([first, second]).predict(picture())
    assert both.by_model == pytest.approx([p.count for p in alone], rel=1e-5)
    assert both.count == pytest.approx(fmean(p.count for p in alone), rel=1e-5)
    assert both.class_counts == pytest.approx([fmean(c) for c in zip(*(p.class_counts for p in alone))], rel=1e-5)
    assert both.density is not None and float(both.density.sum()) == pytest.approx(both.count, rel=1e-4)
    assert both.raw_count == pytest.approx(fmean([alone[0].raw_count or 0, alone[1].count]), rel=1e-5)
    one = Sample("one", picture, torch.zeros(2, 2), (45, 70))
    assert papm.evaluate(Ensemble([first, second]), Dataset([one])).predicted == pytest.approx([both.count], rel=1e-5)
    sole = Ensemble([first]).predict(picture())
    assert (sole.count, sole.raw_count) == (alone[0].count, alone[0].raw_count)


def test_files_hold_both_counts(tmp_path: Path) -> None:
    raw, counter = pair("tiny", activation="abs")
    found = counter.predict(picture(), name="a.png")
    write_results([found, replace(found, name="b.png")], tmp_path)
    rows = list(csv.DictReader((tmp_path / "counts.csv").open()))
    assert list(rows[0]) == ["image", "count", "raw_count"] and len(rows) == 2
    assert float(rows[0]["count"]) == pytest.approx(1.5 * float(rows[0]["raw_count"]), abs=1e-3)
    stored = json.loads((tmp_path / "results.json").read_text())[0]
    assert stored["raw_count"] == pytest.approx(found.raw_count, abs=1e-4)
    write_results([raw.predict(picture(), name="a.png")], tmp_path)
    assert (tmp_path / "counts.csv").read_text().startswith("image,count\n")


def test_a_model_that_knows_an_interval_gives_it_with_every_count(tmp_path: Path) -> None:
    _, counter = pair("tiny", activation="abs")
    counter.change(interval=CountInterval(2.0, 12))
    found = counter.predict(picture(), name="a.png")
    half = 2 * found.count**0.5
    assert found.interval == pytest.approx((max(0, found.count - half), found.count + half))
    write_results([found, replace(found, name="b.png", interval=None)], tmp_path)
    rows = list(csv.DictReader((tmp_path / "counts.csv").open()))
    assert list(rows[0]) == ["image", "count", "raw_count", "low", "high"] and rows[1]["low"] == ""
    assert [float(rows[0]["low"]), float(rows[0]["high"])] == pytest.approx(found.interval, abs=1e-3)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored[0]["interval"] == pytest.approx(found.interval, abs=1e-3) and "interval" not in stored[1]


def test_an_image_that_is_unlike_the_training_has_no_interval() -> None:
    _, counter = pair("tiny", activation="abs")
    counter.change(interval=CountInterval(2.0, 12), scales=(0.99, 1.0, 1.0))
    assert counter.predict(picture()).interval is not None
    large = counter.predict(picture(200, 200))
    assert large.warning and large.interval is None
    other = Counter(counter.network, replace(counter.spec, inference=counter.inference), "cpu", scale=1.0)
    assert other.predict(picture()).interval is None


def test_another_way_to_count_is_not_calibrated(caplog: pytest.LogCaptureFixture) -> None:
    raw, counter = pair("p2pnet", trunk="tiny", decode="threshold")
    other = Counter(counter.network, counter.spec, "cpu", count="expected")
    assert "calibrated for another way to count" in caplog.text and other.predict(picture()).raw_count is None
    same = Counter(counter.network, counter.spec, "cpu", count="points").predict(picture())
    assert same.count == pytest.approx(1.5 * raw.predict(picture()).count)


def test_the_web_application_answers_the_same() -> None:
    from papm.serve.counting import Limits, Upload, count

    _, counter = pair("tiny", activation="abs")
    counter.change(interval=CountInterval(2.0, 12))
    stream = io.BytesIO()
    Image.fromarray(picture().permute(1, 2, 0).numpy()).save(stream, "png")
    answer, made = count(counter, Upload(stream.getvalue(), "a.png"), limits=Limits()), counter.predict(picture())
    assert (answer["count"], answer["raw_count"]) == (made.count, made.raw_count)
    assert made.interval is not None and answer["interval"] == list(made.interval)


def test_the_frames_of_a_video_count_the_same(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    from papm.predict.video import Video, VideoWriter
    from papm.predict.video_counts import CountedVideo, count_video

    _, counter = pair("tiny", activation="abs", num_classes=2)
    with VideoWriter(tmp_path / "clip.webm", 1.0) as writer:
        writer.write(picture(48, 64))
    film = CountedVideo("clip", tmp_path / "out")
    with Video(tmp_path / "clip.webm") as video:
        count_video(film, video, counter, overlays=False)
    made = counter.predict(next(iter(Video(tmp_path / "clip.webm").read())).image)
    row = next(csv.DictReader((tmp_path / "out" / "counts.csv").open()))
    assert film.counts == [made.count] and film.summary()["frames"][0]["raw_count"] == pytest.approx(
        made.raw_count, abs=1e-4
    )
    assert float(row["count"]) == pytest.approx(made.count, abs=1e-4)
    assert float(row["count_car"]) == pytest.approx(made.class_counts[0], abs=1e-4)


@pytest.mark.slow
def test_an_exported_file_says_how_to_count_the_same(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    from papm.export import export_onnx, onnx_metadata

    _, counter = pair("tiny", activation="abs")
    spec = replace(counter.spec, inference=replace(counter.inference, resize=Resize()))
    checkpoint.save(tmp_path / "model.ckpt", spec, counter.network.state_dict())
    file = export_onnx(tmp_path / "model.ckpt", tmp_path / "model.onnx")
    about = onnx_metadata(file)
    shape = (1, 3, 1, 1)
    pixels = (picture() / 255 - torch.tensor(about["mean"]).view(shape)) / torch.tensor(about["std"]).view(shape)
    (density,) = ort.InferenceSession(str(file)).run(None, {"images": pixels.numpy()})
    made = Counter.load(tmp_path / "model.ckpt", "cpu").predict(picture())
    assert about["calibration"]["scale"] * density.sum() == pytest.approx(made.count, rel=1e-4)
    assert about["count"] == "1.5 * sum of density" and made.raw_count == pytest.approx(density.sum(), rel=1e-4)
