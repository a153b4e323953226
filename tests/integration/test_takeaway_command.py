"""`papm predict --save-as`: the same points in every file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from papm import checkpoint, data, models
from papm.checkpoint import ModelSpec
from papm.predict.predictor import Counter

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """photos/a.png and b.png, and a model."""
    torch.manual_seed(0)
    (tmp_path / "photos").mkdir()
    for name in "ab":
        pixels = torch.randint(0, 256, (70, 90, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{name}.png")
    network = models.create("p2pnet", trunk="tiny")
    torch.nn.init.normal_(network.classes.output.weight, std=1.0)  # type: ignore[union-attr, arg-type]
    checkpoint.save(tmp_path / "m.ckpt", ModelSpec("p2pnet", {"trunk": "tiny"}, "p2p-papm"), network.state_dict())
    return tmp_path


def predict(run_papm: Run, world: Path, *words: object) -> tuple[int, str, str]:
    fixed = ("--out", world / "out", "--device", "cpu", "--no-overlays")
    return run_papm("predict", world / "m.ckpt", world / "photos", *fixed, *words)


def test_every_file_has_the_same_points(world: Path, run_papm: Run) -> None:
    matrix = world / "h.txt"
    matrix.write_text("2 0 100\n0 -2 50\n0 0 1\n")
    formats = ("--save-as", "xlsx", "--save-as", "geojson", "--save-as", "roiset")
    code, _, said = predict(run_papm, world, *formats, "--homography", matrix)
    assert code == 0, said
    with (world / "out" / "points.csv").open(newline="") as file:
        rows = [(r["image"], float(r["x"]), float(r["y"])) for r in csv.DictReader(file)]
    assert len(rows) > 10
    found = json.loads((world / "out" / "points.geojson").read_text())["features"]
    assert [(f["properties"]["image"], f["properties"]["x"], f["properties"]["y"]) for f in found] == rows
    for (_, x, y), feature in zip(rows, found):
        assert feature["geometry"]["coordinates"] == pytest.approx([100 + 2 * x, 50 - 2 * y], abs=0.011)
    for path in (world / "out" / "roisets").iterdir():
        path.rename(world / "photos" / path.name)
    (again,) = data.open("folder", world / "photos").values()
    dots = [(s.source.name, x, y) for s in again.samples for x, y in s.points.tolist()]  # type: ignore[union-attr]
    assert [(n, pytest.approx(x, abs=0.006), pytest.approx(y, abs=0.006)) for n, x, y in rows] == dots
    openpyxl = pytest.importorskip("openpyxl", reason="reading a workbook back needs openpyxl")
    book = openpyxl.load_workbook(world / "out" / "results.xlsx")
    assert [r[:3] for r in book["points"].iter_rows(min_row=2, values_only=True)] == rows
    with (world / "out" / "counts.csv").open(newline="") as file:
        counts = [(r["image"], float(r["count"])) for r in csv.DictReader(file)]
    assert list(book["counts"].iter_rows(min_row=2, values_only=True)) == counts


def test_files_of_an_earlier_result_are_named(world: Path, run_papm: Run) -> None:
    predict(run_papm, world, "--save-as", "xlsx", "--save-as", "roiset")
    code, _, said = predict(run_papm, world, "--save-as", "xlsx")
    assert code == 0
    assert "out: roisets/ of an earlier result: not rewritten, for --save-as does not name it" in said


def test_world_files_and_pairs(world: Path, run_papm: Run) -> None:
    (world / "photos" / "a.pgw").write_text("1\n0\n0\n-1\n1000.5\n1999.5\n")
    code, _, said = predict(run_papm, world, "--save-as", "geojson", "--georeference")
    assert code == 2 and "b.png: has no world file (b.pgw, b.pngw, b.wld) beside it" in said
    assert not (world / "out").exists()
    (world / "photos" / "b.pgw").write_text("1\n0\n0\n-1\n5000.5\n9999.5\n")
    code, _, said = predict(run_papm, world, "--save-as", "geojson", "--georeference")
    assert code == 0, said
    for f in json.loads((world / "out" / "points.geojson").read_text())["features"]:
        about, (left, top) = f["properties"], (1000, 2000) if f["properties"]["image"] == "a.png" else (5000, 10000)
        assert f["geometry"]["coordinates"] == pytest.approx([left + about["x"], top - about["y"]], abs=0.006)
    (world / "pairs.csv").write_text("x,y,X,Y\n0,0,0,0\n90,0,9,0\n90,70,9,7\n0,70,0,7\n45,35,4.5,3.6\n")
    code, _, said = predict(run_papm, world, "--save-as", "geojson", "--homography", world / "pairs.csv")
    assert code == 0 and "pairs.csv: the homography misses its 5 pairs by 0.0" in said


def test_an_interruption_keeps_what_was_counted(world: Path, run_papm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    predicted = Counter.predict

    def pressed(self: Counter, *args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predicted(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Counter, "predict", pressed)
    code, _, said = predict(run_papm, world, "--save-as", "geojson")
    assert code == 1 and "Stopped after 1 of 2 images" in said
    found = json.loads((world / "out" / "points.geojson").read_text())["features"]
    assert {f["properties"]["image"] for f in found} == {"a.png"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--save-as", "xls"), "unknown format of results 'xls'; did you mean 'xlsx'?"),
        (("--save-as", "geojson", "--no-points"), "--save-as geojson writes points; drop --no-points"),
        (("--georeference",), "--georeference is for map coordinates; add --save-as geojson"),
        (("--homography", "h.csv", "--georeference"), "say the same in two ways"),
        (("--homography", "none.csv", "--save-as", "geojson"), "none.csv: cannot be read"),
    ],
)
def test_what_does_not_go_together(world: Path, run_papm: Run, words: tuple[str, ...], why: str) -> None:
    code, _, said = predict(run_papm, world, *words)
    assert code == 2 and why in said and said.count("\n") == 1 and not (world / "out").exists()
