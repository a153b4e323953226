"""Images that several people marked: whose points count, who may be missing, what is a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from papm import data
from papm.cli import main as entry
from papm.data.check import check, has_errors
from papm.errors import ConfigError, DataError

ANNA = {"a": "10 10\n50 20\n", "b": "5 5\n"}
BEN = {"a": "12 10\n50 22\n70 60\n"}


def make(root: Path, split: str = "") -> Path:
    images = root / split / "images" if split else root
    images.mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (100, 80), (9, 9, 9)).save(images / f"{name}.png")
    for who, files in (("anna", ANNA), ("ben", BEN)):
        folder = root / "annotators" / who / split
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)
    return root


@pytest.mark.parametrize("split", ["", "train"])
def test_merged_or_one_persons(tmp_path: Path, split: str) -> None:
    root = make(tmp_path / "data", split)
    assert data.parse_spec(str(root)) == ("folder", root)
    merged = data.open("folder", root)[split or "all"]
    assert merged[0].points.tolist() == [[11.0, 10.0], [50.0, 21.0], [70.0, 60.0]]
    assert {who: len(p) for who, p in merged[0].annotations.items()} == {"anna": 2, "ben": 3}
    assert merged[1].points.tolist() == [[5.0, 5.0]] and list(merged[1].annotations) == ["anna"]
    anna, ben = (data.open("folder", root, annotators=who)[split or "all"] for who in ("anna", "ben"))
    assert anna[0].points.tolist() == [[10.0, 10.0], [50.0, 20.0]] and len(anna) == 2
    assert [s.name for s in ben] == ["a"], "only what Ben marked"
    assert list(ben[0].annotations) == ["anna", "ben"]
    assert not has_errors(check("folder", root))
    small = data.open("folder", root, max_side=50)[split or "all"][0]
    assert torch.allclose(small.annotations["ben"], merged[0].annotations["ben"] / 2)


def test_other_formats(tmp_path: Path) -> None:
    root = make(tmp_path / "data")
    for text in (root / "annotators" / "ben").iterdir():
        text.unlink()
    (root / "annotators" / "ben" / "points.csv").write_text("image,x,y\na.png,12,10\nb.png,,\n")
    sets = data.open("folder", root)["all"]
    assert sets[0].annotations["ben"].tolist() == [[12.0, 10.0]] and len(sets[1].annotations["ben"]) == 0


def test_faults(tmp_path: Path) -> None:
    root = make(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"annotators='carl' is neither merge nor one of the annotators: anna, ben"):
        data.open("folder", root, annotators="carl")
    (root / "annotators" / "anna" / "b.txt").unlink()
    with pytest.raises(DataError, match=r"b\.png: nobody marked this image"):
        data.open("folder", root)
    assert [f.message for f in check("folder", root) if f.severity == "error"]
    (root / "annotators" / "anna" / "b.txt").write_text("1 two\n")
    with pytest.raises(DataError, match=r"b\.txt"):
        data.open("folder", root)
    (root / "annotators" / "merge").mkdir()
    with pytest.raises(ConfigError, match="rename the folder"):
        data.open("folder", root)
    plain = tmp_path / "plain"
    plain.mkdir()
    Image.new("RGB", (20, 20)).save(plain / "a.png")
    (plain / "a.txt").write_text("1 2\n")
    with pytest.raises(ConfigError, match="there is no"):
        data.open("folder", plain, annotators="anna")


def test_info_tells_how_far_they_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make(tmp_path / "data")

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            entry.main(["data", *words])
        assert not stopped.value.code
        return capsys.readouterr().out

    found = json.loads(run("info", str(root), "--json"))["all"]["agreement"]
    assert found["annotators"] == ["anna", "ben"] and found["distance_median"] == 2.0 and found["count_difference"] == 1
    assert "2 people" in run("info", str(root)) and "2.0 px apart" in run("info", str(root))
    assert "agreement" not in json.loads(run("info", "synthetic:train=1,test=1", "--json"))["train"]
