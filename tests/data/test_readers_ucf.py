"""UCF_CC_50 and UCF-QNRF: layouts, folds, validation lists, damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.readers.ucf import ORIGIN, read_points
from papm.errors import ConfigError, DataError


def pair(image: Path, mat: Path, points: np.ndarray) -> None:
    image.parent.mkdir(parents=True, exist_ok=True)
    mat.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (40, 30), len(points)).save(image)
    scipy.io.savemat(mat, {"annPoints": points})


def make_cc50(root: Path, apart: bool = False) -> Path:
    for k in range(1, 51):
        images, truth = (root / "images", root / "ground_truth") if apart else (root, root)
        pair(images / f"{k}.jpg", truth / f"{k}_ann.mat", np.full((k, 2), 1.0) + np.arange(k)[:, None] / 4)
    return root


@pytest.fixture(scope="module")
def cc50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cc50(tmp_path_factory.mktemp("data") / "UCF_CC_50")


def test_folds_are_the_tens(cc50: Path) -> None:
    data = papm.data.open("ucf-cc-50", cc50)
    assert list(data) == ["all", "fold1", "fold2", "fold3", "fold4", "fold5"]
    assert [s.count for s in data["all"]] == list(range(1, 51))
    for k in range(1, 6):
        assert [s.name for s in data[f"fold{k}"]] == [str(n) for n in range(10 * k - 9, 10 * k + 1)]
    assert data["all"][0].points.tolist() == [[1 + ORIGIN, 1 + ORIGIN]] and ORIGIN == -0.5
    assert data["all"][2].size == (30, 40)
    assert papm.data.parse_spec(str(cc50)) == ("ucf-cc-50", cc50)
    assert papm.data.parse_spec(str(cc50.parent))[0] == "ucf-cc-50"


def test_one_fold_is_a_training_and_a_test_set(cc50: Path) -> None:
    seen: set[str] = set()
    for k in range(1, 6):
        data = papm.data.open("ucf-cc-50", cc50.parent, fold=k)
        train, test = ({s.name for s in data[n]} for n in ("train", "test"))
        assert len(train) == 40 and len(test) == 10 and not train & test
        seen |= test
    assert len(seen) == 50
    for wrong in (0, 6, True, "1"):
        with pytest.raises(ConfigError, match=r"fold of dataset 'ucf-cc-50' is a whole number( from 1 to 5)?, not"):
            papm.data.open("ucf-cc-50", cc50, fold=wrong)


def test_the_overlapping_splits_are_checked_once(cc50: Path) -> None:
    findings = check("ucf-cc-50", cc50)
    assert [f.message for f in findings] == ["the split 'all' has 1,275 points, 63,974 are published"]


def test_images_and_annotations_apart_and_what_does_not_belong(tmp_path: Path) -> None:
    root = make_cc50(tmp_path / "UCF", apart=True)
    assert sum(s.count for s in papm.data.open("ucf-cc-50", tmp_path)["all"]) == 1275
    (root / "ground_truth" / "7_ann.mat").unlink()
    with pytest.raises(DataError, match=r"7_ann\.mat: no such annotation"):
        papm.data.open("ucf-cc-50", root)
    pair(root / "images" / "7.jpg", root / "ground_truth" / "7_ann.mat", np.ones((7, 2)))
    Image.new("RGB", (4, 4)).save(root / "images" / "preview.png")
    assert len(papm.data.open("ucf-cc-50", root)["all"]) == 50
    assert [f.file.name for f in check("ucf-cc-50", root) if f.severity == "info" and f.file] == ["preview.png"]


def make_qnrf(root: Path, train: int = 10, test: int = 3, names: tuple[str, str] = ("Train", "Test")) -> Path:
    rng = np.random.default_rng(0)
    for split, n in zip(names, (train, test)):
        for k in range(1, n + 1):
            stem = root / split / f"img_{k:04d}"
            pair(stem.with_suffix(".jpg"), stem.with_name(f"{stem.name}_ann.mat"), rng.uniform(1, 30, (k, 2)))
    return root


@pytest.mark.parametrize("names", [("Train", "Test"), ("train", "test"), ("TRAIN", "TEST")])
def test_qnrf_layouts(tmp_path: Path, names: tuple[str, str]) -> None:
    root = make_qnrf(tmp_path / "UCF-QNRF_ECCV18", names=names)
    for place in (root, tmp_path):
        data = papm.data.open("ucf-qnrf", place)
        assert {k: [s.count for s in d] for k, d in data.items()} == {"train": [*range(1, 11)], "test": [1, 2, 3]}
        assert papm.data.parse_spec(str(place)) == ("ucf-qnrf", place)
    assert data["train"][0].name == "img_0001"


def test_qnrf_as_the_bayesian_loss_prepares_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, n in (("train", 4), ("val", 2), ("test", 3)):
        (tmp_path / "UCF-Train-Val-Test" / split).mkdir(parents=True)
        for k in range(1, n + 1):
            stem = tmp_path / "UCF-Train-Val-Test" / split / f"img_{k:04d}"
            Image.new("RGB", (40, 30), (k, n, 0)).save(stem.with_suffix(".jpg"))
            columns = 3 if split == "train" else 2  # the third is a distance to neighbours
            np.save(stem.with_suffix(".npy"), rng.uniform(1, 30, (k, columns)).astype(np.float32))
    data = papm.data.open("ucf-qnrf", tmp_path)
    assert {k: [s.count for s in d] for k, d in data.items()} == {
        "train": [1, 2, 3, 4],
        "val": [1, 2],
        "test": [1, 2, 3],
    }
    first = np.load(tmp_path / "UCF-Train-Val-Test" / "train" / "img_0001.npy")
    assert np.allclose(data["train"][0].points, first[:, :2] + ORIGIN)
    assert papm.data.parse_spec(str(tmp_path)) == ("ucf-qnrf", tmp_path)
    said = [f.message for f in check("ucf-qnrf", tmp_path) if "published" in f.message]
    assert said[1] == "the split 'val' has 2 images, 120 are published"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"no numbers",
        np.lib.format.magic(1, 0) + b"\x05\x00{'a':",
        np.lib.format.magic(1, 0)
        + b"v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 2), }".ljust(118),
        np.lib.format.magic(1, 0)
        + b"v\x00"
        + b"{'descr': '|O', 'fortran_order': False, 'shape': (1, 2), }".ljust(118)
        + bytes(16),
        np.lib.format.magic(1, 0)
        + b"v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(118)
        + bytes(16),
    ],
)
def test_wrong_npy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "img_0001.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"img_0001\.npy: ") as e:
        read_points(tmp_path / "img_0001.npy")
    assert "\n" not in str(e.value)


def test_qnrf_validation_by_list_and_by_share(tmp_path: Path) -> None:
    root = make_qnrf(tmp_path / "q")
    path = tmp_path / "val.txt"
    path.write_text("img_0002.jpg\nTrain/img_0005\n")
    data = papm.data.open("ucf-qnrf", root, val=str(path))
    assert [s.count for s in data["val"]] == [2, 5] and [s.count for s in data["train"]] == [1, 3, 4, 6, 7, 8, 9, 10]
    share = papm.data.open("ucf-qnrf", root, val=0.3, val_seed=1)
    assert len(share["val"]) == 3 and len(share["train"]) == 7 and len(share["test"]) == 3
    again, other = (papm.data.open("ucf-qnrf", root, val=0.3, val_seed=s)["val"] for s in (1, 2))
    assert [s.name for s in share["val"]] == [s.name for s in again] != [s.name for s in other]
    path.write_text("img_0002\n../img_0003\nimg_0099\n")
    with pytest.raises(DataError, match=r"val\.txt:2: .*leaves") as e:
        papm.data.open("ucf-qnrf", root, val=str(path))
    assert "1 more" in str(e.value)
    path.write_text("")
    with pytest.raises(DataError, match="names no image"):
        papm.data.open("ucf-qnrf", root, val=str(path))
    with pytest.raises(DataError, match="no such list"):
        papm.data.open("ucf-qnrf", root, val="none.txt")
    for wrong in (0, 1.0, -1, float("nan"), True):
        with pytest.raises(ConfigError, match="share"):
            papm.data.open("ucf-qnrf", root, val=wrong)


def test_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "img_0001_ann.mat"
    for wrong in (
        np.ones((3, 3)),
        np.array(["a"]),
        np.array([[np.nan, 1.0]]),
        np.array([[1e300, 1.0]]),
        np.ones((2, 2)) * 1j,
    ):
        scipy.io.savemat(path, {"annPoints": wrong})
        with pytest.raises(DataError, match=r"img_0001_ann\.mat: .*annPoints"):
            read_points(path)
    scipy.io.savemat(path, {"other": np.ones((2, 2))})
    with pytest.raises(DataError, match="no variable 'annPoints'"):
        read_points(path)
    scipy.io.savemat(path, {"annPoints": np.zeros((0, 0))})
    assert read_points(path).points.shape == (0, 2)
