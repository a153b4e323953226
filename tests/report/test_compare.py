"""The comparison page: every figure from the runs, the best marked, selection on test said, curves of all runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from papm.report.compare import ComparedRun, cells, differences, together, write_comparison
from papm.report.run import write_report


@pytest.fixture
def runs(tmp_path: Path, make_run: Any) -> list[ComparedRun]:
    plan = [
        ("gaussian", "exact", 6.0),
        ("gaussian", "misplaced", 12.0),
        ("hd-papm", "exact", 4.0),
        ("hd-papm", "misplaced", 5.0),
    ]
    return [
        ComparedRun(m, g, tmp_path / f"{m}-{g}", make_run(tmp_path / f"{m}-{g}", method=m, error=e, select="last"))
        for m, g, e in plan
    ]


def test_the_page_holds_every_cell_with_its_interval(
    tmp_path: Path, runs: list[ComparedRun], read_page: Callable[[Path], Any]
) -> None:
    write_report(runs[0].folder)
    path = write_comparison(
        tmp_path / "page" / "report.html", title="A <b>", intro="one\n\ntwo & three", runs=runs, notes=["careful <i>"]
    )
    page = read_page(path)
    assert "A <b>" in page.text and "two & three" in page.text and "careful <i>" in page.text
    for run in runs:
        low, high = run.result["intervals"]["mae"]
        assert f"{run.result['mae']:.2f} {low:.2f} to {high:.2f}" in page.text
    assert [a["href"] for tag, a in page.tags if tag == "a"] == ["../gaussian-exact/report.html"]
    assert sum(tag == "svg" for tag, _ in page.tags) == 3
    assert not [a for _, a in page.tags if a.get("class") == "warning"]
    assert "Against gaussian" in page.text


def test_curves_have_a_colour_a_method_and_dashes_a_group(tmp_path: Path, runs: list[ComparedRun]) -> None:
    html = write_comparison(tmp_path / "r.html", title="t", intro="", runs=runs).read_text(encoding="utf-8")
    paths = [p.partition("/>")[0] for p in html.split("<path ")[1:]][:4]  # the first chart
    assert [("--c1" in p, "--c2" in p, "dasharray" in p) for p in paths] == [
        (True, False, False), (True, False, True), (False, True, False), (False, True, True),
    ]  # fmt: skip


def test_best_of_each_group_is_marked_and_missing_figures_leave_a_dash(
    tmp_path: Path, runs: list[ComparedRun], read_page: Callable[[Path], Any]
) -> None:
    table = cells(runs)
    assert {k for k, c in table.items() if c.best} == {("hd-papm", "exact"), ("hd-papm", "misplaced")}
    without = [*runs, ComparedRun("new", "exact", tmp_path / "nowhere", {"mae": None, "select": "last"})]
    assert cells(without) == table
    read_page(write_comparison(tmp_path / "r.html", title="t", intro="i", runs=without))


def test_several_runs_of_a_cell_give_their_mean_and_range(tmp_path: Path) -> None:
    seeds = [ComparedRun("m", "g", tmp_path, {"mae": v, "intervals": {"mae": [0, 99]}}) for v in (3.0, 5.0, 7.0)]
    (cell,) = cells(seeds).values()
    assert (cell.mae, cell.low, cell.high, cell.runs) == (5.0, 3.0, 7.0, 3)
    assert differences(seeds, ["m"], ["g"]) == {}


def test_differences_are_paired_on_the_same_images(runs: list[ComparedRun]) -> None:
    found = differences(runs, ["gaussian", "hd-papm"], ["exact", "misplaced"])
    by = {(r.label, r.group): r.result["mae"] for r in runs}
    for group in ("exact", "misplaced"):
        gap = found["hd-papm", group]
        assert gap.difference == pytest.approx(
            by["hd-papm", group] - by["gaussian", group], abs=2e-3
        )  # csv: 3 decimals
        assert gap.significant
    other = runs[2].folder / "predictions.csv"
    other.write_text(other.read_text().replace("IMG_3.jpg", "IMG_99.jpg"))
    assert set(differences(runs, ["gaussian", "hd-papm"], ["exact", "misplaced"])) == {("hd-papm", "misplaced")}


def counted(folder: Path, errors: dict[str, float]) -> ComparedRun:
    """A run on images of a hundred objects, each miscounted by so many."""
    folder.mkdir()
    lines = [f"{image},{100 + e},100,100" for image, e in errors.items()]
    (folder / "predictions.csv").write_text("\n".join(["image,predicted,truth,truth_in_image", *lines]))
    return ComparedRun(folder.name, "test", folder, {})


def test_errors_that_differ_cancel_in_the_mean_of_the_counts(tmp_path: Path) -> None:
    high = counted(tmp_path / "high", {"a": 8.0, "b": 4.0})
    low = counted(tmp_path / "low", {"b": -2.0, "a": -4.0})  # another order
    other = counted(tmp_path / "other", {"a": 50.0, "c": 50.0})
    joint = together([high, low, other])["test"]
    assert (joint.runs, joint.score.mae, joint.score.n) == (2, 1.5, 2)  # +2 and +1
    assert joint.score.rmse == pytest.approx(2.5**0.5)
    assert joint.against_first.difference == 1.5 - 6
    assert together([high]) == together([high, other]) == together([]) == {}
    assert together([ComparedRun("none", "test", tmp_path / "nowhere", {}), high]) == {}


def test_choosing_on_the_test_images_is_said(
    tmp_path: Path, runs: list[ComparedRun], read_page: Callable[[Path], Any]
) -> None:
    runs[0].result["select"] = "test"
    page = read_page(write_comparison(tmp_path / "r.html", title="t", intro="i", runs=runs))
    assert "gaussian (exact): the weights were chosen on the test images" in page.text
    assert "in different ways" in page.text


def test_examples_of_one_caption_stand_together(
    tmp_path: Path, runs: list[ComparedRun], read_page: Callable[[Path], Any]
) -> None:
    files = [tmp_path / f"{k}.png" for k in range(3)]
    for k, file in enumerate(files):
        Image.new("RGB", (90, 30 + k)).save(file)
    examples = [("first", files[0]), ("first", files[1]), ("second", files[2])]
    page = read_page(write_comparison(tmp_path / "r.html", title="t", intro="i", runs=runs, examples=examples))
    assert [a["height"] for tag, a in page.tags if tag == "img"] == ["30", "31", "32"]
    assert page.text.count("first") == 1 and page.text.count("second") >= 1


def test_no_runs_is_a_page_all_the_same(tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    assert (
        "None of the runs has a figure of error"
        in read_page(write_comparison(tmp_path / "r.html", title="t", intro="", runs=[])).text
    )
