"""Selections of ImageJ: bytes as it writes them, and such that would harm."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.convert import write_folder
from papm.data.formats import roi as roi_format
from papm.data.formats.roifile import marks
from papm.errors import DataError
from papm.structures import Sample

W, H = 200, 100
POLYGON, RECTANGLE, OVAL, LINE, POINT = 0, 1, 2, 3, 10


def selection(
    kind: int,
    bounds: tuple[int, int, int, int] = (0, 0, 0, 0),
    xy: list[tuple[int, int]] | None = None,
    floats: list[tuple[float, float]] | None = None,
    counters: list[int] | None = None,
    group: int = 0,
    **put: tuple[int, str, Any],
) -> bytes:
    """As ij.io.RoiEncoder puts it together; `put` is (offset, kind, value) for the header."""
    n, (x1, y1, x2, y2) = len(xy or []), bounds
    head = bytearray(64)
    head[:4] = b"Iout"
    struct.pack_into(">hB", head, 4, 228, kind)
    struct.pack_into(">4hH", head, 8, y1, x1, y2, x2, n)
    struct.pack_into(">h", head, 50, 128 if floats else 0)
    body = b"".join(struct.pack(">h", x - x1) for x, _ in xy or []) + b"".join(
        struct.pack(">h", y - y1) for _, y in xy or []
    )
    body += b"".join(struct.pack(">f", p[axis]) for axis in (0, 1) for p in floats or [])
    second = bytearray(64)
    second[30] = group
    struct.pack_into(">i", head, 60, 64 + len(body))
    if counters:
        struct.pack_into(">i", second, 48, 128 + len(body))
    for offset, code, value in put.values():
        struct.pack_into(code, head, offset, value)
    return bytes(head) + body + bytes(second) + b"".join(struct.pack(">i", c) for c in counters or [])


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (W, H), (90, 60, 30)).save(path)


def archive(path: Path, *members: bytes, name: str = "{:04d}-0001.roi") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for k, content in enumerate(members):
            z.writestr(name.format(k), content)
    return path


def opened(root: Path, **options: Any) -> dict[str, Sample]:
    data = papm.data.open("folder", root, **options) if options else papm.data.open_spec(str(root))
    return {s.name: s for d in data.values() for s in d}


THREE = selection(POINT, (10, 20, 30, 40), [(10, 20), (30, 40), (15, 30)])


@pytest.mark.parametrize(
    ("data", "centre", "box"),
    [
        (selection(POINT, (12, 40, 12, 40), [(12, 40)]), (12.5, 40.5), None),
        (selection(POINT, (12, 40, 12, 40), [(12, 40)], [(12.25, 40.75)]), (12.25, 40.75), None),
        (selection(RECTANGLE, (10, 20, 30, 50)), (20, 35), (10, 20, 30, 50)),
        (selection(OVAL, (10, 20, 15, 25)), (12.5, 22.5), (10, 20, 15, 25)),
        (
            selection(OVAL, (1, 2, 3, 4), o=(50, ">h", 128), x=(18, ">16s", struct.pack(">4f", 1.5, 2.5, 2, 4))),
            (2.5, 4.5),
            (1.5, 2.5, 3.5, 6.5),
        ),
        (selection(POLYGON, (10, 20, 14, 22), [(10, 20), (14, 20), (14, 22), (10, 22)]), (12, 21), (10, 20, 14, 22)),
        (selection(RECTANGLE, (-3, 4, 5, 8)), (1, 6), (-3, 4, 5, 8)),
        (selection(RECTANGLE, (40_000 - 65_536, 4, 40_010 - 65_536, 8)), (40_005, 6), (40_000, 4, 40_010, 8)),
    ],
    ids=["point", "fractions", "rectangle", "oval", "oval with fractions", "polygon", "outside", "far to the right"],
)  # fmt: skip
def test_what_a_selection_marks(data: bytes, centre: tuple[float, float], box: Any) -> None:
    (found,) = marks(data)
    assert found.shape == (centre, box)


@pytest.mark.parametrize("name", ["a.roi", "a_RoiSet.zip", "a.zip", "RoiSet_a.zip", "RoiSet.zip", "a-RoiSet.ZIP"])
def test_files_are_found_by_the_name_of_their_image(tmp_path: Path, name: str) -> None:
    image(tmp_path / "a.tif")
    (tmp_path / name).write_bytes(THREE) if name.endswith("roi") else archive(tmp_path / name, THREE)
    found = opened(tmp_path)["a"]
    assert found.points.tolist() == [[10.5, 20.5], [30.5, 40.5], [15.5, 30.5]] and found.labels is None
    assert not [f for f in check("folder", tmp_path) if f.severity == "error"]


def test_a_set_of_many_selections(tmp_path: Path) -> None:
    image(tmp_path / "a.tif")
    archive(tmp_path / "a_RoiSet.zip", selection(OVAL, (10, 20, 20, 30)), selection(RECTANGLE, (50, 50, 60, 70)))
    found = opened(tmp_path)["a"]
    assert found.points.tolist() == [[15, 25], [55, 60]]
    assert found.boxes is not None and found.boxes.tolist() == [[10, 20, 20, 30], [50, 50, 60, 70]]
    archive(tmp_path / "a_RoiSet.zip")
    assert opened(tmp_path)["a"].count == 0


def test_counters_and_groups_are_classes(tmp_path: Path) -> None:
    image(tmp_path / "a.tif")
    xy = [(1, 2), (3, 4)]
    archive(tmp_path / "a.zip", selection(POINT, xy=xy, counters=[0, 2]), selection(OVAL, (0, 0, 4, 4), group=3))
    found = opened(tmp_path)["a"]
    assert found.labels is not None and found.labels.tolist() == [0, 2, 3]
    assert opened(tmp_path, category="2")["a"].points.tolist() == [[3.5, 4.5]]


def test_which_image_or_which_file_is_asked(tmp_path: Path) -> None:
    for name in "ab":
        image(tmp_path / f"{name}.tif")
    archive(tmp_path / "RoiSet.zip", THREE)
    with pytest.raises(DataError, match=r"RoiSet\.zip: .*not named after an image"):
        papm.data.open("folder", tmp_path)
    (tmp_path / "b.tif").unlink()
    (tmp_path / "RoiSet.zip").unlink()
    archive(tmp_path / "a.zip", THREE)
    (tmp_path / "a.roi").write_bytes(THREE)
    with pytest.raises(DataError, match=r"a\.zip: .*a\.roi is of a\.tif too, by its name; take one of both away"):
        papm.data.open("folder", tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ""),
        (b"Iou", "not a selection of ImageJ"),
        (THREE[:30], "cut off or damaged"),
        (THREE[:70], "cut off or damaged: 3 points in 70 bytes"),
        (selection(POINT, n=(16, ">H", 65_535)), "cut off or damaged: 65535 points"),
        (selection(POINT, xy=[(1, 2)], floats=[(float("nan"), 1.0)]), "x is 'nan', not a finite number"),
        (selection(POINT, xy=[(1, 2)], floats=[(1e30, 1.0)]), "not a pixel coordinate"),
        (selection(OVAL, o=(50, ">h", 128), x=(18, ">f", float("inf"))), "x is 'inf'"),
        (selection(LINE), "a line cannot be read as a point"),
        (selection(RECTANGLE, s=(48, ">h", 1)), "a text cannot be read as a point"),
        (selection(RECTANGLE, s=(36, ">i", 12)), "an area of several parts"),
        (selection(77), "an unknown type of selection, 77"),
        (selection(OVAL, (0, 0, 4, 4), p=(56, ">i", 3)), "lies on picture 3 of a stack"),
        (selection(POINT, xy=[(1, 2)], counters=[4 << 8]), "lies on picture 4 of a stack"),
    ],
)
def test_faults_are_one_sentence(tmp_path: Path, data: bytes, words: str) -> None:
    image(tmp_path / "a.tif")
    (tmp_path / "a.roi").write_bytes(data)
    if not words:
        assert opened(tmp_path, format="imagej-roi")["a"].count == 0
        return
    with pytest.raises(DataError) as e:
        opened(tmp_path, format="imagej-roi")
    assert words in str(e.value) and "a.roi" in str(e.value) and "\n" not in str(e.value)
    (tmp_path / "a.roi").unlink()
    archive(tmp_path / "a.zip", THREE, data)
    with pytest.raises(DataError, match=r"a\.zip: 0001-0001\.roi: ") as e:
        opened(tmp_path, format="imagej-roi")
    assert words in str(e.value)


@given(data=st.binary(max_size=300), cut=st.integers(0, 400), at=st.integers(0, 200))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_marks_or_a_fault(data: bytes, cut: int, at: int) -> None:
    """Random bytes, and the beginning of a selection with random bytes in it."""
    whole = selection(POINT, xy=[(1, 2), (3, 4)], floats=[(1.5, 2.5), (3, 4)], counters=[0, 1])
    for content in (b"Iout" + data, whole[:cut], whole[:at] + data + whole[at + len(data) :]):
        try:
            found = marks(content)
        except ValueError as e:
            assert "\n" not in str(e)
        else:
            assert all(abs(v) < 1e9 for m in found for v in m.shape[0])


def test_archives_that_would_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path / "a.tif")
    monkeypatch.setattr(roi_format, "MAX_ANNOTATION_BYTES", 2_000_000)
    bomb = archive(tmp_path / "a.zip", bytes(1_500_000), bytes(1_500_000))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"a\.zip: unpacked it is more than the limit of 2 MB"):
        opened(tmp_path, format="imagej-roi")
    data = bytearray(archive(bomb, THREE + bytes(5_000_000)).read_bytes())
    at = data.rindex(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<I", 100)  # it says that it unpacks to 100 bytes
    bomb.write_bytes(data)
    with pytest.raises(DataError, match="damaged or not a zip archive"):
        opened(tmp_path, format="imagej-roi")
    monkeypatch.setattr(roi_format, "MOST_MEMBERS", 3)
    archive(bomb, *[THREE] * 4)
    with pytest.raises(DataError, match="more than the 3 selections"):
        opened(tmp_path, format="imagej-roi")


def test_an_archive_of_something_else_is_left_alone(tmp_path: Path) -> None:
    image(tmp_path / "a.tif")
    (tmp_path / "a.txt").write_text("1 2\n")
    archive(tmp_path / "a.zip", b"notes", name="{}.doc")
    assert opened(tmp_path)["a"].points.tolist() == [[1, 2]]
    with pytest.raises(DataError, match="an archive without selections of ImageJ"):
        opened(tmp_path, format="imagej-roi")


def test_more_points_than_a_selection_holds_are_written_as_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roi_format, "MOST_POINTS", 40)
    points = torch.rand(70, 2, generator=torch.Generator().manual_seed(0)) * 90
    source = torch.zeros(3, H, W, dtype=torch.uint8)
    sample = Sample("a", lambda: source, points, (H, W))
    write_folder([sample], tmp_path / "o", to="imagej-roi")
    with zipfile.ZipFile(tmp_path / "o/images/a_RoiSet.zip") as z:
        assert z.namelist() == ["points-1.roi", "points-2.roi"]
    assert torch.equal(opened(tmp_path / "o")["a"].points, points)
    many = Sample("a", lambda: source, points[:1], (H, W), labels=torch.tensor([100]))
    with pytest.raises(DataError, match="has the class 100; ImageJ counts classes from 0 to 99"):
        write_folder([many], tmp_path / "p", to="imagej-roi")
