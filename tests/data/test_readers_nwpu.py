"""NWPU-Crowd: json, mat and text annotations, lists or ids, the hidden test set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check, has_errors
from papm.data.readers.nwpu import read_json, read_mat
from papm.data.splits import choose
from papm.errors import ConfigError, DataError

POINTS = [[10.5, 12.25], [20.0, 8.0]]
BOXES = [[8.5, 9.0, 12.5, 15.0], [21.0, 7.0, 19.0, 9.0]]  # the second with its corners exchanged
UPRIGHT = [[8.5, 9.0, 12.5, 15.0], [19.0, 7.0, 21.0, 9.0]]
IDS = {"train": [1, 2, 3169], "val": [3098, 3110], "test": [3610, 3611]}


def make(root: Path, kinds: tuple[str, ...] = ("json", "mat"), lists: bool = True, parts: bool = False) -> Path:
    for i, n in enumerate(n for ns in IDS.values() for n in ns):
        folder = root / (f"images_part{1 + i % 2}" if parts else "images")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (30 * i, 0, 0)).save(folder / f"{n:04d}.jpg")
        if n >= 3610:
            continue
        points, boxes = (POINTS, BOXES) if n != 2 else ([], [])
        if "json" in kinds:
            (root / "jsons").mkdir(exist_ok=True)
            content = {"img_id": f"{n:04d}.jpg", "human_num": len(points), "points": points, "boxes": boxes}
            (root / "jsons" / f"{n:04d}.json").write_text(json.dumps(content))
        if "mat" in kinds:
            (root / "mats").mkdir(exist_ok=True)
            content = {"annPoints": np.array(points), "annBoxes": np.array(boxes)}
            scipy.io.savemat(root / "mats" / f"{n:04d}.mat", content)
    for split, ids in IDS.items():
        if lists:
            (root / f"{split}.txt").write_text("".join(f"{n:04d} {n % 3} {n % 5}\n" for n in ids))
        if "txt" in kinds and split != "test":
            line = "{} 2 10 12 2 4 1 20 8 1 1 0\n"
            text = "".join(line.format(n) if n != 2 else "2 0\n" for n in ids)
            (root / f"{split}_gt_loc.txt").write_text(text)
    return root


@pytest.mark.parametrize("kinds", [("json",), ("mat",), ("json", "mat")])
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("parts", [True, False])
def test_layouts(tmp_path: Path, kinds: tuple[str, ...], lists: bool, parts: bool) -> None:
    root = make(tmp_path / "NWPU-Crowd", kinds, lists, parts)
    for place in (root, tmp_path):
        data = papm.data.open("nwpu", place)
        names = {k: sorted(int(s.name) for s in d) for k, d in data.items()}
        assert names == {"train": IDS["train"], "val": IDS["val"], "test-hidden": IDS["test"]}
        assert papm.data.parse_spec(str(place)) == ("nwpu", place)
    first = min(data["train"], key=lambda s: s.name)
    assert first.points.tolist() == POINTS
    assert first.boxes is not None and first.boxes.tolist() == UPRIGHT
    assert first.extents is not None and first.extents.tolist() == pytest.approx([24**0.5, 2.0])
    assert (first.meta.get("luminance"), first.meta.get("level")) == ((1, 1) if lists else (None, None))


def test_hidden_images_are_never_trained_on_or_evaluated(tmp_path: Path) -> None:
    data = papm.data.open("nwpu", make(tmp_path))
    hidden = data["test-hidden"]
    assert hidden.hidden and all(s.count == 0 and s.meta["hidden"] for s in hidden)
    assert not data["train"].hidden and not data["val"].hidden
    with pytest.raises(DataError, match="not published"):
        papm.data.require_annotated(hidden)
    for select in ("val", "last", "test"):
        splits = choose(data, select, 0.2, 0)
        used = {s.name for d in (splits.train, splits.monitor, splits.test) if d is not None for s in d}
        assert not used & {s.name for s in hidden}
    with pytest.raises(DataError):  # also when nothing else is there
        choose({"val": data["val"], "test-hidden": hidden}, "val", 0.2, 0)
    findings = check("nwpu", tmp_path)
    assert not has_errors(findings)
    assert "the annotations of 2 images of the split 'test-hidden' are not published" in [f.message for f in findings]


def test_annotated_test_images_are_a_test_split(tmp_path: Path) -> None:
    root = make(tmp_path)
    (root / "jsons" / "3610.json").write_text('{"points": [[1, 2]]}')
    data = papm.data.open("nwpu", root)
    assert {k: len(d) for k, d in data.items()} == {"train": 3, "val": 2, "test": 1, "test-hidden": 1}
    assert data["test"][0].boxes is None and data["test"][0].points.tolist() == [[1, 2]]


def test_text_annotations(tmp_path: Path) -> None:
    root = make(tmp_path, ("txt",))
    data = papm.data.open("nwpu", root)
    sample = next(s for s in data["val"] if s.name == "3110")
    assert sample.points.tolist() == [[10, 12], [20, 8]] and sample.boxes is None
    # min(w, h) = 4 and w² + h² = 64: the long side is √48; min = 2 with a diagonal of 2 cannot be, and reads as 2 × 2.
    assert sample.extents is not None and sample.extents.tolist() == pytest.approx([(4 * 48**0.5) ** 0.5, 2.0])
    assert len(data["test-hidden"]) == 2
    (root / "val_gt_loc.txt").write_text("3098 0\n")
    with pytest.raises(DataError, match=r"3110\.jpg: no annotation; expected a line in .*val_gt_loc\.txt"):
        papm.data.open("nwpu", root)
    with pytest.raises(DataError, match="kind json"):
        papm.data.open("nwpu", root, annotation="json")
    with pytest.raises(ConfigError, match="auto, json, mat, txt"):
        papm.data.open("nwpu", root, annotation="xml")


def test_missing_annotations_and_images_are_faults(tmp_path: Path) -> None:
    root = make(tmp_path)
    (root / "jsons" / "0001.json").unlink()
    assert papm.data.open("nwpu", root)["train"][0].count == 2  # its .mat
    (root / "mats" / "0001.mat").unlink()
    with pytest.raises(DataError, match=r"0001\.jpg: no annotation; expected jsons/0001\.json or mats/0001\.mat"):
        papm.data.open("nwpu", root)
    with (root / "val.txt").open("a") as f:
        f.write("9999 0 0\n")
    errors = {(f.file.name if f.file else "", f.line) for f in check("nwpu", root) if f.severity == "error"}
    assert errors == {("0001.jpg", None), ("val.txt", 3)}


def test_wrong_json(tmp_path: Path) -> None:
    path = tmp_path / "0001.json"
    for text, words in (
        ("", "not valid JSON"),
        ('{"points": [\n[1, 2,\n', ":3: not valid JSON"),
        ("[]", 'no list "points"'),
        ('{"points": 3}', 'no list "points"'),
        ('{"points": [[1, 2], [3]]}', "row 2"),
        ('{"points": [[1, true]]}', "row 1"),
        ('{"points": [[1, "2"]]}', "row 1"),
        ('{"points": [[1, NaN]]}', "row 1"),
        ('{"points": [[1, 1e400]]}', "row 1"),
        ('{"points": [[1, 1' + "0" * 400 + "]]}", "row 1"),
        ('{"points": [[1, 2]], "boxes": [[1, 2, 3]]}', 'row 1 of "boxes"'),
        ('{"points": [[1, 2]], "boxes": 7}', "boxes"),
        ("[" * 100_000, "JSON"),
        ('{"points": [[1, ' + "9" * 10_000 + "]]}", "JSON"),
    ):
        path.write_text(text)
        with pytest.raises(DataError) as e:
            read_json(path)
        assert str(path) in str(e.value) and words in str(e.value)
    path.write_text('{"points": [[1, 2]], "boxes": [[1, 2, 3, 4], [1, 2, 3, 4]]}')
    assert read_json(path).boxes is None  # boxes that do not match are left out, points stay
    path.write_text('{"points": []}')
    assert read_json(path).points.shape == (0, 2)


def test_mat_without_boxes(tmp_path: Path) -> None:
    path = tmp_path / "0001.mat"
    scipy.io.savemat(path, {"annPoints": np.array(POINTS)})
    assert read_mat(path).boxes is None and read_mat(path).points.tolist() == POINTS
    scipy.io.savemat(path, {"annPoints": np.zeros((0, 2)), "annBoxes": np.zeros((0, 4))})
    assert read_mat(path).points.shape == (0, 2)
    scipy.io.savemat(path, {"annPoints": np.ones((1, 2)), "annBoxes": np.ones((1, 3))})
    with pytest.raises(DataError, match="'annBoxes' is 1×3"):
        read_mat(path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nwpu") / "0001.json"


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["points", "boxes", "x"]), inner),
    max_leaves=8,
)


@settings(max_examples=80)
@given(content=st.fixed_dictionaries({"points": _JSON, "boxes": _JSON, "human_num": _JSON}))
def test_any_json_is_heads_or_a_clear_error(scratch: Path, content: dict[str, object]) -> None:
    text = json.dumps(content)
    for cut in (len(text), len(text) // 2):
        scratch.write_text(text[:cut])
        try:
            assert read_json(scratch).points.shape[1] == 2
        except DataError as e:
            assert str(scratch) in str(e)
