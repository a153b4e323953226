"""The pages of results: those in the repository are what the command writes, and they say what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from papm import methods
from papm.cli.main import main
from papm.errors import DataError
from papm.study import document, show, tables
from papm.study.document import documents, reached
from papm.study.results import read, recipe_of

ROOT = Path(__file__).resolve().parents[2]
FIRST = {"loss": {"mass": 0.0}, "network": {"activation": "relu"}}


def result(mae: float = 58.0, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result of AL-PAPM with VGG19, with the options of today's recipe unless others are given."""
    who = {"dataset": "shanghaitech-a", "backbone": "vgg19", "method": "al-papm", "seed": seed, "select": "last"}
    figures = {"mae": mae, "rmse": 1.6 * mae, "split": "test", "weights_sha256": "5" * 64, "steps": 30000}
    recipe = methods.recipe("al-papm", "vgg19")
    options = {"loss": recipe["loss"], "network": recipe["network"], "training": dict(methods.PHOTOGRAPHS)}
    options |= changes.pop("options", {})
    return {**who, **figures, "options": options, **changes}


def save(folder: Path, *results: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k, one in enumerate(results):
        (folder / f"{k}.json").write_text(json.dumps(one), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_pages_in_the_repository_are_those_of_its_results() -> None:
    made = documents(read([ROOT / "results"]))
    kept = [ROOT / "docs/results.md", *(ROOT / "docs/results").glob("*.md")]
    assert {p.relative_to(ROOT / "docs").as_posix() for p in kept} == set(made)
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"docs/{name}: run papm study results"


def found(tmp_path: Path, *results: dict[str, Any]) -> list[document.Reached]:
    view = show.view(
        tables.load("crowds").only(["al-papm", "ShTech A"]), read([save(tmp_path, *results)]), everything=True
    )
    return list(reached([view]))


def test_recipes_are_told_apart_by_their_options() -> None:
    assert recipe_of(result(options={"loss": {}, "network": {}})) == "1"
    assert recipe_of(result(options={"loss": {}, "network": {"activation": "abs"}})) == "1"
    assert recipe_of(result(options={"loss": {"mass": 64.0}, "network": {}})) == "2"
    assert recipe_of(result(options={"loss": {}, "network": {"activation": "relu-live"}})) == "2"
    assert recipe_of(result(recipe="own")) == "own"


def test_of_each_recipe_the_nearest_training_is_shown_not_the_best(tmp_path: Path) -> None:
    own = result(50.0, recipe="own", options={"training": {"lr": 3e-4}})
    short = result(51.0, steps=6000, recipe=methods.RECIPE)
    lines = found(tmp_path, result(60.0, recipe=methods.RECIPE), own, short, result(58.0, options=FIRST))
    assert [(r.group.recipe, r.text("mae"), r.verdict) for r in lines] == [
        (methods.RECIPE, "60.0", "not reached"),
        ("1", "58.0", "not reached"),
    ]


def test_results_of_two_recipes_with_the_same_settings_are_never_averaged(tmp_path: Path) -> None:
    results = read([save(tmp_path, result(60.0, recipe="1"), result(50.0, recipe=methods.RECIPE))])
    study = tables.load("crowds").only(["al-papm", "ShTech A", "vgg19"])
    today, every = show.view(study, results), show.view(study, results, everything=True)
    assert [x.group.mean(0) for x in today.lines if x.group] == [50.0]
    assert any("1 result with other settings" in words for words in today.remarks)
    page, other = document.table_page(today, every, "results").split("## Other settings")
    assert "50.0" in page and "60.0" not in page and "60.0" in other and "50.0" not in other


def test_a_figure_of_held_out_training_images_is_none_of_the_test_images(tmp_path: Path) -> None:
    assert not found(tmp_path, result(50.0, recipe=methods.RECIPE, options={"data": {"holdout": 0.3}}))


def test_what_is_reached_is_said_as_printed(tmp_path: Path) -> None:
    (line,) = found(tmp_path, result(57.14, bias=-0.02, intervals={"mae": [49.0, 66.0]}), result(57.1, 1))
    assert (line.verdict, line.text("bias"), line.ends) == ("reached", "−2.0 %", (49.0, 66.0))
    (line,) = found(tmp_path / "short", result(57.2, steps=6000))
    assert line.verdict == "short training"


@pytest.mark.slow
def test_command_writes_pages_and_removes_those_of_tables_that_are_gone(tmp_path: Path) -> None:
    save(tmp_path / "kept", result(56.0, recipe=methods.RECIPE))
    pages = tmp_path / "docs/what"
    pages.mkdir(parents=True)
    (pages / "gone.md").write_text(document.WRITTEN, encoding="utf-8")
    (pages / "own.md").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["study", "results", "--out", str(tmp_path / "docs/what.md"), "--results", str(tmp_path / "kept")])
    assert not ended.value.code
    front = (tmp_path / "docs/what.md").read_text(encoding="utf-8")
    assert (
        f"recipe {methods.RECIPE}**: 1 of 1 reach the paper's MAE.\n\n- `shanghaitech-a`, **reached**: `al-papm` vgg19 −1.1."
        in front
    )
    assert "(what/crowds.md) (Table 1): 1 of" in front
    assert not (pages / "gone.md").exists() and (pages / "own.md").exists()
    assert "56.0" in (pages / "losses-a.md").read_text(encoding="utf-8")


def test_pages_written_by_hand_and_missing_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no results"):
        document.write([], tmp_path / "what.md")
    (tmp_path / "what.md").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match=r"what\.md was written by hand"):
        document.write(read([save(tmp_path / "kept", result())]), tmp_path / "what.md")
