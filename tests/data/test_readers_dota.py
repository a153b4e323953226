"""DOTA: oriented boxes, classes, releases, minimum count, the layouts its archives unpack to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.base import nearest, readers, unexpected
from papm.data.check import check, has_errors
from papm.data.readers.dota import CLASSES, RELEASES, SIX, areas, read_objects
from papm.errors import ConfigError, DataError

HEADER = "imagesource:GoogleEarth\ngsd:0.146343590398\n"
SHIP = "2.0 2.0 10.0 2.0 10.0 6.0 2.0 6.0 ship 0\n"
PLANE = "20 10 24 14 20 18 16 14 plane 1\n"  # a square of side √32 on its corner
BRIDGE = "1 1 3 1 3 3 1 3 bridge 0\n"


def put(images: Path, labels: Path, texts: dict[str, str]) -> None:
    images.mkdir(parents=True, exist_ok=True)
    labels.mkdir(parents=True, exist_ok=True)
    for k, (name, text) in enumerate(texts.items()):
        Image.new("RGB", (40, 30), (60 * k, len(images.parts), 0)).save(images / f"{name}.png")
        (labels / f"{name}.txt").write_text(text)


TEXTS = {"P0001": HEADER + SHIP + PLANE, "P0002": SHIP * 10 + BRIDGE * 10, "P0003": HEADER, "P0004": PLANE * 9 + BRIDGE}


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("{}/images", "{}/labelTxt"),
        ("{}/images/part1/images", "{}/labelTxt-v1.0/labelTxt"),
        ("{}/images", "{}/labelTxt-v1.5/DOTA-v1.5_{}"),
        ("{}/images/part4", "{}/labelTxt-v2.0/DOTA-v2.0_{}"),
        ("images/{}", "labelTxt/{}"),
        ("images/{}", "labels/{}_original"),
    ],
)
def test_layouts(tmp_path: Path, images: str, labels: str) -> None:
    root = tmp_path / "DOTA"
    for split in ("train", "val"):
        put(root / images.format(split), root / labels.format(split, split), TEXTS)
    for place in (root, tmp_path):
        data = papm.data.open("dota", place)
        assert {k: [s.count for s in d] for k, d in data.items()} == {s: [2, 20, 0, 10] for s in ("train", "val")}
        assert papm.data.parse_spec(str(place)) == ("dota", place)
    assert not has_errors(check("dota", root))


def test_folders_of_upright_boxes_and_of_facts_are_passed_over(tmp_path: Path) -> None:
    for name, text in (("labelTxt", SHIP), ("Train_Task2_gt/trainset_reclabelTxt", PLANE), ("a_meta/meta", HEADER)):
        put(tmp_path / "train" / "images", tmp_path / "train" / "labelTxt-v2.0" / name, {"P0001": text})
    assert [s.points.tolist() for s in papm.data.open("dota", tmp_path)["train"]] == [[[6, 4]]]


def test_the_number_of_images_is_that_of_the_nearest_release(tmp_path: Path) -> None:
    put(tmp_path / "train" / "images", tmp_path / "train" / "labelTxt", TEXTS)
    said = [f.message for f in check("dota", tmp_path) if "published" in f.message]
    assert said[0] == "the split 'train' has 4 images, 1,411 are published"
    expected = readers()["dota"].expected
    many = {"train": [(k, 1) for k in range(1830)], "val": [(k, 1) for k in range(593)]}
    assert unexpected(nearest(expected, many), many) == []


def test_one_split_alone_and_the_test_images(tmp_path: Path) -> None:
    put(tmp_path / "some" / "images", tmp_path / "some" / "labelTxt", TEXTS)
    assert list(papm.data.open("dota", tmp_path / "some")) == ["all"]
    put(tmp_path / "DOTA" / "train" / "images", tmp_path / "DOTA" / "train" / "labelTxt", TEXTS)
    (tmp_path / "DOTA" / "test" / "images").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "DOTA" / "test" / "images" / "P9.png")
    data = papm.data.open("dota", tmp_path / "DOTA")
    assert list(data) == ["train", "test-hidden"] and data["test-hidden"].hidden
    assert list(papm.data.open("dota", tmp_path / "DOTA" / "train")) == ["train"]


def test_centres_extents_boxes_labels_and_meta(tmp_path: Path) -> None:
    put(tmp_path / "train" / "images", tmp_path / "train" / "labelTxt", TEXTS)
    sample = papm.data.open("dota", tmp_path)["train"][0]
    assert sample.points.tolist() == [[6, 4], [20, 14]]
    assert sample.extents is not None and sample.extents.tolist() == pytest.approx([32**0.5, 32**0.5])
    assert sample.boxes is not None and sample.boxes.tolist() == [[2, 2, 10, 6], [16, 10, 24, 18]]
    assert sample.labels is not None
    assert [sample.meta["classes"][i] for i in sample.labels] == ["ship", "plane"]
    assert sample.meta["difficult"] == 1 and sample.meta["gsd"] == 0.146343590398
    easy = papm.data.open("dota", tmp_path, include_difficult=False)["train"][0]
    assert easy.points.tolist() == [[6, 4]] and easy.meta["difficult"] == 0


def test_class_lists_and_minimum_count(tmp_path: Path) -> None:
    put(tmp_path / "train" / "images", tmp_path / "train" / "labelTxt", TEXTS)

    def counts(**options: object) -> dict[str, int]:
        return {s.name: s.count for s in papm.data.open("dota", tmp_path, **options)["train"]}

    assert [len(RELEASES[r]) for r in ("1.0", "1.5", "2.0")] == [15, 16, 18] and set(SIX) < set(CLASSES)
    assert counts(classes="18") == counts() == {"P0001": 2, "P0002": 20, "P0003": 0, "P0004": 10}
    (tmp_path / "train" / "labelTxt" / "P0003.txt").write_text(HEADER + SHIP * 7 + PLANE * 4)
    assert counts(classes="6") == counts(classes=6) == {"P0003": 11}  # more than 10: the ten ships of P0002 are too few
    assert counts(classes=6, min_count=10) == {"P0002": 10, "P0003": 11}
    (tmp_path / "train" / "labelTxt" / "P0003.txt").write_text(HEADER)
    assert counts(classes=6, min_count=2) == {"P0001": 2, "P0002": 10, "P0004": 9}
    assert counts(classes="Ship, storage tank") == {"P0001": 1, "P0002": 10, "P0003": 0, "P0004": 0}
    assert counts(classes=["bridge"], min_count=10) == {"P0002": 10}
    sample = papm.data.open("dota", tmp_path, classes="plane,ship")["train"][0]
    assert sample.labels is not None and sample.labels.tolist() == [1, 0]
    assert papm.data.open("dota", tmp_path, release="1.0")["train"][0].meta["classes"] == RELEASES["1.0"]
    for wrong in ({"classes": "shp"}, {"classes": ""}, {"release": 3}, {"min_count": -1}, {"min_count": "x"}):
        with pytest.raises(ConfigError):
            papm.data.open("dota", tmp_path, **wrong)
    with pytest.raises(DataError, match="1000 or more"):
        papm.data.open("dota", tmp_path, min_count=1000)


def test_releases_side_by_side(tmp_path: Path) -> None:
    base = tmp_path / "train"
    put(base / "images", base / "labelTxt-v1.0" / "labelTxt", {"P0001": SHIP})
    put(base / "images", base / "labelTxt-v1.0" / "Train_Task2_gt" / "trainset_reclabelTxt", {"P0001": SHIP * 7})
    put(base / "images", base / "labelTxt-v1.5" / "DOTA-v1.5_train", {"P0001": SHIP * 2})
    put(base / "images", base / "labelTxt-v1.5" / "DOTA-v1.5_train_hbb", {"P0001": SHIP * 7})
    for release, count in (("1.0", 1), (1.5, 2), ("v1.5", 2), (1, 1)):
        assert papm.data.open("dota", tmp_path, release=release)["train"][0].count == count
    with pytest.raises(ConfigError, match=r"1\.0, 1\.5; say which with release=1\.0"):
        papm.data.open("dota", tmp_path)
    with pytest.raises(DataError, match=r"no labels of release 2\.0"):
        papm.data.open("dota", tmp_path, release=2.0)


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    put(tmp_path / "train" / "images", tmp_path / "train" / "labelTxt", {"P0001": HEADER + SHIP})
    path = tmp_path / "train" / "labelTxt" / "P0001.txt"
    for text, words in (
        ("1 2 3\n", ":1: expected eight corners"),
        (HEADER + SHIP + SHIP.replace("ship", "dog"), ":4: 'dog' is not a class"),
        (SHIP.replace("2.0", "nan", 1), ":1: x1 is 'nan'"),
        (SHIP.replace("10.0", "1e12", 1), ":1: x2 is"),
        (SHIP.replace(" 0\n", " 7\n"), ":1: the mark"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=rf"P0001\.txt{words}"):
            papm.data.open("dota", tmp_path)
        with pytest.raises(DataError, match=rf"P0001\.txt{words}"):
            papm.data.open("dota", tmp_path, min_count=5)
    path.write_text(SHIP)
    (path.parent / "P0002.txt").write_text(SHIP)
    errors = [f for f in check("dota", tmp_path) if f.severity == "error"]
    assert [(f.file, f.message) for f in errors] == [
        (path.parent / "P0002.txt", "an annotation whose image is missing")
    ]
    path.unlink()
    (path.parent / "P0002.txt").unlink()
    (path.parent / "readme.md").write_text("")
    with pytest.raises(DataError, match="no DOTA here"):
        papm.data.open("dota", tmp_path)


@given(
    st.floats(0, math.tau),
    st.floats(0.1, 500),
    st.floats(0.1, 500),
    st.floats(-1e4, 1e4),
    st.floats(-1e4, 1e4),
    st.booleans(),
)
def test_area_of_a_turned_rectangle(angle: float, w: float, h: float, x: float, y: float, other_way: bool) -> None:
    corners = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    quad = corners @ turn.T + [x, y]
    assert areas(quad[None, ::-1] if other_way else quad[None])[0] == pytest.approx(w * h, rel=1e-6, abs=1e-6)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dota") / "P0001.txt"


@settings(max_examples=80)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(["1", "2.5", "-3", "1e9", "nan", "ship", "Plane", "0", "1", "gsd:null", "\n"]), max_size=40
    ).map(lambda words: " ".join(words).encode())
)
def test_any_bytes_are_objects_or_a_clear_error(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    try:
        found = read_objects(scratch)
        assert found.labels is not None and len(found.labels) == len(found.points)
    except DataError as e:
        assert str(scratch) in str(e)
