"""What may be said about figures: nobody is called best, and no change clear, without a reason."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from papm.study.robustness import figures, words
from papm.study.robustness.figures import Figure, Table, clearly_less
from papm.study.robustness.words import conclusion, cost

RNG = np.random.default_rng(5)
BASE = RNG.uniform(4, 12, 40)  # |error| of each of 40 images


def figure(shift: float = 0.0, noise: float = 0.3, n: int = 40, seeds: int = 1) -> Figure:
    """Errors like those of all the others on the same images, `shift` larger."""
    apart = np.random.default_rng([round(1000 * shift), n]).normal(size=n)
    errors = BASE[:n] + shift + noise * (apart - apart.mean())
    mean = float(errors.mean())
    maes = tuple(mean + 0.02 * k for k in range(-(seeds // 2), seeds - seeds // 2))
    return Figure(maes, tuple(range(seeds)), mean + 1, (mean - 1, mean + 1), {f"{k}": v for k, v in enumerate(errors)})


def table(**rows: list[Figure | None]) -> Table:
    distances = (0.0, 4.0, 8.0, 16.0)[: len(next(iter(rows.values())))]
    figures = {
        (name.replace("_", "-"), d): f for name, row in rows.items() for d, f in zip(distances, row) if f is not None
    }
    return Table(tuple(n.replace("_", "-") for n in rows), distances, figures)


def test_a_method_is_named_where_it_is_better_on_the_same_images() -> None:
    t = table(gl=[figure(0), figure(3), figure(5)], al_papm=[figure(0.01), figure(1), figure(2)])
    assert t.winners == {0.0: None, 4.0: "al-papm", 8.0: "al-papm"}
    said = conclusion(t)
    assert said.startswith("In one training each, al-papm errs least at 4 and 8 px, by ")
    assert said.endswith("; with exact dots no method is clearly better than all the others.")
    least = min(1 - t.figures["al-papm", d].mae / t.figures["gl", d].mae for d in (4.0, 8.0))
    assert f"by {100 * least:.1f} % or more" in said


def test_shares_are_said_in_percent() -> None:
    rows = {"gl": (figure(0), figure(4)), "bl": (figure(1), figure(9))}
    made = Table(
        ("gl", "bl"), (0.0, 0.1), {(m, d): f for m, row in rows.items() for d, f in zip((0.0, 0.1), row)}, "missed"
    )
    assert cost(made).startswith("Dots missed: 10 % change the MAE of gl +")
    assert "gl errs least with exact dots and at 10 %, by" in conclusion(made)
    assert words.columns(made) == ["method", "exact dots", "10 %"]


def test_different_winners_are_named_apart() -> None:
    t = table(gl=[figure(0), figure(3)], bl=[figure(2), figure(1)])
    said = conclusion(t)
    assert (
        "gl errs least with exact dots, by" in said and "bl errs least at 4 px, by" in said and "no method" not in said
    )


def test_nobody_is_named_where_chance_explains_it() -> None:
    t = table(gl=[figure(0), figure(0.02)], bl=[figure(0.01), figure(0.03)])
    assert set(t.winners.values()) == {None}
    assert conclusion(t).startswith("In one training each, with exact dots and at 4 px no method is clearly better")


def test_the_best_must_beat_every_other_method() -> None:
    close = {"gl": [figure(0.00)], "bl": [figure(0.01)], "sc": [figure(5)]}
    assert table(**close).winners == {0.0: None}
    assert table(gl=close["gl"], sc=close["sc"]).winners == {0.0: "gl"}


def test_few_images_prove_nothing() -> None:
    assert clearly_less(figure(0, n=6), figure(4, n=6))
    assert not clearly_less(figure(0, n=5), figure(4, n=5))


def test_seeds_that_overlap_prove_nothing() -> None:
    few, many = figure(0), figure(1)
    assert clearly_less(few, many)
    wide = Figure((few.mae - 2, few.mae + 2), (0, 1), None, few.interval, few.errors)
    assert not clearly_less(wide, many)
    # One seed of the worse within those of the better is enough.
    spread = Figure((many.mae - 1.1, many.mae + 1.1), (0, 1), None, many.interval, many.errors)
    assert not clearly_less(few, spread) and spread.mae == pytest.approx(many.mae)
    narrow = Figure((few.mae - 0.1, few.mae + 0.1), (0, 1), None, few.interval, few.errors)
    assert clearly_less(narrow, many) and not clearly_less(many, narrow)


def test_without_the_images_the_intervals_must_be_apart() -> None:
    a, b = Figure((5.0,), interval=(4.0, 6.0)), Figure((7.0,), interval=(6.1, 8.0))
    assert clearly_less(a, b) and not clearly_less(b, a)
    assert not clearly_less(a, Figure((7.0,), interval=(5.9, 8.0)))
    assert not clearly_less(a, Figure((7.0,)))
    # Other images are no pairs.
    one, two = figure(0), figure(4)
    other = Figure(two.maes, two.seeds, None, (one.mae, two.mae + 1), {f"other{k}": v for k, v in two.errors.items()})
    assert not clearly_less(one, other)


def test_several_seeds_are_said() -> None:
    t = table(gl=[figure(0, seeds=3)], bl=[figure(3, seeds=3)])
    assert conclusion(t).startswith("Over the seeds, gl is best") and "with every seed (0, 1, 2)" in words.basis(t)
    mixed = table(gl=[figure(0, seeds=3)], bl=[figure(3)])
    assert conclusion(mixed).startswith("With one seed only for some figures, gl errs least")
    assert "--seeds 0,1,2" in words.basis(table(gl=[figure(0)], bl=[figure(3)]))


def test_what_is_not_measured_is_not_judged() -> None:
    t = table(gl=[figure(0), figure(3), None], bl=[figure(4), None, None])
    assert t.whole == (0.0,) and list(t.winners) == [0.0]
    assert conclusion(t).startswith("In one training each, gl errs least with exact dots, by")
    assert cost(t) == "What misplaced dots cost is not measured yet."
    nothing = table(gl=[None, None], bl=[None, None])
    assert conclusion(nothing) == "No distance is measured with every method yet."
    assert words.rows(nothing) == [["gl", "–", "–"], ["bl", "–", "–"]]


def test_the_cost_is_of_the_largest_distance_and_says_what_is_unclear() -> None:
    t = table(gl=[figure(0), figure(1), figure(4)], bl=[figure(0), figure(0.02), figure(0.03)])
    said = cost(t)
    rise = 100 * (t.figures["gl", 8.0].mae / t.figures["gl", 0.0].mae - 1)
    assert said.startswith(f"Dots moved by 8 px change the MAE of gl +{rise:.1f} % and bl ")
    assert said.endswith("(unclear).") and said.count("unclear") == 1
    assert conclusion(table(gl=[figure(0), figure(4)])).startswith("Dots moved by 4 px change the MAE of gl +")


def test_change_is_none_without_exact_dots_or_errors() -> None:
    assert table(gl=[None, figure(1)]).change("gl", 4.0) is None
    assert table(gl=[figure(0), figure(1)]).change("gl", 0.0) is None
    perfect = Table(("gl",), (0.0, 4.0), {("gl", 0.0): Figure((0.0,)), ("gl", 4.0): Figure((1.0,))})
    assert perfect.change("gl", 4.0) is None


def test_rows_and_csv_agree() -> None:
    t = table(gl=[figure(0, seeds=2), figure(3, seeds=2)], bl=[figure(4, seeds=2), None])
    lines = list(csv.DictReader(io.StringIO(words.to_csv(t, "disc"))))
    assert [(r["method"], r["distance"], r["kind"]) for r in lines] == [
        ("gl", "0.0", ""), ("gl", "4.0", "disc"), ("bl", "0.0", ""), ("bl", "4.0", "disc")
    ]  # fmt: skip
    found = t.figures["gl", 4.0]
    assert float(lines[1]["mae"]) == found.mae and lines[1]["seeds"] == "0 1"
    assert (float(lines[1]["low"]), float(lines[1]["high"])) == (min(found.maes), max(found.maes))
    assert float(lines[1]["change"]) == pytest.approx(found.mae / t.figures["gl", 0.0].mae - 1)
    assert lines[0]["best"] == "True" and lines[1]["best"] == "False"  # bl has no figure at 4 px
    assert lines[3]["mae"] == "" and lines[3]["seeds"] == ""
    first = words.rows(t)[0]
    assert first[0] == "gl" and f"{found.mae:.2f}" in first[2] and " to " in first[2] and "+" in first[2]


def test_the_interval_of_several_seeds_is_the_mean_of_their_ends(tmp_path: Path) -> None:
    from papm.study.results import Group, Result, Seed

    def seed(number: int, mae: float, ends: list[float] | None) -> Seed:
        values = {"dataset": "synthetic", "mae": mae, "rmse": 2 * mae, "intervals": {"mae": ends} if ends else {}}
        return Seed(number, (mae, 2 * mae), None, (Result(Path(f"a-s{number}.json"), values, {}),))

    both = Group("last", {}, (seed(0, 4.0, [3.0, 5.0]), seed(1, 6.0, [4.0, 9.0])))
    found = figures._figure(both, tmp_path)
    assert found is not None and found.maes == (4.0, 6.0) and found.seeds == (0, 1)
    assert found.interval == (3.5, 7.0) and found.rmse == 10.0 and found.spread == (4.0, 6.0)
    one = figures._figure(Group("last", {}, (seed(0, 4.0, [3.0, 5.0]), seed(1, 6.0, None))), tmp_path)
    assert one is not None and one.interval is None


def test_errors_come_from_the_runs_of_the_results(tmp_path: Path) -> None:
    from papm.study.results import Result

    folder = tmp_path / "synthetic" / "a-s0"
    folder.mkdir(parents=True)
    (folder / "predictions.csv").write_text("image,predicted,truth\nx,3,1\ny,5,9\n")
    values = {"dataset": "synthetic", "mae": 3.0}
    assert figures._errors([Result(Path("a-s0.json"), values, {})], tmp_path) == {"x": 2.0, "y": 4.0}
    assert (
        figures._errors([Result(Path("a-s0.json"), {**values, "mae": 4.0}, {})], tmp_path) == {}
    )  # another training's
    assert figures._errors([Result(Path("a-s1.json"), values, {})], tmp_path) == {}
    (folder / "predictions.csv").write_text("image,predicted,truth\nx,three,1\n")
    assert figures._errors([Result(Path("a-s0.json"), values, {})], tmp_path) == {}
