"""Predictions side by side: an image with its dots, and what each network finds in it, with the counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.draw import number, overlay, panel
from papm.predict.prediction import Prediction
from papm.structures import Sample
from papm.study.figures.base import Asked, Figure, Made, Trainings, drawn_study, register
from papm.study.figures.runs import Trained, images, read_runs, some

METHODS = ("gaussian", "hd-papm", "dm-count", "al-papm", "p2pnet", "p2p-papm")  # the paper's columns
LONGEST = 420  # px of the longer side of each picture


def trainings(steps: int) -> Trainings:
    """The six methods of the paper's figure on exact dots."""
    return ((drawn_study(steps, METHODS), (0,)),)


def draw(asked: Asked) -> Made:
    """A row for each image, a column for each network."""
    runs = read_runs(asked)
    samples = some(images(asked, runs), asked.images)
    made = [run.predict(samples) for run in runs]
    names = labels(runs)
    rows = [_row(s, names, [each[k] for each in made]) for k, s in enumerate(samples)]
    values = {
        s.name: {"truth": s.count, **{n: each[k].count for n, each in zip(names, made)}} for k, s in enumerate(samples)
    }
    words = (
        "Rings: annotated points. Colours: estimated density, each map up to its own maximum. Dots: estimated points."
    )
    return Made(stacked(rows), (words,), values)


def labels(runs: Sequence[Trained]) -> list[str]:
    """The method, with what else tells runs of one method apart: distance, seed, folder."""
    tries = (
        [r.name for r in runs],
        [f"{r.name}, {r.config.noise:g} px" for r in runs],
        [f"{r.name}, seed {r.config.seed}" for r in runs],
        [f"{r.name} ({r.config.backbone})" for r in runs],
    )
    return next((t for t in tries if len(set(t)) == len(runs)), [r.folder.name for r in runs])


def _row(sample: Sample, names: Sequence[str], found: Sequence[Prediction]) -> Tensor:
    image = sample.image
    pictures = [overlay(image, truth=sample.points, max_side=LONGEST, min_side=LONGEST)]
    titles = [f"annotated: {number(sample.count)}"]
    for name, one in zip(names, found):
        pictures.append(shown(image, one))
        titles.append(f"{name}: {number(one.count)}")
    return panel(pictures, titles)


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
