"""TRANCOS: points, dot maps, regions of interest, lists; and the real images where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check, has_errors
from papm.data.readers.trancos import entries, read_dots, read_mask, read_points
from papm.errors import ConfigError, DataError

LISTS = {"training": [1, 2], "validation": [3], "trainval": [1, 2, 3], "test": [4, 5]}
POINTS = [(1, 1), (40, 30), (12, 7)]  # as in the files: counted from 1


def make(root: Path, dots: bool = True, masks: bool = True) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "image_sets").mkdir()
    for name, numbers in LISTS.items():
        (root / "image_sets" / f"{name}.txt").write_text("".join(f"image-1-{n:06d}.jpg\n" for n in numbers))
    for n in range(1, 6):
        stem = root / "images" / f"image-1-{n:06d}"
        Image.new("RGB", (40, 30), (n, 0, 0)).save(f"{stem}.jpg")
        Path(f"{stem}.txt").write_text("".join(f"{x}\t{y}\n" for x, y in POINTS))
        if dots:
            dot = np.zeros((30, 40, 3), np.uint8)
            for x, y in POINTS:
                dot[y - 1, x - 1, 0] = 255
            Image.fromarray(dot).save(f"{stem}dots.png")
        if masks:
            mask = np.zeros((30, 40), np.uint8)
            mask[:, :20] = 1
            scipy.io.savemat(f"{stem}mask.mat", {"BW": mask})
    (root / "images" / "cam_annotations.txt").write_text("image-1-000001.jpg 0\n")
    return root


def test_splits_points_and_regions(tmp_path: Path) -> None:
    root = make(tmp_path / "TRANCOS_v3")
    for place in (root, tmp_path):
        data = papm.data.open("trancos", place)
        assert {k: len(d) for k, d in data.items()} == {"train": 2, "val": 1, "test": 2, "trainval": 3}
        assert papm.data.parse_spec(str(place)) == ("trancos", place)
    sample = data["train"][0]
    assert sample.points.tolist() == [[x - 0.5, y - 0.5] for x, y in POINTS] and bool(sample.inside.all())
    assert sample.roi is not None and sample.roi.shape == sample.size == (30, 40)
    assert sample.roi.dtype == torch.bool and sample.roi[:, :20].all() and not sample.roi[:, 20:].any()
    findings = check("trancos", root)
    assert not has_errors(findings)
    assert [f.message for f in findings if "region" in f.message and "'train'" in f.message] == [
        "2 points of the split 'train' outside the region of interest"
    ]
    assert not [f for f in findings if "dots" in str(f.file) or "cam_" in str(f.file)]


def test_dot_maps_lie_where_the_text_says(tmp_path: Path) -> None:
    root = make(tmp_path)
    text, dots = (papm.data.open("trancos", root, points=k)["test"] for k in ("txt", "dots"))
    for a, b in zip(text, dots):
        assert sorted(a.points.tolist()) == sorted(b.points.tolist())
    for path in (root / "images").glob("image-*.txt"):
        path.unlink()
    assert papm.data.open("trancos", root)["train"][0].count == 3  # the dot map instead
    with pytest.raises(DataError, match=r"000001\.txt: no such annotation"):
        papm.data.open("trancos", root, points="txt")
    with pytest.raises(ConfigError, match="auto, dots, txt"):
        papm.data.open("trancos", root, points="csv")


def test_trainval_trains_on_both(tmp_path: Path) -> None:
    data = papm.data.open("trancos", make(tmp_path), trainval=True)
    assert {k: len(d) for k, d in data.items()} == {"train": 3, "test": 2}
    (tmp_path / "image_sets" / "trainval.txt").unlink()
    assert len(papm.data.open("trancos", tmp_path, trainval=True)["train"]) == 3


def test_masks_that_are_missing_or_wrong(tmp_path: Path) -> None:
    root = make(tmp_path)
    image, mask = (root / "images" / f"image-1-000004{end}" for end in (".jpg", "mask.mat"))
    for wrong in (np.zeros((30, 41)), np.zeros((30, 40, 2)), np.array(["a"])):
        scipy.io.savemat(mask, {"BW": wrong})
        with pytest.raises(DataError, match=r"mask\.mat: BW is"):
            read_mask(mask, image)
    mask.write_bytes(b"MATLAB 5.0")
    findings = [f for f in check("trancos", root) if f.severity == "error"]
    assert [f.file for f in findings] == [mask]
    mask.unlink()
    with pytest.raises(DataError, match=r"000004\.jpg: .*roi=false"):
        papm.data.open("trancos", root)
    assert papm.data.open("trancos", root, roi=False)["test"][0].roi is None


def test_lists_that_name_what_is_not_there(tmp_path: Path) -> None:
    root = make(tmp_path)
    (root / "image_sets" / "test.txt").write_text("image-1-000004.jpg\nimage-9-000001.jpg\n../../secret.jpg\n")
    findings = [f for f in check("trancos", root) if f.severity == "error"]
    assert [(f.file, f.line) for f in findings] == [(root / "image_sets" / "test.txt", n) for n in (2, 3)]
    with pytest.raises(DataError, match=r"test\.txt:2: names the image 'image-9-000001\.jpg'"):
        papm.data.open("trancos", root)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trancos")


@settings(max_examples=60)
@given(st.binary(max_size=60) | st.text("0123456789 .\t-\n", max_size=60).map(str.encode))
def test_any_bytes_are_points_or_a_clear_error(scratch: Path, content: bytes) -> None:
    path = scratch / "a.txt"
    path.write_bytes(content)
    for read in (read_points, read_dots):
        try:
            assert read(path).points.shape[1] == 2
        except DataError as e:
            assert str(path) in str(e)


# --- the real images ---------------------------------------------------------------------------------------------------

needs_data = pytest.mark.skipif("PAPM_DATA" not in os.environ, reason="PAPM_DATA is not set")


@pytest.mark.realdata
@needs_data
def test_numbers_of_release_3() -> None:
    data = papm.data.open("trancos", Path(os.environ["PAPM_DATA"]) / "TRANCOS")
    assert {k: len(d) for k, d in data.items()} == {"train": 403, "val": 420, "test": 421, "trainval": 823}
    assert {k: sum(s.count for s in d) for k, d in data.items()} == {
        "train": 13_543,
        "val": 16_541,
        "test": 16_666,
        "trainval": 30_084,
    }
    counts = [s.count for k in ("train", "val", "test") for s in data[k]]
    assert (min(counts), max(counts)) == (9, 107)  # as published
    assert all(s.size == (480, 640) and bool(s.inside.all()) for s in data["test"])

    def outside(split: str) -> int:
        n = 0
        for s in data[split]:
            x, y = s.points.floor().long().unbind(-1)
            assert s.roi is not None
            n += int((~s.roi[y, x]).sum())
        return n

    assert (outside("val"), outside("test")) == (5, 0)


@pytest.mark.realdata
@needs_data
def test_text_counts_pixels_from_one() -> None:
    """The evidence for −0.5: every text point, moved by it, falls into the pixel of its dot, and every dot has a point."""
    root = Path(os.environ["PAPM_DATA"]) / "TRANCOS"
    text, dots = ([e.load().points.tolist() for e in entries(root, points=k)["train"]] for k in ("txt", "dots"))
    for a, b in zip(text, dots):
        assert set(map(tuple, a)) == set(map(tuple, b))
    assert sum(len(a) - len(b) for a, b in zip(text, dots)) == 5  # two points on one pixel are one dot
