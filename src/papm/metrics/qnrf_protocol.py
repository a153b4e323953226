"""The protocol of UCF-QNRF: precision, recall and F1 of points at 1, 2, … 100 px, and areas under their curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from papm.errors import DataError, unknown
from papm.metrics.localization import PointScore, same_length
from papm.metrics.pairing import Array, Indices, Points, array, candidates, greedy, largest
from papm.metrics.precision_recall import average_precision
from papm.text import Brief

Matching = Literal["greedy", "maximum"]
QNRF_THRESHOLDS = tuple(range(1, 101))  # pixels; Idrees et al., ECCV 2018


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
        return self._scores[int(place[0])]

    @cached_property
    def _scores(self) -> list[PointScore]:
        n, m = int(self.predicted.sum()), int(self.objects.sum())
        return [PointScore.of(int(pairs), n, m) for pairs in self.pairs.sum(0)]

    @property
    def curves(self) -> dict[str, Array]:
        """Precision, recall and F1 [T] at each threshold."""
        return {f: np.array([getattr(s, f) for s in self._scores]) for f in ("precision", "recall", "f1")}

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
        return float(self.curves["f1"].mean())

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON: the means over thresholds, the areas, and the curves."""
        return {
            **{figure: float(curve.mean()) for figure, curve in self.curves.items()},
            "auc": self.auc,
            "auc_threshold": self.auc_threshold,
            "matching": self.matching,
            "thresholds": self.thresholds.tolist(),
            "curves": {figure: curve.tolist() for figure, curve in self.curves.items()},
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
    same_length(truth, predictions=predicted, scores=scores)
    limits = array(np.asarray(thresholds), what="thresholds")
    if not len(limits) or limits[0] < 0 or (np.diff(limits) <= 0).any():
        raise DataError("thresholds must increase, from 0 or more, at least one of them")
    if matching not in get_args(Matching):
        raise unknown("matching", str(matching), get_args(Matching))
    pairs, sizes = np.zeros((len(truth), len(limits)), np.int64), np.zeros((2, len(truth)), np.int64)
    ranks, distances = [np.zeros(0)], [np.zeros(0)]
    for k, (p, t) in enumerate(zip(predicted, truth)):
        xy, objects = array(p, columns=2), array(t, columns=2)
        sizes[:, k] = len(xy), len(objects)
        if matching == "greedy" or scores is not None:
            rows, _, near = greedy(xy, objects, float(limits[-1]))
            pairs[k] = np.searchsorted(near, limits, side="right")
        if matching == "maximum":
            pairs[k] = maximum_sizes(xy, objects, limits)
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


def maximum_sizes(predicted: Array, truth: Array, thresholds: Array) -> Indices:
    """Sizes of maximum pairings at rising thresholds [T]. They never fall: where both ends of a stretch agree, all of it does.

    >>> predicted, truth = np.array([[5.0, 0.0], [11.0, 0.0]]), np.array([[0.0, 0.0], [6.0, 0.0]])
    >>> maximum_sizes(predicted, truth, np.array([0.5, 1.0, 5.0])).tolist()
    [0, 1, 2]
    """
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
