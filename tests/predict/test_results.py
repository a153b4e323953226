from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.errors import DataError, WriteError
from papm.files import unguarded
from papm.predict.prediction import Prediction
from papm.predict.results import (
    file_names,
    write_counts,
    write_densities,
    write_json,
    write_points,
    write_results,
)

ODD_NAMES = ['a, "b".jpg', "héß 群衆.png", "two\nlines.jpg", "sub/dir/IMG_1.jpg", " spaces ", "=1+1"]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{**row, "image": unguarded(row["image"])} for row in rows]


def prediction(name: str = "x.jpg", n: int = 2, **options: object) -> Prediction:
    points = torch.arange(2.0 * n).reshape(n, 2) + 0.125
    fields = {
        "count": n + 0.25,
        "size": (48, 64),
        "points": points,
        "scores": torch.linspace(0.9, 0.5, n),
        "name": name,
    }
    return Prediction(**{**fields, **options})  # type: ignore[arg-type]


def test_round_trip_of_all_files(tmp_path: Path) -> None:
    predictions = [prediction(name, n) for n, name in enumerate(ODD_NAMES)]
    files = write_results(predictions, tmp_path / "new" / "folder")
    assert [f.name for f in files] == ["counts.csv", "points.csv", "results.json"]

    rows = read_csv(files[0])
    assert [r["image"] for r in rows] == ODD_NAMES
    assert [float(r["count"]) for r in rows] == [p.count for p in predictions]
    assert set(rows[0]) == {"image", "count"}

    lines = read_csv(files[1])
    assert len(lines) == sum(range(len(ODD_NAMES)))
    for p in predictions:
        mine = [r for r in lines if r["image"] == p.name]
        assert p.points is not None and p.scores is not None
        got = torch.tensor([[float(r["x"]), float(r["y"])] for r in mine]).reshape(-1, 2)
        assert torch.allclose(got, p.points, atol=0.006)
        assert [float(r["score"]) for r in mine] == pytest.approx(p.scores.tolist(), abs=1e-4)
        assert all(r["label"] == "" for r in mine)

    objects = json.loads(files[2].read_text(encoding="utf-8"))
    assert [o["image"] for o in objects] == ODD_NAMES
    assert [len(o["points"]) for o in objects] == list(range(len(ODD_NAMES)))
    assert (objects[2]["width"], objects[2]["height"], objects[2]["count"]) == (64, 48, 2.25)
    assert objects[2]["points"][0] == {"x": 0.12, "y": 1.12, "score": 0.9}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=20), max_size=5))
def test_any_name_survives(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("names")
    predictions = [prediction(name, 1) for name in names]
    assert [o["image"] for o in json.loads(write_json(predictions, folder / "r.json").read_text("utf-8"))] == names
    assert [r["image"] for r in read_csv(write_counts(predictions, folder / "c.csv"))] == names
    assert [r["image"] for r in read_csv(write_points(predictions, folder / "p.csv"))] == names


def test_a_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")  # what os.listdir gives for a Latin-1 name
    assert json.loads(write_json([prediction(name)], tmp_path / "r.json").read_text("utf-8"))[0]["image"] == name
    assert read_csv(write_counts([prediction(name)], tmp_path / "c.csv"))[0]["image"] == name
    assert b"caf\xe9.jpg" in (tmp_path / "c.csv").read_bytes()


def test_counts_that_are_not_finite_are_null(tmp_path: Path) -> None:
    made = prediction(count=math.nan, by_class=(1.0, math.nan), models=("a", "b"), by_model=(2.0, math.inf))
    (found,) = json.loads(write_json([made], tmp_path / "r.json").read_text("utf-8"))
    assert (found["count"], found["classes"]) == (None, {"0": 1.0, "1": None})
    assert found["models"] == {"a": 2.0, "b": None}


def test_classes_have_their_columns(tmp_path: Path) -> None:
    density = torch.zeros(3, 2, 2)
    density[0] += 1
    density[2, 0, 0] = 0.5
    p = prediction(count=4.5, density=density, stride=8, labels=torch.tensor([0, 2]))
    rows = read_csv(
        write_counts([p, prediction("y.jpg", 0, labels=None)], tmp_path / "c.csv", classes=["car", "bus", "ox"])
    )
    assert rows[0] == {"image": "x.jpg", "count": "4.5", "count_car": "4.0", "count_bus": "0.0", "count_ox": "0.5"}
    assert rows[1]["count_ox"] == "0.0"
    assert [r["label"] for r in read_csv(write_points([p], tmp_path / "p.csv"))] == ["0", "2"]
    assert json.loads(write_json([p], tmp_path / "r.json").read_text())[0]["classes"] == {"0": 4.0, "1": 0.0, "2": 0.5}
    with pytest.raises(DataError, match="2 class names for 3"):
        write_counts([p], tmp_path / "c.csv", classes=["car", "bus"])


def test_class_counts_from_labels() -> None:
    assert prediction(n=3, labels=torch.tensor([1, 0, 1])).class_counts == [1.0, 2.0]
    assert prediction(n=2, labels=torch.tensor([0, 0])).class_counts == []
    assert prediction().class_counts == []


def test_a_prediction_without_points_or_with_a_broken_count(tmp_path: Path) -> None:
    p = prediction(count=float("nan"), points=None, scores=None)
    (o,) = json.loads(write_json([p], tmp_path / "r.json").read_text())
    assert o == {"image": "x.jpg", "count": None, "width": 64, "height": 48}
    assert read_csv(write_points([p], tmp_path / "p.csv")) == []
    assert read_csv(write_counts([], tmp_path / "c.csv")) == []


def test_density_maps(tmp_path: Path) -> None:
    density = torch.rand(1, 6, 8)
    predictions = [
        prediction("a/b.jpg", density=density),
        prediction("c.jpg"),
        prediction("a_b.jpg", density=density + 1),
    ]
    files = write_densities(predictions, tmp_path)
    assert [f.name for f in files] == ["a_b.npy", "a_b-2.npy"]
    assert np.array_equal(np.load(files[0]), density.numpy())
    assert np.load(files[1]).dtype == np.float32
    assert {f.name for f in write_results(predictions, tmp_path / "all", density=True)} >= {"a_b.npy", "counts.csv"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=6))
def test_file_names_are_safe_and_distinct(names: list[str]) -> None:
    safe = file_names(names)
    assert len({s.casefold() for s in safe}) == len(names)
    for s in safe:
        assert s == Path(s).name and s not in (".", "..")
        assert 0 < len(s.encode()) <= 220


def test_file_names_escape_no_folder() -> None:
    assert file_names(["../../etc/passwd", "C:\\x.png", "A.jpg", "a.jpg"]) == ["etc_passwd", "C_x", "A", "a-2"]


def test_results_are_on_the_disk_before_they_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_counts([], tmp_path / "counts.csv")
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"counts.csv: cannot be written \(No space left on device\)"):
        write_counts([prediction("a.jpg")], path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"file/counts.csv: cannot be written"):
        write_counts([], tmp_path / "file" / "counts.csv")


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert write_counts([], tmp_path / "c.csv").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(
    "name", ["=cmd|' /C calc'!A0.png", "+1+1.png", "-2+3.png", "@SUM(1).png", "\t=1", "\r=1", "'=1"]
)
def test_names_are_no_formulas(tmp_path: Path, name: str) -> None:
    p = prediction(name, by_class=(1.0, 1.25))
    for path in write_results([p], tmp_path, classes=[name, "-5"])[:2]:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows[1][0] == f"'{name}" and rows[1][1][0].isdigit()
        assert not any(cell[:1] in tuple("=+-@\t\r") for cell in rows[0] + rows[1][:1] if cell)
