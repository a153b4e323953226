"""JHU-CROWD++: boxes, labels of images, empty files, faults by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check, has_errors
from papm.data.readers.faults import Fault
from papm.data.readers.jhu import read_heads, read_labels
from papm.errors import DataError

HEADS = {"0001": "10 12 4 6 1 0\n20 8 2 2 3 1\n", "0002": "", "0003": "5 5 3 3 2 0\n"}
LABELS = "0001,2,stadium,0,0\n0002,0,water,3,1\n0003,1,rally, night,2,0\n"


def make(root: Path, labels: bool = True) -> Path:
    for k, split in enumerate(("train", "val", "test")):
        (root / split / "images").mkdir(parents=True)
        (root / split / "gt").mkdir()
        for n, (name, text) in enumerate(HEADS.items()):
            Image.new("RGB", (40, 30), (80 * k, 80 * n, 0)).save(root / split / "images" / f"{name}.jpg")
            (root / split / "gt" / f"{name}.txt").write_text(text)
        if labels:
            (root / split / "image_labels.txt").write_text(LABELS)
    return root


def test_points_boxes_sizes_and_labels(tmp_path: Path) -> None:
    root = make(tmp_path / "jhu_crowd_v2.0")
    for place in (root, tmp_path):
        data = papm.data.open("jhu-crowd", place)
        assert {k: [s.count for s in d] for k, d in data.items()} == {s: [2, 0, 1] for s in ("train", "val", "test")}
        assert papm.data.parse_spec(str(place)) == ("jhu-crowd", place)
    first, empty, third = data["train"]
    assert first.points.tolist() == [[10, 12], [20, 8]]
    assert first.boxes is not None and first.boxes.tolist() == [[8, 9, 12, 15], [19, 7, 21, 9]]
    assert first.extents is not None and first.extents.tolist() == pytest.approx([24**0.5, 2.0])
    assert dict(first.meta) == {
        "occluded": 1,
        "blurred": 1,
        "scene": "stadium",
        "weather": "clear",
        "distractor": False,
        "declared_count": 2,
    }
    assert empty.meta["weather"] == "snow" and empty.meta["distractor"] and empty.points.shape == (0, 2)
    assert third.meta["scene"] == "rally,night" and third.meta["weather"] == "rain"


def test_labels_are_optional_and_empty_files_are_no_warning(tmp_path: Path) -> None:
    root = make(tmp_path, labels=False)
    assert papm.data.parse_spec(str(root))[0] == "jhu-crowd"  # by the six columns
    assert papm.data.open("jhu-crowd", root)["val"][0].meta == {"occluded": 1, "blurred": 1}
    findings = check("jhu-crowd", root)
    assert not has_errors(findings)
    assert not [f for f in findings if f.severity == "warning" and "published" not in f.message]
    (root / "train" / "image_labels.txt").write_text("0001.jpg,5,stadium,0,0\n")
    wrong = [f for f in check("jhu-crowd", root) if "label says 5" in f.message]
    assert len(wrong) == 1 and wrong[0].file == root / "train" / "gt" / "0001.txt"


def test_annotations_without_image_are_errors(tmp_path: Path) -> None:
    root = make(tmp_path)
    (root / "val" / "images" / "0003.jpg").unlink()
    errors = [f for f in check("jhu-crowd", root) if f.severity == "error"]
    assert [f.file for f in errors] == [root / "val" / "gt" / "0003.txt"]


def test_images_and_gt_alone_are_not_jhu(tmp_path: Path) -> None:
    root = make(tmp_path, labels=False)
    for path in root.glob("*/gt/*.txt"):
        path.write_text("3 4\n")
    assert papm.data.base.reader("jhu-crowd").recognise(root) is False


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    root = make(tmp_path)
    gt = root / "train" / "gt" / "0001.txt"
    for text, line, words in (
        ("1 2 3 4 1 0\n1 2 3\n", 2, "expected 'x y w h occlusion blur'"),
        ("x 2 3 4 1 0\n", 1, "x is 'x'"),
        ("1 2 -3 4 1 0\n", 1, "size -3 × 4"),
        ("1 2 nan 4 1 0\n", 1, "not a finite number"),
        ("1e300 2 3 4 1 0\n", 1, "not a pixel coordinate"),
    ):
        gt.write_text(text)
        with pytest.raises(DataError, match=rf"0001\.txt:{line}: .*{words}"):
            papm.data.open("jhu-crowd", root)
    gt.write_bytes("1 2 3 4 1 0 # é\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        papm.data.open("jhu-crowd", root)
    gt.unlink()
    with pytest.raises(DataError, match=r"0001\.txt: no such annotation"):
        papm.data.open("jhu-crowd", root)
    gt.write_text("")
    (root / "train" / "image_labels.txt").write_text("0001,1,a,0,0\n0002,x,a,0,0\n0003,1,a,9,0\n4\n")
    findings = check("jhu-crowd", root)
    assert [(f.file, f.line) for f in findings if f.severity == "error"] == [
        (root / "train" / "image_labels.txt", n) for n in (2, 3, 4)
    ]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jhu") / "0001.txt"


@settings(max_examples=60)
@given(st.binary(max_size=80) | st.text("0123456789 .,-e\n", max_size=80).map(str.encode))
def test_any_bytes_are_heads_or_a_clear_error(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    try:
        heads = read_heads(scratch)
        assert heads.boxes is not None and len(heads.boxes) == len(heads.points)
    except DataError as e:
        assert str(scratch) in str(e)
    faults: list[Fault] = []
    try:
        read_labels(scratch, faults)
    except DataError as e:
        assert str(scratch) in str(e)
    assert all(f.line for f in faults)
