"""Folder data: what is recognised, how it is parsed, what is refused."""

from __future__ import annotations

import csv
import json
import logging
import re
import unicodedata
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.formats.txt import parse
from papm.data.readers import faults
from papm.data.readers.faults import AnnotationError, safe_relative
from papm.data.spec import parse_spec
from papm.errors import ConfigError, DataError


def image(path: Path, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)
    return path


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def open_all(root: Path, **options: Any) -> dict[str, list[list[float]]]:
    data = papm.data.open("folder", root, **options)
    assert list(data) == ["all"]
    return {s.name: s.points.tolist() for s in data["all"]}


# --- .txt --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "1 2\n3.5 4\n",
        "1,2\n3.5,4",
        "1\t2\r\n3.5\t4\r\n",
        "x y\n1 2\n3.5 4",
        "# dots\n\n 1 , 2 # first\n3.5;4\n",
        "y,x\n2,1\n4,3.5",
        "\ufeffx,y\n1,2\n3.5,4\n",
        "1e0 2\r3.5 +4",
    ],
)
def test_txt_dialects(tmp_path: Path, content: str) -> None:
    image(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert open_all(tmp_path) == {"a": [[1.0, 2.0], [3.5, 4.0]]}
    assert papm.data.parse_spec(str(tmp_path)) == ("folder", tmp_path)


def test_txt_empty_means_no_objects_and_labels(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.png", "c.png"):
        image(tmp_path / name)
    text(tmp_path / "a.txt", "")
    text(tmp_path / "b.txt", "x y label\n1 2 5\n3 4 0\n")
    text(tmp_path / "c.txt", "1 2\n")
    data = {s.name: s for s in papm.data.open("folder", tmp_path)["all"]}
    assert data["a"].points.shape == (0, 2) and data["c"].labels is None
    assert data["b"].labels is not None and data["b"].labels.tolist() == [5, 0]
    assert {n: len(p) for n, p in open_all(tmp_path, category=5).items()} == {"a": 0, "b": 1, "c": 0}


def test_txt_class_names(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "a.txt", "1 2 car\n3 4 bus\n")
    with pytest.raises(AnnotationError, match=r"a\.txt:1: the label 'car'.*classes\.txt.*1 more"):
        open_all(tmp_path)
    text(tmp_path / "classes.txt", "bus\ncar\n")
    sample = papm.data.open("folder", tmp_path)["all"][0]
    assert sample.labels is not None and sample.labels.tolist() == [1, 0] and sample.meta["classes"] == ("bus", "car")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("nan 2", "x is 'nan', not a finite"),
        ("1 inf", "y is 'inf', not a finite"),
        ("1 -Infinity", "not a finite"),
        ("1 two", "y is 'two', not a number"),
        ("abc def", "x is 'abc', not a number"),
        ("7", "found 1 field"),
        ("0 0.5 0.5 0.1 0.1", "found 5 fields"),
        ("1_0 2", "not a number"),
        ("1e300 2", "not a pixel coordinate"),
        ("1 2 9", "has no label"),
    ],
)
def test_txt_faults_name_file_and_line(tmp_path: Path, bad: str, words: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "a.txt", f"# comment\n5 6\n{bad}\n")
    with pytest.raises(DataError) as e:
        open_all(tmp_path)
    assert words in str(e.value) and "a.txt:" in str(e.value) and "\n" not in str(e.value)
    if "label" not in words:
        assert "a.txt:3:" in str(e.value)


def test_all_bad_lines_are_carried(tmp_path: Path) -> None:
    points = parse("1 2\nx1 2\n3 4\n5\nnan 1\n", tmp_path / "a.txt")
    assert [f.line for f in points.faults] == [2, 4, 5] and points.xy == [(1, 2), (3, 4)] and points.lines == [1, 3]


def test_binary_and_oversized_annotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_bytes(b"1 2\n\xff\xfe\x00")
    with pytest.raises(DataError, match=r"a\.txt: not a text file"):
        open_all(tmp_path)
    text(tmp_path / "a.txt", "1 2\n" * 50)
    monkeypatch.setattr(faults, "MAX_ANNOTATION_BYTES", 100)
    with pytest.raises(DataError, match=r"a\.txt: .*limit"):
        open_all(tmp_path)


def test_missing_txt_and_shared_stem(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    image(tmp_path / "b.jpg")
    text(tmp_path / "a.txt", "1 2")
    with pytest.raises(DataError, match=r"b\.jpg: no annotation file; expected .*b\.txt"):
        open_all(tmp_path)
    text(tmp_path / "b.txt", "")
    image(tmp_path / "a.png")
    with pytest.raises(DataError, match="another image is called 'a'"):
        open_all(tmp_path)


@given(
    st.lists(
        st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2, st.integers(0, 9)),
        max_size=6,
    ),
    st.sampled_from([" ", ",", "\t", " , ", ";"]),
)
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read(rows: list[tuple[float, float, int]], sep: str) -> None:
    points = parse("\n".join(f"{x!r}{sep}{y!r}{sep}{k}" for x, y, k in rows), Path("a.txt"))
    assert not points.faults
    assert points.xy == [(x, y) for x, y, _ in rows] and points.labels == [str(k) for *_, k in rows]


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_parses_or_has_faults_with_lines(content: str) -> None:
    points = parse(content, Path("a.txt"))
    lines = [*points.lines, *(f.line for f in points.faults)]
    assert all(line is not None and 1 <= line <= content.count("\n") + 1 for line in lines)


# --- splits and layouts ------------------------------------------------------------------------------------------------


def test_splits_from_subfolders_with_images_and_labels(tmp_path: Path) -> None:
    image(tmp_path / "train/images/a.jpg")
    text(tmp_path / "train/labels/a.txt", "1 2")
    image(tmp_path / "Validation/b.jpg")
    text(tmp_path / "Validation/points/b.txt", "1 2\n3 4")
    image(tmp_path / "test/c.jpg")
    text(tmp_path / "test/c.txt", "")
    image(tmp_path / "unrelated/d.jpg")
    data = papm.data.open("folder", tmp_path)
    assert {k: [(s.name, s.count) for s in d] for k, d in data.items()} == {
        "train": [("a", 1)],
        "val": [("b", 2)],
        "test": [("c", 0)],
    }


def test_splits_below_images_and_labels(tmp_path: Path) -> None:
    for split in ("train", "val"):
        image(tmp_path / "images" / split / "a.jpg")
        text(tmp_path / "labels" / split / "a.txt", "1 2" if split == "train" else "")
    data = papm.data.open("folder", tmp_path)
    assert {k: d[0].count for k, d in data.items()} == {"train": 1, "val": 0}


def test_images_and_labels_without_splits_are_all_in_natural_order(tmp_path: Path) -> None:
    for k in (10, 9, 1):
        image(tmp_path / f"images/i{k}.jpg")
        text(tmp_path / f"labels/i{k}.txt", "1 2\n" * k)
    assert {n: len(p) for n, p in open_all(tmp_path).items()} == {"i1": 1, "i9": 9, "i10": 10}
    assert list(open_all(tmp_path)) == ["i1", "i9", "i10"]


def test_two_folders_for_one_split(tmp_path: Path) -> None:
    for name in ("train", "training"):
        image(tmp_path / name / "a.jpg")
        text(tmp_path / name / "a.txt", "1 2")
    with pytest.raises(DataError, match="two folders for the split 'train'"):
        papm.data.open("folder", tmp_path)


def test_origin_option(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "a.txt", "1 2")
    assert open_all(tmp_path, origin=0.5) == {"a": [[1.5, 2.5]]}
    assert papm.data.base.reader("folder").origin == 0


# --- recognition -------------------------------------------------------------------------------------------------------


def test_what_is_not_recognised(tmp_path: Path) -> None:
    assert not papm.data.base.reader("folder").recognise(tmp_path)
    with pytest.raises(DataError, match="no images here"):
        papm.data.open("folder", tmp_path)
    image(tmp_path / "a.jpg")
    recognise = papm.data.base.reader("folder").recognise
    assert not recognise(tmp_path)  # images alone
    with pytest.raises(DataError, match="images but no points"):
        papm.data.open("folder", tmp_path)
    text(tmp_path / "README.txt", "1 2")
    text(tmp_path / "notes.csv", "day,weather\n1,sun\n")
    text(tmp_path / "settings.json", '{"a": 1}')
    assert not recognise(tmp_path)
    text(tmp_path / "a.txt", "A photograph of a busy street")  # a caption
    assert not recognise(tmp_path)
    text(tmp_path / "a.txt", "0 12 13 4 5")  # five numbers, and not YOLO's fractions
    assert not recognise(tmp_path)
    text(tmp_path / "a.txt", "12 13")
    assert recognise(tmp_path)
    assert not recognise(tmp_path / "a.txt")


def test_published_layouts_are_left_to_their_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path / "images/a.jpg")
    text(tmp_path / "images/a.txt", "1 2")
    assert papm.data.parse_spec(str(tmp_path))[0] == "folder"
    from papm.data import base

    monkeypatch.setitem(base.READERS._items, "other", base.Reader("other", "", recognise=lambda root: root == tmp_path))
    assert papm.data.parse_spec(str(tmp_path))[0] == "other"  # although registered later


# --- CSV ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "image,x,y\na.jpg,1,2\nb.jpg,3,4\na.jpg,5,6\n",
        "a.jpg,1,2\nb.jpg,3,4\na.jpg,5,6\n",
        "filename;y;x\na.jpg;2;1\nb.jpg;4;3\na.jpg;6;5\n",
        "X\tY\tFile\n1\t2\ta\n3\t4\tb\n5\t6\ta\n",
        '# made by hand\n"file_name", "x", "y"\n"a.jpg", 1, 2\n"b.jpg", 3, 4\n\n"a.jpg", 5, 6\n',
        "path,x,y\nimages/a.jpg,1,2\nimages\\b.jpg,3,4\nimages/a.jpg,5,6\n",
    ],
)
def test_csv_dialects(tmp_path: Path, content: str) -> None:
    image(tmp_path / "images/a.jpg")
    image(tmp_path / "images/b.jpg")
    text(tmp_path / "points.csv", content)
    assert open_all(tmp_path) == {"a": [[1, 2], [5, 6]], "b": [[3, 4]]}
    assert papm.data.parse_spec(str(tmp_path))[0] == "folder"


@pytest.mark.parametrize("header", ["", "File;X;Y\n"])
def test_a_comma_is_a_decimal_sign_where_semicolons_separate(tmp_path: Path, header: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "clicks.csv", f"{header}a.jpg;1,5;2,25\na.jpg;3;4,0\n")
    assert open_all(tmp_path) == {"a": [[1.5, 2.25], [3, 4]]}


@pytest.mark.parametrize("row", ['a.jpg,"1,5",2', "a.jpg;1.000,5;2", "a.jpg;1,000,5;2"])
def test_other_commas_in_numbers_are_refused(tmp_path: Path, row: str) -> None:
    image(tmp_path / "a.jpg")
    separator = ";" if ";" in row else ","
    text(tmp_path / "clicks.csv", separator.join(("image", "x", "y")) + f"\n{row}\n")
    with pytest.raises(DataError, match=r"clicks\.csv:2: x is '1.*', not a number"):
        open_all(tmp_path)


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("image,x,y\n", "a.jpg,10,2,5,4", "5 fields where the header has 3; decimal commas? save it with points"),
        ("image,x,y\n", "a.jpg,10,2,5", "4 fields where the header has 3; decimal commas?"),
        ("image,x,y,,\n", "a.jpg,10,2,5,4", "5 fields where the header has 3; decimal commas?"),
        ("x,y,image,label\n", "10,2,5,4,a.jpg,1", "6 fields where the header has 4; decimal commas?"),
        ("", "a.jpg,10,2,5,4", "5 fields where a row may have 4; decimal commas?"),
        ("", "a.jpg,10,2,5,4,car", "6 fields where a row may have 4; decimal commas?"),
        ("image,x,y,notes\n", "a.jpg,10,2,5,4,big, round", "7 fields where the header has 4; decimal commas?"),
        ("x,image,y\n", "10,2,a.jpg,5,4", "5 fields where the header has 3; decimal commas?"),
        ("image,x,y\na.jpg,7,8,near\n", "a.jpg,10,2,5,4", "5 fields where the header has 3; decimal commas?"),
    ],
)
def test_rows_that_fell_apart_at_decimal_commas_are_refused(
    tmp_path: Path, header: str, row: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Decimal commas in a table of commas put every point where nothing is."""
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", f"{header}{row}\n")
    line = 1 + header.count("\n")
    with pytest.raises(DataError, match=rf"p\.csv:{line}: {re.escape(words)}"):
        open_all(tmp_path)
    assert not caplog.messages  # such as that the image has no row
    [found] = [f for f in check("folder", tmp_path) if f.severity == "error"]
    assert found.line == line and words in found.message and "; else give each column a heading" in found.message


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ("image,x,y,notes\na.jpg,10,20,big, round\na.jpg,30,40,\n", "5 fields where the header has 4"),
        ("image,x,y\na.jpg,10,20,checked by Ann\na.jpg,30,40\n", "4 fields where the header has 3"),
        ("image,x,y\na.jpg,10,20,7\na.jpg,30,40,good\n", "4 fields where the header has 3"),
        ("image,x,y\na.jpg,10,20,1,0.98\na.jpg,30,40,-1,2\n", "5 fields where the header has 3"),
        ("image,x,y\na.jpg,10.5,20,1\na.jpg,30,40\n", "4 fields where the header has 3"),
        ("image,x,y\na.jpg,10,20,3,4\na.jpg,30.5,40\n", "5 fields where the header has 3"),
        ("image;x;y\na.jpg;10;20;5\na.jpg;30;40;5;6\n", "5 fields where the header has 3"),
        ("image,x,y,\na.jpg,10,20,ok\na.jpg,30,40,3\n", ""),
        ("image,x,y,\na.jpg,10,20,5\na.jpg,30,40,3\n", ""),
        ("a.jpg,10,20,1,0.98\na.jpg,30,40,1,1\n", ""),
        ("a.jpg,10,20,1,0.98\na.jpg,30,40,1,0.95\n", ""),
        ("a.jpg,10,20,car,2024,x\na.jpg,30,40,car,2024,y\n", ""),
    ],
)
def test_cells_behind_the_columns_are_not_read(
    tmp_path: Path, content: str, fields: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Remarks, scores, commas in a text: said once a file where the header is shorter."""
    image(tmp_path / "a.jpg", (80, 80))
    text(tmp_path / "p.csv", content)
    assert [[int(v) for v in xy] for xy in open_all(tmp_path)["a"]] == [[10, 20], [30, 40]]
    said = [f"{tmp_path / 'p.csv'}: rows have up to {fields}; those beyond are not read"] if fields else []
    assert caplog.messages == said


@pytest.mark.parametrize("content", ["image,x,y\na.jpg,1,2,\na.jpg,3,4,,\n", "a.jpg,1,2,,\na.jpg,3,4,,,\n"])
def test_commas_at_the_end_of_a_row_are_nothing(tmp_path: Path, content: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", content)
    assert open_all(tmp_path) == {"a": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    "content",
    [
        "sep=;\nimage;x;y\na.jpg;1,5;2\n",
        "\ufeffSEP=;\r\na.jpg;1,5;2\r\n",
        '"sep=|"\nimage|x|y\na.jpg|1,5|2\n',
        "sep=,\nimage,x,y\na.jpg,1.5,2\n",
    ],
)
def test_excel_names_the_separator(tmp_path: Path, content: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", content)
    assert open_all(tmp_path) == {"a": [[1.5, 2]]}
    with (tmp_path / "p.csv").open("a", encoding="utf-8") as file:
        file.write("?")
    with pytest.raises(DataError, match=rf"p\.csv:{content.count(chr(10)) + 1}: "):
        open_all(tmp_path)


def test_names_that_differ_in_case_are_told(tmp_path: Path) -> None:
    image(tmp_path / "b0.png")
    text(tmp_path / "p.csv", "image,x,y\nB0.PNG,1,2\n")
    with pytest.raises(DataError, match=r"'b0\.png' is, which differs only in upper and lower case: write it so"):
        open_all(tmp_path)


def test_images_in_formats_that_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image(tmp_path / "a.jpg")
    for name in ("b.HEIC", "c.heic", "d.gif"):
        (tmp_path / name).touch()
    text(tmp_path / "p.csv", "image,x,y\na.jpg,1,2\n")
    assert open_all(tmp_path) == {"a": [[1, 2]]}
    said = "3 files were passed over, as their format is not read: .heic (2), .gif (1); save them as JPEG or PNG"
    assert [r.message for r in caplog.records] == [f"{tmp_path}: {said}"]
    text(tmp_path / "p.csv", "image,x,y\na.jpg,1,2\nb.HEIC,1,2\n")
    with pytest.raises(DataError, match=r"'b\.HEIC' is not in this dataset; it is there, but its format is not read"):
        open_all(tmp_path)
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(DataError, match=r"no images here.*; 3 files were passed over"):
        open_all(tmp_path)
    with pytest.raises(DataError, match=r"there are no images in this folder.*; 3 files were passed over"):
        papm.data.parse_spec(str(tmp_path))


@pytest.mark.parametrize("inner", ["test", "test/images", "images/test"])
def test_a_split_whose_images_are_not_read_is_told(
    tmp_path: Path, inner: str, caplog: pytest.LogCaptureFixture
) -> None:
    train = tmp_path / inner.replace("test", "train")
    image(train / "a.jpg")
    text(train / "a.txt", "1 2\n")
    text(tmp_path / inner / "b.HEIC", "")
    assert list(papm.data.open("folder", tmp_path)) == ["train"]
    said = "1 file was passed over, as its format is not read: .heic (1); save it as JPEG or PNG"
    assert caplog.messages == [f"{tmp_path}: {said}"]
    assert [(f.severity, f.file, f.message) for f in check("folder", tmp_path)] == [("warning", tmp_path / inner, said)]
    (train / "a.jpg").unlink()
    with pytest.raises(DataError, match=r"no images here.*; 1 file was passed over"):
        open_all(tmp_path)


def test_a_table_may_name_images_that_are_read_whatever_their_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image(tmp_path / "a.jpg")
    for name in ("s0.svs", "s1.svs"):
        Image.new("RGB", (40, 30), (9, 9, int(name[1]))).save(tmp_path / name, format="TIFF")
    text(tmp_path / "p.csv", "image,x,y\na.jpg,1,2\ns0.svs,3,4\n")
    assert open_all(tmp_path) == {"a": [[1, 2]], "s0": [[3, 4]]}
    said = "1 file was passed over, as its format is not read: .svs (1); save it as JPEG or PNG"
    assert caplog.messages == [f"{tmp_path}: {said}"]
    assert [(f.severity, f.message) for f in check("folder", tmp_path)] == [("warning", said)]
    (tmp_path / "s0.svs").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"'s0\.svs' is not in this dataset; it is there, but its format is not read"):
        open_all(tmp_path)


def test_jpegs_by_their_other_names(tmp_path: Path) -> None:
    for name in ("a.jfif", "b.JPE"):
        Image.new("RGB", (40, 30)).save(tmp_path / name, format="JPEG")
        text(tmp_path / f"{name[0]}.txt", "1 2\n")
    assert open_all(tmp_path) == {"a": [[1, 2]], "b": [[1, 2]]}


def test_csv_labels_blank_rows_and_unlisted_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        image(tmp_path / f"{name}.jpg")
    text(tmp_path / "p.csv", "image,x,y,label\na.jpg,1,2,dog\na.jpg,3,4,cat\nb.jpg,,,\n")
    with caplog.at_level(logging.WARNING):
        data = {s.name: s for s in papm.data.open("folder", tmp_path)["all"]}
    assert "1 image has no row and is taken" in caplog.text
    assert data["a"].labels is not None and data["a"].labels.tolist() == [1, 0]
    assert data["a"].meta["classes"] == ("cat", "dog")
    assert data["b"].count == data["c"].count == 0
    assert data["c"].meta.get("unlisted") and not data["b"].meta.get("unlisted")


def test_one_csv_for_several_splits(tmp_path: Path) -> None:
    image(tmp_path / "train/a.jpg")
    image(tmp_path / "test/a.jpg")
    image(tmp_path / "test/b.jpg")
    text(tmp_path / "points.csv", "image,x,y\ntrain/a.jpg,1,2\ntest/a.jpg,3,4\nb.jpg,5,6\n")
    data = papm.data.open("folder", tmp_path)
    assert {k: {s.name: s.points.tolist() for s in d} for k, d in data.items()} == {
        "train": {"a": [[1, 2]]},
        "test": {"a": [[3, 4]], "b": [[5, 6]]},
    }
    text(tmp_path / "points.csv", "image,x,y\na.jpg,1,2\n")
    with pytest.raises(DataError, match=r"points\.csv:2: the image 'a\.jpg' could be any of 2"):
        papm.data.open("folder", tmp_path)


def test_tables_named_after_splits(tmp_path: Path) -> None:
    for name in "abc":
        image(tmp_path / f"images/{name}.jpg")
    text(tmp_path / "train.csv", "image,x,y,label\na.jpg,1,2,dog\nb.jpg,3,4,dog\n")
    text(tmp_path / "test_points.csv", "image,x,y,label\nc.jpg,5,6,ant\n")
    data = papm.data.open("folder", tmp_path)
    assert {k: [s.name for s in d] for k, d in data.items()} == {"test": ["c"], "train": ["a", "b"]}
    labels = {k: d[0].labels for k, d in data.items()}
    assert {k: None if v is None else v.tolist() for k, v in labels.items()} == {
        "test": [0],
        "train": [1],
    }  # one indexing


def test_several_tables_ask_which(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "first.csv", "image,x,y\na.jpg,1,2\n")
    text(tmp_path / "second.csv", "image,x,y\na.jpg,3,4\n")
    with pytest.raises(DataError, match="annotations=NAME"):
        open_all(tmp_path)
    assert open_all(tmp_path, annotations="second.csv") == {"a": [[3, 4]]}
    with pytest.raises(DataError, match=r"third\.csv: no such"):
        open_all(tmp_path, annotations="third.csv")
    with pytest.raises(ConfigError, match="known: auto"):
        open_all(tmp_path, format="xml")


@pytest.mark.parametrize(
    "name", ["/etc/a.jpg", "../a.jpg", "x/../../a.jpg", "C:\\a.jpg", "..\\a.jpg", "\\\\host\\a.jpg"]
)
def test_paths_may_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data"
    image(root / "b.jpg")
    image(tmp_path / "a.jpg")
    text(root / "p.csv", f"image,x,y\nb.jpg,1,2\n{name},1,2\n")
    with pytest.raises(DataError, match=r"p\.csv:3: .*leaves the dataset"):
        open_all(root)
    (root / "p.csv").unlink()
    content = {"images": [{"id": 1, "file_name": name}], "annotations": []}
    text(root / "c.json", json.dumps(content))
    with pytest.raises(DataError, match=r"c\.json: .*leaves the dataset"):
        open_all(root)


@given(st.text("ab./\\:C ", max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_safe_path_stays_below_any_root(name: str) -> None:
    try:
        path = safe_relative(name)
    except ValueError:
        return
    root = Path("/data/set")
    assert root in (root / path).parents and ".." not in path.parts


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a.jpg,one,2", "x is 'one', not a number"),
        ("a.jpg,1,nan", "y is 'nan', not a finite"),
        ("a.jpg,1", "found 2 fields"),
        ("a.jpg,1,", "y is '', not a number"),
        (",1,2", "image name is empty"),
        ("zz.jpg,1,2", "'zz.jpg' is not in this dataset; put it back or take it out here"),
        ('"a.jpg,1,2', "not a row of a table"),
    ],
)
def test_csv_faults_name_file_and_line(tmp_path: Path, row: str, words: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", f"image,x,y\na.jpg,5,6\n{row}\n")
    with pytest.raises(DataError) as e:
        open_all(tmp_path)
    assert words in str(e.value) and "p.csv:3: " in str(e.value)


def test_csv_categories_by_name_and_number(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", "image,x,y,label\na.jpg,5,6,bus\na.jpg,7,8,car\n")
    assert open_all(tmp_path, category="car") == open_all(tmp_path, category=1) == {"a": [[7, 8]]}
    with pytest.raises(ConfigError, match="unknown category 'cra'; did you mean 'car'"):
        open_all(tmp_path, category="cra")
    text(tmp_path / "classes.txt", "bus\ncar\n")
    text(tmp_path / "p.csv", "image,x,y,label\na.jpg,5,6,0\na.jpg,7,8,1\n")
    assert open_all(tmp_path, category="car") == {"a": [[7, 8]]}


def test_csv_with_wrong_columns(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", "image,left,top\na.jpg,5,6\n")
    with pytest.raises(DataError, match=r"p\.csv:1: expected a header .*image, left, top"):
        open_all(tmp_path, annotations="p.csv")


@pytest.mark.parametrize(
    "header",
    ["Photo,Plant no,X (px),Y (px)", "File name,no,x [pixels],y [pixels]", "picture,no,Pos X,Pos Y", "Image File,,X,Y"],
)
def test_headings_of_a_spreadsheet(tmp_path: Path, header: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", f"{header}\na.jpg,1,5,6\na.jpg,2,7.5,8\n")
    assert open_all(tmp_path) == {"a": [[5.0, 6.0], [7.5, 8.0]]}


@pytest.mark.parametrize(
    "header",
    [
        *("image;X_center;Y_center", "Bild;x-Koordinate;y-Koordinate", "Dateiname;X-Koordinate (px);Y-Koordinate (px)"),
        *("Image Name;cx;cy", "Datei;Spalte;Zeile", "File;Centre X;Centre Y"),
    ],
)
def test_headings_of_other_programs_and_in_german(tmp_path: Path, header: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", f"{header};Klasse\na.jpg;5,5;6;1\na.jpg;7,5;8;0\n")
    assert open_all(tmp_path) == {"a": [[5.5, 6], [7.5, 8]]}
    assert open_all(tmp_path, category=0) == {"a": [[7.5, 8]]}


def test_the_number_of_a_row_is_no_coordinate(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", "row,image,x,y\n0,a.jpg,5,6\n1,a.jpg,7,8\n")
    assert open_all(tmp_path) == {"a": [[5, 6], [7, 8]]}


@pytest.mark.parametrize("header", ["Photo,X (mm),Y (mm)", "Aufnahme,x,y", "image,x,y,x_center,y_center"])
def test_headings_that_are_not_known_or_ambiguous_are_named(tmp_path: Path, header: str) -> None:
    image(tmp_path / "a.jpg")
    text(tmp_path / "p.csv", f"{header}\nsome,5,6\n")
    named = header.replace(",", ", ").replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DataError, match=rf"the columns of p\.csv are {named}; rename .* image, x, y"):
        open_all(tmp_path)


# --- COCO --------------------------------------------------------------------------------------------------------------


def coco(annotations: list[dict[str, Any]], **more: Any) -> str:
    names = {1: "a.jpg", 2: "b.jpg"}
    images = [{"id": i, "file_name": n, "width": 40, "height": 30} for i, n in names.items()]
    categories = [{"id": 3, "name": "car"}, {"id": 7, "name": "bus"}]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories} | more)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    image(tmp_path / "a.jpg")
    image(tmp_path / "b.jpg")
    return tmp_path


def test_coco_boxes_crowds_and_categories(two: Path) -> None:
    text(
        two / "instances.json",
        coco(
            [
                {"id": 1, "image_id": 1, "category_id": 3, "bbox": [10, 10, 4, 6], "iscrowd": 0},
                {"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 1, 1]},
                {"id": 3, "image_id": 1, "category_id": 3, "bbox": [0, 0, 40, 30], "iscrowd": 1},
            ]
        ),
    )
    a, b = papm.data.open("folder", two)["all"]
    assert a.points.tolist() == [[12, 13], [0.5, 0.5]]
    assert a.boxes is not None and a.boxes.tolist() == [[10, 10, 14, 16], [0, 0, 1, 1]]
    assert a.labels is not None and a.labels.tolist() == [0, 1] and a.meta["classes"] == ("car", "bus")
    assert a.meta["crowd_regions"] == 1 and b.count == 0
    assert open_all(two, category="bus") == {"a": [[0.5, 0.5]], "b": []}
    assert open_all(two, category=3) == {"a": [[12, 13]], "b": []}
    assert len(open_all(two, category="car, bus")["a"]) == 2
    with pytest.raises(ConfigError, match="unknown category 'cra'; did you mean 'car'"):
        open_all(two, category="cra")
    assert papm.data.parse_spec(str(two))[0] == "folder"


@pytest.mark.parametrize(("listed", "named"), [(1, "1"), ("1", 1)])
def test_coco_ids_as_texts_and_numbers(two: Path, listed: int | str, named: int | str) -> None:
    images = [{"id": listed, "file_name": "a.jpg"}, {"id": "x", "file_name": "b.jpg"}]
    found = [{"image_id": i, "bbox": [1, 1, 2, 2], "category_id": 3} for i in (named, "x")]
    text(two / "c.json", coco(found, images=images))
    assert open_all(two) == {"a": [[2, 2]], "b": [[2, 2]]}


@pytest.mark.parametrize("ids", [("crowd", 10, "9"), ("crowd", "10", 9)])
def test_coco_categories_with_texts_and_numbers_as_ids(two: Path, ids: tuple[int | str, ...]) -> None:
    """Classes are in the order of their numbers, however these are written; an id may be written otherwise where it is used."""
    categories = [{"id": i, "name": name} for i, name in zip(ids, ("crowd", "bus", "car"))]
    found = [{"image_id": 1, "bbox": [n, 1, 2, 2], "category_id": i} for n, i in enumerate(("9", 10, "crowd", 9, "10"))]
    text(two / "c.json", coco(found, categories=categories))
    sample = papm.data.open("folder", two)["all"][0]
    assert sample.meta["classes"] == ("car", "bus", "crowd")
    assert sample.labels is not None and sample.labels.tolist() == [0, 1, 2, 0, 1]
    assert open_all(two, category=9) == open_all(two, category="car") == {"a": [[1, 2], [4, 2]], "b": []}
    assert open_all(two, category="crowd") == {"a": [[3, 2]], "b": []}


@pytest.mark.parametrize("wrong", [[3], {"id": 3}, None, 3.5])
def test_coco_ids_of_categories_that_are_none(two: Path, wrong: object) -> None:
    for id in (wrong, "3"):  # of the bus; the car has 3
        text(two / "c.json", coco([], categories=[{"id": 3, "name": "car"}, {"id": id, "name": "bus"}]))
        with pytest.raises(DataError, match=r"c\.json: a category without an id of its own: \{'id': .*'bus'\}$"):
            open_all(two)
    text(two / "c.json", coco([{"image_id": 1, "bbox": [1, 1, 2, 2], "category_id": wrong}]))
    with pytest.raises(DataError, match=r"annotation #1: has the category .*, which 'categories' lacks$"):
        open_all(two)


def test_coco_keypoints(two: Path) -> None:
    dots = [{"id": 1, "image_id": 1, "category_id": 1, "keypoints": [1, 2, 2, 3, 4, 1, 9, 9, 0], "bbox": [1, 2, 0, 0]}]
    text(two / "c.json", coco(dots, categories=[{"id": 1, "name": "head", "keypoints": ["head"]}]))
    sample = papm.data.open("folder", two)["all"][0]
    assert sample.points.tolist() == [[1, 2], [3, 4]] and sample.boxes is None
    skeleton = [{"id": 1, "name": "person", "keypoints": ["nose", "hip"]}]
    person = {"id": 1, "image_id": 1, "category_id": 1, "keypoints": [1, 2, 2, 3, 6, 2]}
    text(two / "c.json", coco([person], categories=skeleton))
    assert open_all(two)["a"] == [[2, 4]]
    assert open_all(two, keypoint="hip")["a"] == [[3, 6]]
    text(two / "c.json", coco([person | {"bbox": [0, 0, 10, 20]}], categories=skeleton))
    assert open_all(two)["a"] == [[5, 10]]
    assert open_all(two, keypoint="nose")["a"] == [[1, 2]]
    with pytest.raises(ConfigError, match="unknown keypoint 'nsoe'"):
        open_all(two, keypoint="nsoe")


def test_coco_in_the_split_folders_and_images_it_does_not_list(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        image(tmp_path / split / "a.jpg")
        image(tmp_path / split / "extra.jpg")
        content = {"images": [{"id": 0, "file_name": "a.jpg"}], "annotations": [{"image_id": 0, "bbox": [1, 1, 2, 2]}]}
        text(tmp_path / split / "_annotations.coco.json", json.dumps(content))
    data = papm.data.open("folder", tmp_path)
    assert {k: [(s.name, s.points.tolist()) for s in d] for k, d in data.items()} == {
        "train": [("a", [[2, 2]])],
        "val": [("a", [[2, 2]])],
    }


def test_coco_layout_with_annotations_folder(tmp_path: Path) -> None:
    for split in ("train", "val"):
        image(tmp_path / f"images/{split}/{split}1.jpg")
        content = {"images": [{"id": 0, "file_name": f"{split}1.jpg"}], "annotations": []}
        text(tmp_path / f"annotations/instances_{split}2017.json", json.dumps(content))
    assert {k: [s.name for s in d] for k, d in papm.data.open("folder", tmp_path).items()} == {
        "train": ["train1"],
        "val": ["val1"],
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"images": [', "c.json:1: not valid JSON"),
        ('{"images": {}, "annotations": []}', "the list 'images' is missing"),
        ('{"images": []}', "the list 'annotations' is missing"),
        ('{"images": ' + "[" * 100_000, "not usable JSON"),
        (coco([{"image_id": 9, "bbox": [1, 1, 1, 1], "category_id": 3}]), "belongs to no image"),
        (coco([{"image_id": [1], "bbox": [1, 1, 1, 1], "category_id": 3}]), "belongs to no image"),
        (coco([5]), "belongs to no image"),  # type: ignore[list-item]
        (coco([{"image_id": 1, "bbox": [1, 1, 1], "category_id": 3}]), "bbox should be"),
        (coco([{"image_id": 1, "bbox": [1, 1, -1, 1], "category_id": 3}]), "negative size"),
        (coco([{"image_id": 1, "bbox": [1, float("nan"), 1, 1], "category_id": 3}]), "not a finite number"),
        (coco([{"image_id": 1, "bbox": [1, "a", 1, 1], "category_id": 3}]), "not a number"),
        (coco([{"id": 77, "image_id": 1, "category_id": 3}]), "annotation 77: has neither"),
        (coco([{"image_id": 1, "keypoints": [1, 2], "category_id": 3}]), "x, y, visibility"),
        (coco([{"image_id": 1, "bbox": [1, 1, 1, 1], "category_id": 99}]), "category 99"),
        (coco([], images=[{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}]), "no id of its own"),
        (coco([], images=[{"id": 1}]), "no file_name"),
        (coco([], images=[{"id": 1, "file_name": "q.jpg"}]), "'q.jpg' is not in this dataset"),
    ],
)
def test_coco_faults(two: Path, content: str, words: str) -> None:
    text(two / "c.json", content)
    with pytest.raises(DataError) as e:
        open_all(two)
    assert words in str(e.value) and "c.json" in str(e.value) and "\n" not in str(e.value)


def test_csv_agrees_with_txt(tmp_path: Path) -> None:
    """Two formats, one truth: the same points through either reader."""
    generator = torch.Generator().manual_seed(0)
    points = {f"i{k}": torch.rand(k, 2, generator=generator) * 30 for k in range(1, 5)}
    for name, p in points.items():
        image(tmp_path / f"t/{name}.png")
        text(tmp_path / f"t/{name}.txt", "\n".join(f"{x} {y}" for x, y in p.tolist()))
        image(tmp_path / f"c/{name}.png")
    with (tmp_path / "c/all.csv").open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["image", "x", "y"])
        writer.writerows((f"{n}.png", x, y) for n, p in points.items() for x, y in p.tolist())
    expected = {n: p.tolist() for n, p in points.items()}
    assert open_all(tmp_path / "t") == open_all(tmp_path / "c") == expected


def test_a_path_in_place_of_a_name_is_told_how_to_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Image.new("RGB", (40, 30)).save("photos/a.png")
    Path("photos/a.txt").write_text("1 2\n")
    with pytest.raises(ConfigError) as error:
        papm.data.open("photos")
    assert str(error.value) == """'photos' is a path, not the name of a dataset; write open("folder", "photos")"""
    assert papm.data.open("folder", "photos")["all"][0].count == 1
    for name in ("photo", "x" * 5000, "~nobody-here/photos", "a\0b"):
        with pytest.raises(ConfigError, match="unknown dataset"):
            papm.data.open(name)


def test_a_format_in_place_of_a_dataset_is_told_how_to_write_it() -> None:
    with pytest.raises(DataError, match=r"^coco:photos: 'coco' is a format, .*; write folder:photos format=coco \("):
        parse_spec("coco:photos")


@pytest.mark.parametrize("disk", ["NFD", "NFC"])
def test_accents_beside_their_letters_are_the_same_name(tmp_path: Path, disk: Literal["NFC", "NFD"]) -> None:
    """macOS writes ä as two characters, and most others as one; both look the same."""
    here, there = (unicodedata.normalize(form, "Ähre 1") for form in (disk, "NFC" if disk == "NFD" else "NFD"))
    for root in ("each", "all"):
        image(tmp_path / root / f"{here}.png")
        if len(list((tmp_path / root).glob("*"))) != 1 or (tmp_path / root / f"{there}.png").exists():
            pytest.skip("this disk takes both for one name")
    (tmp_path / "each" / f"{there}.txt").write_text("1 2\n")
    (tmp_path / "all" / "points.csv").write_text(f"image,x,y\n{there}.png,1,2\n", encoding="utf-8")
    for root in ("each", "all"):
        (sample,) = papm.data.open_spec(str(tmp_path / root))["all"]
        assert sample.points.tolist() == [[1, 2]] and sample.name == here
        assert not [f for f in check("folder", tmp_path / root) if f.severity != "info"]
