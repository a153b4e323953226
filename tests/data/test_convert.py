"""Writing folder data: what comes back is what was given, and nothing is overwritten unasked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.convert import write_folder
from papm.errors import DataError
from papm.structures import Sample


def drawn(name: str, points: list[list[float]], **more: object) -> Sample:
    def source() -> torch.Tensor:
        return torch.arange(3 * 20 * 30, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(3, 20, 30)

    return Sample(name, source, torch.tensor(points, dtype=torch.float32).reshape(-1, 2), (20, 30), **more)  # type: ignore[arg-type]


coordinates = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(coordinates, coordinates), max_size=8))
@settings(max_examples=25, deadline=None)
def test_points_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, xy: list[tuple[float, float]]) -> None:
    out = tmp_path_factory.mktemp("w") / "out"
    sample = drawn("a", [list(p) for p in xy])
    assert write_folder([sample], out) == 1
    back = papm.data.open("folder", out)["all"][0]
    assert torch.equal(back.points, sample.points) and torch.equal(back.image, sample.image)


def test_small_numbers_and_labels(tmp_path: Path) -> None:
    sample = drawn(
        "a", [[1e-6, 0.1], [1 / 3, 19.999998]], labels=torch.tensor([4, 0]), meta={"classes": tuple("vwxyz")}
    )
    write_folder([sample, drawn("b", [])], tmp_path / "o")
    back, empty = papm.data.open("folder", tmp_path / "o")["all"]
    assert torch.equal(back.points, sample.points) and back.labels is not None and back.labels.tolist() == [4, 0]
    assert back.meta["classes"] == tuple("vwxyz") and empty.count == 0
    assert not [f for f in check("folder", tmp_path / "o") if f.severity == "error"]
    assert (tmp_path / "o/images/b.txt").read_text() == "# x y\n"  # stated, not left blank


def test_a_table_holds_no_formulas(tmp_path: Path) -> None:
    classes = ("=1+1", "-5", "+x", "@y", "'=z")
    sample = drawn("=a", [[k, -k] for k in range(5)], labels=torch.arange(5), meta={"classes": classes})
    write_folder([sample], tmp_path / "o", to="csv")
    [table] = (tmp_path / "o").rglob("points.csv")
    cells = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert [c[3] for c in cells] == ["'=1+1", "-5", "'+x", "'@y", "''=z"] and all(c[0].startswith("'=a") for c in cells)
    assert [float(c[2]) for c in cells] == [-k for k in range(5)]
    back = papm.data.open("folder", tmp_path / "o")["all"][0]
    assert back.name == "=a" and back.labels is not None
    assert [back.meta["classes"][k] for k in back.labels] == list(classes)


def test_copies_and_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (30, 20), (9, 8, 7)).save(tmp_path / "in/a.JPG")
    sample = Sample("a", tmp_path / "in/a.JPG", torch.tensor([[1.0, 2.0]]), (20, 30))
    write_folder([sample], tmp_path / "copy")
    write_folder([sample], tmp_path / "link", link=True)
    source = (tmp_path / "in/a.JPG").read_bytes()
    assert (tmp_path / "copy/images/a.jpg").read_bytes() == source == (tmp_path / "link/images/a.jpg").read_bytes()
    assert (tmp_path / "link/images/a.jpg").is_symlink() and not (tmp_path / "copy/images/a.jpg").is_symlink()
    assert papm.data.open("folder", tmp_path / "link")["all"][0].points.tolist() == [[1, 2]]


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    write_folder([drawn("a", [[1, 2]])], tmp_path / "o")
    with pytest.raises(DataError, match="not empty"):
        write_folder([drawn("a", [[3, 4]])], tmp_path / "o")
    assert papm.data.open("folder", tmp_path / "o")["all"][0].points.tolist() == [[1, 2]]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"):
        write_folder([], tmp_path / "file")


def test_names(tmp_path: Path) -> None:
    write_folder([drawn("cam1/a.jpg", []), drawn("cam2/a.jpg", []), drawn("v1.2", [])], tmp_path / "o")
    assert sorted(p.stem for p in (tmp_path / "o/images").glob("*.png")) == ["cam1_a", "cam2_a", "v1.2"]
    assert sorted(s.name for s in papm.data.open("folder", tmp_path / "o")["all"]) == ["cam1_a", "cam2_a", "v1.2"]
    with pytest.raises(DataError, match="two samples"):
        write_folder([drawn("x", []), drawn("X", [])], tmp_path / "p")
    for wrong in ("", "..", "a\nb", "/", "a:b"):
        with pytest.raises(DataError, match="cannot be a file name"):
            write_folder([drawn(wrong, [])], tmp_path / f"q{len(wrong)}{wrong.isprintable()}{':' in wrong}")


def test_a_failure_leaves_no_half_file(tmp_path: Path) -> None:
    missing = Sample("a", tmp_path / "gone.jpg", torch.zeros(0, 2), (20, 30))
    with pytest.raises(DataError, match=r"gone\.jpg: no such image"):
        write_folder([missing], tmp_path / "o")
    with pytest.raises(DataError, match="not finite"):
        write_folder([drawn("a", [[float("nan"), 1]])], tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_inside_only_and_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = drawn("a", [[1, 2], [30, 2], [5, -1]], boxes=torch.zeros(3, 4))
    with caplog.at_level(logging.WARNING):
        write_folder([sample], tmp_path / "o", inside_only=True)
    assert "cannot hold boxes" in caplog.text
    assert papm.data.open("folder", tmp_path / "o")["all"][0].points.tolist() == [[1, 2]]
