"""How long will it take: what earlier trainings took, or a few real steps of each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from papm.data.splits import Splits
from papm.engine.dry_run import dry_run
from papm.study import training
from papm.study.results import Result
from papm.study.run import Task

START = 8.0  # seconds to load the libraries and to write the report: measured, 2 cores


def seconds_each(tasks: Sequence[Task], results: Sequence[Result], splits: Splits) -> dict[str, float]:
    """Seconds of one training of each row, a method and its settings: of a result like it, else timed on this machine."""
    found: dict[str, float] = {}
    for task in tasks:
        if task.cell.row not in found:
            found[task.cell.row] = START + (_measured(task, results) or _timed(task, splits))
    return found


def _measured(task: Task, results: Sequence[Result]) -> float | None:
    like = ("dataset", "backbone", "method", "steps", "batch", "crop", "margin")
    wanted = training.asked(task.settings)
    for result in results:
        seconds = result.values.get("seconds")
        if isinstance(seconds, int | float) and all(result.settings.get(k) == wanted[k] for k in like):
            return float(seconds)
    return None


def _timed(task: Task, splits: Splits) -> float:
    config = training.configure(task.settings)
    config = dataclasses.replace(config, data=task.spec, seed=task.seed, select=task.select)  # type: ignore[arg-type]
    took = dry_run(config, splits=splits)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the trainings are other processes and need it
    steps = config.steps * took["step_ms"] / 1e3
    return float(took["loading_s"] + steps + took["evaluation_s"] * took["evaluations"])
