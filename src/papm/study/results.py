"""Results on disk, and which of them belong to which cell of a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papm.errors import DataError
from papm.study import training
from papm.study.cells import Cell, Study
from papm.study.metrics import EVALUATIONS, evaluation_file, with_evaluation

NEEDED = ("dataset", "backbone", "method", "seed", "select", "mae")  # what tells a result from other JSON files
GROUPED = ("loss", "network", "data", "training")  # mappings among its options


@dataclass(frozen=True)
class Result:
    """One measured training."""

    path: Path
    values: Mapping[str, Any]
    settings: Mapping[str, Any]  # as `training.done` spells them out


@dataclass(frozen=True)
class Seed:
    """What one seed gave: a figure per metric, None where the training was not evaluated for it."""

    seed: int
    figures: tuple[float | None, ...]
    best_on_test: float | None
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Group:
    """Trainings of one cell with the same settings, of one recipe, whose weights were chosen the same way."""

    select: str
    differences: Mapping[str, Any]  # settings that are not those of the cell and today's recipe
    seeds: tuple[Seed, ...]
    unfinished: int = 0  # seeds of which some trainings are missing, where a figure is a mean of several

    def values(self, metric: int) -> list[float]:
        """The figure of each seed that has it."""
        return [v for s in self.seeds if (v := s.figures[metric]) is not None]

    def mean(self, metric: int) -> float | None:
        """Mean over seeds."""
        found = self.values(metric)
        return statistics.fmean(found) if found else None

    @property
    def best_on_test(self) -> float | None:
        """Mean over seeds of the lowest test MAE of any evaluation; None unless every seed has one."""
        found = [s.best_on_test for s in self.seeds if s.best_on_test is not None]
        return statistics.fmean(found) if found and len(found) == len(self.seeds) else None

    @property
    def results(self) -> list[Result]:
        """Every training of the group."""
        return [r for s in self.seeds for r in s.results]

    @property
    def recipe(self) -> str:
        """The recipe of its trainings; nothing where no seed is whole."""
        return next((recipe_of(r.values) for r in self.results), "")

    def of(self, key: str) -> list[Any]:
        """The different values of a field of the results."""
        return list(dict.fromkeys(r.values.get(key) for r in self.results))


def newest(groups: Sequence[Group]) -> list[Group]:
    """Those of the newest recipe: a recipe may change more than settings say, so that no mean is taken over two."""
    last = max((g.recipe for g in groups), key=lambda r: int(r) if r.isdigit() else 0, default="")
    return [g for g in groups if g.recipe == last]


def recipe_of(values: Mapping[str, Any]) -> str:
    """The recipe a result was made with; the options tell it where a result is older than the field.

    >>> recipe_of({"recipe": "3"}), recipe_of({"options": {"network": {"activation": "relu-live"}}}), recipe_of({})
    ('3', '2', '1')
    """
    options = values.get("options") or {}
    network, loss = (options.get(k) or {} for k in ("network", "loss"))
    second = network.get("activation") == "relu-live" or loss.get("mass") == 64
    return str(values.get("recipe") or ("2" if second else "1"))


def read(places: Iterable[Path]) -> list[Result]:
    """Results in folders of JSON files, in run folders, or in folders of these; other JSON files are passed over."""
    found: dict[Path, Result] = {}
    beside = {evaluation_file(Path(), name).name for name in EVALUATIONS}
    for place in places:
        if not place.exists():
            raise DataError(f"{place}: no such folder of results")
        files = [place] if place.is_file() else sorted(place.rglob("*.json"))
        for path in (f for f in files if not f.name.startswith(".") and f.name not in beside):
            values = _read(path)
            if values is not None:
                values = _with_evaluations(values, path)
                found[path.resolve()] = Result(path, values, training.done(values))
    return _once(found.values())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        raise DataError(f"{path}: cannot be read as JSON; restore or remove it") from None
    if not isinstance(values, dict) or any(k not in values for k in NEEDED):
        return None
    options = values.get("options") or {}
    parts = [options, *(options.get(k) or {} for k in GROUPED)] if isinstance(options, dict) else [options]
    if type(values["seed"]) is not int or not all(isinstance(p, dict) for p in parts):
        raise DataError(f"{path}: looks like a result, but its seed or options are not as papm writes them; remove it")
    return values


def _with_evaluations(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The result of a run folder with what `papm study run` has evaluated there."""
    for name in EVALUATIONS if path.name == "result.json" else ():
        file = evaluation_file(path.parent, name)
        if file.exists():
            try:
                values = with_evaluation(values, name, json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, AttributeError):  # an evaluation that was stopped
                continue
    return values


def _once(results: Iterable[Result]) -> list[Result]:
    """Each training once: the result of a run is often also kept elsewhere, with more evaluations beside it."""
    kept: dict[str, Result] = {}
    for result in results:
        key = json.dumps({k: result.values.get(k) for k in (*NEEDED, "rmse", "seconds", "revision")}, sort_keys=True)
        if key not in kept or len(result.values) > len(kept[key].values):
            kept[key] = result
    return list(kept.values())


def assign(study: Study, results: Sequence[Result]) -> list[list[Group]]:
    """For each cell its groups of results, those with the settings of today's recipe first.

    A result belongs to a cell when it has what `training.required` says: dataset, network, method, noise, options of the
    data, and every setting of the cell's row, its column and `all`. Everything else (steps, rate, what the study has under
    `settings`) may differ from today's recipe; the difference is the group's. A result with exactly the settings of one
    cell belongs to no other.
    """
    asked = [[(training.required(p, cell.special), training.asked(p)) for p in cell.parts] for cell in study.cells]
    every = [part for parts in asked for part in parts]
    exact = {
        id(r)
        for r in results
        for needed, whole in every
        if has(r, needed) and not training.differences(whole, r.settings)
    }
    return [_groups(cell, parts, results, exact, study) for cell, parts in zip(study.cells, asked)]


def has(result: Result, needed: Mapping[str, Any]) -> bool:
    """Whether a training was done with all these settings."""
    return all(result.settings.get(key) == value for key, value in needed.items())


def _groups(
    cell: Cell,
    parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    results: Sequence[Result],
    exact: set[int],
    study: Study,
) -> list[Group]:
    piles: dict[tuple[str, ...], tuple[dict[str, Any], dict[int, list[list[Result]]]]] = {}
    for k, (needed, whole) in enumerate(parts):
        for result in results:
            if not has(result, needed):
                continue
            other = training.differences(whole, result.settings)
            if other and id(result) in exact:
                continue
            select = str(result.values["select"])
            key = (select, training.in_words(other), recipe_of(result.values))
            _, seeds = piles.setdefault(key, (other, {}))
            seeds.setdefault(int(result.values["seed"]), [[] for _ in parts])[k].append(result)
    made = []
    for (select, *_), (other, seeds) in piles.items():
        whole_seeds = [_seed(n, found, study) for n, found in sorted(seeds.items()) if all(found)]
        made.append(Group(select, other, tuple(whole_seeds), len(seeds) - len(whole_seeds)))
    return sorted(made, key=lambda g: (len(g.differences), g.select, training.in_words(g.differences)))


def _seed(number: int, found: Sequence[Sequence[Result]], study: Study) -> Seed:
    """The mean over the parts of a cell; where a training was repeated with the same seed, over the repetitions too."""
    figures = tuple(_mean([[m.of(r.values) for r in part] for part in found]) for m in study.figures)
    best = _mean([[r.values.get("mae_best_on_test") for r in part] for part in found])
    return Seed(number, figures, best, tuple(r for part in found for r in part))


def _mean(parts: Sequence[Sequence[float | None]]) -> float | None:
    means = []
    for part in parts:
        known = [v for v in part if v is not None]
        if not known:
            return None
        means.append(statistics.fmean(known))
    return statistics.fmean(means) if means else None
