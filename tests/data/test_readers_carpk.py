"""CARPK and PUCPR+: devkit layouts, telling the two apart, boxes to centres."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check, has_errors
from papm.data.readers.carpk import read_cars
from papm.errors import DataError


def make(data: Path, suffix: str, lower: bool = False) -> Path:
    images, truth, lists = (data / (n.lower() if lower else n) for n in ("Images", "Annotations", "ImageSets"))
    for folder in (images, truth, lists):
        folder.mkdir(parents=True)
    for k, name in enumerate(("a_1", "a_2", "b_1")):
        Image.new("RGB", (40, 30), (80 * k, 0, 0)).save(images / f"{name}{suffix}")
        (truth / f"{name}.txt").write_text("" if name == "a_2" else "2 4 10 8 1\n30 20 20 10 1\n")
    (lists / "train.txt").write_text("a_1\na_2\n")
    (lists / "test.txt").write_text(f"b_1{suffix}\n")
    return data


@pytest.mark.parametrize(("name", "kit", "suffix"), [("carpk", "CARPK", ".png"), ("pucpr", "PUCPR+", ".jpg")])
@pytest.mark.parametrize("lower", [True, False])
def test_layouts(tmp_path: Path, name: str, kit: str, suffix: str, lower: bool) -> None:
    data = make(tmp_path / "x" / "datasets" / f"{kit}_devkit" / "data", suffix, lower)
    for root in (data, *list(data.parents)[:3]):
        found = papm.data.open(name, root)
        assert {k: [s.count for s in d] for k, d in found.items()} == {"train": [2, 0], "test": [2]}
        assert papm.data.parse_spec(str(root)) == (name, root)
        with pytest.raises(DataError, match=r"no (carpk|pucpr) here"):
            papm.data.open("pucpr" if name == "carpk" else "carpk", root)
    sample = found["train"][0]
    assert sample.points.tolist() == [[6, 6], [25, 15]]
    assert sample.boxes is not None and sample.boxes.tolist() == [[2, 4, 10, 8], [20, 10, 30, 20]]
    assert sample.extents is not None and sample.extents.tolist() == pytest.approx([32**0.5, 10.0])
    findings = check(name, data)
    assert not has_errors(findings)
    assert [f.message for f in findings if f.severity == "warning" and "published" not in f.message] == []


def test_both_kits_side_by_side(tmp_path: Path) -> None:
    make(tmp_path / "both" / "CARPK_devkit" / "data", ".png")
    make(tmp_path / "both" / "PUCPR+_devkit" / "data", ".jpg")
    with pytest.raises(DataError, match="holds several datasets; name the one you mean, such as carpk:"):
        papm.data.parse_spec(str(tmp_path / "both"))
    for name, suffix in (("carpk", ".png"), ("pucpr", ".jpg")):
        path = papm.data.open(name, tmp_path / "both")["train"][0].path
        assert path is not None and path.suffix == suffix


def test_a_folder_without_a_telling_name(tmp_path: Path) -> None:
    data = make(tmp_path / "x" / "y" / "z", ".jpg")
    assert papm.data.parse_spec(str(data))[0] == "pucpr"  # by its JPEG files
    assert len(papm.data.open("carpk", data)["train"]) == 2  # the user knows better: converted images


def test_voc_folders_are_not_taken_for_it(tmp_path: Path) -> None:
    data = make(tmp_path / "x" / "y" / "z", ".jpg")
    (data / "Annotations" / "a_1.xml").write_text("<annotation/>")
    assert not any(papm.data.base.reader(n).recognise(data) for n in ("carpk", "pucpr"))


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    data = make(tmp_path / "x" / "y" / "z", ".png")
    path = data / "Annotations" / "b_1.txt"
    for text, words in (
        ("1 2 3\n", ":1: expected"),
        ("1 2 3 4 1\n1 2 x 4 1\n", ":2: x2 is 'x'"),
        ("1 2 3 1e99 1", ":1: y2"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=rf"b_1\.txt{words}"):
            papm.data.open("carpk", data)
    path.unlink()
    with pytest.raises(DataError, match=r"b_1\.txt: no such annotation"):
        papm.data.open("carpk", data)
    (data / "ImageSets" / "test.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"test\.txt: .*UTF-8"):
        papm.data.open("carpk", data)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cars") / "a.txt"


@settings(max_examples=60)
@given(st.binary(max_size=60) | st.text("0123456789 .-\n", max_size=60).map(str.encode))
def test_any_bytes_are_cars_or_a_clear_error(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    try:
        cars = read_cars(scratch)
        assert cars.boxes is not None and (cars.boxes[:, 2:] >= cars.boxes[:, :2]).all()
        assert ((cars.points >= cars.boxes[:, :2] - 1) & (cars.points <= cars.boxes[:, 2:] + 1)).all()
    except DataError as e:
        assert str(scratch) in str(e)
