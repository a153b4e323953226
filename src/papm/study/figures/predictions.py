"""Predictions side by side: an image with its dots, and what each network finds in it, with the counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.draw import number, overlay, panel
from papm.predict.prediction import Prediction
from papm.study.figures.base import Asked, Figure, Made, Trainings, drawn_study, register
from papm.study.figures.runs import Trained, images, read_runs, some

METHODS = ("gaussian", "hd-papm", "dm-count", "al-papm", "p2pnet", "p2p-papm")  # the paper's columns
LONGEST = 420  # px of the longer side of each picture


def trainings(steps: int) -> Trainings:
    """The six methods of the paper's figure on exact dots."""
    return ((drawn_study(steps, METHODS), (0,)),)


def draw(asked: Asked) -> Made:
    """A row for each image, a column for each network."""
    words = (
        "Rings: annotated points. Colours: estimated density, each map up to its own maximum. Dots: estimated points."
    )
    return side_by_side(asked, lambda image, name, one: {f"{name}: {number(one.count)}": shown(image, one)}, words)


def side_by_side(asked: Asked, show: Callable[[Tensor, str, Prediction], Mapping[str, Tensor]], words: str) -> Made:
    """A row for each image: it with its dots, then the pictures by their titles that `show` makes of each prediction."""
    runs = read_runs(asked)
    samples = some(images(asked, runs), asked.images)
    made = [dict(zip(labels(runs), each)) for each in zip(*(run.predict(samples) for run in runs))]
    rows, values = [], {}
    for s, found in zip(samples, made):
        truth, image = int(s.counted.sum()), s.image
        pictures = [overlay(image, truth=s.points, max_side=LONGEST, min_side=LONGEST)]
        titles = [f"annotated: {number(truth)}"]
        for name, one in found.items():
            drawn = show(image, name, one)
            titles, pictures = [*titles, *drawn], [*pictures, *drawn.values()]
        rows.append(panel(pictures, titles, height=pictures[0].shape[1]))
        values[s.name] = {"truth": truth, **{name: one.count for name, one in found.items()}}
    return Made(stacked(rows), (words,), values)


def labels(runs: Sequence[Trained]) -> list[str]:
    """The method, with what else tells runs of one method apart: distance, seed, folder."""
    tries = (
        [r.name for r in runs],
        [f"{r.name}, {r.config.noise:g} px" for r in runs],
        [f"{r.name}, seed {r.config.seed}" for r in runs],
        [f"{r.name} ({r.config.backbone})" for r in runs],
        [r.folder.name for r in runs],
    )
    return next((t for t in tries if len(set(t)) == len(runs)), [str(r.folder) for r in runs])


def shown(image: Tensor, one: Prediction) -> Tensor:
    """The map over the image, or the points where the network gives no map."""
    if one.density is not None:
        return overlay(image, one.density, one.stride, max_side=LONGEST, min_side=LONGEST)
    return overlay(image, points=one.points, labels=one.kinds, max_side=LONGEST, min_side=LONGEST)


def stacked(rows: Sequence[Tensor], gap: int = 6) -> Tensor:
    """Pictures [3, h, w] one below the other, on white."""
    wide = max(r.shape[2] for r in rows)
    return torch.cat([F.pad(r, (0, wide - r.shape[2], 0, gap), value=255) for r in rows], 1)


FIGURE = register(
    Figure(
        "predictions", "several networks on the same images: maps or points, and counts", "Figure 7", draw, trainings
    )
)
