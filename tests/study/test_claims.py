"""Claims: what is confirmed, what refuted, and what may be chance."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from papm.engine.build import recipe_of
from papm.errors import ConfigError
from papm.methods import RECIPE
from papm.study import tables, training
from papm.study.claims import Judged, in_words, judge
from papm.study.results import Result

CELL = {"dataset": "synthetic", "backbone": "tiny"}
ROWS = [
    {"name": "base", "method": "dm-count", "paper": ["5.0/9.0", "9.0/12.0"]},
    {"name": "ours", "method": "al-papm", "paper": ["4.0/8.0", "6.0/9.0"]},
    {"name": "third", "method": "gaussian"},
]
COLUMNS = [{"name": "0 px", "noise": 0}, {"name": "8 px", "noise": 8}]


def study(*claims: dict[str, Any]) -> tables.Study:
    return tables.parse({"all": CELL, "columns": COLUMNS, "rows": ROWS, "claims": list(claims)}, "mine", "mine.yaml")


def result(method: str, each: list[float], noise: float = 0, seed: int = 0, **more: Any) -> Result:
    settings = {**CELL, "method": method, "noise": noise}
    mae = statistics.fmean(map(abs, each))
    values = {**{k: settings[k] for k in training.NAMED}, "seed": seed, "select": "last", "mae": mae, "rmse": mae}
    kept = {**values, "recipe": "9", "errors": " ".join(map(str, each)), **more}
    return Result(Path(f"{method}-{noise}-{seed}.json"), kept, training.asked(settings))


def first(results: list[Result], claim: dict[str, Any]) -> Judged:
    return judge(study({"column": "0 px", **claim}), results)[0]


BELOW = {"row": "ours", "below": "base"}
HARD = [10.0, 40.0, 90.0, 160.0]  # errors of images that are hard for everybody


def test_image_by_image_a_small_steady_gain_is_seen() -> None:
    less = [e - 1 for e in HARD]
    found = first([result("dm-count", HARD), result("al-papm", less)], BELOW)
    assert found.verdict == "confirmed" and found.difference == -1 and found.ends == (-1, -1)
    assert found.printed == -1.0 and found.remark == "1 seed, image by image"
    other = first([result("dm-count", less), result("al-papm", HARD)], BELOW)
    assert other.verdict == "refuted" and other.difference == 1
    assert "ours below base on 0 px: refuted: +1.0" in in_words([other])[0]


def test_without_the_errors_of_images_the_same_gain_may_be_chance() -> None:
    ends = {"intervals": {"mae": [20.0, 130.0]}, "errors": ""}
    less = [e - 1 for e in HARD]
    found = first([result("dm-count", HARD, **ends), result("al-papm", less, **ends)], BELOW)
    assert found.verdict == "not confirmed" and found.remark == "1 seed, images not paired"
    half = 1.96 * math.sqrt(2) * 110 / 3.92
    assert found.ends == pytest.approx((-1 - half, -1 + half), rel=1e-4)


def test_of_seeds_that_differ_nothing_is_confirmed() -> None:
    base = [result("dm-count", [e + k for e in HARD], seed=k) for k in (0, 1)]
    ours = [result("al-papm", [e - 1 + 8 * k for e in HARD], seed=k) for k in (0, 1)]
    found = first([*base, *ours], BELOW)
    assert found.verdict == "not confirmed" and found.remark.startswith("2 seeds")
    # Σ of variance / seeds: 0.5/2 + 32/2; image by image nothing differs. Two seeds know little of their variance.
    freedom = (0.25 + 16) ** 2 / (0.25**2 + 16**2)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(0.25 + 16)
    assert found.ends is not None and found.ends[1] - found.ends[0] == pytest.approx(2 * half)


def test_a_training_that_was_repeated_does_not_double_the_images() -> None:
    """`papm study run --again`: two results of one seed are of the same images."""
    gain = [0.0, 1.0, 2.0, 3.0]
    once = [result("dm-count", HARD), result("al-papm", [e - g for e, g in zip(HARD, gain)])]
    twice = [replace(r, path=Path(f"again-{r.path}")) for r in once]
    assert first([*once, *twice], BELOW).ends == first(once, BELOW).ends
    apart = [replace(r, values={**r.values, "errors": "", "intervals": {"mae": [20.0, 130.0]}}) for r in once]
    again = [replace(r, path=Path(f"again-{r.path}")) for r in apart]
    assert first([*apart, *again], BELOW).ends == first(apart, BELOW).ends


def test_what_is_not_in_the_interval_is_said() -> None:
    """Several seeds without any interval over images, as of localization."""
    results = [result(m, HARD, seed=k, errors="") for m in ("dm-count", "al-papm") for k in (0, 1)]
    assert first(results, BELOW).remark == "2 seeds, without variance over images"


def test_a_claim_against_several_is_as_good_as_against_the_nearest() -> None:
    claim = {"row": "ours", "below": ["base", "third"]}
    results = [
        result("dm-count", HARD),
        result("al-papm", [e - 2 for e in HARD]),
        result("gaussian", [e - 1 for e in HARD]),
    ]
    assert first(results, claim).verdict == "confirmed" and first(results, claim).difference == -1
    worse = [*results[:2], result("gaussian", [e - 3 for e in HARD])]
    assert first(worse, claim).verdict == "refuted" and first(worse, claim).difference == 1


def test_a_change_is_a_difference_of_differences() -> None:
    results = [
        result("dm-count", HARD), result("al-papm", HARD),
        result("dm-count", [e + 5 for e in HARD], 8), result("al-papm", [e + 2 for e in HARD], 8),
    ]  # fmt: skip
    (found,) = judge(study({**BELOW, "change": ["0 px", "8 px"]}), results)
    assert found.verdict == "confirmed" and found.difference == -3 and found.printed == pytest.approx(-2.0)
    assert found.text == "ours loses less than base from 0 px to 8 px"


def test_higher_may_be_better() -> None:
    found = first(
        [result("dm-count", HARD), result("al-papm", [e + 1 for e in HARD])], {"row": "ours", "above": "base"}
    )
    assert found.verdict == "confirmed"


def test_what_is_missing_or_of_another_recipe_is_not_measured() -> None:
    (zero, eight) = judge(study(BELOW), [result("dm-count", HARD), result("al-papm", HARD)])
    assert zero.verdict == "not confirmed" and eight.verdict == "not measured" and eight.figures == "–"
    old = first([result("dm-count", HARD, recipe="8"), result("al-papm", [1.0] * 4)], BELOW)
    assert old.verdict == "not measured" and old.remark == "results of different recipes"


def test_a_row_that_sets_an_option_is_compared_with_the_recipe() -> None:
    """In a sweep one row is the recipe and the others set σ: their results say that their recipe is their own."""
    sweep = tables.load("hd-papm-shape")
    results = []
    for cell in sweep.cells:
        config = training.configure(cell.settings)
        errors = HARD if cell.row == "s = 8" else [e + 1 for e in HARD]
        one = result(str(cell.settings["method"]), errors, recipe=recipe_of(config))
        values = {**one.values, "dataset": "shanghaitech-a", "backbone": "vgg19"}
        results.append(replace(one, path=Path(cell.row), values=values, settings=training.asked(cell.settings)))
    assert {r.values["recipe"] for r in results} == {RECIPE, "own"}
    assert [j.verdict for j in judge(sweep, results)] == ["confirmed"]


def test_claims_about_cells_that_are_left_out_are_left_out() -> None:
    whole = study(BELOW, {**BELOW, "change": ["0 px", "8 px"]})
    assert len(judge(whole, [])) == 3 and len(judge(whole.only(["0 px"]), [])) == 1
    assert judge(whole.only(["ours"]), []) == []


def test_one_seed_without_any_interval_confirms_nothing() -> None:
    results = [result("dm-count", HARD, errors=""), result("al-papm", [1.0] * 4, errors="not numbers")]
    assert first(results, BELOW).verdict == "not confirmed" and first(results, BELOW).ends is None


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"row": "ours"}, "a claim is written"),
        ({"row": "ours", "below": "base", "above": "base"}, "a claim is written"),
        ({"row": "mine", "below": "base"}, "about row 'mine', which the table does not have"),
        ({"row": "ours", "below": "base", "column": "4 px"}, "about column '4 px'"),
        ({"row": "ours", "below": "base", "change": ["0 px"]}, r"change is \[FIRST, LAST\]"),
        ({"row": "ours", "below": "base", "metric": "nae"}, "unknown metric 'nae'"),
        ({"row": "ours", "below": "base", "columns": []}, "unknown key of a claim 'columns'"),
    ],
)
def test_claims_that_are_refused(claim: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study(claim)


@pytest.mark.slow
def test_every_claim_of_the_paper_is_one_of_its_own_figures() -> None:
    """Where the paper prints both figures, its own difference has the claimed sign (ties: its cost forms, 57.1 and 57.1)."""
    judged = [j for name in tables.names() for j in judge(tables.load(name), [])]
    assert len(judged) > 100 and all(j.verdict == "not measured" for j in judged)
    against = [j.text for j in judged if j.printed is not None and (j.printed > 0) == j.claim.lower and j.printed]
    assert not against
