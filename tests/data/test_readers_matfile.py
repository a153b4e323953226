"""MATLAB files: what scipy reads is read the same, what would crash it is refused."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from papm.data.readers import matfile
from papm.data.readers.matfile import load_mat
from papm.errors import DataError

CELL = np.empty((1, 2), object)
CELL[0, 0] = {"location": np.arange(6.0).reshape(3, 2), "number": np.array([[3]], np.uint8), "name": "abc"}
CELL[0, 1] = np.zeros((0, 0))
VALUES = {
    "cell": CELL,
    "mask": np.eye(7, dtype=bool),
    "small": np.array([[1]], np.int16),
    "complex": np.array([[1 + 2j, 3]]),
    "text": np.array(["héllo"]),
    "empty": np.zeros((0, 2)),
    "cube": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
}


@pytest.mark.parametrize("compressed", [False, True])
def test_agrees_with_scipy(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, VALUES, do_compression=compressed)
    ours, theirs = load_mat(path, *VALUES, expected="x"), scipy.io.loadmat(path)
    for name in VALUES:
        assert ours[name].dtype == theirs[name].dtype and ours[name].shape == theirs[name].shape
        if name != "cell":
            assert np.array_equal(ours[name], theirs[name])
    assert np.array_equal(ours["cell"][0, 0]["location"][0, 0], np.arange(6.0).reshape(3, 2))


def test_only_the_wanted_variable_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"odd": scipy.sparse.eye(3, format="csc"), "wanted": np.ones((2, 2))})
    assert list(load_mat(path, "wanted", expected="x")) == ["wanted"]
    with pytest.raises(DataError, match="no variable 'odd'; expected a plain array"):
        load_mat(path, "odd", expected="a plain array")


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_is_refused_or_harmless(tmp_path: Path, compressed: bool) -> None:
    """Bytes of the structure overwritten: without the walk, some of these end the interpreter."""
    path, rng = tmp_path / "a.mat", random.Random(1)
    scipy.io.savemat(path, {"cell": CELL}, do_compression=compressed)
    good, refused = path.read_bytes(), 0
    for _ in range(300):
        data = bytearray(good if rng.random() < 0.8 else good[: rng.randrange(len(good))])
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        path.write_bytes(data)
        try:
            load_mat(path, "cell", expected="x")
        except DataError as e:
            refused += 1
            assert str(path) in str(e) and "\n" not in str(e)
    assert refused > 50


def test_hdf5_bombs_and_big_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512))
    with pytest.raises(DataError, match=r"7\.3 .*-v7"):
        load_mat(path, "x", expected="y")
    scipy.io.savemat(path, {"x": np.zeros((1000, 1000))}, do_compression=True)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(matfile, "MAX_ANNOTATION_BYTES", 1_000_000)  # 8 MB inflated
    with pytest.raises(DataError, match="larger than the limit"):
        load_mat(path, "x", expected="y")
    header = path.read_bytes()[:128]
    body = zlib.compress(b"\x0e\0\0\0\xff\xff\xff\x7f" + bytes(8))
    path.write_bytes(header + (15).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body)
    with pytest.raises(DataError, match="longer than what holds it"):
        load_mat(path, "x", expected="y")
