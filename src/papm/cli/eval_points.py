"""What `papm eval --localization` compares, and how it shows it: tables and sentences, or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from papm import api
from papm.cli import ui
from papm.cli.eval_counts import opened
from papm.cli.evaluate import PROTOCOLS
from papm.cli.options import How, one_of
from papm.errors import ConfigError
from papm.metrics import QnrfScore, RadiusScore
from papm.predict import localization
from papm.predict.localization import PointSet, from_files
from papm.text import n_of

SHOWN = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0)  # thresholds in the table of UCF-QNRF
MATCHINGS: dict[str, Literal["greedy", "maximum"]] = {"greedy": "greedy", "maximum": "maximum"}
__all__ = ["Asked", "compare", "from_files", "from_model"]


@dataclass(frozen=True)
class Asked:
    """How to compare, as the options say."""

    protocol: str
    radius: str | None = None
    matching: str | None = None

    def __post_init__(self) -> None:
        one_of("localization protocol", self.protocol, PROTOCOLS)
        if self.radii and self.protocol != "nwpu":
            raise ConfigError("--radius goes with --localization nwpu; qnrf measures 1 to 100 px")
        if self.matching is not None:
            if self.protocol != "qnrf":
                raise ConfigError("--matching goes with --localization qnrf; nwpu always matches as many as possible")
            one_of("matching", self.matching, tuple(MATCHINGS))

    @property
    def radii(self) -> tuple[float, ...]:
        """The distances of --radius.

        >>> Asked("nwpu", "4, 8").radii
        (4.0, 8.0)
        """
        if self.radius is None:
            return ()
        try:
            radii = tuple(float(cell) for cell in self.radius.split(","))
        except ValueError:
            radii = ()
        if not radii or not all(0 < r < 1e6 for r in radii):
            raise ConfigError(f"--radius is distances in pixels separated by commas, such as 4,8; got '{self.radius}'")
        return radii

    @property
    def sized(self) -> bool:
        """Whether the sizes of the objects are needed."""
        return self.protocol == "nwpu" and not self.radii


def from_model(
    model: str, data: str, split: str, how: How, sized: bool, options: Mapping[str, Any]
) -> tuple[PointSet, dict[str, Any]]:
    """Points that a model finds in a split, and what is said about it in JSON."""
    api.keep_sizes(options, "--localization")
    counter, dataset, about = opened(model, data, split, how, options)
    if how.beside:
        about["with"] = [str(p) for p in how.beside]
    with ui.items("locating", len(dataset)) as advance:
        return localization.from_model(counter, dataset, sized, advance), about


def compare(points: PointSet, about: dict[str, Any], asked: Asked, out: Path | None, json: bool) -> None:
    """Match the points by the protocol, and show what came of it."""
    how = MATCHINGS[asked.matching or "greedy"]
    with ui.items("matching", len(points.names) * (len(asked.radii) or (2 if asked.sized else 1))) as advance:
        if asked.protocol == "nwpu":
            found = localization.nwpu(points, asked.radii, advance)
        else:
            found = localization.qnrf(points, how, advance)
    if out is not None:
        found.save(out)
    if json:
        ui.print_json({**about, **found.to_dict()})
    elif found.qnrf is not None:
        _curve(points, found.qnrf, how)
    else:
        _tables(points, found.within)


def _tables(points: PointSet, scores: Mapping[str, RadiusScore]) -> None:
    rows = [
        [name, 100 * s.total.precision, 100 * s.total.recall, 100 * s.total.f1, s.total.tp, s.total.fp, s.total.fn]
        for name, s in scores.items()
    ]
    columns = ["within", "precision %", "recall %", "F1 %", "found", "false", "missed"]
    ui.table(columns, rows, title=_title(points))
    counted = next(iter(scores.values())).levels
    if counted:
        recalls = {name: s.recall_by_level for name, s in scores.items()}
        ui.table(
            ["level", "objects", *(f"recall % {name}" for name in scores)],
            [[k, n, *(100 * r[k] for r in recalls.values())] for k, (_, n) in counted.items() if n],
            title="By size: level k is an area of 10^k to 10^(k+1) px",
        )


def _curve(points: PointSet, score: QnrfScore, matching: str) -> None:
    made = score.to_dict()
    at = [(t, score.at(t)) for t in SHOWN]
    rows: list[list[object]] = [[f"{t:g} px", 100 * s.precision, 100 * s.recall, 100 * s.f1] for t, s in at]
    rows.append(["mean of 1…100 px", *(100 * float(str(made[k])) for k in ("precision", "recall", "f1"))])
    ui.table(["within", "precision %", "recall %", "F1 %"], rows, title=f"{_title(points)}; {matching} matching")
    if score.auc is None:
        ui.say("AUC, precision over recall: not comparable, the predictions have no scores")
    else:
        ui.say(f"AUC, precision over recall as the score falls, mean of 1…100 px: {score.auc:.4f}")
    ui.say(f"AUC, mean of F1 over the thresholds: {score.auc_threshold:.4f}")


def _title(points: PointSet) -> str:
    predicted, objects = (sum(map(len, part)) for part in (points.predicted, points.truth))
    return f"{n_of(len(points.names), 'image')}: {n_of(predicted, 'point')} for {n_of(objects, 'object')}"
