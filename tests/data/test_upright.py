"""Points of published datasets follow a photograph that is shown upright."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.upright import as_stored
from papm.structures import Sample

H, W = 32, 48  # as stored
BLOCKS = [(8, 8), (32, 8)]  # white squares of 8 px, (x, y) of their corners


def put(root: Path, how: int, points: list[tuple[float, float]]) -> None:
    pixels = np.zeros((H, W, 3), np.uint8)
    for x, y in BLOCKS:
        pixels[y : y + 8, x : x + 8] = 255
    exif = Image.Exif()
    exif[274] = how
    (root / "Train").mkdir(parents=True)
    Image.fromarray(pixels).save(root / "Train" / "img_0001.jpg", exif=exif.tobytes(), quality=95)
    scipy.io.savemat(root / "Train" / "img_0001_ann.mat", {"annPoints": np.array(points)})


def brightness(sample: Sample) -> list[int]:
    column, row = sample.points.floor().long().unbind(-1)
    return [int(v) for v in sample.image[0, row, column]]


@pytest.mark.parametrize("how", range(1, 9))
def test_points_of_the_stored_pixels_follow_the_image(tmp_path: Path, how: int) -> None:
    put(tmp_path, how, [(x + 2.5, y + 2.5) for x, y in BLOCKS])
    (sample,) = papm.data.open("ucf-qnrf", tmp_path)["train"]
    assert sample.size == ((W, H) if how >= 5 else (H, W))
    assert min(brightness(sample)) > 200
    assert sample.path is not None
    back = as_stored(sample.points, sample.path, sample.size)
    assert back.tolist() == [[x + 2.0, y + 2.0] for x, y in BLOCKS]  # less the origin of the files
    assert not any("outside" in f.message for f in check("ucf-qnrf", tmp_path))


def test_points_that_fit_the_upright_image_only_stay(tmp_path: Path) -> None:
    put(tmp_path, 6, [(20.0, 40.0), (3.0, 33.0)])  # below the stored image, inside the upright one
    (sample,) = papm.data.open("ucf-qnrf", tmp_path)["train"]
    assert sample.points.tolist() == [[19.5, 39.5], [2.5, 32.5]]


def test_boxes_are_turned_too(tmp_path: Path) -> None:
    put(tmp_path / "raw", 8, [(1.0, 1.0)])
    for name, text in (("gt/0001.txt", "12 12 8 8 1 0\n"), ("image_labels.txt", "0001,1,street,0,0\n")):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_text(text)
    (tmp_path / "train" / "images").mkdir()
    (tmp_path / "raw" / "Train" / "img_0001.jpg").rename(tmp_path / "train" / "images" / "0001.jpg")
    (sample,) = papm.data.open("jhu-crowd", tmp_path)["train"]
    assert sample.boxes is not None and sample.boxes.tolist() == [[8.0, 32.0, 16.0, 40.0]]
    assert torch.equal(sample.points, torch.tensor([[12.0, 36.0]]))
    x1, y1, x2, y2 = (int(v) for v in sample.boxes[0])
    assert float(sample.image[0, y1:y2, x1:x2].float().mean()) > 240
