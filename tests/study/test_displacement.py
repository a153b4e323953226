"""What a study of displaced dots says: costs and gains over seeds, and no more than chance allows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from papm.cli.main import main
from papm.errors import ConfigError
from papm.study import displacement, tables, training
from papm.study.displacement import Difference, answer, difference
from papm.study.robustness.figures import Figure, Table

PAIRS = (("base", "papm"),)


def table(**rows: tuple[tuple[float, ...], ...]) -> Table:
    """Each row: the MAEs of the seeds with exact dots, then at 16 px."""
    figures = {(m, d): Figure(f, tuple(range(len(f)))) for m, r in rows.items() for d, f in zip((0.0, 16.0), r)}
    return Table(tuple(rows), (0.0, 16.0), figures)


def test_a_difference_over_seeds_is_students() -> None:
    made = Difference.of([1.0, 2.0, 4.0])
    half = 4.302653 * math.sqrt(7 / 3) / math.sqrt(3)
    assert (made.low, made.high) == (pytest.approx(7 / 3 - half, abs=1e-4), pytest.approx(7 / 3 + half, abs=1e-4))
    assert not made.clear and Difference.of([1.0, 1.1, 0.9]).clear and not Difference.of([5.0]).clear


def test_seeds_are_compared_with_themselves() -> None:
    figures = {("base", 16.0): Figure((5.0, 9.0), (0, 2)), ("papm", 16.0): Figure((8.0, 4.0), (2, 0))}
    made = difference(Table(("base", "papm"), (16.0,), figures), ("papm", 16.0), ("base", 16.0))
    assert made is not None and made.mean == -1.0 and (made.low, made.high) == (-1.0, -1.0)
    assert difference(Table(("base",), (16.0,), figures), ("none", 16.0), ("base", 16.0)) is None


def test_the_answer_where_papm_is_better() -> None:
    said = answer(table(base=((4.0, 4.1, 4.2), (8.0, 8.1, 8.3)), papm=((4.0, 4.1, 4.1), (5.0, 5.2, 5.1))), PAIRS)
    assert said[0].startswith(
        "Dots displaced by 16 px raise the MAE by 62 % on average; 2 of 2 methods with several seeds"
    )
    assert said[1].startswith(
        "PAPM has the lower MAE there in 1 of 1 pair, and the difference is more than chance explains in 1"
    )
    assert said[1].endswith("(papm is better).")
    assert "papm less base at 16 px: -3.03 (" in said[2] and "better by more than chance" in said[2]
    assert "over 3 seeds" in said[-1]
    alone = answer(table(base=((4.0,), (8.0,)), papm=((4.0,), (5.0,))), PAIRS)
    assert alone[0].endswith("how much of it is chance, one seed each does not say.")
    assert alone[1].endswith("in 1 of 1 pair, which one seed each does not tell from chance.")


def test_the_answer_where_it_is_not() -> None:
    same = answer(table(base=((4.0, 5.0, 3.0), (4.1, 5.2, 3.4)), papm=((4.0, 4.5, 3.5), (5.0, 4.0, 3.7))), PAIRS)
    assert "in none of them by more than chance explains" in same[1] and "which chance may explain" in same[2]
    worse = answer(table(base=((4.0, 4.1), (5.0, 5.1)), papm=((4.0, 4.1), (8.0, 8.1))), PAIRS)
    assert "in 0 of 1 pair" in worse[1] and "(base is better)" in worse[1] and "worse by more than chance" in worse[2]
    assert answer(table(base=((4.0,), ())[:1], papm=((4.0,),)), PAIRS) == [
        "Not measured yet: what dots displaced by 16 px cost."
    ]


def test_the_page_has_the_answer_and_the_curves(tmp_path: Path) -> None:
    study = tables.load("displacement-synthetic")
    names = dict.fromkeys(c.row for c in study.cells)
    made = table(**dict.fromkeys(names, ((4.0, 4.1), (5.0, 5.5))))
    html = displacement.write_page(study, made, tmp_path / "p.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 2 and "raise the MAE by" in html and all(name in html for name in names)


def test_the_study_is_of_drawn_crowds_on_a_cpu() -> None:
    study = tables.load("displacement-synthetic")
    assert "displacement-synthetic" in tables.more_names() and "displacement-synthetic" not in tables.names()
    assert len(study.seeds) > 2 and study.datasets == ("synthetic",)
    assert {c.settings["noise"] for c in study.cells} == {0, 4, 8, 16}
    assert {c.settings.get("network.trunk", c.settings["backbone"]) for c in study.cells} == {"tiny"}
    for base, papm in study.pairs:  # at equal lengths, on equal images
        both = [training.configure(c.settings) for c in study.cells if c.row in (base, papm)]
        assert len({(c.steps, c.crop, c.batch, c.device, c.backbone, str(c.options)) for c in both}) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pairs": [["a"]]}, "a pair is two rows"),
        ({"pairs": [["a", "c"]]}, "unknown row of a pair 'c'"),
        ({"seeds": [-1]}, "seeds are whole numbers"),
        ({"seeds": ["x"]}, "seeds are whole numbers"),
        ({"columns": [{"name": "x"}]}, "every column needs its noise"),
    ],
)
def test_pairs_and_seeds_that_are_none(change: dict[str, object], why: str) -> None:
    rows = [{"name": n, "method": "gaussian", "steps": k} for k, n in enumerate("ab", start=1)]
    values = {"all": {"dataset": "synthetic", "backbone": "tiny"}, "columns": [{"name": "8", "noise": 8}], "rows": rows}
    with pytest.raises(ConfigError, match=why):
        tables.parse({**values, "pairs": [["a", "b"]], **change}, "x", "x")


@pytest.mark.slow
def test_a_study_is_trained_and_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "study",
        "run",
        "displacement-synthetic",
        "--out",
        str(tmp_path / "runs"),
        "--results",
        str(tmp_path / "results"),
    ]
    small = ["steps=2", "crop=32", "batch=2", "data.size=64", "data.train=2", "data.test=2", "data.count=3-6"]
    more = ["--only", "gaussian,hd-papm", "--only", "0 px,16 px", "--seeds", "0", *small]
    with pytest.raises(SystemExit) as ended:
        main([*words, *more])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "4 of 4 trainings done" in out
    assert "Dots displaced by 16 px raise the MAE by" in out and "HD-PAPM less Gaussian density at 16 px" in out
    assert (tmp_path / "runs" / "displacement-synthetic.html").is_file()
    assert len([json.loads(p.read_text()) for p in (tmp_path / "results").rglob("*.json")]) == 4
