"""The first day of a new user, in the browser and on the command line: own photos, dots set in the page, a model trained on
them, calibrated on others, a folder and a video counted, the model exported."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from papm import data
from papm.draw import save_png
from papm.structures import Sample

pytest.importorskip("uvicorn")
pytest.importorskip("cv2")
ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow
Papm = Callable[..., tuple[int, str, str]]
SIDE = 96


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Sample]]:
    """A folder of drawn photos, and what is on them."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = data.open_spec(f"synthetic:train=14,test=1,look=cells,size={SIDE}")["train"]
    found = {f"photo{k:02}": scene for k, scene in enumerate(scenes)}
    for name, scene in found.items():
        save_png(scene.image, folder / f"{name}.png")
    return folder, found


def clicked(page: Any, xy: tuple[float, float]) -> None:
    """A click at a place of the image, all of which is shown."""
    box = page.locator("#canvas").bounding_box()
    width, height = box["width"] - 2, box["height"] - 2
    scale = min(width / SIDE, height / SIDE, 16)
    left, top = box["x"] + 1 + (width - SIDE * scale) / 2, box["y"] + 1 + (height - SIDE * scale) / 2
    page.mouse.click(left + xy[0] * scale, top + xy[1] * scale)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def set_dots(
    visit: Callable[..., AbstractContextManager[Any]], folder: Path, truth: dict[str, Sample], work: Path
) -> None:
    """In the page without a model: the dots of the first photo by clicks, those of the others from files of an earlier day."""
    from papm.serve.app import application
    from papm.serve.blank import Blank
    from papm.serve.counting import Limits

    blank, first = Blank(), next(iter(truth))
    earlier = [work / f"{name}.txt" for name in truth if name != first]
    for path in earlier:
        path.write_text("".join(f"{x:.2f} {y:.2f}\n" for x, y in truth[path.stem].points.tolist()))
    with visit(application(blank, blank.describe(Limits()))) as page:
        page.set_input_files("#files", sorted(folder.iterdir()))
        page.wait_for_selector(f"#status:has-text('{len(truth)} of {len(truth)} images open')")
        page.locator(".item").first.click()
        points = truth[first].points
        for x, y in points.tolist():
            clicked(page, (x, y))
        assert page.inner_text("#dots") == str(len(points))
        page.check("#checked")
        page.set_input_files("#files", earlier)
        page.wait_for_selector(f"#get-dots:has-text('({len(truth)})')")
        with page.expect_download() as got:
            page.click("#get-dots")
        got.value.save_as(work / "dots.zip")
    with zipfile.ZipFile(work / "dots.zip") as archive:
        archive.extractall(folder)
    made = data.open_spec(str(folder))["all"][0]
    assert made.name == first and made.points.sub(points).abs().max() < 0.2  # where they were clicked


def test_from_photos_to_an_exported_model(
    visit: Callable[..., AbstractContextManager[Any]],
    photos: tuple[Path, dict[str, Sample]],
    run_papm: Papm,
    tmp_path: Path,
) -> None:
    folder, truth = photos
    set_dots(visit, folder, truth, tmp_path)

    # some are for training, the rest to check the model on
    checked, run = tmp_path / "checked", tmp_path / "run"
    checked.mkdir()
    others = sorted(truth)[8:]
    for name in others:
        for ending in (".png", ".txt"):
            (folder / f"{name}{ending}").rename(checked / f"{name}{ending}")
    code, said, _ = run_papm("data", "check", folder)
    assert code == 0 and "8 images" in said

    code, said, error = run_papm("train", folder, "--backbone", "tiny", "--out", run, "steps=12", "device=cpu")
    assert code == 0, error
    assert "MAE" in said and (run / "best.ckpt").is_file() and (run / "report.html").is_file()

    code, said, error = run_papm("calibrate", run, folder)
    assert code == 2 and "are among those that the model was trained on" in error
    code, said, error = run_papm("calibrate", run, checked)
    assert code == 0, error
    assert "Factor " in said and "from 6 checked images" in said

    code, said, error = run_papm("predict", run, checked, "--out", tmp_path / "results", "--device", "cpu")
    assert code == 0, error
    counts = rows(tmp_path / "results" / "counts.csv")
    assert [r["image"] for r in counts] == [f"{name}.png" for name in others]
    off = [abs(float(r["count"]) - truth[n].count) for r, n in zip(counts, others)]
    raw = [abs(float(r["raw_count"]) - truth[n].count) for r, n in zip(counts, others)]
    assert sum(off) < sum(raw)
    assert len(list((tmp_path / "results").rglob("*.png"))) == len(others)  # a picture of each

    from papm.predict.video import VideoWriter

    with VideoWriter(tmp_path / "clip.webm", 2.0) as video:
        for name in others[:4]:
            video.write(truth[name].image)
    code, said, error = run_papm(
        "predict", run, tmp_path / "clip.webm", "--out", tmp_path / "film", "--json", "--every", 0
    )
    assert code == 0, error
    (film,) = json.loads(said)
    assert film["video"] == "clip.webm" and len(rows(next((tmp_path / "film").rglob("counts.csv")))) == 4

    model = tmp_path / "model.onnx"
    code, said, error = run_papm("export", run, "--out", model, "--fixed", f"{SIDE}x{SIDE}")
    assert code == 0, error
    stored = ort.InferenceSession(str(model)).get_modelmeta().custom_metadata_map
    assert any("calibration" in key or "calibration" in value for key, value in stored.items())
