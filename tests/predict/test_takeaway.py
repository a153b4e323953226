"""What people take away: a workbook, GeoJSON, RoiSet.zip, each read back by another reader than its writer's."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from papm import data
from papm.errors import ConfigError
from papm.predict.ground import Homography
from papm.predict.prediction import Prediction
from papm.predict.takeaway import RESULT_FORMATS, Taken, save
from papm.predict.takeaway.xlsx import workbook

NAMES = ['a, "b" & <c>.jpg', "héß 群衆.png", "two\nlines.jpg", " spaces ", "=1+1", "_x0041_.png", "+cmd|'/C calc'!A0"]


def prediction(name: str = "x.jpg", n: int = 3, **options: object) -> Prediction:
    generator = torch.Generator().manual_seed(n)
    fields = {
        "count": n + 0.25,
        "size": (48, 64),
        "points": torch.rand(n, 2, generator=generator) * torch.tensor([64.0, 48.0]),
        "scores": torch.linspace(0.9, 0.5, n),
        "name": name,
    }
    return Prediction(**{**fields, **options})  # type: ignore[arg-type]


def kinds(n: int = 4) -> Prediction:
    """Of two classes by name."""
    return prediction("k.jpg", n, labels=torch.arange(n) % 2, classes=("car", "bus"))


def cells(content: bytes, sheet: str) -> list[tuple[object, ...]]:
    openpyxl = pytest.importorskip("openpyxl", reason="reading a workbook back needs openpyxl")
    made = openpyxl.load_workbook(io.BytesIO(content))
    return list(made[sheet].iter_rows(values_only=True))


def xlsx(*made: Prediction) -> bytes:
    return RESULT_FORMATS.get("xlsx").content([Taken(p) for p in made])


def features(path: Path) -> list[dict[str, object]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["type"] == "FeatureCollection"
    return list(found["features"])


def test_a_workbook_holds_counts_and_points() -> None:
    made = [prediction(name, n) for n, name in enumerate(NAMES)]
    content = xlsx(*made)
    header, *rows = cells(content, "counts")
    assert header == ("image", "count")
    # openpyxl does not decode what the format writes for a literal _x0041_; Excel and LibreOffice do
    assert [str(r[0]).replace("_x005F_", "_") for r in rows] == NAMES and [r[1] for r in rows] == [
        p.count for p in made
    ]
    header, *rows = cells(content, "points")
    assert header == ("image", "x", "y", "score", "label") and len(rows) == sum(range(len(NAMES)))
    last = [r for r in rows if r[0] == NAMES[-1]]
    assert made[-1].points is not None and made[-1].scores is not None
    np.testing.assert_allclose(np.array([r[1:3] for r in last], float), made[-1].points.numpy(), atol=0.006)
    assert [r[3] for r in last] == pytest.approx(made[-1].scores.tolist(), abs=1e-4) and {r[4] for r in last} == {None}


def test_no_name_is_a_formula() -> None:
    """Every text is text by its type, whatever it begins with; no cell has a formula."""
    with zipfile.ZipFile(io.BytesIO(xlsx(*(prediction(name, 1) for name in NAMES)))) as archive:
        for name in archive.namelist():
            assert not re.search(rb"<f[ >/]", archive.read(name))
    openpyxl = pytest.importorskip("openpyxl")
    sheet = openpyxl.load_workbook(io.BytesIO(xlsx(prediction("=1+1", 1))))["counts"]
    assert sheet["A2"].value == "=1+1" and sheet["A2"].data_type == "s"


def test_classes_and_models_have_their_columns() -> None:
    content = xlsx(kinds(5))
    assert cells(content, "counts") == [("image", "count", "count_car", "count_bus"), ("k.jpg", 5.25, 3, 2)]
    assert [r[-2:] for r in cells(content, "points")] == [
        ("label", "class"),
        *((k % 2, "bus" if k % 2 else "car") for k in range(5)),
    ]
    several = cells(xlsx(prediction(models=("a", "b"), by_model=(3.0, 3.5))), "counts")
    assert several == [("image", "count", "by_a", "by_b"), ("x.jpg", 3.25, 3, 3.5)]


def test_a_number_that_is_none_is_an_empty_cell() -> None:
    assert cells(xlsx(prediction(count=float("nan"))), "counts")[1] == ("x.jpg", None)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=12), min_size=1, max_size=4))
def test_any_text_gives_a_workbook_that_opens(names: list[str]) -> None:
    rows = cells(workbook([("s", ["n"], [[n, 1] for n in names])]), "s")
    assert len(rows) == 1 + len(names) and all(r[1] == 1 for r in rows[1:])
    plain = [(n, r[0]) for n, r in zip(names, rows[1:]) if n.isalnum()]
    assert all(n == read for n, read in plain)


def test_geojson_in_pixels(tmp_path: Path) -> None:
    first, second = prediction('=é, "x".jpg'), kinds()
    save([Taken(first), Taken(second)], tmp_path, ["geojson"])
    found = features(tmp_path / "points.geojson")
    assert first.points is not None and second.points is not None
    places = [f["geometry"]["coordinates"] for f in found]  # type: ignore[index]
    np.testing.assert_allclose(places, torch.cat([first.points, second.points]).numpy(), atol=0.006)
    assert {f["geometry"]["type"] for f in found} == {"Point"}  # type: ignore[index]
    assert found[0]["properties"] == {"image": first.name, "score": 0.9}
    assert found[-1]["properties"] == {"image": "k.jpg", "score": 0.5, "label": 1, "class": "bus"}


def test_geojson_in_map_coordinates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The upper half of the image is sky: a point there has no place, and is not lost."""
    ground = Homography(np.array([[1.0, 0, 0], [0, 0, 100], [0, 1, -24]]))  # horizon at y = 24
    points = torch.tensor([[10.0, 44.0], [10.0, 24.0], [10.0, 4.0]])
    made = prediction(points=points)
    (path,) = made.save(tmp_path / "p.geojson", ground)
    near, at, beyond = features(path)
    assert near["geometry"] == {"type": "Point", "coordinates": [0.5, 5.0]}
    assert at["geometry"] is None and beyond["geometry"] is None
    assert beyond["properties"] == {"image": "x.jpg", "score": 0.5, "x": 10.0, "y": 4.0}
    assert "2 points of 3 have no place on the map" in caplog.text


def test_points_come_back_from_a_roiset(tmp_path: Path) -> None:
    made = kinds(6)
    Image.new("RGB", (64, 48)).save(tmp_path / "k.jpg")
    (path,) = made.save(tmp_path / "k_RoiSet.zip")
    assert path.is_file()
    (found,) = data.open("folder", tmp_path).values()
    (sample,) = found.samples
    assert made.points is not None and made.labels is not None and sample.labels is not None
    torch.testing.assert_close(sample.points, made.points)
    assert sample.labels.tolist() == made.labels.tolist()


def test_a_roiset_is_of_the_pixels_as_they_are_stored(tmp_path: Path) -> None:
    """ImageJ passes over EXIF, papm does not: the reader turns the points back."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (48, 64)).save(tmp_path / "t.jpg", exif=exif)  # upright 64 wide, 48 high
    made = prediction("t.jpg")
    (path,) = save([Taken(made, tmp_path / "t.jpg")], tmp_path, ["roiset"])
    assert path == tmp_path / "roisets" / "t_RoiSet.zip"
    path.rename(tmp_path / "t_RoiSet.zip")
    path.parent.rmdir()
    (found,) = data.open("folder", tmp_path).values()
    assert made.points is not None
    torch.testing.assert_close(found.samples[0].points, made.points)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"saved as \.csv, \.json, \.npy, \.xlsx, \.geojson, \.zip, or to a folder"):
        prediction().save(tmp_path / "x.pdf")
    with pytest.raises(ConfigError, match="has no points to write as geojson"):
        prediction(points=None, scores=None).save(tmp_path / "x.geojson")
    with pytest.raises(ConfigError, match="classes from 0 to 99"):
        prediction(labels=torch.tensor([0, 1, 100])).save(tmp_path / "x.zip")
    assert not list(tmp_path.iterdir())
