"""One recipe on all data: the longest trainings by today's recipe, and nothing else, beside the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from papm import methods
from papm.study import recipe_table, tables
from papm.study.results import read


def save(folder: Path, number: int, mae: float, **changes: Any) -> None:
    who = {"dataset": "shanghaitech-a", "backbone": "vgg19", "method": "al-papm", "seed": 0, "select": "last"}
    figures = {
        "mae": mae,
        "rmse": 1.6 * mae,
        "bias": 0.02,
        "split": "test",
        "weights_sha256": "5" * 64,
        "steps": 30_000,
    }
    made = {**who, **figures, "recipe": methods.RECIPE, "options": {}, **changes}
    (folder / f"{number}.json").write_text(json.dumps(made), encoding="utf-8")


def table(folder: Path) -> list[list[str]]:
    text = recipe_table.table(read([folder]), [tables.load(name) for name in ("crowds", "cars")])
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines() if "---" not in line
    ]


def test_the_longest_trainings_of_today_and_their_seeds_are_averaged(tmp_path: Path) -> None:
    save(tmp_path, 0, 58.0)
    save(tmp_path, 1, 60.0, seed=1)
    save(tmp_path, 2, 40.0, steps=6000)
    assert table(tmp_path) == [
        ["", "`shanghaitech-a`"],
        ["`vgg19` `al-papm`", "59.0, +2.0 % (paper 57.1; 30,000 steps; 2 seeds)"],
    ]


def test_what_reaches_the_paper_is_bold_and_what_it_lacks_has_no_figure_of_it(tmp_path: Path) -> None:
    save(tmp_path, 0, 57.1)
    save(tmp_path, 1, 1.5, dataset="pucpr", backbone="dinov2", bias=None)
    assert table(tmp_path) == [
        ["", "`shanghaitech-a`", "`pucpr`"],
        ["`dinov2` `al-papm`", "–", "1.50 (30,000 steps)"],
        ["`vgg19` `al-papm`", "**57.1**, +2.0 % (paper 57.1; 30,000 steps)", "–"],
    ]


def test_other_recipes_selections_dots_and_splits_are_left_out(tmp_path: Path) -> None:
    save(tmp_path, 0, 58.0)
    others: list[dict[str, Any]] = [
        {"recipe": "5"}, {"recipe": "own"}, {"select": "test"}, {"noise": 8.0}, {"split": "val"}, {"init": "crowd"},
        {"options": {"data": {"holdout": 0.3}}},
    ]  # fmt: skip
    for k, changes in enumerate(others, 1):
        save(tmp_path, k, 10.0 + k, **changes)
    assert table(tmp_path)[1] == ["`vgg19` `al-papm`", "58.0, +2.0 % (paper 57.1; 30,000 steps)"]


def test_a_mean_over_some_of_the_folds_is_no_figure_of_the_dataset(tmp_path: Path) -> None:
    save(tmp_path, 0, 58.0)
    folds: list[dict[str, Any]] = [{"dataset": "ucf-cc-50", "options": {"data": {"fold": k}}} for k in range(1, 6)]
    for k, fold in enumerate(folds[:4], 1):
        save(tmp_path, k, 195.0 + k, **fold)
    assert table(tmp_path)[0] == ["", "`shanghaitech-a`"]
    save(tmp_path, 5, 210.0, **folds[4])
    assert table(tmp_path)[1][2] == "200.0, +2.0 % (paper 195.7; 30,000 steps; 5 folds)"


def test_a_dataset_that_no_table_has_is_left_out(tmp_path: Path) -> None:
    save(tmp_path, 0, 58.0)
    save(tmp_path, 1, 5.0, dataset="mine")
    assert table(tmp_path)[0] == ["", "`shanghaitech-a`"]


def test_the_length_that_a_table_sets_comes_before_a_longer_one(tmp_path: Path) -> None:
    trancos: dict[str, Any] = {"dataset": "trancos", "options": {"data": {"trainval": True}}}
    save(tmp_path, 0, 3.0, steps=24_000, **trancos)
    save(tmp_path, 1, 4.0, steps=30_000, **trancos)
    text = recipe_table.table(read([tmp_path]), [tables.load("trancos")])
    assert "3.00, +2.0 % (paper 2.24; 24,000 steps)" in text and "30,000" not in text
