"""Broken and hostile annotation files: always one sentence that names the file, never a hang, a traceback or a stray file."""

from __future__ import annotations

import codecs
import json
import random
import re
import string
import time
from collections.abc import Callable
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
from papm.data.formats import FORMATS, Sheet, formats, xmlfile
from papm.data.formats.base import Context
from papm.data.formats.jsonfile import MOST_MEMORY, memory_of
from papm.data.readers import faults
from papm.data.readers.faults import MOST_FAULTS, AnnotationError
from papm.errors import DataError, PapmError
from papm.structures import Sample

# Where each format keeps what it says about the image `a`.
FILES = {
    "txt": "images/a.txt",
    "csv": "points.csv",
    "coco": "annotations.json",
    "yolo": "labels/a.txt",
    "voc": "annotations/a.xml",
    "cvat": "annotations.xml",
    "labelstudio": "labelstudio.json",
    "labelme": "images/a.json",
    "via": "via_project.json",
    "imagej": "images/a.csv",
    "imagej-roi": "images/a_RoiSet.zip",
    "cellcounter": "images/CellCounter_a.xml",
    "napari": "images/a.csv",
    "qupath": "images/a.geojson",
    "dotdotgoose": "images/points.pnt",
    "dotmap": "dots/a.png",
    "masks": "masks/a.tif",
    "nwpu": "jsons/a.json",
    "shanghaitech": "ground_truth/GT_a.mat",
}
BINARY = {"dotmap", "masks", "imagej-roi", "shanghaitech"}
TEXTS = sorted(set(FILES) - BINARY)
XML = ("cvat", "voc", "cellcounter")
JSON = ("coco", "labelstudio", "labelme", "via", "qupath", "dotdotgoose", "nwpu")
SHEETS = sorted(f.name for f in formats() if isinstance(f, Sheet))


def test_every_format_is_tried() -> None:
    assert list(FILES) == list(FORMATS)


def made(root: Path, format: str, boxes: bool = False) -> Path:
    """A small valid dataset; gives the annotation file."""
    generator = torch.Generator().manual_seed(1)
    points = torch.rand(4, 2, generator=generator) * 20 + 2
    around = torch.cat([points - 1, points + 1], 1) if boxes else None
    kinds = torch.tensor([0, 1, 1, 0])
    sample = Sample(
        "a", lambda: torch.full((3, 30, 40), 7, dtype=torch.uint8), points, (30, 40), kinds, around,
        meta={"classes": ("cat", "dog")},
    )  # fmt: skip
    write_folder([sample], root, to=format)
    return root / FILES[format]


def told(root: Path, file: Path, format: str, must_fail: bool = True) -> str:
    """What opening and checking say; both name the file in one line, neither raises anything else."""
    start = time.monotonic()
    message = ""
    try:
        opened = papm.data.open("folder", root, format=format)
        for dataset in opened.values():
            for sample in dataset:
                assert bool((sample.points.abs() < 1e9).all())  # NaN compares false
    except PapmError as e:
        message = str(e)
        assert "\n" not in message and message.isprintable() and "Traceback" not in message and len(message) < 1500, (
            message
        )
        assert file.name in message or str(root) in message, message
        assert any(f.severity == "error" for f in check("folder", root, format=format))
    assert bool(message) or not must_fail
    try:
        papm.data.open_spec(str(root))  # recognition meets the same files
    except PapmError as e:
        assert "\n" not in str(e)
    assert time.monotonic() - start < 10
    return message


@pytest.mark.parametrize("format", FORMATS)
def test_truncated_anywhere(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    whole = file.read_bytes()
    for cut in sorted({0, 1, 2, 10, len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 2}):
        file.write_bytes(whole[:cut])
        told(tmp_path / "d", file, format, must_fail=False)
    if format in JSON + XML:
        file.write_bytes(whole[: len(whole) // 2])
        message = told(tmp_path / "d", file, format)
        assert file.name in message and ("not valid" in message)


@pytest.mark.parametrize("format", FORMATS)
def test_wrong_encodings_and_binary(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    whole = file.read_bytes()
    for content in (
        b"\xff\xfe\x00",
        whole[:-5] + b"\xff\xfe\xfa\x80",
        b"\x00" * 100,
        bytes(range(256)) * 8,
        b"\x89PNG\r\n",
    ):
        file.write_bytes(content)
        message = told(tmp_path / "d", file, format, must_fail=False)
        assert message or format in BINARY | {"yolo"}, content[:10]
    if format in TEXTS and format not in XML:
        file.write_bytes(whole + "é".encode("latin-1"))
        assert "UTF-8" in told(tmp_path / "d", file, format)


@pytest.mark.parametrize("format", [f for f in TEXTS if f not in XML + JSON])
def test_utf16_with_a_mark_is_read(format: str, tmp_path: Path) -> None:
    """Excel's "Unicode text"."""
    file = made(tmp_path / "d", format)
    before = papm.data.open("folder", tmp_path / "d")["all"][0].points
    text = file.read_text(encoding="utf-8")
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        file.write_bytes(mark + text.encode(encoding))
        assert torch.equal(papm.data.open("folder", tmp_path / "d")["all"][0].points, before)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_bytes_changed_at_random(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format, boxes=True)
    whole = file.read_bytes()
    rng = random.Random(format)
    for _ in range(25):
        spoilt = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3, 10))):
            spot = rng.randrange(len(spoilt))
            spoilt[spot] = rng.choice((rng.randrange(256), ord(rng.choice(string.printable))))
        file.write_bytes(bytes(spoilt))
        told(tmp_path / "d", file, format, must_fail=False)


NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1e30",
    "9" * 400,
    "9" * 6000,
    '"ten"',
    "null",
    "true",
    "[]",
    "{}",
    '"1_0"',
]


@pytest.mark.parametrize("format", JSON)
@pytest.mark.parametrize("boxes", [False, True])
def test_numbers_that_are_none(format: str, boxes: bool, tmp_path: Path) -> None:
    """In the place of any coordinate."""
    file = made(tmp_path / "d", format, boxes)
    content = json.loads(file.read_text())
    sizes = (
        "size",
        "width",
        "height",
        "area",
        "id",
        "radius",
        "imageHeight",
        "imageWidth",
        "human_num",
        "num_keypoints",
    )

    def spots(value: Any, key: str = "") -> list[tuple[Any, Any]]:
        if isinstance(value, dict | list):
            found = []
            for k, v in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(v, float):
                    found.append((value, k))
                found += spots(v, str(k) if isinstance(value, dict) else key)
            return [f for f in found if f[1] not in sizes]
        return []

    places = spots(content)
    assert places
    for number in NUMBERS:
        holder, key = random.Random(number).choice(places)
        kept, holder[key] = holder[key], "@@"
        file.write_text(json.dumps(content).replace('"@@"', number))
        holder[key] = kept
        message = told(tmp_path / "d", file, format)
        assert file.name in message, (number, message)


@pytest.mark.parametrize("format", ["txt", "csv", "imagej", "yolo", "voc", "cvat"])
def test_text_that_is_no_number(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    whole = file.read_text()
    number = re.findall(r"(?<![\d.])\d+\.\d{3,}(?![\d.])", whole)[0]  # the first coordinate
    for bad in ("nan", "inf", "-inf", "1e400", "1e30", "9" * 6000, "ten", "1_0", "0x10", "٣x"):
        file.write_text(whole.replace(number, bad, 1), encoding="utf-8")
        message = told(tmp_path / "d", file, format)
        assert f"{file.name}:" in message, (bad, message)
        assert message.split(f"{file.name}:")[1].split(":")[0].strip().isdigit(), message  # the line is named


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@pytest.mark.parametrize("format", JSON)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_anything_anywhere_in_json(format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any part of a valid file replaced by any value."""
    root = tmp_path_factory.mktemp("j") / "d"
    file = made(root, format, data.draw(st.booleans()))
    content = json.loads(file.read_text())
    here: Any = content
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(here[key], dict | list) and here[key] and data.draw(st.booleans()):
            here = here[key]
            continue
        here[key] = data.draw(VALUES)
        break
    file.write_text(json.dumps(content))
    told(root, file, format, must_fail=False)


@pytest.mark.parametrize("format", JSON)
def test_json_of_another_kind(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    for content in ("[]", "{}", "null", "5", '"text"', "[1, 2]", '{"points": 5, "images": 5, "shapes": {}}', "", "   "):
        file.write_text(content)
        told(tmp_path / "d", file, format, must_fail=False)
    for content in (
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"points": ' + "[" * 100_000,
        '[{"annotations": ' + "[" * 100_000,
    ):
        file.write_text(content)
        assert file.name in told(tmp_path / "d", file, format)
    whole = made(tmp_path / "e", format).read_text()
    spoilt = tmp_path / "e" / FILES[format]
    spoilt.write_text(
        whole.replace('"a.png"', '"\\ud800.png"').replace('"cat"', '"\\ud800"').replace('"dog"', '"\\ud800"')
    )
    told(tmp_path / "e", spoilt, format, must_fail=format != "nwpu")


# --- XML ---------------------------------------------------------------------------------------------------------------

LAUGHS = "".join(f'<!ENTITY l{k} "{f"&l{k - 1};" * 10}">' for k in range(1, 12))


@pytest.mark.parametrize("format", XML)
@pytest.mark.parametrize(
    ("doctype", "word"),
    [
        (f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>', "&l11;"),
        ('<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>', "&e;"),
        ('<!DOCTYPE x [<!ENTITY e SYSTEM "http://127.0.0.1:9/x">]>', "&e;"),
        ('<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd">', ""),
        ('<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>', ""),
        (f'<!DOCTYPE x [<!ENTITY a "{"x" * 100_000}">]>', "&a;" * 1000),
    ],
)
def test_entities_are_refused(format: str, doctype: str, word: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    whole = file.read_text()
    body = whole.removeprefix('<?xml version="1.0" encoding="utf-8"?>').lstrip()
    root = body[1 : body.index(">")]
    file.write_text(f'<?xml version="1.0"?>\n{doctype}\n{body.replace(f"<{root}>", f"<{root}>{word}", 1)}')
    message = told(tmp_path / "d", file, format)
    assert f"{file.name}:2:" in message and "DOCTYPE" in message and "root:" not in message


@pytest.mark.parametrize("format", XML)
def test_deep_wide_and_odd_xml(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path / "d", format)
    whole = file.read_text()
    root = {"voc": "annotation", "cvat": "annotations", "cellcounter": "CellCounter_Marker_File"}[format]
    for content, words in (
        (f"<{root}>" + "<a>" * 100_000, "deeper"),
        (f"<{root}></{root}>extra", "not valid XML"),
        (f"<{root}>&undefined;</{root}>", "not valid XML"),
        ("<other/>", f"expected <{root}>"),
        ('<?xml version="1.0" encoding="klingon"?><' + root + "/>", "not "),
        ('<?xml version="1.0" encoding="shift_jis"?><' + root + "/>", "not "),
        ("", "not valid XML"),
    ):
        file.write_text(content)
        message = told(tmp_path / "d", file, format)
        assert words in message and file.name in message, message
    monkeypatch.setattr(xmlfile, "MAX_ELEMENTS", 5)
    file.write_text(whole)
    assert "more elements" in told(tmp_path / "d", file, format)
    monkeypatch.undo()
    file.write_bytes(whole.replace('encoding="utf-8"', 'encoding="utf-16"').encode("utf-16"))  # proper, if rare
    assert papm.data.open("folder", tmp_path / "d", format=format)["all"][0].count == 4


# --- paths -------------------------------------------------------------------------------------------------------------

PATHS = ["../out.png", "../../out.png", "images/../../out.png", "/{abs}/out.png", "..\\out.png", "C:\\out.png"]
LONG = ["x" * 300 + ".png", "x/" * 3000 + "a.png", "a\u0000.png"]


@pytest.mark.parametrize("format", SHEETS)
@pytest.mark.parametrize("path", PATHS + LONG)
def test_no_path_leads_out_of_the_dataset(format: str, path: str, tmp_path: Path) -> None:
    """The picture lies where the path points, and is not opened."""
    file = made(tmp_path / "d", format)
    Image.new("RGB", (40, 30), (1, 2, 3)).save(tmp_path / "out.png")
    path = path.replace("/{abs}", tmp_path.as_posix())
    written = json.dumps(path)[1:-1] if format in JSON else path
    if "\0" in path and format not in JSON:
        return
    given = {"labelstudio": "/data/local-files/?d=images/a.png"}.get(format, "a.png")
    address = f"/data/local-files/?d={written}" if format == "labelstudio" else written
    file.write_text(file.read_text().replace(given, address))
    try:
        data = papm.data.open("folder", tmp_path / "d")
    except PapmError as e:
        assert file.name in str(e) and "\n" not in str(e) and str(e).isprintable()
    else:
        assert format == "labelstudio" or path in LONG  # found by the last part of its name
        assert {s.path for s in data["all"]} <= {tmp_path / "d/images/a.png"}


@pytest.mark.parametrize("format", ["voc", "labelme", "nwpu"])
def test_paths_inside_files_of_one_image_are_not_used(format: str, tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    before = papm.data.open("folder", tmp_path / "d")["all"][0].points
    file.write_text(file.read_text().replace("a.png", "../../etc/passwd"))
    data = papm.data.open("folder", tmp_path / "d")["all"]
    assert [s.path for s in data] == [tmp_path / "d/images/a.png"] and torch.equal(data[0].points, before)


def loop_of_folders(root: Path, file: Path) -> None:
    (root / "images" / "again").symlink_to(root, target_is_directory=True)
    (root / "again").symlink_to(root, target_is_directory=True)


def loop_of_links(root: Path, file: Path) -> None:
    (root / "images" / "b.png").symlink_to(root / "images" / "c.png")
    (root / "images" / "c.png").symlink_to(root / "images" / "b.png")


def file_is_a_loop(root: Path, file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def file_is_a_folder(root: Path, file: Path) -> None:
    file.unlink()
    file.mkdir()


def file_is_a_broken_link(root: Path, file: Path) -> None:
    file.unlink()
    file.symlink_to(root / "nowhere")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "spoil", [loop_of_folders, loop_of_links, file_is_a_loop, file_is_a_folder, file_is_a_broken_link]
)
def test_loops_and_things_that_are_no_files(format: str, spoil: Callable[[Path, Path], None], tmp_path: Path) -> None:
    file = made(tmp_path / "d", format)
    spoil(tmp_path / "d", file)
    told(tmp_path / "d", file, format, must_fail=False)
    if spoil is loop_of_folders:
        assert papm.data.open("folder", tmp_path / "d")["all"][0].count == 4


@pytest.mark.parametrize("format", TEXTS)
def test_files_are_bounded(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path / "d", format)
    monkeypatch.setattr(faults, "MAX_ANNOTATION_BYTES", 20)
    message = told(tmp_path / "d", file, format)
    assert "limit" in message


@pytest.mark.slow
def test_lists_of_classes_may_be_broken(tmp_path: Path) -> None:
    made(tmp_path / "d", "yolo")
    names = tmp_path / "d" / "data.yaml"
    bomb = "a: &a [x, x]\n" + "".join(f"b{k}: &b{k} [{'*a' if not k else f'*b{k - 1}'}, *a]\n" for k in range(40))
    for content in (
        "names: [a",
        "names: {x: y}",
        "names: [[a], b]",
        "names: 5",
        "names: {999999999: a}",
        "!!python/object/apply:os.system ['touch x']",
        "[" * 5000,
        bomb + "names: *b39\n",
        "\x00",
        "names: ['only one']",
    ):
        names.write_text(content)
        start = time.monotonic()
        with pytest.raises(PapmError) as e:
            papm.data.open("folder", tmp_path / "d")
        assert ("data.yaml" in str(e.value) or "a.txt" in str(e.value)) and "\n" not in str(e.value), content[:20]
        assert time.monotonic() - start < 5
    names.write_text("x: " + "y" * 2_000_000)
    with pytest.raises(PapmError, match="too large"):
        papm.data.open("folder", tmp_path / "d")


@pytest.mark.slow
@pytest.mark.parametrize("format", TEXTS)
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=15, deadline=None)
def test_any_bytes(format: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("b") / "d"
    file = made(root, format)
    file.write_bytes(content)
    told(root, file, format, must_fail=False)


# --- small files, much work ---------------------------------------------------------------------------------------------


def read(format: str, path: Path) -> Any:
    """What a format makes of a file."""
    f: Any = FORMATS.get(format)
    context = Context(path.parent)
    return f.read(path, context) if isinstance(f, Sheet) else f.read(path, path.with_suffix(".jpg"), context)


def test_json_that_would_fill_the_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coco.json"
    path.write_text('{"images": [], "annotations": [' + "{}," * 20_000_000 + "{}]}")  # 60 MB, and 6 GB when it is read
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("read"))
    with pytest.raises(DataError, match=r"coco\.json: its values would take about 4\.6 GB .* split it"):
        read("coco", path)


def test_real_coco_files_are_small_enough() -> None:
    """Two million boxes with all their keys, 190 MB: the largest file that is read."""
    one = '{"id": 10000, "image_id": 1000, "category_id": 1, "iscrowd": 0, "bbox": [1000.5, 500.25, 12.5, 14.0]}, '
    assert 180e6 < len(one) * 2_000_000 < 210e6 and memory_of(one) * 2_000_000 < MOST_MEMORY


def test_faults_are_collected_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "coco.json"
    path.write_text('{"images": [], "annotations": [' + "{}," * 2 * MOST_FAULTS + "{}]}")
    with pytest.raises(AnnotationError) as caught:
        read("coco", path)
    assert len(caught.value.faults) == MOST_FAULTS
    path = tmp_path / "a.txt"
    path.write_text("x\n" * 2 * MOST_FAULTS)
    with pytest.raises(AnnotationError) as caught:
        read("txt", path)
    assert len(caught.value.faults) == MOST_FAULTS


def test_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_LINES", 10)
    (tmp_path / "a.txt").write_text("1 2\n" * 10)
    assert len(read("txt", tmp_path / "a.txt").xy) == 10
    (tmp_path / "a.txt").write_text("1 2\n" * 11)
    with pytest.raises(DataError, match=r"a\.txt: more than 10 lines"):
        read("txt", tmp_path / "a.txt")


@pytest.mark.parametrize(
    "body", ["<a/>" * 4_900_000, "<a " + " ".join(f'a{k}=""' for k in range(9)) * 2_500_000 + "/>"]
)
def test_xml_of_too_many_parts_is_refused_unread(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "annotations.xml"
    path.write_text(f"<annotations>{body}</annotations>")
    monkeypatch.setattr(xmlfile, "_Builder", lambda: pytest.fail("read"))
    with pytest.raises(DataError, match=r"annotations\.xml: more elements than the 2,000,000 that are read; split it"):
        xmlfile.load_xml(path, "annotations")


@pytest.mark.slow
def test_many_classes_of_dotdotgoose_take_as_long_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.pnt"
    named = {f"c{k}": [{"x": 1, "y": 2}] for k in range(60_000)}
    path.write_text(json.dumps({"classes": ["c7", "b", "c7"], "points": {"a.png": named}}))
    start = time.process_time()
    table = read("dotdotgoose", path)
    assert time.process_time() - start < 5  # half a minute where each class copies all before it
    assert table.classes == ("c7", "b", *(c for c in named if c != "c7")) and len(table.images["a.png"].xy) == 60_000
