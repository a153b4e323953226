from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from papm.data.nwpu_files import (
    Objects,
    image_id,
    read_ground_truth,
    read_predictions,
    write_counts,
    write_predictions,
)
from papm.errors import DataError

# one file is written over and over; nothing of an example is left for the next
over = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.floats(-1e7, 1e7) | st.integers(-5, 5000).map(float)


def tables(width: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, st.tuples(st.integers(0, 5), st.just(width)), elements=numbers)


def objects_of(table: np.ndarray) -> Objects:
    """Any table [n, 5] as objects: sizes made positive, levels whole."""
    sigma = np.abs(table[:, 2:4])
    return Objects(table[:, :2], sigma[:, 0], sigma[:, 1], np.abs(table[:, 4]).astype(np.int64) % 6)


def text(tables: dict[int, np.ndarray]) -> str:
    """The lines of a file, with as many digits as it takes for each number to come back."""
    return "".join(f"{k} {len(t)} {' '.join(map(repr, t.flatten().tolist()))}\n" for k, t in sorted(tables.items()))


def same(a: Objects, b: Objects) -> bool:
    return all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("points", "sigma_s", "sigma_l", "levels"))


def test_the_lines_of_the_benchmark(tmp_path: Path) -> None:
    """Whole numbers, trailing blanks, images without objects, ids in any order."""
    file = tmp_path / "gt.txt"
    file.write_text("3110 2 10 20 3 5 1 400 30 12 17 2 \n3098 0\n\n0007 1 1 2 0 0 0\n")
    found = read_ground_truth(file)
    assert list(found) == [3110, 3098, 7] and [len(o) for o in found.values()] == [2, 0, 1]
    first = found[3110]
    assert first.points.tolist() == [[10, 20], [400, 30]] and first.levels.tolist() == [1, 2]
    assert first.sigma_s.tolist() == [3, 12] and first.sigma_l.tolist() == [5, 17]
    file.write_text("3110 1 10 20.5\r\n3098 0")
    predictions = read_predictions(file, found)
    assert predictions[3110].tolist() == [[10, 20.5]] and predictions[3098].shape == (0, 2) and 7 not in predictions


@over
@given(st.dictionaries(st.integers(0, 10**9 - 1), tables(2), max_size=4))
def test_predictions_come_back(tmp_path: Path, points: dict[int, np.ndarray]) -> None:
    file = tmp_path / "p.txt"
    file.write_text(text(points))
    found = read_predictions(file)
    assert list(found) == sorted(points) and all(np.array_equal(found[k], v) for k, v in points.items())
    write_predictions(file, {k: torch.from_numpy(v) for k, v in points.items()})
    assert all(np.array_equal(found, np.round(points[k])) for k, found in read_predictions(file).items())
    assert "." not in file.read_text()


@over
@given(st.dictionaries(st.integers(0, 9999), tables(5).map(objects_of), min_size=1, max_size=4))
def test_ground_truth_comes_back(tmp_path: Path, objects: dict[int, Objects]) -> None:
    file = tmp_path / "gt.txt"
    columns = {k: (o.points, o.sigma_s[:, None], o.sigma_l[:, None], o.levels[:, None]) for k, o in objects.items()}
    file.write_text(text({k: np.hstack(c) for k, c in columns.items()}))
    found = read_ground_truth(file)
    assert list(found) == sorted(objects) and all(same(found[k], o) for k, o in objects.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1 2 3\n1 0\n", ":2: image 1 was given on line 1 already"),
        ("1 1 2 3\n01 0\n", ":2: image 1 was given on line 1 already"),
        ("1 2 2 3\n", ":1: 2 points need 4 numbers after the count (2 each), there are 2"),
        ("1 1 2 3 4\n", ":1: 1 points need 2 numbers after the count (2 each), there are 3"),
        ("\n1 999999999 2 3\n", ":2: 999999999 points need"),
        ("a.jpg 1 2 3\n", ":1: the line begins with 'a.jpg', not with the number of an image"),
        ("-1 1 2 3\n", ":1: the line begins with '-1'"),
        ("1\n", ":1: the number of points of image 1 is missing"),
        ("1 1.0 2 3\n", ":1: the number of points of image 1 is '1.0'"),
        ("1 1 2 x\n", ":1: value 4 is 'x', not a number"),
        ("1 1 nan 3\n", ":1: value 3 is 'nan', not a finite number"),
        ("1 1 1e999 3\n", ":1: value 3 is '1e999', not a finite number"),
        ("1 1 2e7 3\n", ":1: value 3 is 2e+07, not a pixel coordinate"),
        ("1 1 1_0 3\n", ":1: value 3 is '1_0', not a number"),
        ("1 1 2 --3\n", ":1: value 4 is '--3', not a number"),
        ("5 1 2 3\n", ":1: image 5 is not in the ground truth"),
    ],
)
def test_bad_predictions_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "p.txt"
    file.write_text(text)
    with pytest.raises(DataError) as said:
        read_predictions(file, {1})
    assert f"{file}{message}" in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no images"),
        ("1 1 2 3 4 5 6\n", ":1: level is 6, not a whole number from 0 to 5"),
        ("1 1 2 3 4 5 0.5\n", ":1: level is 0.5"),
        ("1 1 2 3 -4 5 0\n", ":1: σ is -4"),
        ("1 1 2 3\n", ":1: 1 points need 5 numbers after the count (5 each), there are 2"),
    ],
)
def test_bad_ground_truth_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "gt.txt"
    file.write_text(text)
    with pytest.raises(DataError) as said:
        read_ground_truth(file)
    assert f"{file}{message}" in str(said.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such annotation file"):
        read_predictions(tmp_path / "none.txt")
    with pytest.raises(DataError, match="not a file"):
        read_ground_truth(tmp_path)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(DataError, match="not a text file"):
        read_ground_truth(tmp_path / "picture.png")


lines = st.text(alphabet="0123456789 .-+eE\n\tx_\x0b\x00é٣", max_size=60) | st.lists(
    st.sampled_from(["1", "2", "0", "3.5", "-1", "1e9", "nan", "\n", "1e-3"]), max_size=20
).map(" ".join)


@settings(over, max_examples=150)
@given(lines | st.binary(max_size=40))
def test_whatever_is_in_a_file_is_read_or_refused(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "f.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    for read in (read_predictions, read_ground_truth):
        try:
            found = read(file)
        except DataError as error:
            assert str(error).startswith(str(file)) and "\n" not in str(error)
        else:
            for values in found.values():
                points = values.points if isinstance(values, Objects) else values
                assert points.shape[1] == 2 and np.isfinite(points).all()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for bad in ([[float("nan"), 1.0]], [[1e9, 0.0]]):
        with pytest.raises(DataError, match="image 3 has a value that is no pixel coordinate"):
            write_predictions(tmp_path / "p.txt", {3: bad})
    with pytest.raises(DataError, match="cannot be the number of an image"):
        write_predictions(tmp_path / "p.txt", {-1: [[1.0, 1.0]]})
    assert not list(tmp_path.iterdir())


def test_numbers_of_images() -> None:
    assert image_id("images/3110.jpg") == 3110 and image_id("0007") == 7
    with pytest.raises(DataError, match=r"IMG_1\.jpg: the name of an image of NWPU-Crowd is its number"):
        image_id("IMG_1.jpg")


def test_counts_for_the_server(tmp_path: Path) -> None:
    write_counts(tmp_path / "counting.txt", {3611: 2.0, 3610: 12.34567, 5109: 0.0})
    assert (tmp_path / "counting.txt").read_text() == "3610 12.3457\n3611 2.0000\n5109 0.0000\n"
    for wrong in (float("nan"), -1.0, float("inf")):
        with pytest.raises(DataError, match="image 1 has the count"):
            write_counts(tmp_path / "no.txt", {1: wrong})
    with pytest.raises(DataError, match="number of an image"):
        write_counts(tmp_path / "no.txt", {-1: 1.0})
    assert not (tmp_path / "no.txt").exists()
