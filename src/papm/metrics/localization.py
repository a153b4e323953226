"""Are the points where the objects are? The protocols of NWPU-Crowd and UCF-QNRF, and fixed radii.

Every function takes one array [n, 2] an image for the predictions and one for the annotated points, both (x, y) in pixels
of that image. A pairing of the two gives TP pairs; what is left of the predictions are FP, of the annotations FN, and

    precision = TP / (TP + FP)        recall = TP / (TP + FN)        F1 = 2 TP / (2 TP + FP + FN)

from sums over all images ("micro"). A figure without a denominator is 0, as in the code of NWPU; where nothing was to be
found and nothing was predicted, all three are 1. Points are not rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from papm.errors import DataError, unknown
from papm.metrics import pair_sizes
from papm.metrics.pairing import Array, Indices, Points, array, candidates, canonical, greedy, largest, maximum
from papm.metrics.precision_recall import average_precision
from papm.text import Brief

Matching = Literal["greedy", "maximum"]
QNRF_THRESHOLDS = tuple(range(1, 101))  # pixels; Idrees et al., ECCV 2018
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
    same_length(predicted, truth)
    if not isinstance(radius, (int, float, np.number)):
        same_length(radius, truth, "lists of radii")
    if levels is not None:
        same_length(levels, truth, "lists of levels")
    images = []
    found, existing = np.zeros(LEVELS, np.int64), np.zeros(LEVELS, np.int64)
    for k, (p, t) in enumerate(zip(predicted, truth)):
        xy, objects = array(p, columns=2), array(t, columns=2)
        reach = (
            np.full(len(objects), float(radius)) if isinstance(radius, (int, float, np.number)) else array(radius[k])
        )
        level = _levels(levels[k]) if levels is not None else np.zeros(len(objects), np.int64)
        if len(reach) != len(objects) or len(level) != len(objects):
            raise DataError(
                f"image {k}: {len(reach)} radii and {len(level)} levels for {len(objects)} annotated points"
            )
        if len(reach) and (not np.isfinite(reach).all() or reach.min() < 0):
            raise DataError(f"image {k}: a radius is a finite number of pixels, not negative")
        order = canonical(objects, reach, level.astype(np.float64))
        hit = _hits(xy[canonical(xy)], objects[order], reach[order])
        found += np.bincount(level[order][hit], minlength=LEVELS)
        existing += np.bincount(level, minlength=LEVELS)
        tp = int(hit.sum())
        images.append(PointScore(tp, len(xy) - tp, len(objects) - tp))
        if on_item is not None:
            on_item()
    by_level = {k: (int(f), int(n)) for k, (f, n) in enumerate(zip(found, existing))} if levels is not None else {}
    return RadiusScore(_sum(images), tuple(images), by_level)


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


@dataclass(frozen=True, eq=False, repr=False)
class QnrfScore(Brief):
    """Precision, recall and F1 at each threshold, their means, and two areas.

    Papers print an "AUC" for UCF-QNRF without code that says which, so there are two under names of their own:

    - `auc`: area under precision over recall as the score that a prediction needs falls, at each threshold; then the mean over
      the thresholds. A prediction is a hit where its greedy partner lies within the threshold, whatever `matching` is. The
      curve ends at the recall of the predictions given, which bounds its area. None where predictions have no scores: one
      (R, P) a threshold is a point, not a curve.
    - `auc_threshold`: mean over the thresholds of F1, the area under F1 against the threshold over the range of
      thresholds (what is elsewhere called mean F1).
    """

    thresholds: Array  # [T] pixels
    pairs: Indices  # [images, T] pairs at each threshold
    predicted: Indices  # [images]
    objects: Indices  # [images]
    matching: Matching = "greedy"
    scores: Array | None = None  # [predictions of all images]
    distances: Array | None = None  # [predictions of all images] to its greedy partner, infinite where it has none

    def at(self, threshold: float) -> PointScore:
        """The score of the set at one of the thresholds."""
        place = np.flatnonzero(self.thresholds == threshold)
        if not len(place):
            raise DataError(f"{threshold:g} px is not among the thresholds measured")
        return self._scores()[int(place[0])]

    def _scores(self) -> list[PointScore]:
        n, m = int(self.predicted.sum()), int(self.objects.sum())
        return [PointScore(int(tp), n - int(tp), m - int(tp)) for tp in self.pairs.sum(0)]

    @property
    def precision(self) -> Array:
        return np.array([s.precision for s in self._scores()])

    @property
    def recall(self) -> Array:
        return np.array([s.recall for s in self._scores()])

    @property
    def f1(self) -> Array:
        return np.array([s.f1 for s in self._scores()])

    @property
    def auc(self) -> float | None:
        if self.scores is None or self.distances is None:
            return None
        objects = int(self.objects.sum())
        if not len(self.scores) + objects:
            return 1.0
        order = np.argsort(-self.scores, kind="stable")
        score, distance = self.scores[order], self.distances[order]
        return float(np.mean([average_precision(score, distance <= t, objects) for t in self.thresholds]))

    @property
    def auc_threshold(self) -> float:
        return float(self.f1.mean())

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: the means over thresholds, the areas, and the curves."""
        p, r, f1 = self.precision, self.recall, self.f1
        return {
            "precision": float(p.mean()),
            "recall": float(r.mean()),
            "f1": float(f1.mean()),
            "auc": self.auc,
            "auc_threshold": self.auc_threshold,
            "matching": self.matching,
            "thresholds": self.thresholds.tolist(),
            "curves": {"precision": p.tolist(), "recall": r.tolist(), "f1": f1.tolist()},
        }


def qnrf(
    predicted: Sequence[Points],
    truth: Sequence[Points],
    thresholds: Sequence[float] = QNRF_THRESHOLDS,
    matching: Matching = "greedy",
    on_item: Callable[[], None] | None = None,
    scores: Sequence[Points] | None = None,
) -> QnrfScore:
    """The protocol of UCF-QNRF: one-to-one pairs at 1, 2, … 100 px, `greedy` by distance or `maximum` at each threshold.

    `scores` [n] of the predictions of each image are what `QnrfScore.auc` needs, and nothing else.

    >>> p, t = [[[5.0, 0.0], [11.0, 0.0]]], [[[0.0, 0.0], [6.0, 0.0]]]
    >>> qnrf(p, t, (1, 5)).at(5).tp, qnrf(p, t, (1, 5), "maximum").at(5).tp
    (1, 2)
    """
    same_length(predicted, truth)
    limits = array(np.asarray(thresholds), what="thresholds")
    if not len(limits) or limits[0] < 0 or (np.diff(limits) <= 0).any():
        raise DataError("thresholds must increase, from 0 or more, at least one of them")
    if matching not in get_args(Matching):
        raise unknown("matching", str(matching), get_args(Matching))
    if scores is not None:
        same_length(scores, truth, "lists of scores")
    pairs, sizes = np.zeros((len(truth), len(limits)), np.int64), np.zeros((2, len(truth)), np.int64)
    ranks, distances = [np.zeros(0)], [np.zeros(0)]
    for k, (p, t) in enumerate(zip(predicted, truth)):
        xy, objects = array(p, columns=2), array(t, columns=2)
        sizes[:, k] = len(xy), len(objects)
        if matching == "greedy" or scores is not None:
            rows, _, near = greedy(xy, objects, float(limits[-1]))
            pairs[k] = np.searchsorted(near, limits, side="right")
        if matching == "maximum":
            pairs[k] = _maximum_counts(xy, objects, limits)
        if scores is not None:
            ranks.append(array(scores[k], what="scores"))
            if len(ranks[-1]) != len(xy):
                raise DataError(f"image {k}: {len(ranks[-1])} scores for {len(xy)} predicted points: give one for each")
            distances.append(np.full(len(xy), np.inf))
            distances[-1][rows] = near
        if on_item is not None:
            on_item()
    ranked = (None, None) if scores is None else (np.concatenate(ranks), np.concatenate(distances))
    return QnrfScore(limits, pairs, sizes[0], sizes[1], matching, *ranked)


def _maximum_counts(predicted: Array, truth: Array, thresholds: Array) -> Indices:
    """The sizes of maximum pairings: by the compiled loop, or by scipy where there is no compiler."""
    if pair_sizes.available():
        return pair_sizes.sizes(predicted, truth, thresholds, pair_sizes.MOST)
    return _bisected_counts(predicted, truth, thresholds)


def _bisected_counts(predicted: Array, truth: Array, thresholds: Array) -> Indices:
    """Sizes never fall as the threshold grows: where the ends of a stretch agree, so does all between."""
    rows, columns, distance = candidates(predicted, truth, float(thresholds[-1]))

    def count(place: int) -> int:
        near = distance <= thresholds[place]
        return int((largest(rows[near], columns[near], distance[near], (len(predicted), len(truth))) >= 0).sum())

    last = len(thresholds) - 1
    counts = np.zeros(last + 1, np.int64)
    counts[0], counts[last] = count(0), count(last)
    stretches = [(0, last)]
    while stretches:
        low, high = stretches.pop()
        if counts[low] == counts[high]:
            counts[low:high] = counts[low]
        elif high - low > 1:
            middle = (low + high) // 2
            counts[middle] = count(middle)
            stretches += [(low, middle), (middle, high)]
    return counts


def _hits(predicted: Array, truth: Array, radius: Array) -> NDArray[np.bool_]:
    return maximum(predicted, truth, radius) >= 0


def _levels(values: Points) -> Indices:
    raw = array(values, what="levels")
    level = raw.astype(np.int64)
    if (level != raw).any() or (level < 0).any() or (level >= LEVELS).any():
        raise DataError(f"levels are whole numbers from 0 to {LEVELS - 1}")
    return level


def _sum(scores: Sequence[PointScore]) -> PointScore:
    return PointScore(sum(s.tp for s in scores), sum(s.fp for s in scores), sum(s.fn for s in scores))


def same_length(given: Sequence[object], truth: Sequence[object], what: str = "lists of predictions") -> None:
    """Refuse lists that do not speak of the same images."""
    if len(given) != len(truth):
        raise DataError(f"{len(given)} {what} for {len(truth)} images: give one for each image, in one order")
