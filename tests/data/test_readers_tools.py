"""Files as annotation tools write them, literally: recognised, and read to the points that were clicked."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.formats import shapes
from papm.data.readers.faults import AnnotationError
from papm.errors import ConfigError, DataError
from papm.structures import Sample

W, H = 200, 100


def image(path: Path, size: tuple[int, int] = (W, H)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 60, 30)).save(path)
    return path


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def opened(root: Path, **options: Any) -> dict[str, Sample]:
    data = papm.data.open_spec(str(root), **options) if not options else papm.data.open("folder", root, **options)
    return {s.name: s for d in data.values() for s in d}


def boxes(sample: Sample) -> list[list[float]]:
    assert sample.boxes is not None
    found: list[list[float]] = sample.boxes.tolist()
    return found


def classes(sample: Sample) -> list[str]:
    assert sample.labels is not None
    return [sample.meta["classes"][i] for i in sample.labels.tolist()]


def near(points: torch.Tensor, expected: list[list[float]]) -> bool:
    return torch.allclose(points, torch.tensor(expected).reshape(-1, 2).float(), atol=1e-3)


# --- YOLO --------------------------------------------------------------------------------------------------------------


def test_yolo_of_roboflow(tmp_path: Path) -> None:
    """train/images, train/labels, data.yaml; an image without a file is background."""
    for split, name in (("train", "a"), ("train", "b"), ("valid", "c")):
        image(tmp_path / split / "images" / f"{name}.jpg")
    put(tmp_path / "train/labels/a.txt", "1 0.5 0.25 0.1 0.2\n0 0.05 0.9 0.02 0.04")
    put(tmp_path / "valid/labels/c.txt", "")
    put(tmp_path / "data.yaml", "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['car', 'big bus']\n")
    image(tmp_path / "valid/images/d.jpg")  # without a file, and the other file of its split does not tell the format
    data = papm.data.open_spec(str(tmp_path))
    a, b = data["train"]
    assert near(a.points, [[100, 25], [10, 90]]) and classes(a) == ["big bus", "car"]
    assert torch.allclose(torch.tensor(boxes(a)), torch.tensor([[90.0, 15, 110, 35], [8, 88, 12, 92]]), atol=1e-3)
    assert b.count == 0 and [s.count for s in data["val"]] == [0, 0]


def test_yolo_of_ultralytics_with_polygons_confidences_and_pose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        image(tmp_path / f"images/train/{name}.jpg")
    put(tmp_path / "labels/train/a.txt", "0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5\n")
    put(tmp_path / "labels/train/b.txt", "0 0.5 0.5 0.1 0.1 0.87\n")
    with caplog.at_level(logging.WARNING):
        found = opened(tmp_path)
    assert near(found["a"].points, [[40, 30]]) and near(found["b"].points, [[100, 50]]) and found["c"].count == 0
    assert "1 image has no file and is taken" in caplog.text
    put(tmp_path / "data.yaml", "kpt_shape: [2, 3]\nnames:\n  0: person\n")
    put(tmp_path / "labels/train/a.txt", "0 0.5 0.5 0.2 0.2 0.9 0.9 2 0.8 0.8 2\n")
    assert near(opened(tmp_path)["a"].points, [[100, 50]])


def test_yolo_of_cvat_and_labelimg(tmp_path: Path) -> None:
    """obj_train_data with obj.names; or everything in one folder with classes.txt."""
    image(tmp_path / "d/obj_train_data/a.jpg")
    put(tmp_path / "d/obj_train_data/a.txt", "0 0.500000 0.500000 0.100000 0.100000\n")
    put(tmp_path / "d/obj.names", "head\n")
    put(tmp_path / "d/train.txt", "data/obj_train_data/a.jpg\n")
    assert classes(opened(tmp_path / "d")["a"]) == ["head"]
    image(tmp_path / "l/a.jpg")
    put(tmp_path / "l/a.txt", "1 0.5 0.5 0.1 0.1\r\n")
    put(tmp_path / "l/classes.txt", "dog\nperson\n")
    assert classes(opened(tmp_path / "l")["a"]) == ["person"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 0.5 0.5 0.1 0.1", "the class is 2, and only 2 are named"),
        ("-1 0.5 0.5 0.1 0.1", "not a whole number from 0"),
        ("car 0.5 0.5 0.1 0.1", "the class is .car., not a whole number"),
        ("0 0.5 0.5 0.1", "found 4 numbers"),
        ("0 50 20 10 10", "not fractions"),
        ("0 0.5 nan 0.1 0.1", "not a finite number"),
        ("0 0.5 0.5 -0.1 0.1", "negative size"),
        ("0 0.5 0.5 0.1 0.1 0.2 0.2 0.3", "found 8 numbers"),
    ],
)
def test_yolo_faults_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "classes.txt", "x\ny\n")
    put(tmp_path / "a.txt", f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(DataError, match=rf"a\.txt:2: .*({words})"):
        opened(tmp_path, format="yolo")


# --- Pascal VOC --------------------------------------------------------------------------------------------------------

VOC = """<annotation verified="yes">
	<folder>images</folder>
	<filename>another name.jpg</filename>
	<path>C:\\Users\\me\\images\\a.jpg</path>
	<source><database>Unknown</database></source>
	<size><width>200</width><height>100</height><depth>3</depth></size>
	<segmented>0</segmented>
	<object>
		<name>sheep</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult>
		<bndbox><xmin>10</xmin><ymin>20</ymin><xmax>30</xmax><ymax>60</ymax></bndbox>
	</object>
	<object>
		<name>dog &amp; cat</name>
		<bndbox><xmin>100.5</xmin><ymin>1</ymin><xmax>101.5</xmax><ymax>2</ymax></bndbox>
		<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
	</object>
</annotation>
"""


def test_voc_of_labelimg(tmp_path: Path) -> None:
    image(tmp_path / "JPEGImages/a.jpg")
    image(tmp_path / "JPEGImages/b.jpg")
    put(tmp_path / "Annotations/a.xml", VOC)
    put(tmp_path / "Annotations/b.xml", "<annotation><size><width>0</width><height>0</height></size></annotation>")
    found = opened(tmp_path)
    assert near(found["a"].points, [[20, 40], [101, 1.5]]) and boxes(found["a"])[0] == [10, 20, 30, 60]
    assert classes(found["a"]) == ["sheep", "dog & cat"] and found["b"].count == 0
    assert near(opened(tmp_path, origin=-0.5)["a"].points, [[19.5, 39.5], [100.5, 1]])  # counted from 1
    assert near(opened(tmp_path, category="sheep")["a"].points, [[20, 40]])
    assert not [f for f in check("folder", tmp_path) if f.severity == "error"]


def test_voc_faults(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    image(tmp_path / "b.jpg")
    put(tmp_path / "a.xml", VOC.replace("<xmin>10</xmin>", "<xmin>ten</xmin>"))
    with pytest.raises(AnnotationError, match=r"a\.xml:8: xmin is 'ten', not a number"):
        opened(tmp_path)
    findings = [str(f) for f in check("folder", tmp_path)]
    assert any("b.jpg: no annotation file; expected" in f and "b.xml" in f for f in findings) and len(findings) >= 2


# --- CVAT --------------------------------------------------------------------------------------------------------------

CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>7</id><name>cells</name><labels><label><name>cell</name></label></labels></task></meta>
  <image id="0" name="day 1/a.jpg" width="200" height="100">
    <points label="cell" source="manual" occluded="0" points="10.50,20.25;30.00,40.00" z_order="0"></points>
    <box label="car" source="manual" occluded="0" xtl="50.00" ytl="10.00" xbr="60.00" ybr="30.00" z_order="0">
      <attribute name="color">red</attribute>
    </box>
    <box label="car" xtl="100" ytl="40" xbr="120" ybr="50" rotation="90.00"></box>
    <polygon label="cell" points="0,0;30,0;0,30" z_order="0"></polygon>
    <ellipse label="cell" cx="150" cy="50" rx="5" ry="2" rotation="0"></ellipse>
    <mask label="cell" rle="3, 4" left="20" top="30" width="4" height="6"></mask>
    <tag label="blurred" source="manual"></tag>
  </image>
  <image id="1" name="b.jpg" width="200" height="100"></image>
</annotations>
"""


def test_cvat_for_images(tmp_path: Path) -> None:
    image(tmp_path / "images/day 1/a.jpg")
    image(tmp_path / "images/b.jpg")
    put(tmp_path / "annotations.xml", CVAT)
    found = opened(tmp_path)
    a = found["a"]
    assert near(a.points, [[10.5, 20.25], [30, 40], [55, 20], [110, 45], [10, 10], [150, 50], [22, 33]])
    assert classes(a) == ["cell", "cell", "car", "car", "cell", "cell", "cell"]
    assert a.boxes is None and found["b"].count == 0  # points have no size
    cars = opened(tmp_path, category="car")["a"]
    assert torch.allclose(torch.tensor(boxes(cars)), torch.tensor([[50.0, 10, 60, 30], [105, 35, 115, 55]]), atol=1e-3)


def test_cvat_faults_name_the_line(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    for tag, words in (
        ('<polyline label="x" points="1,2;3,4"/>', "a <polyline> cannot be read as a point"),
        ('<points label="x" points="1,2;3"/>', "points should be written"),
        ('<points label="x" points="1,inf"/>', "y is 'inf', not a finite number"),
        ('<box label="x" xtl="1"/>', "ytl is '', not a number"),
    ):
        put(tmp_path / "c.xml", f'<annotations>\n<image id="0" name="a.jpg">\n{tag}</image></annotations>')
        with pytest.raises(DataError, match=r"c\.xml:3: ") as e:
            opened(tmp_path)
        assert words in str(e.value)
    put(tmp_path / "c.xml", '<annotations><track id="0" label="x"><box frame="0"/></track></annotations>')
    with pytest.raises(DataError, match="CVAT for images"):
        opened(tmp_path)
    put(tmp_path / "c.xml", '<annotations>\n<image name="a.jpg"/>\n<image name="a.jpg"/></annotations>')
    with pytest.raises(DataError, match=r"c\.xml:3: the image 'a\.jpg' is given a second time"):
        opened(tmp_path)


# --- Label Studio ------------------------------------------------------------------------------------------------------


def task(address: str, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    shared = {"original_width": W, "original_height": H, "image_rotation": 0, "from_name": "kp", "to_name": "img"}
    annotation = {"id": 11, "completed_by": 1, "was_cancelled": False, "ground_truth": False}
    annotation |= {"result": [shared | {"id": f"r{k}"} | r for k, r in enumerate(results)]}
    return {"id": 3, "annotations": [annotation], "data": {"image": address}, "predictions": []} | more


def test_label_studio(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "1a2b3c4d-d", "e f"):
        image(tmp_path / f"{name}.jpg")
    drawn = (
        {"type": "keypointlabels", "value": {"x": 25.0, "y": 50.0, "width": 0.3, "keypointlabels": ["head"]}},
        {"type": "rectanglelabels", "value": {"x": 10, "y": 10, "width": 5, "height": 20, "rectanglelabels": ["car"]}},
        {"type": "ellipselabels", "value": {"x": 50, "y": 50, "radiusX": 5, "radiusY": 5, "ellipselabels": ["car"]}},
        {"type": "polygonlabels", "value": {"points": [[0, 0], [10, 0], [10, 20], [0, 20]], "polygonlabels": ["car"]}},
        {"type": "choices", "value": {"choices": ["good"]}},
        {"type": "rectanglelabels", "value": {"x": 50, "y": 50, "width": 10, "height": 20, "rotation": 90,
                                              "rectanglelabels": ["car"]}},
    )  # fmt: skip
    cancelled = task("/data/upload/1/b.jpg")
    cancelled["annotations"][0]["was_cancelled"] = True
    tasks = [
        task("/data/upload/1/0badcafe-a.jpg", *drawn),
        cancelled,
        task("https://host/x/c.jpg?token=1"),
        task("s3://bucket/1a2b3c4d-d.jpg", drawn[0]),
        task("/data/local-files/?d=e%20f.jpg", drawn[0]),
    ]
    put(tmp_path / "project-1.json", json.dumps(tasks))
    found = opened(tmp_path)
    assert set(found) == {"a", "c", "1a2b3c4d-d", "e f"}  # b was skipped
    # The last one, 20 × 20 px at (100, 50), is turned about that corner to the left of it.
    assert near(found["a"].points, [[50, 50], [25, 20], [100, 50], [10, 10], [90, 60]])
    assert classes(found["a"]) == ["head", "car", "car", "car", "car"] and found["c"].count == 0
    expected = torch.tensor([[20.0, 10, 30, 30], [90, 45, 110, 55], [0, 0, 20, 20], [80, 50, 100, 70]])
    assert torch.allclose(torch.tensor(boxes(opened(tmp_path, category="car")["a"])), expected, atol=1e-3)


def test_a_turned_ellipse_of_label_studio(tmp_path: Path) -> None:
    """Radii are shares of the width and of the height, and it is turned in pixels, about its centre."""
    image(tmp_path / "a.jpg")
    value = {"x": 50, "y": 50, "radiusX": 10, "radiusY": 5, "rotation": 90, "ellipselabels": ["car"]}  # 20 × 5 px
    put(tmp_path / "p.json", json.dumps([task("/a.jpg", {"type": "ellipselabels", "value": value})]))
    found = opened(tmp_path)["a"]
    assert near(found.points, [[100, 50]])
    assert torch.allclose(torch.tensor(boxes(found)), torch.tensor([[95.0, 30, 105, 70]]), atol=1e-3)


def test_label_studio_changes_the_names_of_uploads(tmp_path: Path) -> None:
    """Blanks become underscores, brackets and the like go; accents may be letters of their own on the disk."""
    names = ("Plot 3 (left).jpg", "A\u0308hren 1.jpg", "plain.jpg")
    uploads = ("0badcafe-Plot_3_left.jpg", "1badcafe-%C3%84hren_1.jpg", "2badcafe-plain.jpg")
    for name in names:
        image(tmp_path / "images" / name)
    point = {"type": "keypointlabels", "value": {"x": 25, "y": 50, "keypointlabels": ["head"]}}
    put(tmp_path / "p.json", json.dumps([task(f"/data/upload/1/{u}", point) for u in uploads]))
    found = opened(tmp_path)
    assert sorted(found) == sorted(Path(n).stem for n in names) and all(s.count == 1 for s in found.values())
    image(tmp_path / "images" / "Plot 3 left.jpg")  # which would have the same name after an upload
    with pytest.raises(DataError, match=r"'0badcafe-Plot_3_left\.jpg' could be any of 2 files"):
        opened(tmp_path)


def test_label_studio_with_labels_apart_and_several_annotators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image(tmp_path / "a.jpg")
    value = {"x": 10, "y": 10, "width": 10, "height": 10}
    first = task(
        "/a.jpg",
        {"id": "q", "type": "rectangle", "value": value},
        {"id": "q", "type": "labels", "value": value | {"labels": ["Bird"]}},
    )
    put(tmp_path / "p.json", json.dumps([first]))
    assert classes(opened(tmp_path)["a"]) == ["Bird"] and near(opened(tmp_path)["a"].points, [[30, 15]])
    other = {"result": [], "ground_truth": False, "was_cancelled": False}
    first["annotations"].append(other)
    put(tmp_path / "p.json", json.dumps([first]))
    with caplog.at_level(logging.WARNING):
        assert opened(tmp_path)["a"].count == 0
    assert "1 tasks have several annotations" in caplog.text
    first["annotations"][0]["ground_truth"] = True
    put(tmp_path / "p.json", json.dumps([first]))
    assert opened(tmp_path)["a"].count == 1


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"type": "keypointlabels", "value": {"x": "1", "y": None}}, "y is 'None', not a number"),
        ({"type": "keypointlabels"}, "has no 'value'"),
        ({"type": "brushlabels", "value": {"rle": [1]}}, "'brush' cannot be read as a point"),
        ({"type": "polygonlabels", "value": {"points": [[1]]}}, "list of [x, y]"),
        ({"value": {}}, "has no 'type'"),
    ],
)
def test_label_studio_faults_name_the_task(tmp_path: Path, result: dict[str, Any], words: str) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "p.json", json.dumps([task("/data/a.jpg", result)]))
    with pytest.raises(DataError, match=r"p\.json: task 3: result #1") as e:
        opened(tmp_path)
    assert words in str(e.value)


def test_label_studio_small_export_says_which_to_take(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "p.json", '[{"image": "/data/a.jpg", "id": 1, "kp": [{"x": 1, "y": 1, "keypointlabels": ["a"]}]}]')
    with pytest.raises(DataError, match="export as 'JSON', not 'JSON-MIN'"):
        opened(tmp_path)


# --- LabelMe -----------------------------------------------------------------------------------------------------------


def test_labelme(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    image(tmp_path / "b.jpg")
    kinds: list[tuple[str, str, list[list[float]]]] = [
        ("head", "point", [[10.5, 20.5]]),
        ("car", "rectangle", [[60, 40], [40, 10]]),
        ("car", "circle", [[100, 50], [103, 54]]),
        ("car", "polygon", [[0, 0], [30, 0], [0, 30]]),
    ]
    listed = [{"label": k, "points": p, "group_id": None, "shape_type": t, "flags": {}} for k, t, p in kinds]
    content = {"version": "5.4.1", "flags": {}, "shapes": listed, "imagePath": "..\\raw\\a.jpg", "imageData": "aGk="}
    put(tmp_path / "a.json", json.dumps(content | {"imageHeight": H, "imageWidth": W}, indent=2))
    put(tmp_path / "b.json", json.dumps(content | {"shapes": [], "imageHeight": H, "imageWidth": 7}))
    found = opened(tmp_path)
    assert near(found["a"].points, [[10.5, 20.5], [50, 25], [100, 50], [10, 10]])
    assert classes(found["a"]) == ["head", "car", "car", "car"] and found["b"].count == 0
    assert boxes(opened(tmp_path, category="car")["a"]) == [[40, 10, 60, 40], [95, 45, 105, 55], [0, 0, 30, 30]]
    assert any("annotations say 7×100" in str(f) for f in check("folder", tmp_path))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"label": "a", "points": [[1, 2], [3, 4]], "shape_type": "line"}, "'line' cannot be read as a point"),
        ({"label": "a", "points": [[1, 2]], "shape_type": "circle"}, "a circle has 2 points, not 1"),
        ({"label": "a", "points": [[1, "b"]], "shape_type": "point"}, "y is 'b', not a number"),
        ({"label": "a", "shape_type": "point"}, "list of [x, y]"),
        (5, "is not an object"),
    ],
)
def test_labelme_faults_name_the_shape(tmp_path: Path, shape: Any, words: str) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "a.json", json.dumps({"shapes": [shape], "imagePath": "a.jpg"}))
    with pytest.raises(DataError, match=r"a\.json: shape #1: ") as e:
        opened(tmp_path)
    assert words in str(e.value)


# --- VIA ---------------------------------------------------------------------------------------------------------------

REGIONS: list[dict[str, Any]] = [
    {"shape_attributes": {"name": "point", "cx": 10, "cy": 20}, "region_attributes": {"class": "head"}},
    {
        "shape_attributes": {"name": "rect", "x": 50, "y": 10, "width": 20, "height": 30},
        "region_attributes": {"class": "car"},
    },
    {"shape_attributes": {"name": "circle", "cx": 100, "cy": 50, "r": 5.5}, "region_attributes": {"class": "car"}},
    {
        "shape_attributes": {"name": "ellipse", "cx": 100, "cy": 50, "rx": 8, "ry": 2, "theta": 1.5707963267948966},
        "region_attributes": {"class": "car"},
    },
    {
        "shape_attributes": {"name": "polygon", "all_points_x": [0, 30, 0], "all_points_y": [0, 0, 30]},
        "region_attributes": {"class": "car"},
    },
]


def via_json(as_project: bool, as_object: bool) -> str:
    regions: Any = {str(k): r for k, r in enumerate(REGIONS)} if as_object else REGIONS
    files = {
        "a.jpg1024": {"filename": "a.jpg", "size": 1024, "regions": regions, "file_attributes": {}},
        "b.jpg77": {"filename": "b.jpg", "size": 77, "regions": {} if as_object else [], "file_attributes": {}},
    }
    return json.dumps({"_via_settings": {}, "_via_img_metadata": files, "_via_attributes": {}} if as_project else files)


def via_csv() -> str:
    def cell(value: Any) -> str:
        return '"' + json.dumps(value).replace('"', '""') + '"'

    head = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes"
    rows = [
        f"a.jpg,1024,{cell({})},5,{k},{cell(r['shape_attributes'])},{cell(r['region_attributes'])}"
        for k, r in enumerate(REGIONS)
    ]
    return "\n".join([head, *rows, f"b.jpg,77,{cell({})},0,0,{cell({})},{cell({})}"]) + "\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("via_project_5Jan2024.json", lambda: via_json(True, False)),
        ("via_region_data.json", lambda: via_json(False, False)),
        ("via_region_data.json", lambda: via_json(False, True)),
        ("via_export_csv.csv", via_csv),
    ],
)
def test_via(tmp_path: Path, name: str, content: Callable[[], str]) -> None:
    image(tmp_path / "images/a.jpg")
    image(tmp_path / "images/b.jpg")
    put(tmp_path / name, content())
    found = opened(tmp_path)
    assert near(found["a"].points, [[10, 20], [60, 25], [100, 50], [100, 50], [10, 10]])
    assert classes(found["a"]) == ["head", "car", "car", "car", "car"] and found["b"].count == 0
    expected = torch.tensor([[50.0, 10, 70, 40], [94.5, 44.5, 105.5, 55.5], [98, 42, 102, 58], [0, 0, 30, 30]])
    assert torch.allclose(torch.tensor(boxes(opened(tmp_path, category="car")["a"])), expected, atol=1e-3)


def test_via_faults(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    for shape, words in (
        ({"name": "polyline", "all_points_x": [1], "all_points_y": [1]}, "'polyline' cannot be read as a point"),
        ({"name": "point", "cx": 1}, "cy is 'None', not a number"),
        ({"name": "circle", "cx": 1, "cy": 1, "r": -1}, "a radius is negative"),
        ({"name": "polygon", "all_points_x": [1], "all_points_y": []}, "lists of the same length"),
    ):
        about = {"filename": "a.jpg", "regions": [{"shape_attributes": shape, "region_attributes": {}}]}
        put(tmp_path / "v.json", json.dumps({"a.jpg1": about}))
        with pytest.raises(DataError, match=r"v\.json: region #1 of 'a\.jpg': ") as e:
            opened(tmp_path)
        assert words in str(e.value)


# --- DotDotGoose -------------------------------------------------------------------------------------------------------


def test_dotdotgoose(tmp_path: Path) -> None:
    for name in "abc":
        image(tmp_path / f"{name}.JPG")
    content = {
        "classes": ["goose", "duck"],
        "points": {"a.JPG": {"duck": [{"x": 12.5, "y": 30.25}], "goose": [{"x": 1, "y": 2}]}, "b.JPG": {}},
        "colors": {"goose": [255, 0, 0], "duck": [0, 255, 0]},
        "metadata": {"survey_id": "2024", "coordinates": {"a.JPG": {"x": "", "y": ""}}},
        "custom_fields": {"fields": [], "data": {}},
        "ui": {"grid": {"size": 200, "color": [255, 255, 255]}, "point": {"radius": 25, "color": [255, 255, 0]}},
    }
    put(tmp_path / "survey.pnt", json.dumps(content))
    found = opened(tmp_path)
    assert set(found) == {"a", "b"} and found["b"].count == 0  # c was never opened
    assert near(found["a"].points, [[12.5, 30.25], [1, 2]]) and classes(found["a"]) == ["duck", "goose"]
    assert found["a"].meta["classes"] == ("goose", "duck")
    put(tmp_path / "survey.pnt", json.dumps({"classes": ["a"], "points": {"a.JPG": {"a": [{"x": 1}]}}}))
    with pytest.raises(DataError, match=r"survey\.pnt: point #1 of 'a' of 'a\.JPG': y is 'None'"):
        opened(tmp_path)


# --- dot maps ----------------------------------------------------------------------------------------------------------


def dots(path: Path, *lit: tuple[int, int], size: tuple[int, int] = (W, H), color: Any = (255, 0, 0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Image.new("RGB", size)
    for xy in lit:
        made.putpixel(xy, color)
    made.save(path)
    return path


@pytest.mark.parametrize("place", ["a_dots.png", "adots.png", "a-dots.png", "dots/a.png"])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_dot_maps(tmp_path: Path, place: str, suffix: str) -> None:
    image(tmp_path / f"a{suffix}")
    dots(tmp_path / place, (3, 4), (199, 99), (50, 60))
    found = opened(tmp_path)
    assert list(found) == ["a"] and near(found["a"].points, [[3.5, 4.5], [50.5, 60.5], [199.5, 99.5]])
    assert not [f for f in check("folder", tmp_path) if f.severity == "error"]


@pytest.mark.parametrize(
    ("picture", "map"),
    [("001cell.png", "001dots.png"), ("X_000.png", "X_dots_000.png"), ("X_img_000.tif", "X_dots_000.png")],
)
@pytest.mark.parametrize("color", [(255, 0, 0), (255, 255, 255)])
def test_dot_maps_as_published(tmp_path: Path, picture: str, map: str, color: tuple[int, int, int]) -> None:
    image(tmp_path / picture)
    dots(tmp_path / map, (3, 4), (199, 99), color=color)
    found = opened(tmp_path)
    assert list(found) == [Path(picture).stem]
    assert near(found[Path(picture).stem].points, [[3.5, 4.5], [199.5, 99.5]])
    assert not [f for f in check("folder", tmp_path) if "not part" in f.message or f.severity == "error"]


@pytest.mark.parametrize(
    ("pictures", "map"), [(("1cell.png", "1.jpg"), "1dots.png"), (("X_0.png", "X_img_0.png"), "X_dots_0.png")]
)
def test_a_dot_map_that_may_be_of_two_images_is_refused(tmp_path: Path, pictures: list[str], map: str) -> None:
    for name in pictures:
        image(tmp_path / name)
    dots(tmp_path / map, (3, 4))
    with pytest.raises(DataError, match=f"{map}: by its name it may be of .* and of .*; rename it after its image"):
        opened(tmp_path, format="dotmap")
    with pytest.raises(DataError, match="by its name it may be of"):
        opened(tmp_path)


def test_dots_painted_with_a_brush_are_one_point_each(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    brush = [(x, y) for x in range(10, 13) for y in range(20, 23)]
    dots(tmp_path / "a_dots.png", *brush, (50, 60), (51, 61), color=(0, 0, 9))
    assert near(opened(tmp_path)["a"].points, [[11.5, 21.5], [51, 61]])
    assert opened(tmp_path, dots="pixels")["a"].count == 11
    dots(tmp_path / "a_dots.png", (1, 1), (2, 2), (40, 40), (60, 60))  # mostly single: neighbours are two
    assert opened(tmp_path)["a"].count == 4 and opened(tmp_path, dots="groups")["a"].count == 3
    with pytest.raises(ConfigError, match="known: auto, groups, pixels"):
        opened(tmp_path, dots="blobs")


def test_dot_maps_beside_text_need_a_name(tmp_path: Path) -> None:
    """As TRANCOS has them; the maps are no images of their own either way."""
    image(tmp_path / "a.jpg")
    dots(tmp_path / "adots.png", (3, 4))
    put(tmp_path / "a.txt", "4 5\n9 9\n")
    with pytest.raises(DataError, match="format=dotmap or format=txt"):
        opened(tmp_path)
    assert opened(tmp_path, format="dotmap")["a"].count == 1
    assert {n: s.count for n, s in opened(tmp_path, format="txt").items()} == {"a": 2}


def test_dot_map_faults(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    dots(tmp_path / "a_dots.png", (3, 4), size=(W // 2, H))
    with pytest.raises(DataError, match=r"a_dots\.png: the dot map is 100×100, its image 200×100"):
        opened(tmp_path)
    Image.new("RGB", (W, H), (255, 255, 255)).save(tmp_path / "a_dots.png")
    with pytest.raises(DataError, match=r"a_dots\.png: more than half"):
        opened(tmp_path, format="dotmap")


# --- COCO's and VOC's own layouts ---------------------------------------------------------------------------------------


def coco_file(path: Path, name: str, *boxes: list[float]) -> None:
    content = {
        "images": [{"id": 1, "file_name": name, "width": W, "height": H}],
        "annotations": [{"id": i, "image_id": 1, "category_id": 1, "bbox": b} for i, b in enumerate(boxes)],
        "categories": [{"id": 1, "name": "car"}],
    }
    put(path, json.dumps(content))


@pytest.mark.parametrize("where", ["", "images/"])
def test_coco_as_published(tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    for split, x in (("train", 10), ("val", 30)):
        image(tmp_path / f"{where}{split}2017/000000000{x}.jpg")
        coco_file(tmp_path / f"annotations/instances_{split}2017.json", f"000000000{x}.jpg", [x, 20, 4, 6])
        put(tmp_path / f"annotations/captions_{split}2017.json", '{"images": [], "annotations": [{"caption": "a"}]}')
    found = papm.data.open_spec(str(tmp_path))
    assert {s: d[0].points.tolist() for s, d in found.items()} == {"train": [[12, 23]], "val": [[32, 23]]}
    assert not [f for f in check("folder", tmp_path) if f.severity == "error"]
    for split, x in (("train", 10), ("val", 30)):  # as in the archive of 2017
        coco_file(tmp_path / f"annotations/person_keypoints_{split}2017.json", f"000000000{x}.jpg", [1, 2, 2, 2])
    several = r"several annotation files \(instances_train2017\.json, person_keypoints_train2017\.json\)"
    with pytest.raises(
        DataError,
        match=rf"{several}; say which with annotations=instances_\* \(papm train: data\.annotations=instances_\*\)$",
    ):
        papm.data.open("folder", tmp_path)
    chosen = papm.data.open("folder", tmp_path, annotations="person*")
    assert {s: d[0].points.tolist() for s, d in chosen.items()} == {"train": [[2, 3]], "val": [[2, 3]]}
    image(tmp_path / f"{where}test2017/1.jpg")
    with caplog.at_level(logging.WARNING):
        chosen = papm.data.open("folder", tmp_path, annotations="instances_*")
    assert list(chosen) == ["train", "val"] and "test2017: no annotation file 'instances_*'" in caplog.text
    with pytest.raises(DataError, match=r"no annotation file 'thing\*' for any of its images"):
        papm.data.open("folder", tmp_path, annotations="thing*")


def voc(root: Path, *names: str) -> None:
    box = "<bndbox><xmin>10</xmin><ymin>20</ymin><xmax>14</xmax><ymax>26</ymax></bndbox>"
    for name in names:
        image(root / f"JPEGImages/{name}.jpg")
        put(root / f"Annotations/{name}.xml", f"<annotation><object><name>car</name>{box}</object></annotation>")


def test_voc_as_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    voc(tmp_path, "000001", "000002", "000003", "000004")
    sets = tmp_path / "ImageSets/Main"
    for split, text in (("train", "000003\n000001\n"), ("val", "000002\n"), ("trainval", "000001\n000002\n000003\n")):
        put(sets / f"{split}.txt", text)
    put(sets / "car_train.txt", "000003  1\n000001 -1\n")
    with caplog.at_level(logging.WARNING):
        found = papm.data.open_spec(str(tmp_path))
    assert {s: [x.name for x in d] for s, d in found.items()} == {"train": ["000003", "000001"], "val": ["000002"]}
    assert found["val"][0].points.tolist() == [[12, 23]] and "lists do not name 1 image, left out" in caplog.text
    put(sets / "test.txt", "000004\n000009\n")
    with pytest.raises(DataError, match=r"test\.txt:2: names the image '000009', which is not among the images"):
        papm.data.open("folder", tmp_path)


def test_what_is_passed_over_is_counted_once_for_all_lists(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    voc(tmp_path, "000001", "000002", "000003")
    (tmp_path / "JPEGImages/000004.HEIC").touch()
    for split, name in (("train", "000001"), ("val", "000002"), ("test", "000003")):
        put(tmp_path / f"ImageSets/Main/{split}.txt", f"{name}\n")
    assert len(papm.data.open("folder", tmp_path)) == 3
    said = "1 file was passed over, as its format is not read: .heic (1); save it as JPEG or PNG"
    assert caplog.messages == [f"{tmp_path}: {said}"]


def test_voc_with_one_list_for_training_and_validation(tmp_path: Path) -> None:
    voc(tmp_path, "1", "2")
    put(tmp_path / "ImageSets/Main/trainval.txt", "2\n")
    put(tmp_path / "ImageSets/Main/test.txt", "1\n")
    found = papm.data.open_spec(str(tmp_path))
    assert {s: [x.name for x in d] for s, d in found.items()} == {"train": ["2"], "test": ["1"]}


# --- napari ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["index,axis-0,axis-1\n0,", "axis-0,axis-1\n", '"index","axis-0","axis-1"\n"0",'])
def test_points_of_napari(tmp_path: Path, head: str) -> None:
    """Row, then column; the centre of the first pixel is at 0."""
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", f"{head}40.25,12.5\n")
    assert near(opened(tmp_path)["a"].points, [[13, 40.75]])
    put(tmp_path / "a.csv", "index,axis-0,axis-1\n")
    assert opened(tmp_path)["a"].count == 0


def test_points_of_napari_in_a_stack_are_refused(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", "index,axis-0,axis-1,axis-2\n0,1,2,3\n")
    with pytest.raises(DataError, match=r"a\.csv: points of a stack \(axis-2\); save"):
        opened(tmp_path)
    put(tmp_path / "a.csv", "index,axis-0,axis-1\n0,1\n1,two,3\n")
    with pytest.raises(DataError, match=r"a\.csv:2: expected axis-0 and axis-1, found 2 fields \(and 1 more"):
        opened(tmp_path)


# --- files of published datasets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["images/crowd 1.json", "jsons/crowd 1.json", "annotations/crowd 1.json"])
def test_nwpu_json(tmp_path: Path, place: str) -> None:
    image(tmp_path / "images/crowd 1.jpg")
    content = {
        "img_id": "0001.jpg",
        "human_num": 2,
        "points": [[5, 6], [50, 60]],
        "boxes": [[1, 2, 9, 10], [40, 50, 60, 70]],
    }
    put(tmp_path / place, json.dumps(content))
    sample = opened(tmp_path)["crowd 1"]
    assert near(sample.points, [[5, 6], [50, 60]]) and boxes(sample)[1] == [40, 50, 60, 70]


@pytest.mark.parametrize("place", ["images/GT_IMG_1.mat", "ground_truth/GT_IMG_1.mat"])
def test_shanghaitech_mat(tmp_path: Path, place: str) -> None:
    image(tmp_path / "images/IMG_1.jpg")
    info = np.empty((1, 1), dtype=object)
    info[0, 0] = {"location": np.array([[1.0, 1.0], [100.25, 50.75]]), "number": 2}
    (tmp_path / place).parent.mkdir(exist_ok=True)
    scipy.io.savemat(tmp_path / place, {"image_info": info})
    assert near(opened(tmp_path)["IMG_1"].points, [[0.5, 0.5], [99.75, 50.25]])
    assert near(opened(tmp_path, origin=0)["IMG_1"].points, [[1, 1], [100.25, 50.75]])


REAL = Path(os.environ.get("PAPM_DATA", ""))


@pytest.mark.realdata
@pytest.mark.skipif(not (REAL / "ShanghaiTech/part_A_final").is_dir(), reason="needs PAPM_DATA")
def test_published_files_read_the_same_in_a_folder() -> None:
    part = REAL / "ShanghaiTech/part_A_final"
    own, published = papm.data.open("folder", part / "test_data")["all"], papm.data.open("shanghaitech-a", part)["test"]
    assert len(own) == 182 and all(torch.equal(a.points, b.points) for a, b in zip(own, published, strict=True))


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "TRANCOS").is_dir(), reason="needs PAPM_DATA")
def test_published_dot_maps_read_the_same_in_a_folder() -> None:
    published = papm.data.open("trancos", REAL / "TRANCOS", points="dots")["test"]
    own = {s.name: s.points for s in papm.data.open("folder", REAL / "TRANCOS", format="dotmap")["all"]}
    assert all(torch.equal(own[s.name], s.points) for s in published)


# --- shapes ------------------------------------------------------------------------------------------------------------

length = st.floats(0.5, 100)
place = st.floats(-1e4, 1e4)


@given(place, place, length, length, st.floats(0, 360))
@settings(max_examples=50, deadline=None)
def test_the_centroid_of_a_turned_box_is_its_centre(x: float, y: float, w: float, h: float, turn: float) -> None:
    corners = shapes.rotated(x, y, w, h, turn)
    (cx, cy), _ = shapes.polygon(corners)
    assert cx == pytest.approx((corners[0][0] + corners[2][0]) / 2, abs=1e-6)
    assert cy == pytest.approx((corners[0][1] + corners[2][1]) / 2, abs=1e-6)


@given(place, place, length, length, st.floats(0, 3.2))
@settings(max_examples=50, deadline=None)
def test_the_box_of_an_ellipse_touches_it(x: float, y: float, rx: float, ry: float, angle: float) -> None:
    t = np.linspace(0, 2 * np.pi, 2001)
    c, s = np.cos(angle), np.sin(angle)
    xs, ys = rx * np.cos(t) * c - ry * np.sin(t) * s, rx * np.cos(t) * s + ry * np.sin(t) * c
    _, box = shapes.ellipse(x, y, rx, ry, angle)
    assert box is not None
    assert box == pytest.approx((x + xs.min(), y + ys.min(), x + xs.max(), y + ys.max()), abs=1e-3)


def test_polygons_without_area(tmp_path: Path) -> None:
    assert shapes.polygon([(0, 0), (4, 4), (8, 8)])[0] == (4, 4)  # a line
    assert shapes.polygon([(5, 5)]) == ((5, 5), None)
    bow = shapes.polygon([(0, 0), (10, 10), (10, 0), (0, 10)])[0]  # crosses itself: no area in all
    assert bow == (5, 5)
    assert shapes.polygon([(0, 0), (3, 0), (0, 3)])[0] == pytest.approx((1, 1))


def test_a_centre_at_the_border_is_not_lost_to_rounding(tmp_path: Path) -> None:
    """x + width / 2 of a box in percent comes out at -3e-17 where it should be 0."""
    image(tmp_path / "images/a.jpg")
    value = {"x": -5.3, "y": 10.0, "width": 10.6, "height": 20.0, "rectanglelabels": ["cell"]}
    value["x"] -= 1e-12
    task = {"data": {"image": "a.jpg"}, "annotations": [{"result": [{"type": "rectanglelabels", "value": value}]}]}
    put(tmp_path / "p.json", json.dumps([task]))
    assert opened(tmp_path)["a"].points[0].tolist() == [0.0, 20.0]


def test_an_image_with_another_ending_is_named(tmp_path: Path) -> None:
    image(tmp_path / "images/a.jpg")
    put(tmp_path / "images/points.pnt", json.dumps({"classes": ["x"], "points": {"a.png": {"x": [{"x": 1, "y": 2}]}}}))
    with pytest.raises(DataError, match=r"'a.png' is not in this dataset; 'a.jpg' is, and the names must agree"):
        opened(tmp_path)
