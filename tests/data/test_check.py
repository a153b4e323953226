"""Checking and summing up datasets: every planted fault is found, at its file and line, and nothing raises."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from scipy.spatial.distance import cdist

import papm.data
from papm.data.base import READERS, Annotation, Entry, Reader, file_formats
from papm.data.check import Finding, Severity, check, has_errors
from papm.data.summary import summary
from papm.errors import ConfigError
from papm.structures import Sample


def folder(root: Path, images: dict[str, str], size: tuple[int, int] = (40, 30)) -> Path:
    """A folder dataset: image name → text of its points."""
    root.mkdir(parents=True, exist_ok=True)
    for k, (name, text) in enumerate(images.items()):
        Image.new("RGB", size, (k, k, k)).save(root / f"{name}.png")
        (root / f"{name}.txt").write_text(text)
    return root


def found(findings: list[Finding], severity: Severity) -> list[tuple[str, int | None]]:
    return [(f.file.name if f.file else "", f.line) for f in findings if f.severity == severity]


def test_a_clean_folder_has_no_findings(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a": "1 2\n3 4\n", "b": "0 0\n39.9 29.9\n"})
    assert check("folder", root) == []


def test_twelve_bits_in_a_sixteen_bit_file_are_said_to_be_dark(tmp_path: Path) -> None:
    grey = (np.arange(1200, dtype=np.uint16).reshape(30, 40) * 3).clip(0, 4095)
    for name, factor in (("dark", 1), ("bright", 16)):
        Image.fromarray(grey * factor).save(tmp_path / f"{name}.tif")
        (tmp_path / f"{name}.txt").write_text("1.5 2\n")
    (only,) = check("folder", tmp_path)
    assert only.file == tmp_path / "dark.tif" and only.severity == "warning"
    assert only.message.startswith("nearly black, the brightest pixel is 14 of 255;")  # 3597 / 257
    assert check("folder", tmp_path, decode=False) == []


def test_several_pictures_in_a_file_are_told(tmp_path: Path) -> None:
    grey = Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(30, 40))
    for name, more in (("stack", [grey, grey]), ("thumbnail", [grey.resize((4, 3))]), ("one", [])):
        grey.save(tmp_path / f"{name}.tif", save_all=True, append_images=more)
        (tmp_path / f"{name}.txt").write_text("1.5 2\n")
    found = [f for f in check("folder", tmp_path) if "the same file" not in f.message]
    assert [(f.severity, f.file and f.file.name, f.message) for f in found] == [
        ("warning", "stack.tif", "3 pictures in this file; the first is read")
    ]
    whole = (tmp_path / "stack.tif").read_bytes()
    (tmp_path / "stack.tif").write_bytes(whole[: len(whole) // 2])  # the later ones are damaged, and not wanted
    assert not [f for f in check("folder", tmp_path) if f.severity == "error"]


def test_everything_wrong_is_found_at_its_place(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        {
            "good": "1 2\n",
            "text": "1 2\none 2\n3 nan\n",
            "outside": "1 2\n5 30.5\n-30 -40\n",
            "twice": "1 2\n1 2\n3 4\n",
            "broken": "1 1\n",
            "missing": "",
            "blank": "",
            "stated": "# no objects\n",
        },
    )
    (root / "broken.png").write_bytes((root / "broken.png").read_bytes()[:-30])
    (root / "missing.txt").unlink()
    (root / "orphan.txt").write_text("3 4\n")
    (root / "notes.txt").write_text("taken on Monday\n")
    steps: list[tuple[int, int]] = []
    findings = check("folder", root, on_item=lambda done, total: steps.append((done, total)))
    assert sorted(found(findings, "error"), key=str) == sorted(
        [
            ("text.txt", 2),
            ("text.txt", 3),
            ("outside.txt", 3),
            ("broken.png", None),
            ("missing.png", None),
            ("orphan.txt", None),
        ],
        key=str,
    )
    assert sorted(found(findings, "warning")) == [("blank.txt", None), ("twice.txt", 2)]
    assert ("notes.txt", None) in found(findings, "info")
    assert any("2 images of the split 'all' without points" in f.message for f in findings)
    outside = next(f for f in findings if "outside" in f.message)
    assert "2 points" in outside.message and "(-30.0, -40.0), 50.0 px" in outside.message
    assert steps == [(k, 8) for k in range(1, 9)]
    assert [f.severity for f in findings] == sorted(
        [f.severity for f in findings], key=["error", "warning", "info"].index
    )
    assert has_errors(findings)
    assert str(outside) == f"error: {root / 'outside.txt'}:3: {outside.message}"


def test_warnings_are_errors_only_when_strict(tmp_path: Path) -> None:
    findings = check("folder", folder(tmp_path, {"a": "1 2\n1 2\n"}))
    assert found(findings, "warning") == [("a.txt", 2)]
    assert not has_errors(findings) and has_errors(findings, strict=True)


def test_empty_sets(tmp_path: Path) -> None:
    assert has_errors(check("folder", tmp_path / "nowhere")) and has_errors(check("folder"))
    (tmp_path / "none").mkdir()
    assert "no images" in check("folder", tmp_path / "none")[0].message
    findings = check("folder", folder(tmp_path / "b", {"a": "", "b": "# nothing"}))
    assert [f.message for f in findings if f.severity == "error"] == ["the split 'all' has no points at all"]
    assert found(findings, "warning") == []
    with pytest.raises(ConfigError, match="did you mean 'folder'"):
        check("foldr", tmp_path)


def test_decode_can_be_left_out(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a": "1 2"})
    (root / "a.png").write_bytes((root / "a.png").read_bytes()[:-30])
    assert check("folder", root, decode=False) == [] and has_errors(check("folder", root))
    (root / "a.png").write_bytes(b"")
    assert has_errors(check("folder", root, decode=False))


@pytest.mark.parametrize("swap", [True, False])
def test_swapped_coordinates(tmp_path: Path, swap: bool) -> None:
    rng = np.random.default_rng(0)
    texts = {}
    for k in range(3):
        xy = rng.uniform(0, 1, (20, 2)) * (100, 40)
        texts[f"i{k}"] = "\n".join(f"{y} {x}" if swap else f"{x} {y}" for x, y in xy)
    findings = check("folder", folder(tmp_path, texts, (100, 40)))
    assert any("x and y exchanged" in f.message for f in findings) == swap


def test_one_swapped_image_among_good_ones(tmp_path: Path) -> None:
    good = "\n".join(f"{x} 20" for x in range(90))
    root = folder(
        tmp_path, {f"g{k}": good for k in range(4)} | {"bad": "\n".join(f"20 {x}" for x in range(90))}, (100, 40)
    )
    hits = [f for f in check("folder", root) if "exchanged" in f.message]
    assert [(f.file.name if f.file else "", f.message.split(" outside")[0]) for f in hits] == [
        ("bad.txt", "bad: 49 of 49 points")
    ]  # y from 41 to 89; 40 is on the border


def test_strays_are_not_called_swapped(tmp_path: Path) -> None:
    inside = "\n".join(f"{x} {y}" for x in range(0, 100, 9) for y in range(0, 40, 9))
    findings = check("folder", folder(tmp_path, {"a": inside + "\n50 44\n60 45\n"}, (100, 40)))
    assert has_errors(findings) and not any("exchanged" in f.message for f in findings)


def test_the_same_image_in_two_splits(tmp_path: Path) -> None:
    folder(tmp_path / "train", {"a": "1 2"})
    folder(tmp_path / "test", {"b": "1 2"})  # both are the first image of their folder: the same pixels
    findings = check("folder", tmp_path)
    assert found(findings, "warning") == [("b.png", None)] and "also in 'train'" in findings[0].message


def test_csv_faults_do_not_hide_the_rest(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "", "b": "", "c": ""})
    for p in tmp_path.glob("*.txt"):
        p.unlink()
    (tmp_path / "p.csv").write_text(
        "image,x,y\na.png,1,2\n../b.png,1,2\nzz.png,1,2\nb.png,x,2\nb.png,1,y\na.png,99,2\n"
    )
    findings = check("folder", tmp_path)
    assert sorted(found(findings, "error")) == [("p.csv", 3), ("p.csv", 4), ("p.csv", 5), ("p.csv", 6), ("p.csv", 7)]
    assert any("c has no row" in f.message for f in findings if f.severity == "warning")


def test_other_tables_are_no_orphans(tmp_path: Path) -> None:
    folder(tmp_path, {"a": ""})
    (tmp_path / "a.txt").unlink()
    (tmp_path / "points.csv").write_text("image,x,y\na.png,1,2\n")
    (tmp_path / "weather.csv").write_text("day,weather\n1,sun\n")
    assert check("folder", tmp_path) == []


def test_coco_remarks(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "", "b": ""})
    for p in tmp_path.glob("*.txt"):
        p.unlink()
    images = [{"id": 1, "file_name": "a.png", "width": 30, "height": 40}]
    boxes = [{"image_id": 1, "bbox": [1, 1, 2, 2]}, {"image_id": 1, "bbox": [1, 1, 9, 9], "iscrowd": 1}]
    (tmp_path / "c.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    messages = {f.severity + ": " + f.message for f in check("folder", tmp_path)}
    assert messages == {
        "warning: the annotations say 30×40, the upright image is 40×30",
        "info: a: 1 iscrowd region left out",
        "info: this image is not part of the dataset",
    }


def test_known_datasets_warn_about_outside_points(tmp_path: Path) -> None:
    for split in ("train", "test"):
        base = tmp_path / "part_B" / f"{split}_data"
        (base / "images").mkdir(parents=True)
        (base / "ground-truth").mkdir()
        for k in (1, 2):
            Image.new("RGB", (40, 30), (k, len(split), 0)).save(base / "images" / f"IMG_{k}.jpg")
            cell = np.empty((1, 1), object)
            cell[0, 0] = {"location": np.array([[5.0, 5.0], [900.0, 5.0]]), "number": 2}
            scipy.io.savemat(base / "ground-truth" / f"GT_IMG_{k}.mat", {"image_info": cell})
    findings = check("shanghaitech-b", tmp_path)
    assert found(findings, "error") == []
    messages = [f.message for f in findings if f.severity == "warning"]
    assert sum("outside" in m for m in messages) == 4
    assert sum("are published" in m for m in messages) == 4 and len(messages) == 8  # of each split, of the whole
    notes = [f.message for f in findings if f.severity == "info"]
    assert notes == [f"2 points of the split '{s}' outside their image, in 2 images" for s in ("train", "test")]
    (base / "ground-truth/GT_IMG_1.mat").write_bytes(b"damaged")
    (base / "images/IMG_2.jpg").unlink()
    findings = check("shanghaitech-b", tmp_path)
    assert sorted(found(findings, "error")) == [("GT_IMG_1.mat", None), ("GT_IMG_2.mat", None)]  # damaged, orphan
    assert found(check("shanghaitech-a", tmp_path), "error") == [(tmp_path.name, None)]


def test_datasets_made_on_the_spot_have_nothing_to_check() -> None:
    assert check("synthetic") == []


# --- summary -----------------------------------------------------------------------------------------------------------


def make(points: list[list[list[float]]], size: tuple[int, int] = (50, 100)) -> papm.data.Dataset:
    def source() -> torch.Tensor:
        return torch.zeros(3, *size, dtype=torch.uint8)

    return papm.data.Dataset(
        [Sample(f"s{k}", source, torch.tensor(p).reshape(-1, 2), size) for k, p in enumerate(points)]
    )


def test_summary_in_closed_form() -> None:
    data = make([[[0, 0], [3, 4], [3, 4], [-9, 0]], [], [[10, 10], [10, 17]], [[1, 1]]])
    s = summary({"all": data})["all"]
    assert (s["images"], s["points"], s["count_min"], s["count_max"]) == (4, 7, 0, 4)
    assert (s["count_mean"], s["count_median"], s["without_points"]) == (1.75, 1.5, 1)
    assert (s["outside"], s["duplicates"]) == (1, 1)
    assert s["neighbour_distance"] == 3.5  # image medians 0 (5, 0, 0) and 7
    assert s["neighbour_distance_of_points"] == 5  # of 5, 0, 0, 7, 7
    assert (s["size_min"], s["size_max"], s["short_side_min"]) == ([50, 100], [50, 100], 50)
    json.dumps(s)
    empty = summary({"none": make([])})["none"]
    assert empty["images"] == 0 and empty["neighbour_distance"] is None and empty["size_min"] is None


def test_neighbour_distance_against_brute_force() -> None:
    xy = np.random.default_rng(0).uniform(0, 50, (60, 2)).astype(np.float32)
    d = cdist(xy, xy)
    np.fill_diagonal(d, np.inf)
    s = summary({"a": make([xy.tolist()])})["a"]
    assert s["neighbour_distance"] == pytest.approx(np.median(d.min(1)), rel=1e-6)


@pytest.mark.realdata
@pytest.mark.skipif("PAPM_DATA" not in os.environ, reason="PAPM_DATA is not set")
def test_part_a() -> None:
    """Counts, spacing and blemishes of the original release; two identical files sit in train and test."""
    root = Path(os.environ["PAPM_DATA"]) / "ShanghaiTech"
    s = summary(papm.data.open("shanghaitech-a", root))
    assert [(s[k]["images"], s[k]["points"], s[k]["count_min"], s[k]["count_max"]) for k in ("train", "test")] == [
        (300, 162_707, 33, 3139),
        (182, 78_970, 66, 2256),
    ]
    assert s["train"]["neighbour_distance"] == pytest.approx(13.3, abs=0.05)
    assert s["test"]["neighbour_distance"] == pytest.approx(14.3, abs=0.05)
    findings = check("shanghaitech-a", root)
    assert not has_errors(findings)
    copies = [f for f in findings if "same file" in f.message]
    assert [f.file.name if f.file else "" for f in copies] == ["IMG_98.jpg"] and "IMG_121.jpg" in copies[0].message


Fault = Callable[[Path], object]


@pytest.mark.parametrize(
    "harm",
    [
        lambda p: (p / "a.txt").write_bytes(bytes(range(256))),
        lambda p: (p / "a.png").write_bytes(os.urandom(50)),
        lambda p: ((p / "a.txt").unlink(), (p / "a.txt").mkdir()),
        lambda p: ((p / "a.png").unlink(), (p / "a.png").symlink_to(p / "gone.png")),
    ],
)
def test_no_harm_makes_it_raise(tmp_path: Path, harm: Fault) -> None:
    root = folder(tmp_path, {"a": "1 2", "b": "3 4"})
    harm(root)
    assert has_errors(check("folder", root))


def test_fractions_of_the_image_are_noticed(tmp_path: Path) -> None:
    """Coordinates between 0 and 1 are pixels of nothing; a few such points are nothing to remark on."""
    for k in range(3):
        Image.new("RGB", (40, 30), (k, 0, 0)).save(tmp_path / f"{k}.png")
        (tmp_path / f"{k}.txt").write_text("0.25 0.5\n0.1 0.9\n")
    messages = [f.message for f in check("folder", tmp_path) if f.severity == "error"]
    assert len(messages) == 1 and "fractions of the image" in messages[0]
    (tmp_path / "2.txt").write_text("12 20\n")
    assert not has_errors(check("folder", tmp_path))


def test_an_image_whose_format_is_not_read_is_told(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "1 2"})
    for name in ("b.HEIC", "c.gif"):
        (tmp_path / name).touch()
    (tmp_path / "b.txt").write_text("3 4\n")
    (tmp_path / "z.txt").write_text("3 4\n")
    said = {f.file and f.file.name: (f.severity, f.message) for f in check("folder", tmp_path)}
    there = "its image b.HEIC is there, but its format is not read; save it as JPEG or PNG"
    assert said == {
        "b.txt": ("error", there),
        "z.txt": ("error", "an annotation whose image is missing"),
        tmp_path.name: (
            "warning",
            "2 files were passed over, as their format is not read: .heic (1), .gif (1); save them as JPEG or PNG",
        ),
    }


def test_images_above_the_folders_of_the_splits_are_told(tmp_path: Path) -> None:
    folder(tmp_path / "train", {"a": "1 2"}, (41, 30))
    folder(tmp_path / "test", {"b": "1 2"})
    assert check("folder", tmp_path) == []
    folder(tmp_path, {"c": "1 2", "d": "3 4"}, (42, 30))
    said = "2 images lie directly in this folder and not in its sub-folders (test, train): not part of the dataset"
    assert check("folder", tmp_path) == [Finding("info", tmp_path, None, said)]


def test_overlapping_splits_count_once_and_published_numbers_are_told(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")

    def entries(root: Path) -> dict[str, list[Entry]]:
        one = Entry("a", root / "a.png", None, lambda: Annotation(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
        return {"all": [one], "fold1": [one]}

    made = Reader("made-up", "for this test", entries, expected={"all": (1, 2), "fold1": (1, None), "*": (1, 2)})
    seen: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(READERS._items, "made-up", made)
        found = check("made-up", tmp_path, on_item=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 1)]
    assert [f.message for f in found] == [
        "the split 'all' has 1 image and 2 points, as published",
        "the split 'fold1' has 1 image, as published",
    ]


def test_whole_coordinates_may_be_pixel_indices(tmp_path: Path) -> None:
    """A note, once there are enough points to wonder; none when one has a fraction or the origin is stated."""
    whole = "".join(f"{x} {y}\n" for x in range(1, 6) for y in range(1, 5))
    root = folder(tmp_path, {"a": whole})
    note = (
        "note: "
        + str(root)
        + ": split 'all': all coordinates are whole numbers; if they are pixel indices, add origin=0.5"
    )
    assert [str(f) for f in check("folder", root)] == [note]
    assert check("folder", root, origin=0.5) == []
    (root / "a.txt").write_text(whole + "7.5 8\n")
    assert check("folder", root) == []


def test_a_point_on_the_far_border_is_inside(tmp_path: Path) -> None:
    """x = W or y = H is a note, and training sees the point; beyond it is an error as before, also below 0."""
    root = folder(tmp_path, {"a": "1 2\n40 7\n5.5 30.0004\n40 30\n"})
    [fault] = check("folder", root)
    assert fault.severity == "info" and str(fault).endswith(
        "a.txt:2: a: 3 points on the far border of the image, taken to be just inside"
    )
    [sample] = papm.data.open("folder", root)["all"]
    assert sample.inside.all() and summary({"all": papm.data.open("folder", root)["all"]})["all"]["outside"] == 0
    torch.testing.assert_close(sample.points, torch.tensor([[1.0, 2], [40, 7], [5.5, 30], [40, 30]]))
    for beyond in ("40.01 7", "40 31", "-0.01 7"):
        (root / "a.txt").write_text(f"{beyond}\n")
        assert has_errors(check("folder", root)), beyond
        assert not papm.data.open("folder", root)["all"][0].inside.any()


def test_points_of_several_people_on_the_far_border_are_inside(tmp_path: Path) -> None:
    root = folder(tmp_path, {"a": "1 2\n"})
    (root / "a.txt").unlink()
    for who in ("anna", "ben"):
        (root / "annotators" / who).mkdir(parents=True)
        (root / "annotators" / who / "a.txt").write_text("40 7\n")
    [sample] = papm.data.open("folder", root)["all"]
    assert sample.inside.all() and all((p < 40).all() for p in sample.annotations.values())


def test_the_border_of_published_data_stays_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    at = torch.tensor([[40.0, 7.0]])
    made = Reader(
        "odd", "for this test", lambda root: {"all": [Entry("a", root / "a.png", None, lambda: Annotation(at))]}
    )
    monkeypatch.setitem(READERS._items, "odd", made)
    [warning] = [f for f in check("odd", tmp_path) if f.severity == "warning"]
    assert warning.message.endswith("1 point outside the 40×30 image, the farthest at (40.0, 7.0), on its border")
    assert torch.equal(papm.data.open("odd", tmp_path)["all"][0].points, at)


def test_one_fault_on_many_lines_is_told_once(tmp_path: Path) -> None:
    text = "1 2 0\n" + "".join(f"{k % 39} {k % 29}.5 nut\n" for k in range(240)) + "3 4 bolt\n"
    root = folder(tmp_path, {"a": text, "b": "1 2 nut\n"})
    errors = [f for f in check("folder", root) if f.severity == "error"]
    assert [(f.file and f.file.name, f.line, f.message.partition(" is ")[0]) for f in errors] == [
        ("a.txt", 2, "the label 'nut'"),
        ("a.txt", 242, "the label 'bolt'"),
        ("b.txt", 1, "the label 'nut'"),
    ]
    assert errors[0].message.endswith(" (240 lines, this one first)")
    assert not any("lines, this" in f.message for f in errors[1:])


@pytest.mark.parametrize(
    ("files", "known"),
    [
        ({"a.txt": "1 2\n"}, "txt"),
        ({"a.txt": "0 0.5 0.5 0.1 0.1\n"}, "yolo"),
        ({"points.csv": "image,x,y\na.png,1,2\n"}, "csv"),
        ({"train/a.txt": "1 2\n", "test/points.csv": "image,x,y\na.png,1,2\n"}, "txt, csv"),
    ],
)
def test_the_format_of_the_files_is_known(tmp_path: Path, files: dict[str, str], known: str) -> None:
    for k, (name, text) in enumerate(files.items()):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        Image.new("RGB", (40, 30), (k, k, k)).save(path.parent / "a.png")
    told: list[str] = []
    check(
        "folder",
        tmp_path,
        on_entries=lambda splits: told.append(file_formats(e for es in splits.values() for e in es)),
    )
    opened = papm.data.open("folder", tmp_path, max_side=20)
    assert told == [known] == [", ".join(d[:1].file_format for d in opened.values())]


def test_yolo_files_without_image_and_images_without_file(tmp_path: Path) -> None:
    for k, name in enumerate("ab"):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (k, k, k)).save(tmp_path / f"images/{name}.png")
    (tmp_path / "labels").mkdir()
    for name in "ac":
        (tmp_path / f"labels/{name}.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    findings = check("folder", tmp_path)
    assert [(f.severity, f.file and f.file.name) for f in findings[:2]] == [("error", "c.txt"), ("warning", "b.png")]
    assert findings[0].message == "an annotation whose image is missing"
