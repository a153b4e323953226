"""Regions of interest of folder data: masks, polygons, where they lie, what is wrong with them, and back again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from papm import data
from papm.data.cache import build_store
from papm.data.check import check
from papm.data.convert import write
from papm.data.readers.regions import inside
from papm.errors import DataError

H, W = 20, 30
LEFT = [[[0, 0], [15, 0], [15, 20], [0, 20]]]


def photo(path: Path, points: str | None = "3 4\n25 10\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((H, W, 3), np.uint8)).save(path)
    if points is not None:
        path.with_suffix(".txt").write_text(points)


def mask(path: Path, left: bool = True, size: tuple[int, int] = (H, W), white: int = 255) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros(size, np.uint8)
    pixels[:, : size[1] // 2] = white if left else 0
    pixels[:, size[1] // 2 :] = 0 if left else white
    Image.fromarray(pixels).save(path)


def counted(root: Path, split: str = "all", **options: object) -> dict[str, int]:
    return {s.name: int(s.counted.sum()) for s in data.open("folder", root, **options)[split]}


@pytest.mark.parametrize(
    ("image", "region", "split"),
    [
        ("a.jpg", "roi/a.png", "all"),
        ("images/a.jpg", "roi/a.png", "all"),
        ("images/a.jpg", "images/roi/a.png", "all"),
        ("images/a.jpg", "ROI/all.png", "all"),
        ("train/a.jpg", "train/roi/a.png", "train"),
        ("train/images/a.jpg", "train/roi/all.png", "train"),
        ("train/images/a.jpg", "roi/train/a.png", "train"),
        ("images/train/a.jpg", "roi/train/a.png", "train"),
        ("images/train/a.jpg", "roi/all.png", "train"),
    ],
)
def test_masks_where_people_put_them(tmp_path: Path, image: str, region: str, split: str) -> None:
    photo(tmp_path / image)
    mask(tmp_path / region, white=1)  # masks of 0 and 1 are as common as black and white ones
    (sample,) = data.open("folder", tmp_path)[split]
    assert sample.roi is not None and int(sample.roi.sum()) == H * W // 2
    assert sample.counted.tolist() == [True, False] and sample.count == 2
    assert counted(tmp_path, split, roi=False) == {"a": 2}
    store = build_store([sample])
    assert store.roi is not None and torch.equal(store.roi.reshape(H, W), sample.roi)
    (note,) = (f.message for f in check("folder", tmp_path) if "region of interest" in f.message)
    assert note == f"1 point of the split '{split}' outside the region of interest"


def test_polygons_of_an_image_and_of_all_others(tmp_path: Path) -> None:
    for name in "abcd":
        photo(tmp_path / f"{name}.jpg")
    mask(tmp_path / "roi" / "d.png", left=False)
    right = [[[15, 0], [30, 0], [30, 20], [15, 20]]]
    (tmp_path / "roi.json").write_text(json.dumps({"a.jpg": [*LEFT, *right], "b": [], "*": LEFT, "d": []}))
    assert counted(tmp_path) == {"a": 2, "b": 0, "c": 1, "d": 1}
    assert data.open("folder", tmp_path)["all"][3].counted.tolist() == [False, True]  # the mask comes first


def test_splits_that_tables_make_have_regions_too(tmp_path: Path) -> None:
    for name in "ab":
        photo(tmp_path / "images" / f"{name}.jpg", None)
    (tmp_path / "train.csv").write_text("image,x,y\na.jpg,3,4\na.jpg,25,10\n")
    (tmp_path / "test.csv").write_text("image,x,y\nb.jpg,25,10\n")
    (tmp_path / "roi.json").write_text(json.dumps({"*": LEFT}))
    assert counted(tmp_path, "train") == {"a": 1} and counted(tmp_path, "test") == {"b": 0}


def test_a_table_of_regions_is_no_stray_annotation(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", None)
    shape = {"shape_type": "point", "points": [[3, 4]], "label": "x"}
    about = {"version": "5", "shapes": [shape], "imagePath": "a.jpg", "imageHeight": H, "imageWidth": W}
    (tmp_path / "a.json").write_text(json.dumps(about))
    (tmp_path / "roi.json").write_text(json.dumps({"*": LEFT}))
    assert [f for f in check("folder", tmp_path) if f.severity == "error"] == []


@pytest.mark.parametrize("kind", ["txt", "coco", "yolo", "dotmap", "shanghaitech"])
def test_regions_are_written_with_the_points(tmp_path: Path, kind: str) -> None:
    for name in "ab":
        photo(tmp_path / "in" / f"{name}.jpg")
    mask(tmp_path / "in" / "roi" / "a.png")
    whole = data.open("folder", tmp_path / "in")["all"]
    write({"train": whole}, tmp_path / "out", to=kind)
    a, b = data.open("folder", tmp_path / "out")["train"]
    assert a.roi is not None and whole[0].roi is not None and torch.equal(a.roi, whole[0].roi)
    assert b.roi is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "roi.json:1: not valid JSON"),
        ("[]", "roi.json: expected"),
        ('{"a.jpg": 3}', "roi.json: the region of 'a.jpg': found 3"),
        ('{"a.jpg": [[[0, 0], [1, 1]]]}', "a polygon of 2 corners"),
        ('{"a.jpg": [[[0, 0], [1, 1], [2]]]}', r"a corner is \[2\], expected \[x, y\]"),
        ('{"a.jpg": [[[0, 0], [1, 1], [2, 1e99]]]}', "y is 1e\\+99"),
        ('{"a.jpg": [[[0, 0], [1, 1], [2, NaN]]]}', "not a finite number"),
        ('{"../a.jpg": []}', "leaves the dataset's folder"),
    ],
)
def test_wrong_polygons(tmp_path: Path, text: str, said: str) -> None:
    photo(tmp_path / "a.jpg")
    (tmp_path / "roi.json").write_text(text)
    with pytest.raises(DataError, match=said):
        data.open("folder", tmp_path)
    (found,) = (f for f in check("folder", tmp_path) if f.severity == "error")
    assert (found.file, found.line) == (tmp_path / "roi.json", 1 if text == "{" else None)


def test_wrong_masks(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    mask(tmp_path / "roi" / "a.png", size=(W, H))
    with pytest.raises(DataError, match=f"a.png: a region of interest of {H}×{W} pixels, the image a.jpg is {W}×{H}"):
        counted(tmp_path)
    (tmp_path / "roi" / "a.png").write_bytes(b"no image")
    assert [f.file for f in check("folder", tmp_path) if f.severity == "error"] == [tmp_path / "roi" / "a.png"]


corner = st.tuples(st.integers(-12, 40), st.integers(-12, 30)).map(lambda c: (c[0] / 2, c[1] / 2))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(corner, min_size=3, max_size=7), max_size=3)
    | st.lists(st.lists(corner, min_size=3, max_size=3), min_size=9, max_size=18)
)
def test_a_pixel_belongs_when_its_centre_does(polygons: list[list[tuple[float, float]]]) -> None:
    h, w = 9, 13
    found = inside([np.array(p, dtype=np.float64) for p in polygons], (h, w))
    for row in range(h):
        for column in range(w):
            assert bool(found[row, column]) == any(_holds(p, column + 0.5, row + 0.5) for p in polygons)


@pytest.mark.slow
def test_five_thousand_corners_are_quick() -> None:
    """In a polygon and in a hundred, on nine megapixels: seconds of the processor, whatever else the machine does."""
    rng = np.random.default_rng(0)
    for number in (1, 100):
        polygons = [rng.uniform(0, 3000, (5000 // number, 2)) for _ in range(number)]
        began = time.process_time()
        assert inside(polygons, (3000, 3000)).any()
        assert time.process_time() - began < 1.5


def _holds(polygon: list[tuple[float, float]], x: float, y: float) -> bool:
    """Even-odd: how many edges a ray to the left crosses."""
    odd = False
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]]):
        if (y1 <= y) != (y2 <= y):
            odd ^= x1 + (y - y1) * ((x2 - x1) / (y2 - y1)) <= x
    return odd
