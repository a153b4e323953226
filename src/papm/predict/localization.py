"""Are the points where the objects are? The protocols of NWPU-Crowd and UCF-QNRF, for a model or for files of points."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from papm import metrics, models
from papm.data.base import Dataset, require_annotated
from papm.data.nwpu_files import read_ground_truth, read_predictions
from papm.errors import DataError
from papm.metrics import QnrfScore, RadiusScore, box_sigmas
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.results import write_csv
from papm.structures import Sample
from papm.text import Brief

log = logging.getLogger(__name__)
IN_FILE = (4.0, 8.0, 16.0, 100.0)  # thresholds of UCF-QNRF in the CSV of the images

OnItem = Callable[[], None]


@dataclass(frozen=True, eq=False, repr=False)
class PointSet(Brief):
    """What the protocols compare: per image a name, predicted and annotated points, and sizes where they are known."""

    names: Sequence[str]
    predicted: Sequence[Any]
    truth: Sequence[Any]
    sigma_s: Sequence[Any] = ()
    sigma_l: Sequence[Any] = ()
    levels: Sequence[Any] = ()
    scores: Sequence[Any] | None = None  # of the predicted points, where they have some


@dataclass(frozen=True, eq=False, repr=False)
class Localization(Brief):
    """Precision and recall of points: within sizes or radii (`within`), or at the thresholds of UCF-QNRF (`qnrf`)."""

    points: PointSet
    within: Mapping[str, RadiusScore] = field(default_factory=dict)  # by sigma_s and sigma_l, or by "4 px"
    qnrf: QnrfScore | None = None
    fixed: bool = False  # within fixed radii, not the sizes of the objects

    @property
    def names(self) -> Sequence[str]:
        """The images."""
        return self.points.names

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values; precision, recall and F1 as fractions."""
        if self.qnrf is not None:
            return dict(self.qnrf.to_dict())
        found = {k.removesuffix(" px"): s.to_dict() for k, s in self.within.items()}
        return {"radius": found} if self.fixed else found

    def save(self, path: str | Path) -> None:
        """A CSV file, one line per image: how many points, how many objects, how many of them paired."""
        matched = {f"matched_{k.removesuffix(' px')}": [i.tp for i in s.images] for k, s in self.within.items()}
        if self.qnrf is not None:
            places = {f"{t:g}": int((self.qnrf.thresholds == t).argmax()) for t in IN_FILE}
            matched = {f"matched_{t}": self.qnrf.pairs[:, k].tolist() for t, k in places.items()}
        images = zip(self.names, self.points.predicted, self.points.truth, *matched.values())
        rows = [[name, len(predicted), len(truth), *found] for name, predicted, truth, *found in images]
        write_csv(path, ["image", "predicted", "objects", *matched], rows)


def nwpu(points: PointSet, radii: Sequence[float] = (), on_item: OnItem | None = None) -> Localization:
    """Pairs within the size of the object, or within fixed radii in pixels."""
    if not radii:
        sizes = (points.sigma_s, points.sigma_l, points.levels)
        return Localization(points, metrics.nwpu(points.predicted, points.truth, *sizes, on_item=on_item))
    found = {f"{r:g} px": metrics.within(points.predicted, points.truth, r, on_item=on_item) for r in radii}
    return Localization(points, found, fixed=True)


def qnrf(
    points: PointSet, matching: Literal["greedy", "maximum"] = "greedy", on_item: OnItem | None = None
) -> Localization:
    """Pairs at 1 to 100 px."""
    score = metrics.qnrf(points.predicted, points.truth, matching=matching, on_item=on_item, scores=points.scores)
    return Localization(points, qnrf=score)


def from_files(predictions: Path, ground_truth: Path) -> PointSet:
    """Two text files of the NWPU protocol; an image without predictions has none."""
    truth = read_ground_truth(ground_truth)
    found = read_predictions(predictions, truth)
    if absent := len(truth.keys() - found.keys()):
        log.warning("%d of %d images have no line in %s; they count as without points", absent, len(truth), predictions)
    objects = truth.values()
    return PointSet(
        [str(image) for image in truth],
        [found.get(image, np.zeros((0, 2))) for image in truth],
        [o.points for o in objects],
        [o.sigma_s for o in objects],
        [o.sigma_l for o in objects],
        [o.levels for o in objects],
    )


def from_model(
    counter: Counter | Ensemble, dataset: Dataset, sized: bool = False, on_item: OnItem | None = None
) -> PointSet:
    """Points that a model finds in a split, within regions of interest; `sized` asks for the sizes of the objects.

    Everything is in pixels of the files: a model that was trained on resized images resizes them itself.
    """
    require_annotated(dataset)
    samples = [s.published for s in dataset]
    if not samples:
        raise DataError(f"{dataset.name}: the split '{dataset.split}' has no images")
    sizes = [_sizes(s, dataset.name) for s in samples] if sized else []
    predicted, scores, truth, kept = [], [], [], []
    for sample in samples:
        roi = sample.roi
        found, score = _found(counter, sample, roi)
        keep, seen = in_region(sample.points, roi), in_region(found, roi)
        predicted.append(found[seen])
        scores.append(score[seen])
        truth.append(sample.points[keep])
        kept.append(keep.numpy())
        if on_item is not None:
            on_item()
    columns = [[column[k] for column, k in zip(part, kept)] for part in zip(*sizes)] if sizes else [[], [], []]
    small, large, levels = columns
    return PointSet([s.name for s in samples], predicted, truth, small, large, levels, scores)


def _found(counter: Counter | Ensemble, sample: Sample, roi: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points [n, 2] and their scores [n]."""
    # Proposals outside the region would ask for more points inside it; the peaks of a map are found in the whole of it.
    by_points = models.info(counter.spec.backbone).kind == "points"
    made = counter.predict(sample.image, roi=roi if by_points else None)
    if made.points is None or made.scores is None:
        raise DataError(f"{sample.name}: this model gives no points")
    return made.points.cpu(), made.scores.cpu()


def in_region(points: Tensor, roi: Tensor | None) -> Tensor:
    """bool [n]: which points count; without a region all do, with one those outside the image do not."""
    if roi is None:
        return torch.ones(len(points), dtype=torch.bool)
    h, w = roi.shape
    x, y = points.floor().long().unbind(-1)
    inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
    return inside & roi[y.clamp(0, h - 1), x.clamp(0, w - 1)].bool()


def _sizes(sample: Sample, data: str) -> tuple[Any, Any, Any]:
    """σ_s, σ_l and level of each object, from its box or its extent (as a square box)."""
    if sample.boxes is not None:
        return box_sigmas(sample.boxes)
    if sample.extents is not None:
        half = sample.extents[:, None] / 2
        return box_sigmas(torch.cat([-half, -half, half, half], 1))
    if not len(sample.points):
        return box_sigmas(torch.zeros(0, 4))
    raise DataError(
        f"{data}: {sample.name} has points without sizes, and nwpu needs the size of each object; "
        "give --radius 4,8 for fixed distances, or use --localization qnrf"
    )
