"""What `papm eval` does with counts, and how it shows them: tables and sentences, or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papm import api
from papm.cli import ui
from papm.cli.options import How
from papm.data.base import Dataset
from papm.data.resize import OPTIONS
from papm.data.spec import open_split
from papm.engine.evaluate import Evaluation, write_evaluation
from papm.engine.result import scores
from papm.metrics.conformal import coverage
from papm.metrics.counting import JHU_LEVELS, NWPU_LEVELS, CountingScore, by_level, counting_errors
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.submission import write_submission
from papm.text import bias_of, interval, n_of


def opened(
    model: str, data: str, split: str, how: How, options: Mapping[str, Any]
) -> tuple[Counter | Ensemble, Dataset, dict[str, Any]]:
    """The model, the split, and what JSON says about them."""
    counter = how.open(model)
    with ui.err.status("reading annotations"):
        dataset = open_split(data, split, options)
    about: dict[str, Any] = {"data": data, "split": dataset.split, "model": model, "method": counter.spec.method}
    if factors := _factors(counter):
        about["calibration"] = factors if how.beside else next(iter(factors.values()))
    return counter, dataset, about


def count_split(
    model: str,
    data: str,
    split: str,
    how: How,
    options: dict[str, Any],
    grid: bool,
    submission: Path | None,
    out: Path | None,
    json: bool,
) -> None:
    """Count the images of a split and compare with their annotations; write what a server takes where asked."""
    if submission is not None:
        api.keep_sizes(options, "--submission")
    counter, dataset, about = opened(model, data, split, how, options)
    if submission is not None:
        with ui.items("counting", len(dataset)) as advance:
            about |= write_submission(counter, dataset, submission, advance)
        if not json:
            files = f"{submission}/counting.txt, {submission}/localization.txt"
            ui.say(f"For the server, {n_of(about['images'], 'image')}: {files}")
        if dataset.hidden:
            ui.print_json(about) if json else None
            return
    with ui.items("counting", len(dataset) * (1 + len(how.beside))) as advance:
        hear: dict[str, Any] = {"on_item": advance, "on_tile": advance.part}
        rule = not set(options) & set(OPTIONS)
        found = api.evaluate(counter, dataset, "game" if grid else "counts", resize=rule, **hear)
    if out is not None:
        write_evaluation(out, found)
    if isinstance(counter, Counter) and (known := counter.inference.interval) is not None:
        ends = [known.around(count) for count in found.predicted]
        about["interval"] = {"level": known.level, "coverage": coverage(ends, found.truth)}
    if json:
        ui.print_json({**about, **as_json(found, dataset.name)})
    else:
        show(found, dataset.name, f"{data} {dataset.split}: {n_of(found.score.n, 'image')}")
        _say_calibrated(found, counter, about.get("interval"))


def _say_calibrated(found: Evaluation, counter: Counter | Ensemble, known: Mapping[str, float] | None) -> None:
    """That counts were multiplied, and what they would be worth without; how often intervals held the truth."""
    if found.raw:
        each = ", ".join(f"{factor:.3f} ({name})".removesuffix(" ()") for name, factor in _factors(counter).items())
        raw = counting_errors(found.raw, found.truth).mae
        ui.say(f"Calibrated: counts are multiplied by {each}; MAE without it {raw:.2f}")
    if known is not None:
        level, held = 100 * known["level"], 100 * known["coverage"]
        ui.say(f"Intervals of {level:g} % hold the truth of {held:.0f} % of these images")


def as_json(found: Evaluation, dataset: str) -> dict[str, Any]:
    """The figures as plain values."""
    alone = {name: {"mae": s.mae, "rmse": s.rmse} for name, s in _alone(found).items()}
    levels = {k: s.to_dict() for k, s in _levels(dataset, found).items()}
    raw = {"raw": counting_errors(found.raw, found.truth).to_dict()} if found.raw else {}
    grid = {"game": {str(k): v for k, v in found.game.items()}} if found.grid else {}
    return {**({"models": alone} if alone else {}), **scores(found), "levels": levels, **grid, **raw}


def show(found: Evaluation, dataset: str, title: str) -> None:
    """Tables and sentences."""
    figures = [("MAE", found.score.mae), ("RMSE", found.score.rmse), ("NAE", found.score.nae)]
    ends = found.intervals()
    rows: list[list[object]] = [[n, v, interval(ends[n.lower()]) or "–"] for n, v in figures]
    rows += [[f"GAME({k})", v, ""] for k, v in found.game.items()]
    ui.table(["metric", "value", "95 % interval"], rows, title=title)
    if alone := _alone(found):
        apart = ", ".join(f"{name} {score.mae:.2f}" for name, score in alone.items())
        ui.say(f"These are of the mean of the counts. MAE of each model alone: {apart}")
    if math.isfinite(found.score.bias):
        ui.say(f"Total count: {bias_of(found.score.bias, ends['bias'])}")
    if found.readings:
        ui.say("Counted " + ", ".join(f"as {how}: MAE {mae:.2f}" for how, mae in found.mae_by_count.items()))
    if found.score_in_image.mae != found.score.mae:
        ui.say(f"Against points inside their image only: MAE {found.score_in_image.mae:.2f}")
    if found.classes:
        objects = [int(sum(n)) for n in zip(*found.truth_by_class)]
        _table("class", "objects", found.class_scores, objects, "By class")
    if parts := found.dataset_scores:
        _table("dataset", "images", parts, [s.n for s in parts.values()], "By dataset")
    if len(levels := _levels(dataset, found)) > 1:
        images = [s.n for s in levels.values()]
        _table("objects", "images", levels, images, "By the number of objects in an image")


def _table(what: str, how_many: str, scores: Mapping[str, CountingScore], numbers: list[int], title: str) -> None:
    """One line per part of the images or of the objects."""
    rows = [
        [name, n, s.mae, s.rmse, 100 * s.bias if math.isfinite(s.bias) else "–"]
        for (name, s), n in zip(scores.items(), numbers)
    ]
    ui.table([what, how_many, "MAE", "RMSE", "bias %"], rows, title=title)


def _alone(found: Evaluation) -> dict[str, CountingScore]:
    """Errors of each of several models."""
    return {name: counting_errors(counts, found.truth) for name, counts in found.by_model.items()}


def _factors(counter: Counter | Ensemble) -> dict[str, float]:
    """What calibrated models multiply their counts by, by their names; that of one model is empty."""
    members = zip(counter.names, counter.members) if isinstance(counter, Ensemble) else [("", counter)]
    return {name: m.inference.factor for name, m in members if m.inference.calibration is not None}


def _levels(dataset: str, found: Evaluation) -> dict[str, CountingScore]:
    """Errors apart for few and for many objects: the levels of the benchmark where it has some."""
    return by_level(found.predicted, found.truth, NWPU_LEVELS if dataset == "nwpu" else JHU_LEVELS)
