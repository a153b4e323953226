"""Results find their cells: what must agree, what is named when it differs, what is never mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from papm import config, methods
from papm.engine import resumed
from papm.engine.train import train
from papm.errors import DataError
from papm.study import show, tables, training
from papm.study.latex import escape, latex
from papm.study.metrics import METRICS
from papm.study.page import bars, write_page
from papm.study.results import assign, read

AL = {"dataset": "shanghaitech-a", "backbone": "vgg19", "method": "al-papm"}


def result(mae: float = 58.0, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A result as result.json has it, by default of AL-PAPM with VGG19, with the options of today's recipe."""
    made = {
        **AL,
        "noise": 0.0,
        "noise_kind": "ring",
        "seed": seed,
        "steps": 30000,
        "options": {"loss": {}, "network": {}, "data": {}, "crop": 256, "batch": 8, "training": {}},
        "select": "last",
        "mae": mae,
        "rmse": 1.6 * mae,
        "mae_best_on_test": mae - 1,
        "split": "test",
        "weights_sha256": "5" * 64,
        "seconds": 1.0,
        "hardware": "none",
        "revision": "0",
    }
    given = changes.pop("options", {})
    made |= changes
    recipe = methods.recipe(str(made["method"]), str(made["backbone"]))
    options = {**made["options"], **given}  # type: ignore[dict-item]
    for part in ("loss", "network"):
        options[part] = {**recipe.get(part, {}), **options[part]}
    options["training"] = {**{k: v for k, v in recipe.items() if k in config.LEARNING}, **options["training"]}
    return {**made, "options": options}


def save(folder: Path, *results: dict[str, Any]) -> list[Any]:
    for k, one in enumerate(results):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{k}.json").write_text(json.dumps(one), encoding="utf-8")
    return read([folder])


def line(name: str, row: str, column: str, results: list[Any], **options: Any) -> show.Line:
    view = show.view(tables.load(name), results, **options)
    return next(x for x in view.lines if (x.cell.row, x.cell.column) == (row, column))


def test_mean_range_and_best_over_seeds(tmp_path: Path) -> None:
    found = save(tmp_path, result(58.0, 0), result(59.0, 1), result(60.5, 2))
    group = line("crowds", "VGG19 + AL-PAPM", "ShTech A", found).group
    assert group is not None and not group.differences
    assert [s.seed for s in group.seeds] == [0, 1, 2]
    assert group.mean(0) == pytest.approx(59.1667, abs=1e-4) and group.values(0) == [58.0, 59.0, 60.5]
    assert group.best_on_test == pytest.approx(58.1667, abs=1e-4)
    view = show.view(tables.load("crowds").only(["al-papm", "vgg19", "ShTech A"]), found)
    (row,) = show.rows(view)
    assert show.caption(view).startswith("ShTech A. Measured: ")
    assert row == [
        "VGG19 + AL-PAPM",
        "57.1 / 92.5",
        "59.2 / 94.7",
        "+2.1 / +2.2",
        "58.0 to 60.5",
        "0, 1, 2",
        "58.2",
    ]


def test_the_best_on_test_is_told_where_every_seed_has_one(tmp_path: Path) -> None:
    found = save(tmp_path, result(58.0, 0), result(59.0, 1, mae_best_on_test=None))
    group = line("crowds", "VGG19 + AL-PAPM", "ShTech A", found).group
    assert group is not None and len(group.seeds) == 2 and group.best_on_test is None


def test_a_training_kept_twice_counts_once(tmp_path: Path) -> None:
    save(tmp_path / "a", result())
    save(tmp_path / "run", {**result(), "sizes": {"train": 300}})
    assert len(read([tmp_path / "a", tmp_path / "run"])) == 1
    assert len(read([tmp_path, tmp_path / "a"])) == 1
    # The one that says more, whichever is read first.
    for places in (("a", "run"), ("run", "a")):
        assert read([tmp_path / p for p in places])[0].values["sizes"] == {"train": 300}


def test_the_figures_of_the_protocols_are_those_of_their_tables() -> None:
    """NWPU's headline is σ_l; the area of UCF-QNRF is that under precision over recall."""
    measured = {
        "nae": 0.5,
        "mae_val": 7.0,
        "bias": -0.1,
        "train": {"mae": 8.0, "bias": -0.2},
        "game": {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0},
        "localization": {
            "qnrf": {"precision": 0.1, "recall": 0.2, "f1": 0.3, "auc": 0.4, "auc_threshold": 0.5},
            "nwpu": {
                "sigma_l": {"precision": 0.6, "recall": 0.7, "f1": 0.8},
                "sigma_s": {"precision": 0.01, "recall": 0.02, "f1": 0.03},
            },
            "radius": {r: {"precision": 0.1 * k, "recall": 0.2, "f1": 0.3} for k, r in enumerate(("4", "8"))},
        },
    }
    expected = {"nae": 0.5, "mae-val": 7.0, "game0": 1.0, "game1": 2.0, "game2": 3.0, "game3": 4.0}
    expected |= {"qnrf-precision": 0.1, "qnrf-recall": 0.2, "qnrf-auc": 0.4}
    expected |= {"nwpu-precision": 0.6, "nwpu-recall": 0.7, "nwpu-f1": 0.8, "mae": None, "rmse": None}
    expected |= {"bias": -0.1, "mae-train": 8.0, "bias-train": -0.2, "radius4-precision": 0.0, "radius8-precision": 0.1}
    expected |= {f"radius{r}-{name}": value for r in (4, 8) for name, value in (("recall", 0.2), ("f1", 0.3))}
    assert {name: m.of(measured) for name, m in METRICS.items()} == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 20000}, "steps=20000"),
        ({"options": {"batch": 4}}, "batch=4"),
        ({"options": {"training": {"lr": 3e-4, "clip": 0.1}}}, "lr=0.0003 clip=0.1"),
        ({"options": {"network": {"activation": "abs"}}}, "network.activation=abs"),
        ({"options": {"loss": {"reg": 5.0}}}, "loss.reg=5"),
        ({"options": {"data": {"max_side": 1024}}}, "data.max_side=1024"),
        ({"weights_sha256": None}, "weights=none"),
    ],
)
def test_other_settings_are_shown_only_with_all_and_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    found = save(tmp_path, result(**changes))
    study = tables.load("crowds").only(["al-papm", "vgg19", "ShTech A"])
    hidden = show.view(study, found)
    assert hidden.lines[0].group is None and hidden.missing == study.cells
    assert any("1 result with other settings" in words for words in hidden.remarks)
    shown = show.view(study, found, everything=True)
    assert shown.lines[0].group is not None and show.rows(shown)[0][-1] == named
    assert shown.missing == study.cells  # it is still not measured


def test_pretrained_weights_of_a_file_that_is_gone_are_pretrained_weights(tmp_path: Path) -> None:
    study = tables.load("crowds").only(["al-papm", "vgg19", "ShTech A"])
    found = save(tmp_path, result(), result(seed=1, weights_sha256=resumed.UNKNOWN))
    shown = show.view(study, found)
    assert not shown.missing and shown.lines[0].group is not None and len(shown.lines[0].group.seeds) == 2
    assert not any("different files" in words for words in shown.remarks)
    other = show.view(study, [*found, *save(tmp_path / "other", result(seed=2, weights_sha256="6" * 64))])
    assert any("The trunks started from 2 different files of weights." in words for words in other.remarks)


def test_what_the_recipe_sets_by_itself_does_not_count(tmp_path: Path) -> None:
    recorded = {"network": {"activation": "relu-live"}, "training": {"lr": 3e-4, "clip": 0.1}}
    found = save(tmp_path, result(method="hd-papm", options=recorded))
    group = line("crowds", "VGG19 + HD-PAPM", "ShTech A", found).group
    assert group is not None and not group.differences
    # σ = 4, s = 8 are its defaults: the same training is a cell of both sweeps, spelt out there
    assert line("hd-papm-shape", "s = 8", "", found).group is not None
    assert line("hd-papm-sigma", "σ = 4", "", found).group is not None
    assert line("hd-papm-sigma", "σ = 8", "", found, everything=True).group is None


def test_settings_that_no_longer_exist_count_only_where_they_were_used(tmp_path: Path) -> None:
    """Results of an older papm name them: at their old defaults they are the same training, else a difference."""
    old = {"training": {"region": 0}, "loss": {"reduction": "mean"}}
    assert line("crowds", "VGG19 + AL-PAPM", "ShTech A", save(tmp_path / "same", result(options=old))).group is not None
    used = save(tmp_path / "used", result(options={"training": {"region": 128}}))
    group = line("crowds", "VGG19 + AL-PAPM", "ShTech A", used, everything=True).group
    assert group is not None and group.differences == {"region": 128}
    points = {**AL, "method": "p2p-papm", "backbone": "p2pnet"}
    for given, gone in (({"bounded": False, "sigma_min": 3.0, "count_weight": 0.0}, True), ({"bounded": True}, False)):
        settings = training.done(result(**points, options={"loss": given}))
        assert gone == (not any(f"loss.{k}" in settings for k in given))


def test_noise_and_datasets_are_never_mixed(tmp_path: Path) -> None:
    found = save(
        tmp_path,
        result(noise=8.0, steps=8000),
        result(61.0, noise=8.0, noise_kind="disc", steps=8000),
        result(9.0, dataset="shanghaitech-b"),
    )
    assert line("noise", "AL-PAPM", "0 px", found, everything=True).group is None
    group = line("noise", "AL-PAPM", "8 px", found, everything=True).group
    assert group is not None and group.mean(0) == 58.0
    assert line("crowds", "VGG19 + AL-PAPM", "ShTech A", found, everything=True).group is None
    disc = tables.load("noise").with_settings({"noise_kind": "disc"})
    (other,) = [x for x in show.view(disc, found).lines if x.group]
    assert other.cell.column == "8 px" and other.group is not None and other.group.mean(0) == 61.0


def test_selections_are_never_mixed(tmp_path: Path) -> None:
    found = save(tmp_path, result(58.0), result(50.0, 1, select="test"))
    study = tables.load("crowds").only(["al-papm", "vgg19", "ShTech A"])
    last, test = show.view(study, found), show.view(study, found, select="test")
    assert last.lines[0].group.mean(0) == 58.0 and test.lines[0].group.mean(0) == 50.0  # type: ignore[union-attr]
    assert any("another select than last" in words for words in last.remarks)
    both = show.view(study, found, everything=True)
    assert [x.group.select for x in both.lines if x.group] == ["last", "test"]
    assert "test images" in show.caption(test) and "last weights" in show.caption(last)


def test_a_result_that_is_another_cell_is_no_variant(tmp_path: Path) -> None:
    found = save(tmp_path, result(60.0, method="dm-count", options={"loss": {"cost": "perspective"}}))
    groups = dict(zip((c.name for c in tables.load("costs").cells), assign(tables.load("costs"), found)))
    assert [len(groups[f"SC + {c} transport cost, ShTech A"]) for c in ("L2", "PG")] == [0, 1]


def test_settings_given_later_choose_other_results(tmp_path: Path) -> None:
    found = save(tmp_path, result(58.0), result(60.0, steps=9000))
    study = tables.load("crowds").only(["al-papm", "vgg19", "ShTech A"]).with_settings({"steps": 9000})
    assert show.view(study, found).lines[0].group.mean(0) == 60.0  # type: ignore[union-attr]


def test_a_mean_of_folds_needs_all_of_them(tmp_path: Path) -> None:
    def folds(seed: int, last: int) -> list[dict[str, Any]]:
        return [result(100.0 * k, seed, dataset="ucf-cc-50", options={"data": {"fold": k}}) for k in range(1, last + 1)]

    found = save(tmp_path, *folds(0, 5), *folds(1, 4))
    group = line("crowds", "VGG19 + AL-PAPM", "UCF_CC_50", found).group
    assert group is not None and [s.seed for s in group.seeds] == [0] and group.unfinished == 1
    assert group.mean(0) == 300.0


def test_usual_sizes_are_recognised_when_spelt_out(tmp_path: Path) -> None:
    data = {"min_side": 512, "max_short_side": 2048}
    sizes = [{"data": data, "crop": 512}, {"crop": 512}]
    found = save(tmp_path, *(result(m, dataset="ucf-qnrf", options=o) for m, o in zip((81.0, 90.0), sizes)))
    group = line("losses", "DM-Count + AL-PAPM", "VGG19", found).group
    assert group is not None and group.values(0) == [81.0]


def test_settings_of_a_study_are_recipe_and_not_identity(tmp_path: Path) -> None:
    """A result with another crop than the study now has for its column stays the cell's; the difference is named."""
    row = {"name": "AL-PAPM", "backbone": "vgg19", "method": "al-papm"}
    own = {"columns": [{"name": "ShTech B", "dataset": "shanghaitech-b"}], "rows": [row], "metrics": ["mae", "rmse"]}
    study = tables.parse({**own, "settings": [{"for": {"column": "ShTech B"}, "crop": 512}]}, "own", "own")
    found = save(tmp_path, result(7.1, dataset="shanghaitech-b"))  # crop 256
    view = show.view(study, found)
    assert view.lines[0].group is None and view.lines[0].cell.special == {"crop": 512}
    assert any("1 result with other settings" in words for words in view.remarks)
    group = show.view(study, found, everything=True).lines[0].group
    assert group is not None and group.differences == {"crop": 256} and group.values(0) == [7.1]
    found = save(tmp_path, result(7.0, dataset="shanghaitech-b", options={"crop": 512}))
    group = show.view(study, found).lines[0].group
    assert group is not None and group.values(0) == [7.0] and not group.differences
    # Asked for on the command line it is the question: others are no answer to it.
    asked = study.with_settings({"crop": 384})
    assert [c.special for c in asked.cells] == [{}] and assign(asked, found) == [[]]
    assert "Own settings" not in " ".join(show.view(asked, found).remarks)


def test_the_results_kept_here_are_asked_for_by_no_settings() -> None:
    """Those of ShanghaiTech A: they were made with the recipes of networks and methods alone."""
    for name in tables.names():
        for cell in tables.load(name).cells:
            if cell.settings["dataset"] == "shanghaitech-a":
                assert not cell.special, cell.name


def test_figures_that_were_not_measured_are_dashes(tmp_path: Path) -> None:
    game = {"game": {"0": 2.2, "1": 3.5, "2": 5.0, "3": 9.0}}
    found = save(
        tmp_path,
        result(2.2, dataset="trancos", steps=24_000, options={"data": {"trainval": True}}, **game),
        result(3.3, dataset="trancos", steps=24_000, method="dm-count", options={"data": {"trainval": True}}),
    )
    view = show.view(tables.load("trancos"), found)
    texts = {row[0]: row[2] for row in show.rows(view)}
    assert texts["AL-PAPM"].startswith("2.20 / 3.50 / 5.00 / 9.00 / ")
    assert texts["DM-Count"].startswith(
        "3.30 / – / – / – / "
    )  # RMSE, which the paper does not print, stands beside them
    assert texts["HD-PAPM"] == "–" and any("1 cell lacks some figures" in words for words in view.remarks)


def test_evaluations_beside_the_result_of_a_run_are_read(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(result()))
    (tmp_path / "run" / "evaluation-game.json").write_text(json.dumps({"data": "x", "mae": 58.0, "game": {"1": 70.0}}))
    (tmp_path / "run" / "evaluation-qnrf.json").write_text('{"precision": 0.')  # stopped on the way
    (found,) = read([tmp_path])
    assert found.values["game"] == {"1": 70.0} and "localization" not in found.values


def test_files_that_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text('{"ms": 3}')
    (tmp_path / "list.json").write_text("[1]")
    assert read([tmp_path]) == []
    (tmp_path / "torn.json").write_text('{"mae": ')
    with pytest.raises(DataError, match=r"torn\.json: cannot be read as JSON"):
        read([tmp_path])
    (tmp_path / "torn.json").write_text(json.dumps({**result(), "options": {"loss": [1]}}))
    with pytest.raises(DataError, match=r"torn\.json: looks like a result"):
        read([tmp_path])
    with pytest.raises(DataError, match="no such folder of results"):
        read([tmp_path / "nowhere"])


def test_a_real_training_is_recognised_and_records_every_setting_that_is_compared(tmp_path: Path) -> None:
    """What the engine writes is what `training` reads: no difference, and all of LEARNING is recorded."""
    settings = {
        "dataset": "synthetic", "backbone": "tiny", "method": "al-papm", "loss.sigma": 8, "noise": 2,
        "data.train": 3, "data.test": 2, "data.size": 64, "steps": 1, "crop": 64, "batch": 1, "device": "cpu", "colour": 0.2,
    }  # fmt: skip
    made = train(config.from_mapping({"select": "last"}, training.configure(settings)), tmp_path / "run").result
    assert made is not None
    assert set(training.LEARNING) == set(made["options"]["training"])
    assert training.differences(training.asked(settings), training.done(made)) == {}
    assert training.differences(training.asked({**settings, "loss.sigma": 16}), training.done(made)) == {
        "loss.sigma": 8
    }
    assert len(read([tmp_path])) == 1


def test_markdown_json_and_page(tmp_path: Path) -> None:
    found = save(tmp_path / "r", result(58.0), result(59.0, 1))
    view = show.view(tables.load("crowds").only(["vgg19", "ShTech A,ShTech B"]), found)
    text = show.markdown(view)
    rows = [s for s in text.splitlines() if s.startswith("|")]
    assert len(rows) == 2 + 14 and len({s.count("|") for s in rows}) == 1
    assert "| VGG19 + AL-PAPM | ShTech A | 57.1 / 92.5 | 58.5 / 93.6 | +1.4 / +1.1 |" in text
    assert "62.8 / 101.8 (quoted)" in text and "Missing: 13 cells of 14" in text
    made = json.loads(json.dumps(show.to_json(view), allow_nan=False))
    (one,) = [x for x in made["lines"] if x["measured"]]
    assert one["paper"] == {"mae": 57.1, "rmse": 92.5} and one["measured"]["seeds"] == [0, 1]
    assert one["measured"]["metrics"]["mae"]["std"] == pytest.approx(0.5**0.5)
    assert len(made["missing"]) == 13
    page = write_page(view, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "58.5 / 93.6" in page and "Missing: 13 cells of 14" in page and "Whiskers" not in page  # one bar alone


def test_a_study_of_ones_own_has_no_columns_for_a_paper_and_a_chart(tmp_path: Path) -> None:
    view = show.view(_own(), save(tmp_path / "r", *_own_results()))
    assert show.columns(view) == ["", "MAE / RMSE", "range over seeds", "seeds", "best MAE on test"]
    assert [row[:4] for row in show.rows(view)] == [
        ["50 % off & σ", "59.00 / 94.40", "58.00 to 60.00", "0, 1"],
        ["B", "70.00 / 112.00", "–", "0"],
        ["C", "–", "–", "–"],
    ]
    assert {len(row) for row in show.rows(view)} == {5}
    page = write_page(view, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Whiskers" in page and "(58 to 60)" in page
    assert bars(show.view(_own(), [])) is None


def test_a_latex_table_has_mean_and_deviation(tmp_path: Path) -> None:
    view = show.view(_own(), save(tmp_path / "r", *_own_results()))
    comments = [s for s in latex(view).splitlines() if s.startswith("%")]
    assert comments[0] == "% Mine" and "% Seeds, not the same in all cells: 0, 1; 0." in comments
    assert [s for s in latex(view).splitlines() if not s.startswith("%")] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r" & MAE & RMSE \\",
        r"\midrule",
        r"50 \% off \& $\sigma$ & $59.00 \pm 1.41$ & $94.40 \pm 2.26$ \\",
        r"B & $70.00$ & $112.00$ \\",
        r"C & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    shown = latex(show.view(tables.load("crowds").only(["al-papm", "ShTech A,ShTech B"]), []))
    assert r" & \multicolumn{2}{c}{ShTech A} & \multicolumn{2}{c}{ShTech B} \\" in shown
    assert {s.count("&") for s in shown.splitlines() if s.startswith("VGG19")} == {4}


def test_latex_prints_names_as_they_are() -> None:
    assert escape("[a] *") == "{[}a] {*}"  # a line that begins with one would be an argument of the line before
    for study in map(tables.load, tables.names()):
        words = [m.title for m in study.figures] + [w for c in study.cells for w in (c.row, c.column)]
        assert all(escape(w).isascii() for w in words), study.name


def _own() -> tables.Study:
    rows = [("50 % off & σ", "al-papm"), ("B", "dm-count"), ("C", "sc")]
    values = {
        "title": "Mine\n",
        "all": {"dataset": "shanghaitech-a", "backbone": "vgg19"},
        "rows": [{"name": name, "method": method} for name, method in rows],
    }
    return tables.parse(values, "mine", "mine.yaml")


def _own_results() -> list[dict[str, Any]]:
    return [result(58.0, 0), result(60.0, 1), result(70.0, 0, method="dm-count", loss="dm-count")]


def test_notes_are_numbered_where_they_belong() -> None:
    view = show.view(tables.load("crowds").only(["msfanet"]), [])
    marked = {(row[0], row[1]): row[2] for row in show.rows(view)}
    assert marked["M-SFANet + HD-PAPM", "ShTech B"] == "6.7 / 111.5 [1]"
    assert marked["M-SFANet + HD-PAPM", "ShTech A"] == "58.6 / 93.8"
    assert "[1] The RMSE 111.5 is surely 11.5." in show.notes(view)
    assert not any("51.4/82.8" in n for n in show.notes(view))
