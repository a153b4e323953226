"""BBBC039: masks to points, the published split and the one by turns, 12 bits of a camera in 16-bit files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import papm.data
from papm.data.check import check, has_errors
from papm.data.disk_cache import source_key
from papm.data.readers.bbbc039 import read_nuclei
from papm.errors import ConfigError, DataError

REAL = Path(os.environ.get("PAPM_DATA", ".")) / "BBBC039"


def draw(folder: Path, names: list[str]) -> Path:
    """Images of 20 × 30 with three nuclei: two that touch, of different values, and a speck of one pixel."""
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    mask = np.zeros((20, 30, 4), np.uint8)
    mask[..., 3] = 255
    mask[2:6, 3:9, 0] = 1
    mask[6:8, 3:5, 0] = 2
    mask[15, 25, 0] = 1
    for k, name in enumerate(names):
        grey = np.where(mask[..., 0] > 0, 4095 - k, 160).astype(np.uint16)
        Image.fromarray(grey).save(folder / "images" / f"{name}.tif")
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    return folder


def names(count: int) -> list[str]:
    return [f"IXMtest_A{k:02d}_s1_w1" for k in range(1, count + 1)]


def test_a_nucleus_is_its_centroid_with_box_and_size(tmp_path: Path) -> None:
    folder = draw(tmp_path / "cell nuclei", names(5))
    for root in (tmp_path, folder):
        assert papm.data.parse_spec(str(root)) == ("bbbc039", root)
        found = papm.data.open("bbbc039", root)
    sample = found["train"][0]
    assert sample.points.tolist() == [[6, 4], [25.5, 15.5], [4, 7]]
    assert sample.boxes is not None and sample.boxes.tolist() == [[3, 2, 9, 6], [25, 15, 26, 16], [3, 6, 5, 8]]
    assert sample.extents is not None and sample.extents.tolist() == pytest.approx([24**0.5, 1, 2])
    assert sample.image.unique().tolist() == [10, 255]  # white is 4095
    assert source_key(sample.source, sample.size)  # so decoded images are kept on disk
    findings = check("bbbc039", tmp_path)
    assert not has_errors(findings) and not any("black" in f.message for f in findings)


def test_specks_are_left_out_on_request(tmp_path: Path) -> None:
    draw(tmp_path, names(1))
    assert papm.data.open("bbbc039", tmp_path, min_area=2)["train"][0].points.tolist() == [[6, 4], [4, 7]]
    for wrong in (-1, True, 2.5):
        with pytest.raises(ConfigError, match="min_area of dataset 'bbbc039' is a whole number"):
            papm.data.open("bbbc039", tmp_path, min_area=wrong)


def test_without_lists_the_third_and_the_fourth_of_four_are_held_out(tmp_path: Path) -> None:
    found = papm.data.open("bbbc039", draw(tmp_path, names(9)))
    assert {s: [x.name[9:11] for x in d] for s, d in found.items()} == {
        "train": ["01", "02", "05", "06", "09"],
        "val": ["03", "07"],
        "test": ["04", "08"],
    }


def test_the_published_lists_win(tmp_path: Path) -> None:
    draw(tmp_path, names(3))
    (tmp_path / "metadata").mkdir()
    for name, image in zip(("training", "validation", "test"), reversed(names(3))):
        (tmp_path / "metadata" / f"{name}.txt").write_text(f"{image}.png\n")
    found = papm.data.open("bbbc039", tmp_path)
    assert {s: [x.name for x in d] for s, d in found.items()} == dict(
        zip(("train", "val", "test"), [[n] for n in reversed(names(3))])
    )
    (tmp_path / "metadata" / "test.txt").write_text("other.png\n")
    with pytest.raises(DataError, match=r"test\.txt:1: names the image 'other\.png'"):
        papm.data.open("bbbc039", tmp_path)


def test_faults(tmp_path: Path) -> None:
    draw(tmp_path, names(1))
    mask = tmp_path / "masks" / f"{names(1)[0]}.png"
    Image.new("RGBA", (30, 21)).save(mask)
    with pytest.raises(DataError, match="the mask is 21×30, the image 20×30"):
        papm.data.open("bbbc039", tmp_path)
    Image.new("RGBA", (30, 20)).save(mask)
    assert len(read_nuclei(mask, tmp_path / "images" / f"{names(1)[0]}.tif").points) == 0
    mask.unlink()
    with pytest.raises(DataError, match="no such image file"):
        papm.data.open("bbbc039", tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs BBBC039 in PAPM_DATA")
def test_the_copy_that_is_there() -> None:
    found = papm.data.open("bbbc039", REAL)
    assert {s: len(d) for s, d in found.items()} == {"train": 100, "val": 50, "test": 50}
    assert sum(s.count for d in found.values() for s in d) == 23_617
    assert sum(s.count for d in papm.data.open("bbbc039", REAL, min_area=25).values() for s in d) == 23_617 - 894
