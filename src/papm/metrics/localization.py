"""Are the points where the objects are? The protocol of NWPU-Crowd, and fixed radii (`qnrf_protocol`: UCF-QNRF).

Every function takes one array [n, 2] an image for the predictions and one for the annotated points, both (x, y) in pixels
of that image. A pairing of the two gives TP pairs; what is left of the predictions are FP, of the annotations FN, and

    precision = TP / (TP + FP)        recall = TP / (TP + FN)        F1 = 2 TP / (2 TP + FP + FN)

from sums over all images ("micro"). A figure without a denominator is 0, as in the code of NWPU; where nothing was to be
found and nothing was predicted, all three are 1. Points are not rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from papm.errors import DataError
from papm.metrics.pairing import Array, Indices, Points, array, canonical, maximum

LEVELS = 6  # NWPU: floor(log10(area of the box in pixels)), 0 … 5


@dataclass(frozen=True)
class PointScore:
    """Pairs found, predictions too many, objects missed.

    >>> score = PointScore(tp=6, fp=2, fn=4)
    >>> score.precision, score.recall, round(score.f1, 4)
    (0.75, 0.6, 0.6667)
    """

    tp: int
    fp: int
    fn: int

    @classmethod
    def of(cls, pairs: int, predicted: int, objects: int) -> PointScore:
        """So many pairs between so many predictions and objects."""
        return cls(pairs, predicted - pairs, objects - pairs)

    @property
    def precision(self) -> float:
        return self._ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        return self._ratio(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        return self._ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    def _ratio(self, part: int, whole: int) -> float:
        if not self.tp + self.fp + self.fn:
            return 1.0
        return part / whole if whole else 0.0

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for JSON; fractions, not percent."""
        figures = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {**figures, "tp": self.tp, "fp": self.fp, "fn": self.fn}


@dataclass(frozen=True)
class RadiusScore:
    """Pairs within a distance: of the whole set, of each image, and found and existing objects of each level."""

    total: PointScore
    images: tuple[PointScore, ...]
    levels: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # level -> (found, objects)

    @property
    def recall_by_level(self) -> dict[int, float]:
        """Recall of the objects of each level; levels without an object are left out."""
        return {level: found / objects for level, (found, objects) in self.levels.items() if objects}

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        made: dict[str, object] = dict(self.total.to_dict())
        if self.levels:
            made["recall_by_level"] = {str(k): v for k, v in self.recall_by_level.items()}
        return made


def within(
    predicted: Sequence[Points],
    truth: Sequence[Points],
    radius: float | Sequence[Points],
    levels: Sequence[Points] | None = None,
    on_item: Callable[[], None] | None = None,
) -> RadiusScore:
    """Maximum matching with distance ≤ radius: one for all (σ = 4 and 8 px are common), or one for each object [m].

    `levels` [m] an image are whole numbers from 0 to 5; `on_item` is called after each image. Which objects a maximum
    matching leaves out is not unique, so recalls by level depend a little on the choice; it is the same for every order.

    >>> within([[[0.0, 3.0], [9.0, 9.0]]], [[[0.0, 0.0]]], 3.0).total
    PointScore(tp=1, fp=1, fn=0)
    """
    each = None if isinstance(radius, (int, float, np.number)) else radius
    same_length(truth, predictions=predicted, radii=each, levels=levels)
    images = []
    by_level = np.zeros((LEVELS, 2), np.int64)  # found, objects
    for k, (p, t) in enumerate(zip(predicted, truth)):
        xy, objects = array(p, columns=2), array(t, columns=2)
        reach = np.full(len(objects), radius, np.float64) if each is None else array(each[k])
        level = np.zeros(len(objects), np.int64) if levels is None else _levels(levels[k])
        if len(reach) != len(objects) or len(level) != len(objects):
            raise DataError(
                f"image {k}: {len(reach)} radii and {len(level)} levels for {len(objects)} annotated points"
            )
        if len(reach) and (not np.isfinite(reach).all() or reach.min() < 0):
            raise DataError(f"image {k}: a radius is a finite number of pixels, not negative")
        order = canonical(objects, reach, level.astype(np.float64))
        hit = maximum(xy[canonical(xy)], objects[order], reach[order]) >= 0
        by_level += np.stack([np.bincount(part, minlength=LEVELS) for part in (level[order][hit], level)], 1)
        images.append(PointScore.of(int(hit.sum()), len(xy), len(objects)))
        if on_item is not None:
            on_item()
    total = PointScore(*(sum(getattr(image, f) for image in images) for f in ("tp", "fp", "fn")))
    counted = {} if levels is None else {k: (int(f), int(n)) for k, (f, n) in enumerate(by_level)}
    return RadiusScore(total, tuple(images), counted)


def nwpu(
    predicted: Sequence[Points],
    truth: Sequence[Points],
    sigma_s: Sequence[Points],
    sigma_l: Sequence[Points],
    levels: Sequence[Points] | None = None,
    on_item: Callable[[], None] | None = None,
) -> dict[str, RadiusScore]:
    """The protocol of NWPU-Crowd: maximum matching with distance ≤ σ of the object, for σ_l (the headline) and σ_s.

    >>> scores = nwpu([[[4.0, 0.0]]], [[[0.0, 0.0]]], [[3.0]], [[5.0]], [[1]])
    >>> scores["sigma_l"].total.f1, scores["sigma_s"].total.f1, scores["sigma_l"].recall_by_level
    (1.0, 0.0, {1: 1.0})
    """
    return {
        "sigma_l": within(predicted, truth, sigma_l, levels, on_item),
        "sigma_s": within(predicted, truth, sigma_s, levels, on_item),
    }


def box_sigmas(boxes: Points) -> tuple[Array, Array, Indices]:
    """σ_s, σ_l and level of objects from their boxes x1 y1 x2 y2 [n, 4]:

        σ_s = min(w, h) / 2        σ_l = √(w² + h²) / 2        level = ⌊log10(w·h)⌋ within 0 … 5

    >>> [v.tolist() for v in box_sigmas([[0.0, 0.0, 6.0, 8.0]])]
    [[3.0], [5.0], [1]]
    """
    x1, y1, x2, y2 = array(boxes, columns=4, what="boxes").T
    w, h = np.abs(x2 - x1), np.abs(y2 - y1)
    # a hair above, so that a box of 10 × 10 in float32 is of level 2
    level = np.floor(np.log10(np.maximum(w * h, 1.0)) + 1e-6).clip(0, LEVELS - 1)
    return np.minimum(w, h) / 2, np.sqrt(w * w + h * h) / 2, level.astype(np.int64)


def _levels(values: Points) -> Indices:
    raw = array(values, what="levels")
    level = raw.astype(np.int64)
    if (level != raw).any() or (level < 0).any() or (level >= LEVELS).any():
        raise DataError(f"levels are whole numbers from 0 to {LEVELS - 1}")
    return level


def same_length(truth: Sequence[object], **given: Sequence[object] | None) -> None:
    """Refuse lists that do not speak of the same images."""
    for what, lists in given.items():
        if lists is not None and len(lists) != len(truth):
            raise DataError(
                f"{len(lists)} lists of {what} for {len(truth)} images: give one for each image, in one order"
            )
