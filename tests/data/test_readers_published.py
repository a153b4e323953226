"""What the readers of published datasets share, and what checking makes of them."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.base import Dataset, readers, require_annotated, unexpected
from papm.data.check import check, has_errors
from papm.data.readers import numbers as n
from papm.data.readers import published as p
from papm.data.readers.faults import AnnotationError, Fault
from papm.errors import ConfigError, DataError
from papm.structures import Sample

NAMES = ("ucf-cc-50", "ucf-qnrf", "jhu-crowd", "nwpu", "trancos", "carpk", "pucpr", "dota", "bbbc039")


def test_every_published_dataset_is_registered_and_says_what_it_expects() -> None:
    for name in NAMES:
        r = readers()[name]
        assert r.summary and r.layout and not r.outside_is_error
        assert r.origin in (0.0, 0.5, -0.5)
        assert r.expected


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_something_else_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError) as e:
        papm.data.open(name, tmp_path)
    assert str(tmp_path) in str(e.value) and "\n" not in str(e.value)
    assert not readers()[name].recognise(tmp_path)
    assert has_errors(check(name, tmp_path))
    file = tmp_path / "notes.txt"
    assert not readers()[name].recognise(file)
    with pytest.raises(DataError):
        papm.data.open(name, file)


@pytest.mark.parametrize("name", NAMES)
def test_loops_of_links_end(name: str, tmp_path: Path) -> None:
    for folder in ("images", "train", "Train", "data", "Images", "ImageSets", "labelTxt"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "again").symlink_to(tmp_path)
        (tmp_path / folder / "images").symlink_to(tmp_path / "images")
        (tmp_path / folder / "itself").symlink_to(tmp_path / folder / "itself")
    assert not readers()[name].recognise(tmp_path)
    with pytest.raises(DataError):
        papm.data.open(name, tmp_path)


def test_search_takes_the_nearest_level_and_names_do_not_mind_case(tmp_path: Path) -> None:
    for place in ("a/Wanted", "b/WANTED", "a/deep/wanted"):
        (tmp_path / place).mkdir(parents=True)

    def is_it(d: Path) -> bool:
        return p.named_folder(d, "wanted") is not None

    assert [d.name for d in p.search(tmp_path, is_it)] == ["a", "b"]
    assert p.search(tmp_path / "b", is_it) == [tmp_path / "b"]
    assert p.search(tmp_path, is_it, depth=0) == []
    with pytest.raises(DataError, match="2 copies"):
        p.Home("it", is_it, "it").find(tmp_path)
    (tmp_path / "a" / "File.TXT").write_text("")
    assert p.named(tmp_path / "a", "file.txt") == tmp_path / "a" / "File.TXT"
    assert p.named(tmp_path / "none", "file.txt") is None and p.children(tmp_path / "none") == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir(mode=0)
    for name in NAMES:
        assert not readers()[name].recognise(tmp_path)


def test_lists_name_images_with_or_without_suffix_and_never_leave_the_folder(tmp_path: Path) -> None:
    images = {k: tmp_path / f"{k}.jpg" for k in ("a", "b", "c.d")}
    path, faults = tmp_path / "list.txt", list[Fault]()
    path.write_text("a.jpg 1 2\n\n  sub/b\nc.d.jpg\n", newline="\r\n")
    listed = p.read_list(path, images, faults)
    assert [(x.image.name, x.rest) for x in listed] == [("a.jpg", ("1", "2")), ("b.jpg", ()), ("c.d.jpg", ())]
    assert not faults
    path.write_text("../a.jpg\na\na.jpg\n/etc/passwd\nz\nC:\\a.jpg\n")
    assert [x.image.stem for x in p.read_list(path, images, faults)] == ["a"]
    assert [f.line for f in faults] == [1, 3, 4, 5, 6]
    faults.clear()
    path.write_text(" \n")
    assert p.read_list(path, images, faults) == [] and "no image" in faults[0].message


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "rows.txt"


@given(rows=st.lists(st.tuples(*[st.floats(-1e7, 1e7)] * 3), max_size=8), separator=st.sampled_from([" ", "\t", ", "]))
def test_rows_of_numbers_come_back(scratch: Path, rows: list[tuple[float, ...]], separator: str) -> None:
    scratch.write_text("\n".join(separator.join(map(repr, r)) for r in rows))
    values, lines = n.number_rows(scratch, ("a", "b", "c"))
    assert values.tolist() == [list(r) for r in rows] and lines == list(range(1, len(rows) + 1))


@given(text=st.one_of(st.text(max_size=60), st.text("0123456789.eE+-_ \n,naif", max_size=40)))
def test_any_text_is_rows_or_a_fault_with_its_line(scratch: Path, text: str) -> None:
    scratch.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        values, lines = n.number_rows(scratch, ("x", "y"), least=1)
        assert values.shape == (len(lines), 2) and (np.abs(values) <= 1e7).all()
    except AnnotationError as e:
        assert all(f.line and f.file == scratch for f in e.faults)
    except DataError as e:
        assert str(scratch) in str(e)


def test_tables_are_finite_and_of_the_right_shape(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    assert n.table(path, [], "it", 2).shape == (0, 2) == n.table(path, np.zeros((0, 0)), "it", 2).shape
    assert n.table(path, np.array([[1, 2]], np.uint8), "it", 2).tolist() == [[1.0, 2.0]]
    for wrong in (
        [[1, 2, 3]],
        [1, 2],
        [[1, 2], [3]],
        [["a", "b"]],
        [[True, False]],
        [[1, np.nan]],
        [[1e30, 2]],
        [[1, None]],
    ):
        with pytest.raises(DataError, match=r"a\.mat"):
            n.table(path, wrong, "it", 2)


def test_published_numbers_are_compared() -> None:
    found = {"train": [("a", 3), ("b", 4)], "val": [("b", 4)]}
    assert unexpected({"train": (2, 7), "val": (1, None), "*": (2, 7)}, found) == []
    assert unexpected({"*": (3, 7)}, found) == ["the whole has 2 images, 3 are published"]
    assert unexpected({"test": (5, None)}, found) == ["the split 'test' has 0 images, 5 are published"]


def test_opening_a_part_of_a_dataset_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "x" / "data"
    for folder in ("Images", "Annotations", "ImageSets"):
        (root / folder).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "Images" / "a.png")
    (root / "Annotations" / "a.txt").write_text("1 1 3 3 1\n")
    (root / "ImageSets" / "train.txt").write_text("a\n")
    with caplog.at_level(logging.WARNING):
        papm.data.open("carpk", root)
    assert "the split 'train' has 1 image, 989 are published" in caplog.text
    caplog.clear()
    papm.data.open("carpk", root, origin=0.5)  # with options the numbers may differ
    assert not caplog.text


def test_hidden_splits_are_refused_in_one_sentence() -> None:
    hidden = Sample("a", Path("a.png"), n.tensor(np.zeros((0, 2))), (4, 4), meta={"hidden": True})
    shown = Sample("b", Path("b.png"), n.tensor(np.zeros((0, 2))), (4, 4))
    with pytest.raises(DataError, match=r"^nwpu/test-hidden: .*not published.*papm predict"):
        require_annotated(Dataset([hidden], "nwpu", "test-hidden"))
    dataset = Dataset([shown])
    assert require_annotated(dataset) is dataset and not dataset.hidden


def test_a_folder_with_two_datasets_asks_which(tmp_path: Path) -> None:
    from papm.data import parse_spec

    for name in ("ucf", "traffic"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "ucf" / "1.jpg")
    (tmp_path / "ucf" / "1_ann.mat").write_bytes(b"")
    assert parse_spec(str(tmp_path))[0] == "ucf-cc-50"
    (tmp_path / "traffic" / "images").mkdir()
    (tmp_path / "traffic" / "image_sets").mkdir()
    (tmp_path / "traffic" / "image_sets" / "test.txt").write_text("a\n")
    with pytest.raises(DataError, match="several datasets"):
        parse_spec(str(tmp_path))


WORDS = (
    *(
        "images",
        "Images",
        "train",
        "test",
        "val",
        "Train",
        "gt",
        "jsons",
        "mats",
        "ImageSets",
        "Annotations",
        "image_sets",
    ),
    *(
        "labelTxt",
        "labelTxt-v1.0",
        "train.txt",
        "test.txt",
        "training.txt",
        "image_labels.txt",
        "val_gt_loc.txt",
        "data",
    ),
    *(
        "1.jpg",
        "1_ann.mat",
        "img_0001.jpg",
        "img_0001_ann.mat",
        "0001.jpg",
        "0001.txt",
        "0001.json",
        "0001.mat",
        "a.png",
    ),
)
CONTENTS = (b"", b"1\n", b"0001\n", b"a 1 2\n", b"1 2 3 4 1 0\n", b"\xff\xfe", b"{}", b"../x\n", b"0001,1,a,0,0\n")


@pytest.mark.parametrize("seed", range(12))
def test_no_tree_makes_a_reader_raise_anything_but_a_data_error(tmp_path: Path, seed: int) -> None:
    """Files where folders should be, folders where files should be, broken links, wrong contents."""
    rng = random.Random(seed)

    def fill(folder: Path, depth: int) -> None:
        for name in rng.sample(WORDS, 12):
            path, kind = folder / name, rng.random()
            if kind < 0.1:
                path.symlink_to(rng.choice([folder, tmp_path, folder / "nowhere", path]))
            elif kind < 0.3 and "." in name:
                path.mkdir()
            elif "." in name or kind < 0.4:
                path.write_bytes(rng.choice(CONTENTS))
            else:
                path.mkdir()
                if depth:
                    fill(path, depth - 1)

    fill(tmp_path, 2)
    for name in NAMES:
        readers()[name].recognise(tmp_path)
        try:
            papm.data.open(name, tmp_path)
        except DataError as e:
            assert "\n" not in str(e)
        except ConfigError as e:  # several releases of DOTA: an option is wanted
            assert name == "dota" and "release=" in str(e)
        else:
            raise AssertionError(f"{name}: nothing here is an image")
        try:
            assert has_errors(check(name, tmp_path))
        except ConfigError:
            assert name == "dota"
