"""The figures a table may have: what they are called, where a result holds them, and the evaluation that adds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A figure of a result: `path` leads to it; `evaluation` is what `papm eval` must be asked for, beyond training."""

    title: str
    path: tuple[str, ...]
    evaluation: str | None = None  # a key of EVALUATIONS
    digits: int = 2  # where the paper prints none

    def of(self, result: Mapping[str, Any]) -> float | None:
        """The figure of a result, None where it has none.

        >>> METRICS["game1"].of({"game": {"1": 3.5}}), METRICS["rmse"].of({})
        (3.5, None)
        """
        value: Any = result
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)


# name → options of `papm eval`, and where in the result its figures go
EVALUATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "game": (("--game",), ("game",)),
    "qnrf": (("--localization", "qnrf"), ("localization", "qnrf")),
    "nwpu": (("--localization", "nwpu"), ("localization", "nwpu")),
}

METRICS: dict[str, Metric] = {
    "mae": Metric("MAE", ("mae",)),
    "rmse": Metric("RMSE", ("rmse",)),
    "nae": Metric("NAE", ("nae",), digits=3),
    "mae-val": Metric("MAE on held-out training images", ("mae_val",)),
    **{f"game{k}": Metric(f"GAME({k})", ("game", str(k)), "game") for k in range(4)},
    "qnrf-precision": Metric("precision", ("localization", "qnrf", "precision"), "qnrf", 3),
    "qnrf-recall": Metric("recall", ("localization", "qnrf", "recall"), "qnrf", 3),
    "qnrf-auc": Metric("AUC", ("localization", "qnrf", "auc"), "qnrf", 3),
    "nwpu-precision": Metric("precision", ("localization", "nwpu", "sigma_l", "precision"), "nwpu", 3),
    "nwpu-recall": Metric("recall", ("localization", "nwpu", "sigma_l", "recall"), "nwpu", 3),
    "nwpu-f1": Metric("F1", ("localization", "nwpu", "sigma_l", "f1"), "nwpu", 3),
}


def with_evaluation(result: Mapping[str, Any], name: str, printed: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the figures that `papm eval --json` printed; lists (a figure a threshold) are left out.

    >>> with_evaluation({"mae": 2.0}, "game", {"mae": 2.0, "game": {"0": 2.0, "1": 3.5}})
    {'mae': 2.0, 'game': {'0': 2.0, '1': 3.5}}
    """
    *outer, last = EVALUATIONS[name][1]
    made = dict(result)
    place = made
    for key in outer:
        place[key] = dict(place.get(key) or {})
        place = place[key]
    figures = printed.get(name, printed)
    plain = {k: _plain(v) for k, v in figures.items() if not isinstance(v, list | str)}
    place[last] = {k: v for k, v in plain.items() if v != {}}
    return made


def answered(name: str, printed: Mapping[str, Any], metrics: Iterable[str]) -> bool:
    """Whether what an evaluation printed has those of the metrics that it is made for; an older papm's may lack some.

    >>> answered("qnrf", {"recall": 0.5, "auc": None}, ["mae", "qnrf-auc"]), answered("qnrf", {}, ["qnrf-auc"])
    (True, False)
    """
    made = with_evaluation({}, name, printed)
    return all(_reaches(made, METRICS[m].path) for m in metrics if METRICS[m].evaluation == name)


def _reaches(value: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    return isinstance(value, Mapping) and path[0] in value and _reaches(value[path[0]], path[1:])


def evaluation_file(folder: Path, name: str) -> Path:
    """Where a run folder keeps what an evaluation printed."""
    return folder / f"evaluation-{name}.json"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: v for k, v in value.items() if isinstance(v, int | float)}
    return value
