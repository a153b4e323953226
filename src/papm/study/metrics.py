"""The figures a table may have: what they are called, where a result holds them, and the evaluation that adds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papm.report.load import number


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
        return number(self._group(result), self.path[-1])

    def reached(self, result: Mapping[str, Any]) -> bool:
        """Whether the result knows the figure, be it none."""
        return self.path[-1] in self._group(result)

    def _group(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        for key in self.path[:-1]:
            inner = result.get(key)
            result = inner if isinstance(inner, Mapping) else {}
        return result


# name → options of `papm eval`, and the group of the result that its figures go to, if any
EVALUATIONS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "game": (("--game",), None),
    "qnrf": (("--localization", "qnrf"), "localization"),
    "nwpu": (("--localization", "nwpu"), "localization"),
    "radius": (("--localization", "nwpu", "--radius", "4,8"), "localization"),  # within fixed distances
    "train": ((), None),  # the training images
}

METRICS: dict[str, Metric] = {
    "mae": Metric("MAE", ("mae",)),
    "rmse": Metric("RMSE", ("rmse",)),
    "nae": Metric("NAE", ("nae",), digits=3),
    "bias": Metric("bias", ("bias",), digits=3),
    "mae-train": Metric("MAE on training images", ("train", "mae"), "train"),
    "bias-train": Metric("bias on training images", ("train", "bias"), "train", 3),
    "mae-val": Metric("MAE on held-out training images", ("mae_val",)),
    **{f"game{k}": Metric(f"GAME({k})", ("game", str(k)), "game") for k in range(4)},
    "qnrf-precision": Metric("precision", ("localization", "qnrf", "precision"), "qnrf", 3),
    "qnrf-recall": Metric("recall", ("localization", "qnrf", "recall"), "qnrf", 3),
    "qnrf-auc": Metric("AUC", ("localization", "qnrf", "auc"), "qnrf", 3),
    **{
        f"radius{r}-{name.lower()}": Metric(
            f"{name} within {r} px", ("localization", "radius", str(r), name.lower()), "radius", 3
        )
        for r in (4, 8)
        for name in ("precision", "recall", "F1")
    },
    "nwpu-precision": Metric("precision", ("localization", "nwpu", "sigma_l", "precision"), "nwpu", 3),
    "nwpu-recall": Metric("recall", ("localization", "nwpu", "sigma_l", "recall"), "nwpu", 3),
    "nwpu-f1": Metric("F1", ("localization", "nwpu", "sigma_l", "f1"), "nwpu", 3),
}


def with_evaluation(result: Mapping[str, Any], name: str, printed: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the figures that `papm eval --json` printed; lists (a figure per threshold) are left out.

    >>> with_evaluation({"mae": 2.0}, "game", {"mae": 2.0, "game": {"0": 2.0, "1": 3.5}})
    {'mae': 2.0, 'game': {'0': 2.0, '1': 3.5}}
    """
    figures = {k: _numbers(v) for k, v in printed.get(name, printed).items() if not isinstance(v, list | str)}
    made = {name: {k: v for k, v in figures.items() if v != {}}}
    group = EVALUATIONS[name][1]
    return {**result, **made} if group is None else {**result, group: {**(result.get(group) or {}), **made}}


def _numbers(value: Any) -> Any:
    return {k: v for k, v in value.items() if isinstance(v, int | float)} if isinstance(value, Mapping) else value


def answered(name: str, printed: Mapping[str, Any], metrics: Iterable[str]) -> bool:
    """Whether what an evaluation printed has those of the metrics that it is made for; an older papm's may lack some.

    >>> answered("qnrf", {"recall": 0.5, "auc": None}, ["mae", "qnrf-auc"]), answered("qnrf", {}, ["qnrf-auc"])
    (True, False)
    """
    made = with_evaluation({}, name, printed)
    return all(METRICS[m].reached(made) for m in metrics if METRICS[m].evaluation == name)


def evaluation_file(folder: Path, name: str) -> Path:
    """Where a run folder keeps what an evaluation printed."""
    return folder / f"evaluation-{name}.json"
