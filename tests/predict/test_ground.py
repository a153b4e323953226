"""From pixels to a map: matrices, pairs, world files; what has no place there."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from papm.errors import DataError
from papm.predict.ground import Homography, world_file

PIXELS = np.array([[100.0, 300], [600, 310], [620, 470], [90, 460], [350, 380], [200, 420.5]])
UTM = np.array([[0.05, 0.001, 691_000.0], [0.002, -0.06, 5_334_000.0], [1e-6, -2e-4, 1.0]])
UTM[2] *= -1  # a matrix and its negative are the same map
SIZE = (480, 640)


def mapped(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    found = np.hstack([points, np.ones((len(points), 1))]) @ matrix.T
    return np.asarray(found[:, :2] / found[:, 2:])


def pairs(path: Path, places: np.ndarray, pixels: np.ndarray = PIXELS, sep: str = ",", head: str = "") -> Path:
    rows = [sep.join(repr(float(v)) for v in (*p, *q)) for p, q in zip(pixels, places)]
    path.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("sep", "head"), [(",", ""), (";", "x;y;X;Y\n"), ("\t", "# gate 3\n"), (" ", "\ufeff")])
def test_pairs_give_the_matrix_they_were_made_with(tmp_path: Path, sep: str, head: str) -> None:
    """With coordinates of seven digits: to a tenth of a millimetre."""
    read = Homography.read(pairs(tmp_path / "p.csv", mapped(UTM, PIXELS), sep=sep, head=head))
    there = np.array([[320.0, 400.0], [639, 479]])
    np.testing.assert_allclose(read.place(there, SIZE), mapped(UTM, there), rtol=0, atol=1e-4)
    assert re.search(r"misses its 6 pairs by \d", read.remark)


def test_many_pairs_take_little_memory() -> None:
    pixels = np.random.default_rng(0).uniform(0, 500, (600, 2))
    tracemalloc.start()
    found = Homography.fit(pixels, mapped(UTM, pixels))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found.place(pixels, SIZE), mapped(UTM, pixels), rtol=1e-9)
    assert peak < 2e6, "a square matrix of 1200 rows has 12 MB"


@pytest.mark.parametrize("value", [1e308, 1e200, float("nan"), float("inf")])
def test_pairs_that_nothing_can_be_computed_with(value: float) -> None:
    pixels = PIXELS.copy()
    pixels[1:3] = value
    for both in ((pixels, PIXELS), (PIXELS, pixels)):
        with pytest.raises(DataError, match="a coordinate of a pair"):
            Homography.fit(*both)


def test_how_far_the_pairs_are_off_is_said(tmp_path: Path) -> None:
    places = mapped(np.diag([0.1, 0.1, 1.0]), PIXELS)
    places[3] += (0.0, 5.0)
    read = Homography.read(pairs(tmp_path / "p.csv", places))
    assert re.search(r"by [1-4]\.?\d* \(root mean square, in map units\), at most \S+ \(pair 4\)", read.remark), (
        read.remark
    )
    assert "exactly" in Homography.read(pairs(tmp_path / "q.csv", places[:4], PIXELS[:4])).remark


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=9, max_size=9), st.integers(0, 1000))
def test_any_view_of_a_plane_is_found_again(values: list[float], seed: int) -> None:
    matrix = np.array(values).reshape(3, 3) * [[1, 1, 50], [1, 1, 50], [5e-4, 5e-4, 0.3]] + np.diag([2.0, -2.0, 1.0])
    pixels = np.random.default_rng(seed).random((8, 2)) * (640, 480)
    w = np.hstack([pixels, np.ones((8, 1))]) @ matrix[2]
    if abs(np.linalg.det(matrix)) < 0.1 or w.min() < 0.1:
        return
    try:
        found = Homography.fit(pixels, mapped(matrix, pixels))
    except DataError:
        pytest.fail("a plain homography was refused")
    np.testing.assert_allclose(found.place(pixels, SIZE), mapped(matrix, pixels), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("form", ["rows", "object", "text"])
def test_a_matrix_in_a_file(tmp_path: Path, form: str) -> None:
    matrix = [[2, 0, 10], [0, -2, 20], [0, 0, 1]]
    text = "\n".join(" ".join(map(str, row)) for row in matrix)
    path = tmp_path / "h.json"
    path.write_text({"rows": json.dumps(matrix), "object": json.dumps({"matrix": matrix}), "text": text}[form])
    # orientation: x to the right stays so, y downwards in the image becomes y upwards on the map
    assert Homography.read(path).place(np.array([[0.0, 0], [3, 4]]), SIZE).tolist() == [[10, 20], [16, 12]]


def test_beyond_the_horizon_there_is_no_place() -> None:
    """Whichever sign the matrix has; the lower border of the image is ground."""
    matrix = np.array([[1.0, 0, 0], [0, 0, 100], [0, 1, -200]])  # horizon at y = 200
    points = np.array([[50.0, 400], [50, 200], [50, 199.99], [50, 0]])
    for made in (Homography(matrix), Homography(-matrix)):
        found = made.place(points, SIZE)
        assert found[0].tolist() == [0.25, 0.5] and np.isnan(found[1:]).all()


BAD = {
    "1 2 3\n4 5 6\n7 8 9\n": "onto a line or a point",
    "1 0 0\n0 1 0\n": "holds 2 lines of 3 numbers; a homography is three lines",
    "1 2 3 4\n5 6 7 8\n1 1 1 1\n": "holds 3 lines of 4 numbers",
    "0,0,0,0\n1,1,1,1\n2,2,2,2\n3,3,3,3\n": "on one line",
    "0,0,0,0\n1,1,1,1\n2,2,2,2\n0,5,0,5\n": "on one line",
    "7,7,0,0\n7,7,1,1\n7,7,2,0\n7,7,0,5\n": "at one place",
    "0,0,0,0\n10,0,10,10\n10,10,10,0\n0,10,0,10\n": "on both sides of a horizon",
    "0 0 0 0\n1 0 1 x\n1 1 1 1\n0 1 0 1\n": "'x' is not a number",
    "1 0 0\n0 inf 0\n0 0 1\n": "not a finite number",
    "0 0 1\n0 0 1\n0 0 1\n": "no column of them all zero",
    "[[1, 0, 0], [0, 1, 0], [0, 0": "no JSON list of lists of numbers",
    '{"other": 3}': "no JSON list of lists of numbers",
    "[[1, 0, 0], [0, true, 0], [0, 0, 1]]": "'True' is not a number",
    f"[[1, 0, 0], [0, {10**400}, 0], [0, 0, 1]]": "not a finite number",
    "": "holds 0 lines of no numbers",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_homography(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(BAD[text])) as found:
        Homography.read(path)
    assert str(path) in str(found.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: cannot be read"):
        Homography.read(tmp_path / "none.csv")
    (tmp_path / "b").write_bytes(b"\xff\x00\x81" * 10)
    with pytest.raises(DataError, match="is no text file"):
        Homography.read(tmp_path / "b")
    (tmp_path / "long").write_bytes(b"1 " * 600_000)
    with pytest.raises(DataError, match="is longer than"):
        Homography.read(tmp_path / "long")


@pytest.mark.parametrize(
    ("image", "name"), [("a.tif", "a.tfw"), ("b.JPG", "b.jgw"), ("c.png", "c.pngw"), ("d.tif", "d.wld")]
)
def test_world_files(tmp_path: Path, image: str, name: str) -> None:
    """C and F are of the centre of the first pixel, which is at (½, ½) in papm's coordinates."""
    Image.new("L", (640, 480)).save(tmp_path / image)
    (tmp_path / name).write_text("0.5\n0.0\n0.0\n-0.5\n691000.25\n5334999.75\n")
    made = world_file(tmp_path / image).place(
        np.array([[0.5, 0.5], [0.0, 0.0], [640.0, 480.0]]), SIZE, tmp_path / image
    )
    assert made.tolist() == [[691000.25, 5334999.75], [691000.0, 5335000.0], [691320.0, 5334760.0]]


def test_world_files_that_are_none(tmp_path: Path) -> None:
    image = tmp_path / "a.tif"
    with pytest.raises(DataError, match=r"has no world file \(a\.tfw, a\.tifw, a\.wld\) beside it"):
        world_file(image)
    (tmp_path / "a.tfw").write_text("1\n0\n0\n")
    with pytest.raises(DataError, match=r"a\.tfw: a world file is six numbers, not 3"):
        world_file(image)
    (tmp_path / "a.tfw").write_text("0\n0\n0\n0\n5\n5\n")
    with pytest.raises(DataError, match=r"a\.tfw: .*no column of them all zero"):
        world_file(image)
