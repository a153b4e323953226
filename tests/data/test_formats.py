"""Every format of annotation files: what is written is recognised and read back, whatever the names and labels."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.base import Dataset, readers
from papm.data.check import check
from papm.data.convert import write, write_folder
from papm.data.formats import FORMATS, formats
from papm.errors import ConfigError, DataError
from papm.structures import Sample

H, W = 40, 60
# How far a point may be from where it was: formats that keep float32, fractions of the image, pixel centres.
ROUNDING = {"yolo": 1e-4, "labelstudio": 1e-4, "voc": 1e-4, "shanghaitech": 1e-6, "napari": 1e-6}
ROUNDING |= dict.fromkeys(("dotmap", "masks", "cellcounter"), 0.5)
BOXED = sorted(f.name for f in formats() if f.boxes != "never")
LABELLED = sorted(f.name for f in formats() if f.labels)


def drawn(name: str, points: list[Any], size: tuple[int, int] = (H, W), **more: Any) -> Sample:
    def source() -> torch.Tensor:
        made = np.random.default_rng(len(name)).integers(1, 256, (3, *size), dtype=np.uint8)
        return torch.from_numpy(made)

    return Sample(name, source, torch.tensor(points, dtype=torch.float32).reshape(-1, 2), size, **more)


def back(root: Path, **options: Any) -> dict[str, Sample]:
    return {s.name: s for s in papm.data.open("folder", root, **options)["all"]}


def tensor(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value


inside = st.tuples(
    st.floats(0, W, width=32, exclude_max=True).filter(lambda v: v < W),
    st.floats(0, H, width=32, exclude_max=True).filter(lambda v: v < H),
)
names = st.text(
    st.one_of(st.sampled_from("ab 1#-_.,;&'()%é漢🐢ßİ"), st.characters(codec="utf-8", exclude_categories=("C", "Z"))),
    min_size=1,
    max_size=12,
).filter(lambda s: not s.startswith(".") and not set(s) & set('<>:"|?*/\\'))
words = st.text(st.sampled_from("abc XYZ-_.,;&'()é漢🐢\"<>"), min_size=1, max_size=8).map(str.strip).filter(bool)


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_round_trip(format: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Same images, same points in the same order within each class, same classes: by recognition alone."""
    folder = FORMATS.get(format)
    chosen = data.draw(st.lists(names, min_size=1, max_size=3, unique_by=lambda n: n.casefold().replace(" ", "")))
    classes = tuple(data.draw(st.lists(words, min_size=1, max_size=4, unique=True)))
    named, labelled = data.draw(st.booleans()), data.draw(st.booleans())
    samples = []
    for k, name in enumerate(chosen):
        points = data.draw(
            st.lists(inside, min_size=int(k == 0), max_size=5, unique_by=lambda p: (int(p[0]), int(p[1])))
        )
        ids = data.draw(st.lists(st.integers(0, len(classes) - 1), min_size=len(points), max_size=len(points)))
        more: dict[str, Any] = {}
        if labelled and folder.labels:
            more = {"labels": torch.tensor(ids, dtype=torch.int64), "meta": {"classes": classes} if named else {}}
        samples.append(drawn(name, points, **more))
    out = tmp_path_factory.mktemp("w") / "out"
    assert write_folder(samples, out, to=format) == len(samples)
    kinds = [r.name for r in readers().values() if r.recognise(out)]
    assert kinds == ["folder"]
    found = back(out)
    kept = {s.name: Path(s.name).stem if Path(s.name).suffix.lower() == ".png" else s.name for s in samples}
    assert set(found) == set(kept.values())
    for sample in samples:
        again = found[kept[sample.name]]
        order, expected = _sorted(again), _sorted(sample)
        assert again.points.shape == sample.points.shape
        error = (again.points[order] - sample.points[expected]).abs().max() if sample.count else 0
        assert error <= ROUNDING.get(format, 0)
        assert torch.equal(again.image, sample.image)
        if sample.labels is not None and sample.count:
            assert torch.equal(tensor(again.labels)[order], sample.labels[expected])
            if named:
                assert tuple(again.meta["classes"]) == classes


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_begin_with_a_blank_or_a_comment_sign(format: str, tmp_path: Path) -> None:
    samples = [drawn(name, [[5.25, 7.5]]) for name in (" #a", "#b", " c.d")]
    write_folder(samples, tmp_path / "o", to=format)
    assert {n: s.count for n, s in back(tmp_path / "o").items()} == {s.name: 1 for s in samples}


def _sorted(sample: Sample) -> torch.Tensor:
    """An order of points that rounding does not change: by pixel."""
    x, y = sample.points.floor().double().unbind(-1)
    return torch.argsort(y * 1e4 + x)


@pytest.mark.parametrize("format", FORMATS)
def test_splits_are_written_and_pass_the_check(format: str, tmp_path: Path) -> None:
    splits = {
        split: Dataset(
            [drawn(f"{split} 1", [[5.25, 7.5], [30.5, 20.25], [59, 39]]), drawn(f"{split} 2", [])], "x", split
        )
        for split in ("train", "val", "test")
    }
    assert {s: n["images"] for s, n in write(splits, tmp_path / "o", to=format).items()} == dict.fromkeys(splits, 2)
    opened = papm.data.open_spec(str(tmp_path / "o"))
    assert {s: [x.count for x in d] for s, d in opened.items()} == {s: [3, 0] for s in splits}
    assert not [f for f in check("folder", tmp_path / "o") if f.severity == "error"]
    for split, d in papm.data.open("folder", tmp_path / "o", format=format).items():  # by name as by recognition
        assert torch.equal(d[0].points, opened[split][0].points)


@pytest.mark.parametrize("format", BOXED)
def test_boxes_are_kept(format: str, tmp_path: Path) -> None:
    boxes = torch.tensor([[2.0, 3.0, 12.0, 9.0], [20.5, 10.0, 30.0, 30.25]])
    sample = drawn("a", [[7, 6], [25.25, 20.125]], boxes=boxes)
    write_folder([sample], tmp_path / "o", to=format)
    again = back(tmp_path / "o")["a"]
    assert torch.allclose(tensor(again.boxes), boxes, atol=1e-4)
    assert torch.allclose(again.points, sample.points, atol=1e-4)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"voc", "yolo"}))
def test_points_that_are_not_the_centres_of_their_boxes_stay(
    format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A format that keeps either keeps the point, and says that boxes are lost."""
    sample = drawn("a", [[3.5, 4.5]], boxes=torch.tensor([[2.0, 3.0, 12.0, 9.0]]))
    with caplog.at_level(logging.WARNING):
        write_folder([sample], tmp_path / "o", to=format)
    again = back(tmp_path / "o")["a"]
    assert torch.allclose(again.points, sample.points, atol=1e-4)
    assert (again.boxes is None) == ("cannot hold boxes" in caplog.text)


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_points_without_boxes_get_one_of_a_stated_size(format: str, tmp_path: Path) -> None:
    """Around its point exactly, inside the image, of the asked size away from the border."""
    points = [[30.5, 20.0], [2.0, 20.0], [59.75, 39.75]]
    write_folder([drawn("a", points)], tmp_path / "o", to=format, box=10)
    again = back(tmp_path / "o")["a"]
    assert torch.allclose(again.points, torch.tensor(points), atol=1e-4)
    expected = torch.tensor([[25.5, 15, 35.5, 25], [0, 15, 4, 25], [59.25, 39.25, 60.25, 40.25]])
    assert torch.allclose(tensor(again.boxes), expected, atol=1e-4)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="side of a box"):
            write_folder([], tmp_path / "p", to=format, box=bad)


@pytest.mark.parametrize("format", ["yolo", "dotmap", "masks"])
def test_points_outside_are_left_out_where_a_format_cannot_hold_them(
    format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write_folder([drawn("a", [[5, 5], [-3, 5], [60, 5]])], tmp_path / "o", to=format)
    assert back(tmp_path / "o")["a"].count == 1 and "points outside their image" in caplog.text


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"yolo", "dotmap", "masks"}))
def test_points_outside_come_back_elsewhere(format: str, tmp_path: Path) -> None:
    points = [[5, 5], [-3.5, 5], [75, 50]]
    write_folder([drawn("a", points)], tmp_path / "o", to=format)
    near = max(1e-4, ROUNDING.get(format, 0))
    assert torch.allclose(back(tmp_path / "o")["a"].points, torch.tensor(points).float(), atol=near)


@pytest.mark.parametrize("format", LABELLED)
def test_numbers_of_classes_without_names_come_back(format: str, tmp_path: Path) -> None:
    """Classes 7 and 2, never named, are 7 and 2 again."""
    write_folder([drawn("a", [[5, 5], [15, 5]], labels=torch.tensor([7, 2]))], tmp_path / "o", to=format)
    again = back(tmp_path / "o")["a"]
    assert tensor(again.labels)[_sorted(again)].tolist() == [7, 2]
    kept = back(tmp_path / "o", category="3" if format == "coco" else "2")["a"]  # COCO's ids are given in the file
    assert kept.points.flatten().tolist() == pytest.approx([15.0, 5.0], abs=max(1e-3, ROUNDING.get(format, 0)))


@pytest.mark.parametrize("format", sorted(set(LABELLED) - {"txt"}))
def test_one_class_is_picked_by_name(format: str, tmp_path: Path) -> None:
    meta = {"classes": ("car", "big bus")}
    sample = drawn("a", [[5, 5], [15, 5]], labels=torch.tensor([0, 1]), meta=meta)
    write_folder([sample], tmp_path / "o", to=format)
    kept = back(tmp_path / "o", category="big bus")["a"].points[:, 0].tolist()
    assert kept == pytest.approx([15.0], abs=max(1e-3, ROUNDING.get(format, 0)))
    if format in ("voc", "cvat", "labelstudio", "labelme", "via", "dotdotgoose", "coco"):
        with pytest.raises(ConfigError, match="unknown category 'bus'"):
            back(tmp_path / "o", category="bus")


def test_unknown_formats_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown format 'yollo'; did you mean 'yolo'"):
        write_folder([], tmp_path / "o", to="yollo")
    write_folder([drawn("a", [[1, 2]])], tmp_path / "p")
    with pytest.raises(
        ConfigError, match="unknown format 'yollo'; did you mean 'yolo'\\? Known: auto, cellcounter, coco"
    ):
        papm.data.open("folder", tmp_path / "p", format="yollo")
    with pytest.raises(ConfigError, match="origin of dataset 'folder' is a number"):
        papm.data.open("folder", tmp_path / "p", origin="left")


@pytest.mark.parametrize("bad", ["", " a", "a#b", "a\nb"])
def test_names_of_classes_that_no_list_can_hold_are_refused(bad: str, tmp_path: Path) -> None:
    sample = drawn("a", [[1, 2]], labels=torch.tensor([0]), meta={"classes": (bad,)})
    with pytest.raises(DataError, match="cannot be written"):
        write_folder([sample], tmp_path / "o")


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    """Whatever samples are called."""
    for k, name in enumerate(["../up", "/abs/olute", "a/../../b", "..", "C:\\x", "con\x00trol", "x" * 400, "\udc80"]):
        for format in FORMATS:
            out = tmp_path / f"{k}{format}" / "out"
            try:
                write_folder([drawn(name, [[1, 2]])], out, to=format)
            except DataError:
                pass
            else:
                assert back(out)
            assert [p.name for p in out.parent.iterdir()] in ([], ["out"])
    assert {p.parent for p in tmp_path.iterdir()} == {tmp_path}


@pytest.mark.parametrize("format", FORMATS)
def test_the_origin_of_a_format_is_added_and_can_be_replaced(format: str, tmp_path: Path) -> None:
    write_folder([drawn("a", [[10.5, 20.5]])], tmp_path / "o", to=format)
    own, none = back(tmp_path / "o")["a"].points, back(tmp_path / "o", origin=0)["a"].points
    assert torch.allclose(own - none, torch.full((1, 2), FORMATS.get(format).origin), atol=1e-4)


def test_the_same_points_through_every_format(tmp_path: Path) -> None:
    """All readers agree on what the others wrote."""
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(20, 2, generator=generator) * torch.tensor([W - 1.0, H - 1.0])).floor() + 0.5
    points = torch.unique(points, dim=0)
    for format in FORMATS:
        write_folder([drawn("a", points.tolist())], tmp_path / format, to=format)
        again = torch.unique(back(tmp_path / format)["a"].points.mul(1e3).round().div(1e3), dim=0)
        assert torch.allclose(again, points, atol=1e-3), format


# --- which format is it? -----------------------------------------------------------------------------------------------


def test_several_formats_side_by_side_ask_for_a_name(tmp_path: Path) -> None:
    sample = drawn("a", [[10.5, 20.5]])
    for format in ("labelme", "voc", "via", "dotdotgoose"):
        write_folder([sample], tmp_path / format, to=format)
        shutil.copytree(tmp_path / format, tmp_path / "o", dirs_exist_ok=True)
    with pytest.raises(DataError) as e:
        papm.data.open_spec(str(tmp_path / "o"))
    told = str(e.value)
    assert "several formats" in told and "\n" not in told and "format=labelme or format=voc" in told
    assert told.endswith("(papm train: data.format=…)")  # where `format` is no key
    for format in ("labelme", "voc", "via", "dotdotgoose"):
        assert torch.allclose(back(tmp_path / "o", format=format)["a"].points, sample.points)
    assert not [f for f in check("folder", tmp_path / "o", format="voc") if f.severity == "error"]


def test_text_of_points_and_of_boxes_in_one_folder_is_ambiguous(tmp_path: Path) -> None:
    for name, text in (("a", "10 20\n"), ("b", "0 0.5 0.5 0.1 0.1\n")):
        Image.new("RGB", (W, H)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises(DataError, match="format=txt or format=yolo"):
        back(tmp_path)
    with pytest.raises(DataError, match=r"b\.txt:1: expected 'x y'"):
        back(tmp_path, format="txt")
    with pytest.raises(DataError, match=r"a\.txt:1: "):
        back(tmp_path, format="yolo")


def test_empty_text_files_do_not_hide_a_table(tmp_path: Path) -> None:
    Image.new("RGB", (W, H)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("")
    assert back(tmp_path)["a"].count == 0
    (tmp_path / "p.csv").write_text("image,x,y\na.png,1,2\n")
    assert back(tmp_path)["a"].points.tolist() == [[1, 2]]


def test_json_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    write_folder([drawn("a", [[10.5, 20.5]])], tmp_path / "o")
    (tmp_path / "o" / "settings.json").write_text('{"images": "many", "zoom": 3}')
    (tmp_path / "o" / "images" / "a.json").write_text('{"camera": "x"}')
    (tmp_path / "o" / "notes.xml").write_text("<notes/>")
    assert back(tmp_path / "o")["a"].count == 1


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_says_what_it_is(format: str) -> None:
    f = FORMATS.get(format)
    assert f.name == format and f.summary and f.layout and "\n" not in f.summary + f.layout


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("image,x,y,w,h", True),
        ("image,x,y,Width,Height", True),
        ("image,x,y,label", False),
        ("image,X,Y,BX,BY,Width,Height", False),  # ImageJ: X and Y are the centroid
    ],
)
def test_a_table_with_the_sides_of_boxes_says_what_x_and_y_are_taken_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, head: str, told: bool
) -> None:
    row = ",".join(["a.png", *("4" for _ in head.split(",")[1:])])
    (tmp_path / "points.csv").write_text(f"{head}\n{row}\n")
    Image.new("RGB", (W, H)).save(tmp_path / "a.png")
    assert len(back(tmp_path)["a"].points) == 1
    assert ("they are a corner of the box" in caplog.text) == told
