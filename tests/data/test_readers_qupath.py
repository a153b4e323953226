"""GeoJSON as QuPath exports it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import papm.data
from papm.errors import ConfigError, DataError
from papm.structures import Sample


def feature(kind: str, coordinates: Any, name: str | None = None, of: str = "annotation") -> dict[str, Any]:
    about: dict[str, Any] = {"objectType": of, "isLocked": False}
    if name is not None:
        about["classification"] = {"name": name, "color": [200, 0, 0]}
    return {"type": "Feature", "id": "1f", "geometry": {"type": kind, "coordinates": coordinates}, "properties": about}


def square(x: float, y: float, side: float) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def put(root: Path, content: Any, name: str = "a.geojson", picture: str = "a.png") -> None:
    root.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (200, 100), (9, 9, 9)).save(root / picture)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(json.dumps(content), encoding="utf-8")


def opened(root: Path, **options: Any) -> Sample:
    data = papm.data.open("folder", root, **options) if options else papm.data.open_spec(str(root))
    (sample,) = data["all"]
    return sample


def names(sample: Sample) -> list[str]:
    return [sample.meta["classes"][i] for i in torch.as_tensor(sample.labels).tolist()]


def test_points_of_two_classes(tmp_path: Path) -> None:
    listed = [feature("MultiPoint", [[1.5, 2], [3, 4]], "Tumor"), feature("Point", [5, 6.25], "Immune cells")]
    put(tmp_path, {"type": "FeatureCollection", "features": listed})
    sample = opened(tmp_path)
    assert sample.points.tolist() == [[1.5, 2], [3, 4], [5, 6.25]]
    assert names(sample) == ["Tumor", "Tumor", "Immune cells"] and sample.boxes is None
    assert papm.data.open_spec(str(tmp_path))["all"].file_format == "qupath"
    assert opened(tmp_path, category="Immune cells").points.tolist() == [[5, 6.25]]
    with pytest.raises(ConfigError, match="unknown category 'Stroma'"):
        opened(tmp_path, category="Stroma")


@pytest.mark.parametrize("name", ["a.geojson", "a.png.geojson", "a.json", "annotations/a.geojson"])
@pytest.mark.parametrize("wrap", ["collection", "list", "alone"])
def test_files_and_forms_of_old_and_new_releases(tmp_path: Path, name: str, wrap: str) -> None:
    one = feature("MultiPoint", [[7, 8]])
    put(
        tmp_path,
        {"collection": {"type": "FeatureCollection", "features": [one]}, "list": [one], "alone": one}[wrap],
        name,
    )
    assert opened(tmp_path).points.tolist() == [[7, 8]] and opened(tmp_path).labels is None


def test_cells_and_classified_areas_count_and_regions_do_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The region in which cells were searched for is no object, with and without cells in it."""
    region, ignored = feature("Polygon", [square(0, 0, 90)]), feature("Polygon", [square(0, 0, 50)], "Region*")
    cells = [
        feature("Polygon", [square(10, 20, 4)], of="cell"),
        feature("Polygon", [square(50, 60, 8)], of="detection"),
    ]
    put(tmp_path / "d", [region, *cells, ignored])
    with caplog.at_level(logging.WARNING):
        sample = opened(tmp_path / "d")
    assert sample.points.tolist() == [[12, 22], [54, 64]]
    assert torch.as_tensor(sample.boxes).tolist() == [[10, 20, 14, 24], [50, 60, 58, 68]]
    assert "2 areas are passed over; an area counts as an object when it has a class" in caplog.text
    put(tmp_path / "e", [region])
    assert opened(tmp_path / "e").count == 0
    parts = [[square(0, 0, 2)], [square(100, 50, 10), square(102, 52, 2)]]
    put(tmp_path / "f", [feature("MultiPolygon", parts, "Head"), feature("Polygon", [square(4, 4, 2)], "Head")])
    assert (
        opened(tmp_path / "f").points.tolist() == [[105, 55], [5, 5]] and names(opened(tmp_path / "f")) == ["Head"] * 2
    )


def test_classes_of_several_parts(tmp_path: Path) -> None:
    one = feature("Point", [1, 2])
    one["properties"]["classification"] = {"names": ["Tumor", "Positive"]}
    put(tmp_path, [one])
    assert names(opened(tmp_path)) == ["Tumor: Positive"]


def test_no_features_are_no_objects(tmp_path: Path) -> None:
    put(tmp_path, {"type": "FeatureCollection", "features": []})
    assert opened(tmp_path).count == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"type": "FeatureCollection"}, "not GeoJSON: the list 'features' is missing"),
        ([feature("LineString", [[1, 2], [3, 4]])], "feature #1: a 'LineString' cannot be read as a point"),
        ([feature("Point", [1, 2]), feature("Point", ["a", 2])], "feature #2: x is 'a', not a number"),
        ([feature("MultiPoint", [[1]])], "feature #1: a place should be [x, y]"),
        ([feature("Polygon", [])], "feature #1: the rings of an area should be lists of [x, y]"),
        ([feature("MultiPolygon", [])], "feature #1: an area has no corners"),
        ([{"type": "Feature", "geometry": None}], "feature #1: has no 'geometry'"),
        ([feature("Point", [1, 2], "Head"), feature("Point", [3, 4])], "has no label, others of its image do"),
    ],
)
def test_faults_name_the_file_and_the_feature(tmp_path: Path, content: Any, words: str) -> None:
    put(tmp_path, content)
    with pytest.raises(DataError, match=r"a\.geojson: ") as e:
        opened(tmp_path)
    assert words in str(e.value)


def test_cells_of_files_without_object_types(tmp_path: Path) -> None:
    cells = [{**feature("Polygon", [square(x, 5, 6)]), "id": "PathCellObject", "properties": {}} for x in (5, 20)]
    put(tmp_path, cells)
    assert opened(tmp_path).points.tolist() == [[8, 8], [23, 8]]
