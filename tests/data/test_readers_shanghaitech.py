"""ShanghaiTech: the layouts in circulation, damaged .mat files, and the published counts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

import papm.data
from papm.data.readers.shanghaitech import ORIGIN, read_points
from papm.errors import DataError


def mat(path: Path, location: np.ndarray) -> None:
    """A file built as MATLAB does: image_info is a 1×1 cell of a 1×1 struct."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = np.empty((1, 1), object)
    cell[0, 0] = {"location": location, "number": np.array([[len(location)]])}
    scipy.io.savemat(path, {"image_info": cell})


def make(root: Path, part: str = "part_A_final", truth: str = "ground_truth", images: int = 3) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        base = root / part / f"{split}_data"
        (base / "images").mkdir(parents=True)
        for k in range(1, images + 1):
            Image.new("RGB", (40, 30)).save(base / "images" / f"IMG_{k}.jpg")
            mat(base / truth / f"GT_IMG_{k}.mat", rng.uniform(1, 30, (k, 2)))
    return root / part


@pytest.mark.parametrize("part", ["part_A_final", "part_A"])
@pytest.mark.parametrize("truth", ["ground_truth", "ground-truth"])
def test_layouts_and_roots(tmp_path: Path, part: str, truth: str) -> None:
    folder = make(tmp_path / "ShanghaiTech", part, truth)
    for root in (folder, folder.parent, tmp_path):
        data = papm.data.open("shanghaitech-a", root)
        assert {k: [s.name for s in d] for k, d in data.items()} == {
            s: ["IMG_1", "IMG_2", "IMG_3"] for s in ("train", "test")
        }
        assert [s.count for s in data["train"]] == [1, 2, 3]
        assert data["train"][0].size == (30, 40) and data["train"][0].points.dtype == torch.float32
        assert papm.data.parse_spec(str(root)) == ("shanghaitech-a", root)
        with pytest.raises(DataError, match="part B"):
            papm.data.open("shanghaitech-b", root)


def test_part_b_and_the_ambiguous_parent(tmp_path: Path) -> None:
    b = make(tmp_path, "part_B_final")
    assert papm.data.parse_spec(str(tmp_path))[0] == "shanghaitech-b"
    assert len(papm.data.open("shanghaitech-b", b)["test"]) == 3
    make(tmp_path, "part_A_final")
    with pytest.raises(DataError, match="name the one you mean"):  # both parts are here
        papm.data.parse_spec(str(tmp_path))
    assert len(papm.data.open("shanghaitech-a", tmp_path)["train"]) == 3


def test_a_part_under_another_name_opens_but_is_not_recognised(tmp_path: Path) -> None:
    folder = make(tmp_path, "part_A").rename(tmp_path / "sha")
    assert len(papm.data.open("shanghaitech-a", folder)["train"]) == 3
    with pytest.raises(DataError, match="name it"):
        papm.data.parse_spec(str(folder))


def test_origin_and_points_outside(tmp_path: Path) -> None:
    path = tmp_path / "GT_IMG_1.mat"
    location = np.array([[1.0, 1.0], [-50.25, 7.0], [4000.0, 2.5]])
    mat(path, location)
    assert np.array_equal(read_points(path).points.numpy(), location + ORIGIN)
    assert ORIGIN == -0.5 == papm.data.base.reader("shanghaitech-a").origin
    assert np.array_equal(read_points(path, origin=0.0).points.numpy(), location)
    mat(path, np.zeros((0, 2)))
    assert read_points(path).points.shape == (0, 2)
    mat(path, np.array([[3, 4]], np.uint16))
    assert read_points(path).points.tolist() == [[2.5, 3.5]]


def test_wrong_files_say_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "GT_IMG_7.mat"

    def message() -> str:
        with pytest.raises(DataError) as e:
            read_points(path)
        assert str(path) in str(e.value)
        return str(e.value)

    assert "no such annotation" in message()
    for content in (b"", b"hello", b"MATLAB 5.0 MAT-file" + bytes(200), bytes(4000)):
        path.write_bytes(content)
        assert "image_info" in message()
    scipy.io.savemat(path, {"annPoints": np.zeros((3, 2))})
    assert "no variable 'image_info'" in message()
    scipy.io.savemat(path, {"image_info": {"number": 3}})
    assert "no field 'location'" in message()
    scipy.io.savemat(path, {"image_info": np.ones((2, 2))})
    assert "no field 'location'" in message()
    for wrong in (np.ones((4, 3)), np.ones((2, 2, 2)), np.array(["ab", "cd"])):
        mat(path, wrong)
        assert "'location' is" in message()
    mat(path, np.array([[1.0, 2.0], [np.nan, 2.0]]))
    assert "row 2" in message()
    mat(path, np.array([[np.inf, 2.0]]))
    assert "row 1" in message()


def test_missing_pieces(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "train_data/ground_truth/GT_IMG_2.mat").unlink()
    with pytest.raises(DataError, match=r"GT_IMG_2\.mat: no such annotation"):
        papm.data.open("shanghaitech-a", folder)
    (folder / "train_data/ground_truth").rename(folder / "train_data/other")
    with pytest.raises(DataError, match="ground_truth"):
        papm.data.open("shanghaitech-a", folder)
    with pytest.raises(DataError, match="part_A_final"):
        papm.data.open("shanghaitech-a", tmp_path / "part_A_final" / "train_data")


needs_data = pytest.mark.skipif("PAPM_DATA" not in os.environ, reason="PAPM_DATA is not set")


@pytest.mark.realdata
@needs_data
def test_published_counts_of_part_a() -> None:
    root = Path(os.environ["PAPM_DATA"]) / "ShanghaiTech"
    data = papm.data.open("shanghaitech-a", root)
    assert {k: len(d) for k, d in data.items()} == {"train": 300, "test": 182}
    assert {k: sum(s.count for s in d) for k, d in data.items()} == {"train": 162_707, "test": 78_970}
    as_filed = papm.data.open("shanghaitech-a", root, origin=0.0)
    outside = {k: sum(int((~s.inside).sum()) for s in d) for k, d in as_filed.items()}
    assert outside == {"train": 294, "test": 108}
    assert {k: sum(int((~s.inside).sum()) for s in d) for k, d in data.items()} == {"train": 294, "test": 109}
    assert max(data["train"], key=lambda s: int((~s.inside).sum())).name == "IMG_141"


@pytest.mark.realdata
@needs_data
@pytest.mark.slow
def test_heads_are_symmetric_about_the_declared_origin() -> None:
    """The evidence for −0.5: gradients around heads mirror about array column x_file − 1, not x_file (0-based indices)."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    root = Path(os.environ["PAPM_DATA"]) / "ShanghaiTech"
    offsets, profiles = np.arange(-6, 6.01, 0.25), []
    data = papm.data.open("shanghaitech-a", root)
    for sample in (*data["train"], *data["test"]):
        x, y = sample.points.double().numpy().T
        h, w = sample.size
        keep = (x > 9) & (x < w - 9) & (y > 3) & (y < h - 3)
        x, y = x[keep][:400], y[keep][:400]
        grey = sample.image.float().mean(0).numpy()
        gradient = np.hypot(gaussian_filter(grey, 1.5, order=(0, 1)), gaussian_filter(grey, 1.5, order=(1, 0)))
        at = map_coordinates(
            gradient, [np.repeat(y[:, None] - 0.5, len(offsets), 1), x[:, None] - 0.5 + offsets], order=1
        )
        profiles.append(at.mean(0) / at.mean())
    mean, t = np.mean(profiles, axis=0), np.arange(0.25, 2.5, 0.25)
    axes = np.arange(-2, 2.01, 0.05)
    misfit = [np.sum((np.interp(c + t, offsets, mean) - np.interp(c - t, offsets, mean)) ** 2) for c in axes]
    assert abs(axes[int(np.argmin(misfit))]) < 0.25  # nearer than the next reading, origin 0, which predicts 0.5
