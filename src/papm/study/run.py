"""From the cells of a table that have no result to trainings, and from finished trainings to result files."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from papm.data import base, resize
from papm.engine import auto, run_folder
from papm.errors import ConfigError, DataError, PapmError
from papm.files import read_object, write_json
from papm.methods import RECIPE
from papm.report.load import read_counted
from papm.study import training
from papm.study.cells import Cell, Study
from papm.study.metrics import EVALUATIONS, METRICS, answered, evaluation_file, with_evaluation
from papm.study.queue import Command, Job
from papm.study.results import Result, recipe_of

LONGEST = 100  # characters of a name that says all; beyond, its checksum stands for it


@dataclass(frozen=True)
class Request:
    """Where things are and go, and what is asked for."""

    data: Mapping[str, str] = field(default_factory=dict)  # dataset → folder
    weights: Mapping[str, str] = field(default_factory=dict)  # backbone → imagenet, none or a file; "": all others
    out: Path = Path("runs")
    results: Path = Path("results")
    seeds: tuple[int, ...] = ()  # none: those of the tiers, or of the study
    select: str = "last"
    again: bool = False
    tiers: tuple[int, ...] = ()  # of the study; none: all cells


@dataclass(frozen=True)
class Task:
    """One training of a study: its run folder and the file its result goes to."""

    cell: Cell
    settings: Mapping[str, Any]
    seed: int
    select: str
    spec: str  # NAME:FOLDER
    weights: str | None
    folder: Path
    result: Path
    metrics: tuple[str, ...]

    @property
    def evaluations(self) -> tuple[str, ...]:
        """What must be evaluated beyond training."""
        return tuple(dict.fromkeys(e for m in self.metrics if (e := METRICS[m].evaluation) is not None))

    @property
    def name(self) -> str:
        """Dataset and training, as the folder is called."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def steps(self) -> int:
        """Training steps; the recipe's until a run that is left to the data has begun."""
        begun = training.by_data(self.settings) and (self.folder / "config.yaml").exists()
        config = run_folder.stored_config(self.folder) if begun else training.configure(self.settings)
        return config.steps


def datasets_given(study: Study, data: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Datasets of the study that can be read, and those that no folder was given for."""
    for name, folder in data.items():
        if name not in study.datasets:
            raise ConfigError(
                f"--data {name}={folder}: study '{study.name}' has no such dataset, only {', '.join(study.datasets)}"
            )
        if base.reader(name).make is None and not Path(folder).expanduser().exists():
            raise DataError(f"{folder}: no such folder (for dataset '{name}')")
    have = [d for d in study.datasets if d in data or base.reader(d).make is not None]
    lacking = [d for d in study.datasets if d not in have]
    if not have:
        given = " ".join(f"--data {d}=FOLDER" for d in lacking[:1])
        raise ConfigError(f"study '{study.name}' needs {', '.join(lacking)}; give {given}")
    return have, lacking


def plan(study: Study, results: Sequence[Result], request: Request) -> list[Task]:
    """The trainings without a result of today's recipe, or all of them (`again`): first seeds of every cell first."""
    have, _ = datasets_given(study, request.data)
    tasks: dict[Path, Task] = {}
    for cell, seed in study.wanted(request.tiers, request.seeds):
        for part in cell.parts if cell.settings["dataset"] in have else ():
            settings = with_weights(part, request.weights)
            if request.again or not any(_answers(r, settings, seed, request.select, study) for r in results):
                task = _task(cell, settings, seed, request, study.metrics)
                other = tasks.setdefault(task.folder, task)
                if other is not task:
                    both = f"'{other.cell.name}' and '{cell.name}' are the same training"
                    raise ConfigError(f"{both}; give settings that change what is learned")
    return list(tasks.values())


def plan_all(studies: Sequence[Study], results: Sequence[Result], request: Request) -> list[Task]:
    """The trainings of several studies in one queue, each once: tier by tier, first seeds first; studies without data are left
    out."""
    known = list(dict.fromkeys(d for s in studies for d in s.datasets))
    for name, folder in request.data.items():
        if name not in known:
            names = " and ".join(f"'{s.name}'" for s in studies)
            raise ConfigError(f"--data {name}={folder}: {names} have no such dataset, only {', '.join(known)}")
    tasks: dict[Path, Task] = {}
    rounds: list[tuple[int, ...]] = [(t,) for t in request.tiers]
    for tiers in rounds or [()]:
        found: list[Task] = []
        for study in studies:
            own = {d: request.data[d] for d in study.datasets if d in request.data}
            if len(studies) == 1 or own or any(base.reader(d).make for d in study.datasets):
                found += plan(study, results, replace(request, data=own, tiers=tiers))
        for task in sorted(found, key=lambda t: t.seed):
            same = tasks.get(task.folder)
            metrics = tuple(dict.fromkeys((*(same.metrics if same else ()), *task.metrics)))
            tasks[task.folder] = replace(task, metrics=metrics)
    if not tasks and len(studies) > 1 and not request.data:
        raise ConfigError(f"these studies need {', '.join(known)}; give --data {known[0]}=FOLDER")
    return list(tasks.values())


def _answers(result: Result, settings: Mapping[str, Any], seed: int, select: str, study: Study) -> bool:
    """Whether a result is that of the training, by today's recipe and with every figure that the study has."""
    if (result.values["seed"], result.values["select"]) != (seed, select) or not _of_today(result.values):
        return False
    if any(m.of(result.values) is None for m in study.figures):
        return False
    return not training.differences(training.asked(settings), result.settings)


def _of_today(values: Mapping[str, Any]) -> bool:
    """Whether a result is of no earlier recipe, which may have changed more than settings say; "own" is what a row sets."""
    return recipe_of(values) in (RECIPE, "own")


def with_weights(settings: Mapping[str, Any], weights: Mapping[str, str]) -> dict[str, Any]:
    """The settings with the weights that a request gives; what the study says comes first."""
    return {"weights": weights.get(str(settings["backbone"]), weights.get("", "imagenet")), **settings}


def _task(cell: Cell, settings: Mapping[str, Any], seed: int, request: Request, metrics: tuple[str, ...]) -> Task:
    dataset = str(settings["dataset"])
    if settings.get("init") == training.REQUIRED:
        raise ConfigError(f"'{cell.name}' starts from a trained network: give init=RUN")
    spec = f"{dataset}:{request.data[dataset]}" if dataset in request.data else dataset
    config = training.configure({**settings, "select": request.select})
    kind = training.starts_from(config, settings.get("weights"))
    weights = None if kind == training.NONE else str(settings["weights"])
    name, select = slug(settings, seed, request.select), request.select
    folder, result = _folder(request.out / dataset / name, settings, seed, request), f"{dataset}/{name}.json"
    return Task(cell, settings, seed, select, spec, weights, folder, request.results / result, metrics)


def slug(settings: Mapping[str, Any], seed: int, select: str) -> str:
    """A training's name: its network, its method, and what it has that the recipe has not.

    >>> slug({"dataset": "trancos", "method": "al-papm", "backbone": "vgg19", "loss.sigma": 8, "device": "cpu"}, 1, "last")
    'vgg19-al-papm-loss.sigma=8-s1'
    """
    whole, config = training.asked(settings), training.configure(settings)
    special = {k: v for k, v in training.overrides(settings).items() if k in whole or k.startswith("data.")}
    words = [config.backbone, config.method, *training.words({k: v for k, v in special.items() if k != "init"})]
    if config.init is not None:
        words.append("from-checkpoint")
    if chosen := training.by_data(settings):
        words.append("auto" if len(chosen) > 1 else f"{chosen[0]}=auto")
    if settings.get("weights") == training.NONE and training.starts_from(config, None) != training.NONE:
        words.append("from-nothing")
    if select != "last":
        words.append(f"select={select}")
    made = "-".join(words)
    if len(made) > LONGEST:
        made = f"{words[0]}-{words[1]}-{hashlib.sha256(made.encode()).hexdigest()[:10]}"
    return re.sub(r"[^\w.=,+-]", "_", f"{made}-s{seed}")


def _folder(base: Path, settings: Mapping[str, Any], seed: int, request: Request) -> Path:
    """The run folder: the one where this training was begun, else the first that is free."""
    wanted = training.asked(settings)
    for number in itertools.count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}.{number}")
        if not any((folder / mark).exists() for mark in run_folder.MARKS):
            return folder
        done = folder / "result.json"
        if done.exists() and (request.again or not _of_today(_object(done))):
            continue
        try:
            config = run_folder.stored_config(folder)
        except PapmError:
            continue
        weights = training.NONE if config.weights is None else training.PRETRAINED
        begun = training.of_config(config, str(settings["dataset"]), weights)
        begun |= dict.fromkeys(training.by_data(settings), training.AUTO)
        if (config.seed, config.select) == (seed, request.select) and not training.differences(wanted, begun):
            return folder
    raise AssertionError("numbers do not end")


# -- commands ------------------------------------------------------------------------------------------------------------


def train_words(task: Task, resume: bool) -> list[str]:
    """`papm train` with the settings of a task; what it would choose by the data is said."""
    config = training.configure(task.settings)
    said = [k for k in auto.CHOSEN if k != "select" and k not in training.by_data(task.settings)]
    special = {k: getattr(config, k) for k in said} | training.overrides(task.settings)
    return [
        "train", task.spec,
        "--method", str(task.settings["method"]),
        "--backbone", str(task.settings["backbone"]),
        *(["--weights", task.weights] if task.weights else []),
        "--out", str(task.folder),
        *(["--resume"] if resume else []),
        *training.words(special),
        f"select={task.select}", f"seed={task.seed}",
    ]  # fmt: skip


def evaluate_words(task: Task, evaluation: str, split: str) -> list[str]:
    """`papm eval` for the figures that training does not give."""
    config = training.configure(task.settings)
    options = {k: v for k, v in config.options.items() if k not in resize.OPTIONS}
    split = "train" if evaluation == "train" else split
    words = ["eval", str(task.folder), task.spec, *training.words(options)]
    return [*words, "--split", split, "--device", config.device, *EVALUATIONS[evaluation][0], "--json"]


def job(task: Task) -> Job:
    """The commands of a task: train, or go on, or nothing when that is done; then the evaluations that are missing."""
    commands = (partial(_train, task), *(partial(_evaluate, task, e) for e in task.evaluations))
    return Job(task.name, task.folder.with_name(f"{task.folder.name}.log"), commands, task.folder)


def _papm(words: Sequence[str], stdout: Path | None = None) -> Command:
    return Command((sys.executable, "-m", "papm", *words), stdout)


def _train(task: Task) -> Command | None:
    if (task.folder / "result.json").exists():
        return None
    return _papm(train_words(task, resume=(task.folder / "config.yaml").exists()))


def _evaluate(task: Task, evaluation: str) -> Command | None:
    if _printed(task, evaluation) is not None:
        return None
    split = str(_object(task.folder / "result.json").get("split", "test"))
    return _papm(evaluate_words(task, evaluation, split), evaluation_file(task.folder, evaluation))


def collect(task: Task) -> dict[str, Any]:
    """Write the result of a finished training, with what the evaluations gave, to the folder of results."""
    values = _object(task.folder / "result.json")
    for evaluation in task.evaluations:
        printed = _printed(task, evaluation)
        if printed is None:
            file = evaluation_file(task.folder, evaluation)
            raise PapmError(f"{file}: the evaluation left no result; see {task.folder.name}.log")
        values = with_evaluation(values, evaluation, printed)
    if chosen := training.by_data(task.settings):
        values = {**values, training.AUTO: list(chosen)}
    if errors := _errors(task.folder):
        values = {**values, "errors": errors}
    write_json(task.result, values)
    return values


def _errors(folder: Path) -> str:
    """Predicted less true count of each test image by name, in one line: results can be compared image by image."""
    counted = sorted(read_counted(folder / "predictions.csv"), key=lambda c: c.image)
    return " ".join(f"{c.error:.2f}" for c in counted)


def _printed(task: Task, evaluation: str) -> dict[str, Any] | None:
    """What an evaluation printed; None when it was not made, did not end, or is an older papm's that knew fewer figures."""
    try:
        printed = _object(evaluation_file(task.folder, evaluation))
    except PapmError:
        return None
    return printed if answered(evaluation, printed, task.metrics) else None


def _object(path: Path) -> dict[str, Any]:
    return read_object(path, "remove the folder of this run and start again")
