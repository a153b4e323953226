"""Label masks: one point per object at its centroid, whatever the file; what is ambiguous is told."""

from __future__ import annotations

import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.convert import write_folder
from papm.errors import ConfigError, DataError
from papm.structures import Sample

H, W = 30, 40
# Two cells that touch, one alone: centroids, boxes and areas by hand.
CENTRES, AREAS = [[6, 4], [4, 7], [25.5, 15.5]], [24, 4, 1]


def cells(dtype: Any = np.uint16, first: int = 1, step: int = 1) -> NDArray[Any]:
    mask = np.zeros((H, W), dtype)
    mask[2:6, 3:9] = first
    mask[6:8, 3:5] = first + step
    mask[15, 25] = first + 2 * step
    return mask


def put(path: Path, mask: NDArray[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, mask) if path.suffix == ".npy" else Image.fromarray(mask).save(path)
    return path


def image(path: Path) -> Path:
    return put(path, np.full((H, W, 3), 90, np.uint8))


def opened(root: Path, **options: Any) -> dict[str, Sample]:
    data = papm.data.open("folder", root, **options) if options else papm.data.open_spec(str(root))
    return {s.name: s for d in data.values() for s in d}


def rows(sample: Sample) -> list[list[float]]:
    found: list[list[float]] = sample.points.tolist()
    return found


@pytest.mark.parametrize(
    ("picture", "mask"),
    [
        ("images/a.png", "masks/a.png"),
        ("images/a.tif", "masks/a.tif"),
        ("images/a.jpg", "labels/a.npy"),
        ("images/train/a.jpg", "masks/train/a.tiff"),
        ("a.png", "a_cp_masks.png"),
        ("a.png", "a_cp_masks.tif"),
        ("a.png", "a_masks.npy"),
        ("a.jpg", "a_label.TIF"),
        ("a_img.png", "a_masks.png"),
    ],
)
def test_each_label_is_a_point_with_its_box_and_size(tmp_path: Path, picture: str, mask: str) -> None:
    name = Path(picture).stem
    image(tmp_path / picture)
    put(tmp_path / mask, cells())
    found = opened(tmp_path)
    assert list(found) == [name] and rows(found[name]) == CENTRES
    sample = found[name]
    assert sample.extents is not None and sample.extents.square().tolist() == pytest.approx(AREAS)
    assert sample.boxes is not None and sample.boxes.tolist() == [[3, 2, 9, 6], [3, 6, 5, 8], [25, 15, 26, 16]]
    assert not [f for f in check("folder", tmp_path) if f.severity == "error" or "not part" in f.message]


@pytest.mark.parametrize(
    "mask",
    [
        cells(np.uint8),
        cells(np.int32, 70_000, 1000),
        cells(np.float32),
        np.stack([cells(np.uint8)] * 3, -1),
        np.stack([cells(np.uint8), cells(np.uint8, 9, -1), cells(np.uint8)], -1) * (cells(np.uint8) > 0)[..., None],
    ],
    ids=["8 bits", "32 bits", "float", "grey as RGB", "colours"],
)
def test_labels_in_any_kind_of_picture(tmp_path: Path, mask: NDArray[Any]) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "a_masks.tif", mask)
    assert sorted(rows(opened(tmp_path)["a"])) == sorted(CENTRES)


def test_the_palette_of_a_png_holds_labels(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    indexed = Image.fromarray(cells(np.uint8)).convert("P")
    indexed.putpalette([0, 0, 0] + [200, 10, 10] * 255)  # all labels look the same
    indexed.save(tmp_path / "a_masks.png")
    assert rows(opened(tmp_path)["a"]) == CENTRES


@pytest.mark.parametrize(
    ("name", "stored", "size"),
    [
        *((f"a_masks{kind}", size, size) for kind in (".tif", ".npy") for size in ((1, 5), (5, 1))),
        ("a_masks.npy", (1, 5, 1), (5, 1)),
        ("a_masks.npy", (1, 1, 5), (1, 5)),
    ],
)
def test_an_image_may_be_one_pixel_wide(
    tmp_path: Path, name: str, stored: tuple[int, ...], size: tuple[int, int]
) -> None:
    """A stack of one picture is that picture; a side of one pixel is a side."""
    put(tmp_path / "a.png", np.full((*size, 3), 90, np.uint8))
    mask = np.zeros(stored, np.uint8)
    mask.flat[-1] = 7
    put(tmp_path / name, mask)
    assert rows(opened(tmp_path, format="masks")["a"]) == [[size[1] - 0.5, size[0] - 0.5]]


@pytest.mark.parametrize("size", [(1, 5), (5, 1)])
def test_what_is_written_of_narrow_images_is_read(tmp_path: Path, size: tuple[int, int]) -> None:
    points = [[size[1] - 0.5, size[0] - 0.5]]
    sample = Sample("a", lambda: torch.full((3, *size), 9, dtype=torch.uint8), torch.tensor(points), size)
    write_folder([sample], tmp_path / "d", to="masks")
    assert rows(opened(tmp_path / "d", format="masks")["a"]) == points


@pytest.mark.parametrize("on", [1, 255])
@pytest.mark.parametrize("name", ["a_mask.png", "a_mask.npy"])
def test_a_plain_mask_has_an_object_where_pixels_touch(tmp_path: Path, on: int, name: str) -> None:
    image(tmp_path / "a.jpg")
    mask = cells(np.uint8) > 0
    put(tmp_path / name, mask if name.endswith("npy") and on == 1 else mask.astype(np.uint8) * on)
    two = opened(tmp_path)["a"]
    assert rows(two)[1] == [25.5, 15.5] and two.count == 2  # those that touch are one
    assert opened(tmp_path, masks="values")["a"].count == 1
    put(tmp_path / name, np.zeros((H, W), np.uint8))
    assert opened(tmp_path)["a"].count == 0


def test_values_in_many_pieces_are_told_and_chosen(tmp_path: Path) -> None:
    """A mask of two classes: 8 objects, or 2."""
    image(tmp_path / "a.jpg")
    mask = np.zeros((H, W), np.uint8)
    for k in range(8):
        mask[10:13, 4 * k : 4 * k + 2] = 1 + k % 2
    put(tmp_path / "a_mask.png", mask)
    with pytest.raises(DataError, match=r"a_mask\.png: 2 values in 8 separate parts.*masks=parts.*masks=values") as e:
        opened(tmp_path)
    assert "\n" not in str(e.value)
    assert opened(tmp_path, masks="parts")["a"].count == 8 and opened(tmp_path, masks="values")["a"].count == 2
    with pytest.raises(ConfigError, match="known: auto, parts, values"):
        opened(tmp_path, masks="blobs")
    (tmp_path / "a_mask.png").rename(tmp_path / "a_cp_masks.png")  # of Cellpose: instances, whatever they look like
    assert opened(tmp_path)["a"].count == 2


def test_what_cellpose_leaves_in_a_folder(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    (tmp_path / "a_seg.npy").write_bytes(pickle.dumps({"masks": 1}))
    with pytest.raises(DataError, match=r"a_seg\.npy: a pickle of Cellpose.*Save masks as PNG/tif"):
        opened(tmp_path)
    for other in ("a_flows.tif", "a_cp_outlines.png"):
        image(tmp_path / other)
    put(tmp_path / "a_cp_masks.png", cells())
    assert {n: rows(s) for n, s in opened(tmp_path).items()} == {"a": CENTRES}


def test_text_beside_a_plain_mask_counts_and_beside_labels_is_asked_about(tmp_path: Path) -> None:
    """A mask of one value may be where somebody looked."""
    image(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_text("1 2\n")
    put(tmp_path / "a_mask.png", cells(np.uint8, 1, 0))
    assert rows(opened(tmp_path)["a"]) == [[1, 2]]
    put(tmp_path / "a_mask.png", cells(np.uint8))
    with pytest.raises(DataError, match="format=masks or format=txt"):
        opened(tmp_path)


@pytest.mark.parametrize("other", ["masks/a.png", "labels/a.tif", "a_labels.npy"])
def test_two_masks_of_one_image_are_told(tmp_path: Path, other: str) -> None:
    """One may be of instances, the other of classes."""
    image(tmp_path / "a.jpg")
    put(tmp_path / "a_masks.png", cells())
    put(tmp_path / other, cells())
    with pytest.raises(DataError, match=r"is of a\.jpg too, by its name; take one of both away"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (cells()[:, :30], "the mask is 30×30, its image 40×30; they must be the same"),
        (cells() + 1, "no pixel is 0"),
        (cells(np.int32, -3), "has negative values"),
        (cells(np.float32) / 2, "has fractions"),
        (np.full((H, W), np.nan), "has fractions"),
        (np.stack([cells()] * 3), "an array of 3×30×40"),
        (cells().ravel(), "an array of 1200"),
        (np.array([{"a": 1}]), "damaged or not a NumPy file of numbers"),
    ],
)
def test_faults_are_one_sentence(tmp_path: Path, mask: NDArray[Any], words: str) -> None:
    image(tmp_path / "a.jpg")
    put(tmp_path / "a_masks.npy", mask)
    with pytest.raises(DataError) as e:
        opened(tmp_path)
    assert words in str(e.value) and "a_masks.npy" in str(e.value) and "\n" not in str(e.value)


def test_absurd_sizes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**9}, {10**9}), }}".encode()
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n" + bytes(64)
    (tmp_path / "a_masks.npy").write_bytes(npy)
    with pytest.raises(DataError, match=r"a_masks\.npy: damaged"):
        opened(tmp_path)
    (tmp_path / "a_masks.npy").unlink()
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 16, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    (tmp_path / "a_masks.png").write_bytes(png + b"\0\0\0\0IEND\xaeB`\x82")
    with pytest.raises(DataError, match="3,600 megapixels, more than the limit"):
        opened(tmp_path)


@pytest.mark.parametrize("colours", [1, 3])
def test_objects_drawn_in_transparency_alone_are_refused(tmp_path: Path, colours: int) -> None:
    image(tmp_path / "images" / "a.png")
    seen = cells(np.uint8, 120)[..., None]
    put(tmp_path / "masks" / "a.png", np.concatenate([*[np.zeros_like(seen)] * colours, seen], -1))
    with pytest.raises(DataError, match="drawn in its transparency alone"):
        opened(tmp_path)
