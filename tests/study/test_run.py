"""From missing cells to commands, and from run folders to results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from papm import config as configuration
from papm.engine import auto, run_folder
from papm.errors import ConfigError, DataError, PapmError
from papm.methods import RECIPE
from papm.study import queue, results, run, tables, training
from papm.study.results import Result
from papm.study.tables import Study

CELL = {"dataset": "synthetic", "backbone": "tiny"}


def study(**changes: Any) -> Study:
    raw: dict[str, Any] = {
        "metrics": ["mae"],
        "all": CELL,
        "rows": [{"name": "A", "method": "gaussian"}, {"name": "B", "method": "hd-papm", "loss.sigma": 6}],
    }
    return tables.parse({**raw, **changes}, "mine", "mine.yaml")


def request(folder: Path, **changes: Any) -> run.Request:
    return run.Request(**{"out": folder / "runs", "results": folder / "results", **changes})


def result(settings: dict[str, Any], seed: int = 0, select: str = "last", **more: Any) -> Result:
    values = {**{k: settings[k] for k in training.NAMED}, "seed": seed, "select": select, "mae": 2.0}
    return Result(Path("somewhere.json"), {**values, "recipe": RECIPE, **more}, training.asked(settings))


def test_first_seeds_first(tmp_path: Path) -> None:
    tasks = run.plan(study(), [], request(tmp_path, seeds=(0, 1)))
    assert [(t.cell.row, t.seed) for t in tasks] == [("A", 0), ("B", 0), ("A", 1), ("B", 1)]
    assert [t.folder.name for t in tasks[:2]] == ["tiny-gaussian-s0", "tiny-hd-papm-loss.sigma=6-s0"]
    assert tasks[0].result == tmp_path / "results" / "synthetic" / "tiny-gaussian-s0.json"


def test_what_is_measured_is_not_trained_again(tmp_path: Path) -> None:
    known = [result({**CELL, "method": "gaussian"})]
    assert [t.cell.row for t in run.plan(study(), known, request(tmp_path))] == ["B"]
    assert len(run.plan(study(), known, request(tmp_path, again=True))) == 2
    assert len(run.plan(study(), known, request(tmp_path, seeds=(1,)))) == 2
    assert len(run.plan(study(), known, request(tmp_path, select="test"))) == 2
    assert len(run.plan(study().with_settings({"steps": 9}), known, request(tmp_path))) == 2


def test_raw_weights_may_be_watched_where_the_last_are_the_result(tmp_path: Path) -> None:
    watched = study().with_settings({"watch": "raw"})
    task = run.plan(watched, [], request(tmp_path))[0]
    words = run.train_words(task, resume=False)
    assert task.folder.name == "tiny-gaussian-watch=raw-s0" and {"watch=raw", "select=last"} <= set(words)
    with pytest.raises(ConfigError, match=r"watch=raw .* needs select=last"):
        run.plan(watched, [], request(tmp_path, select="val"))


def test_what_an_earlier_recipe_gave_is_trained_again(tmp_path: Path) -> None:
    """A table is of one recipe: claims are not judged over two. What a row sets is no other recipe."""

    def left(recipe: str) -> list[str]:
        known = [result({**CELL, "method": "gaussian"}, recipe=recipe)]
        return [t.cell.row for t in run.plan(study(), known, request(tmp_path))]

    assert left("2") == ["A", "B"] and left("own") == left(RECIPE) == ["B"]
    task = run.plan(study(), [], request(tmp_path))[0]
    begin(task)
    (task.folder / "result.json").write_text(json.dumps({"recipe": "2"}))
    assert run.plan(study(), [], request(tmp_path))[0].folder.name == f"{task.folder.name}.2"


def test_a_result_without_its_evaluation_is_evaluated(tmp_path: Path) -> None:
    known = [
        result({**CELL, "method": "gaussian"}),
        result({**CELL, "method": "hd-papm", "loss.sigma": 6}, game={"1": 3.0}),
    ]
    (task,) = run.plan(study(metrics=["mae", "game1"]), known, request(tmp_path))
    assert task.cell.row == "A" and task.evaluations == ("game",)


def test_every_fold_is_a_training(tmp_path: Path) -> None:
    several = study(rows=[{"name": "A", "method": "gaussian", "data.seed": [1, 2], "data.count": "1-9"}])
    tasks = run.plan(several, [], request(tmp_path))
    assert [t.settings["data.seed"] for t in tasks] == [1, 2] and len({t.folder for t in tasks}) == 2
    words = run.train_words(tasks[1], resume=False)
    assert words[:2] == ["train", "synthetic"] and {"data.seed=2", "data.count=1-9", "select=last", "seed=0"} <= set(
        words
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*tables.names(), *tables.names(tables.RECIPES)])
def test_the_commands_of_the_papers_tables_ask_for_their_cells(name: str, tmp_path: Path) -> None:
    """What a command line says, resolved as `papm train` does, is the training of the cell."""
    table = tables.load(name)
    if any(c.settings.get("init") == training.REQUIRED for c in table.cells):
        with pytest.raises(ConfigError, match="starts from a trained network: give init=RUN"):
            run.plan(table, [], request(tmp_path, data=dict.fromkeys(table.datasets, str(tmp_path))))
        table = table.with_settings({"init": "trained"})
    tasks = run.plan(table, [], request(tmp_path, data=dict.fromkeys(table.datasets, str(tmp_path))))
    assert len({t.folder for t in tasks}) == len(tasks)
    for task in tasks:
        words = run.train_words(task, resume=False)
        pairs = configuration.parse_overrides(w for w in words if "=" in w and not w.startswith(("/", "--")))
        assert "weights" not in pairs and pairs["select"] == "last"
        given = {k: v for k, v in pairs.items() if k not in ("select", "seed")}
        config = training.resolve(words[words.index("--method") + 1], words[words.index("--backbone") + 1], given)
        weights = training.PRETRAINED if "--weights" in words else training.NONE
        made = training.of_config(config, str(task.settings["dataset"]), weights)
        assert not set(training.by_data(task.settings)) & set(pairs)  # left to `papm train`
        made |= dict.fromkeys(training.by_data(task.settings), training.AUTO)
        assert training.differences(training.asked(task.settings), made) == {}


def test_weights(tmp_path: Path) -> None:
    table = tables.load("losses").only(["al-papm"])
    data = {"ucf-qnrf": str(tmp_path)}
    given = {"": "none", "csrnet": "own.pth"}
    plain = run.plan(table, [], request(tmp_path, data=data))
    assert [t.weights for t in plain] == ["imagenet", "imagenet", None]  # MCNN starts from nothing
    other = run.plan(table, [], request(tmp_path, data=data, weights=given))
    assert [t.weights for t in other] == [None, "own.pth", None]
    assert "from-nothing" in other[0].folder.name and "from-nothing" not in other[2].folder.name
    scratch = {**table.cells[0].settings, "weights": "none"}
    assert len(run.plan(table, [result(scratch, rmse=1.0)], request(tmp_path, data=data, weights=given))) == 2
    assert len(run.plan(table, [result(scratch, rmse=1.0)], request(tmp_path, data=data))) == 3


def test_datasets_must_be_given(tmp_path: Path) -> None:
    crowds = tables.load("crowds")
    with pytest.raises(ConfigError, match=r"study 'cars' needs pucpr, carpk; give --data pucpr=FOLDER"):
        run.plan(tables.load("cars"), [], request(tmp_path))
    with pytest.raises(DataError, match="no such folder"):
        run.plan(crowds, [], request(tmp_path, data={"nwpu": str(tmp_path / "none")}))
    with pytest.raises(ConfigError, match="study 'crowds' has no such dataset"):
        run.plan(crowds, [], request(tmp_path, data={"trancos": str(tmp_path)}))
    have, lacking = run.datasets_given(crowds, {"nwpu": str(tmp_path)})
    assert have == ["nwpu"] and "ucf-qnrf" in lacking


def begin(task: run.Task, **changes: Any) -> None:
    """A run folder as a training leaves it that was stopped."""
    config = configuration.from_mapping(
        {"seed": task.seed, "select": task.select, **changes}, training.configure(task.settings)
    )
    run_folder.create(task.folder, config)


def test_an_unfinished_run_goes_on_and_another_is_left_alone(tmp_path: Path) -> None:
    only = study().only(["A"])
    (task,) = run.plan(only, [], request(tmp_path))
    begin(task)
    (again,) = run.plan(only, [], request(tmp_path))
    command = run.job(again).commands[0]()
    assert again.folder == task.folder and command is not None and "--resume" in command.words
    begin(task, lr=0.5)  # begun with a recipe that is not today's
    (other,) = run.plan(only, [], request(tmp_path))
    command = run.job(other).commands[0]()
    assert other.folder.name == "tiny-gaussian-s0.2" and command is not None and "--resume" not in command.words


def test_a_finished_run_is_only_collected(tmp_path: Path) -> None:
    only = study(metrics=["mae", "game1"]).only(["A"])
    (task,) = run.plan(only, [], request(tmp_path))
    begin(task)
    (task.folder / "result.json").write_text(json.dumps({"mae": 2.0, "split": "val"}))
    train, evaluate = run.job(task).commands
    assert train() is None
    command = evaluate()
    assert command is not None and command.words[3:5] == ("eval", str(task.folder)) and "val" in command.words
    with pytest.raises(PapmError, match="the evaluation left no result"):
        run.collect(task)
    (task.folder / "evaluation-game.json").write_text(json.dumps({"mae": 2.0, "game": {"1": 3.5}}))
    assert evaluate() is None
    assert run.collect(task) == {"mae": 2.0, "split": "val", "game": {"1": 3.5}}
    assert json.loads(task.result.read_text()) == {"mae": 2.0, "split": "val", "game": {"1": 3.5}}
    (new,) = run.plan(only, [], request(tmp_path, again=True))
    assert new.folder.name == "tiny-gaussian-s0.2" and new.result == task.result


def test_an_older_evaluation_that_lacks_a_figure_is_made_again(tmp_path: Path) -> None:
    """The area of UCF-QNRF has another name since it is another quantity."""
    only = study(metrics=["qnrf-auc"]).only(["A"])
    (task,) = run.plan(only, [], request(tmp_path))
    begin(task)
    (task.folder / "result.json").write_text(json.dumps({"mae": 2.0}))
    kept = task.folder / "evaluation-qnrf.json"
    kept.write_text(json.dumps({"precision": 0.5, "recall": 0.5, "auc_pr": 0.125}))
    assert run.job(task).commands[1]() is not None
    kept.write_text(json.dumps({"precision": 0.5, "recall": 0.5, "auc": 0.25}))
    assert run.job(task).commands[1]() is None
    assert only.figures[0].of(run.collect(task)) == 0.25


def test_names_stay_short() -> None:
    many = {
        **CELL,
        "method": "gaussian",
        **{f"data.{k}": "1-99" for k in ("count", "extent", "variation", "clutter", "noise")},
    }
    one, two = (run.slug({**many, "steps": n, "data.empty": 0.25}, 0, "test") for n in (5, 6))
    assert one != two and len(one) < 60 and one.startswith("tiny-gaussian-") and one.endswith("-s0")


def test_machine_settings_are_no_part_of_a_training(tmp_path: Path) -> None:
    plain, told = ({**CELL, "method": "gaussian", **more} for more in ({}, {"device": "cpu", "workers": 0}))
    assert run.slug(plain, 0, "last") == run.slug(told, 0, "last")
    assert training.required(plain) == training.required(told)
    (task, _) = run.plan(study().with_settings({"device": "cpu"}), [result(told, 5)], request(tmp_path))
    assert "device=cpu" in run.train_words(task, False)


def test_complaints(tmp_path: Path) -> None:
    assert queue.complaint(tmp_path / "none") == "it said nothing"
    (tmp_path / "log").write_text("step 1\npapm: photos: no such folder\n\n")
    assert queue.complaint(tmp_path / "log") == "photos: no such folder"


def test_study_files_travel_with_the_package() -> None:
    assert all(yaml.safe_load(p.read_text(encoding="utf-8")) for p in tables.FOLDER.glob("*.yaml"))


# -- tiers, several studies, what is left to the data --------------------------------------------------------------------

TIERS = [{"tier": 1, "for": {"row": "B"}, "seeds": [0, 1]}, {"tier": 2}]


def test_a_tier_has_its_cells_and_seeds(tmp_path: Path) -> None:
    def asked(**changes: Any) -> list[tuple[str, int]]:
        return [(t.cell.row, t.seed) for t in run.plan(study(tiers=TIERS), [], request(tmp_path, **changes))]

    assert asked(tiers=(1,), seeds=()) == [("B", 0), ("B", 1)]
    assert asked(tiers=(1, 2), seeds=()) == [("B", 0), ("B", 1), ("A", 0)]
    assert asked(tiers=(1,), seeds=(5,)) == [("B", 5)]
    assert asked() == [("A", 0), ("B", 0)]


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ({"tier": 1, "for": {"row": "C"}}, "tiers are for row 'C', which the table does not have"),
        ({"tier": "first"}, "a tier is written"),
        ({"tier": 1, "seeds": []}, "a tier is written"),
        ({"tier": 1, "seeds": [-1]}, "a tier is written"),
        ({"tier": 1, "seed": [0]}, "unknown key of a tier 'seed'"),
    ],
)
def test_tiers_that_are_refused(tier: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study(tiers=[tier])


def test_several_studies_share_trainings_and_first_seeds_come_first(tmp_path: Path) -> None:
    other = study(metrics=["mae", "game1"], rows=[{"name": "again A", "method": "gaussian"}])
    tasks = run.plan_all([study(), other], [], request(tmp_path, seeds=(0, 1)))
    assert [t.seed for t in tasks] == [0, 0, 1, 1] and len({t.folder for t in tasks}) == 4
    shared = next(t for t in tasks if "gaussian" in t.name)
    assert shared.metrics == ("mae", "game1") and shared.evaluations == ("game",)


def test_a_tier_of_several_studies_comes_before_the_next(tmp_path: Path) -> None:
    other = study(tiers=[{"tier": 1}], rows=[{"name": "C", "method": "dm-count"}])
    tasks = run.plan_all([study(tiers=TIERS), other], [], request(tmp_path, tiers=(1, 2)))
    assert [(t.cell.row, t.seed) for t in tasks] == [("B", 0), ("C", 0), ("B", 1), ("A", 0)]


def test_each_of_several_studies_has_its_own_seeds(tmp_path: Path) -> None:
    other = study(seeds=[0, 1], rows=[{"name": "C", "method": "dm-count"}])
    tasks = run.plan_all([study(), other], [], request(tmp_path))
    assert [(t.cell.row, t.seed) for t in tasks] == [("A", 0), ("B", 0), ("C", 0), ("C", 1)]


def test_the_rule_leaves_to_the_data_all_that_papm_train_does() -> None:
    for cell in tables.load("rule").cells:
        assert {*training.by_data(cell.settings), "select"} == set(auto.CHOSEN)


def test_studies_without_data_are_left_out_of_several(tmp_path: Path) -> None:
    cars = tables.load("cars")
    assert {t.cell.row for t in run.plan_all([study(), cars], [], request(tmp_path))} == {"A", "B"}
    with pytest.raises(ConfigError, match="have no such dataset"):
        run.plan_all([study(), cars], [], request(tmp_path, data={"trancos": str(tmp_path)}))
    with pytest.raises(ConfigError, match="study 'cars' needs"):
        run.plan_all([cars], [], request(tmp_path))


def test_what_is_left_to_the_data_is_not_said_and_results_remember_it(tmp_path: Path) -> None:
    left = study(all={**CELL, "steps": "auto", "crop": "auto"}).only(["A"])
    (task,) = run.plan(left, [], request(tmp_path))
    words = run.train_words(task, resume=False)
    assert task.folder.name == "tiny-gaussian-auto-s0"
    assert not any(w.startswith(("steps=", "crop=")) for w in words) and any(w.startswith("batch=") for w in words)
    begin(task, steps=2500, crop=96)
    (again,) = run.plan(left, [], request(tmp_path))
    assert again.folder == task.folder and again.steps == 2500
    done = {**{k: task.settings[k] for k in training.NAMED}, "seed": 0, "select": "last", "mae": 2.0, "steps": 2500}
    (task.folder / "result.json").write_text(json.dumps({**done, "options": {"crop": 96, "batch": 8}}))
    assert run.collect(task)["auto"] == ["crop", "steps"]
    known = json.loads(task.result.read_text())
    settings, asked = training.done(known), training.asked(task.settings)
    assert (settings["steps"], settings["crop"], settings["batch"]) == (2500, 96, 8)
    assert not {"steps", "crop", "auto"} & training.differences(asked, settings).keys()
    explicit = training.done({k: v for k, v in known.items() if k != "auto"})
    assert "steps" in training.differences(asked, explicit)
    # A table that gives these very numbers has the result too.
    given = training.asked({**task.settings, "steps": 2500, "crop": 96})
    assert not {"steps", "crop", "auto"} & training.differences(given, settings).keys()


def test_cells_that_are_left_to_the_data_have_results_of_any_length_and_say_so(tmp_path: Path) -> None:
    left = study(all={**CELL, "steps": "auto", "crop": "auto"}).only(["A"])
    result = {**{k: left.cells[0].settings[k] for k in training.NAMED}, "seed": 0, "select": "last"}
    options = {"crop": 96, "batch": 8}
    for number, more in enumerate(({}, {"auto": ["crop", "steps"]})):
        (tmp_path / f"{number}.json").write_text(
            json.dumps({**result, "mae": 2.0 + number, "steps": 700, "options": options, **more})
        )
    ((first, second),) = results.assign(left, results.read([tmp_path]))
    assert not {"steps", "crop"} & first.differences.keys()
    assert {"steps": 700, "crop": 96}.items() <= second.differences.items()


def test_errors_of_images_are_kept_by_name(tmp_path: Path) -> None:
    (task,) = run.plan(study().only(["A"]), [], request(tmp_path))
    begin(task)
    (task.folder / "result.json").write_text(json.dumps({"mae": 2.0}))
    (task.folder / "predictions.csv").write_text("image,predicted,truth\nb,9,4\na,1.25,2\n")
    assert run.collect(task)["errors"] == "-0.75 5.00"


def test_a_network_that_goes_on_from_a_checkpoint_is_another_training(tmp_path: Path) -> None:
    plain, started = ({**CELL, "method": "gaussian", **more} for more in ({}, {"init": "runs/first"}))
    assert training.differences(training.asked(plain), training.asked(started)) == {"init": "checkpoint"}
    assert run.slug(started, 0, "last") == "tiny-gaussian-from-checkpoint-s0"
    kept = {**{k: plain[k] for k in training.NAMED}, "init": "first", "steps": 1}
    assert training.done(kept)["init"] == "checkpoint"


def test_datasets_are_found_where_papm_data_says(tmp_path: Path) -> None:
    from papm.study.data_roots import found_in

    cars = tables.load("cars")
    home = tmp_path / "PUCPR+_devkit" / "data"
    for part in ("Images", "Annotations", "ImageSets"):
        (home / part).mkdir(parents=True)
    (home / "ImageSets" / "train.txt").write_text("")
    assert found_in(str(tmp_path), [cars], {"carpk": "mine"}) == {"carpk": "mine", "pucpr": str(tmp_path)}
    assert found_in(str(tmp_path), [cars], {"pucpr": "mine"})["pucpr"] == "mine"
    assert found_in(None, [cars], {}) == {}
    with pytest.raises(DataError, match=r"PAPM_DATA: .*no such folder"):
        found_in(str(tmp_path / "none"), [cars], {})
