"""How far off the counts are: MAE, RMSE, NAE and bias of a set of images, with bootstrap intervals.

With e_i = predicted_i − truth_i over n images

    MAE = Σ|e_i| / n        RMSE = √(Σe_i² / n)        NAE = mean of |e_i| / truth_i over images with truth_i > 0
    bias = Σe_i / Σtruth_i

Papers on counting print RMSE under the name "MSE"; here it is called what it is. Counts are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from papm.errors import DataError
from papm.metrics.arrays import Array, Values, as_array

#: Inclusive upper bounds of the levels of two benchmarks, for `by_level`.
NWPU_LEVELS = (0, 100, 500, 5000)  # S0 … S4 of the NWPU server
JHU_LEVELS = (50, 500)  # Low, Medium, High of JHU-Crowd++

#: With fewer images no two-sided test without assumptions reaches 5 %: all differences have one sign by chance
#: in 2 · 2⁻⁵ = 6 % of cases with five, in 3 % with six.
FEWEST = 6

_CHUNK = 1 << 21  # resampled values held at once: 16 MB


@dataclass(frozen=True)
class CountingScore:
    """Errors of a set of counts; `nae` is NaN when no image holds an object, `bias` when the truth sums to zero."""

    mae: float
    rmse: float
    nae: float
    bias: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON; what is not finite becomes None, because JSON has no NaN."""
        return {k: v if math.isfinite(v) else None for k, v in vars(self).items()}


@dataclass(frozen=True)
class PairedDifference:
    """MAE of a − MAE of b on the same images, with the bootstrap interval [low, high]; negative: a is better."""

    difference: float
    low: float
    high: float
    level: float
    n: int

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """What may be said of a: `better`, `worse`, or `unclear`, also where there are too few images to say.

        >>> PairedDifference(-2.0, -3.0, -1.0, 0.95, n=40).verdict, PairedDifference(-2.0, -3.0, -1.0, 0.95, n=2).verdict
        ('better', 'unclear')
        """
        if self.n < FEWEST or not self.significant:
            return "unclear"
        return "better" if self.difference < 0 else "worse"

    def to_dict(self) -> dict[str, float | int | bool | str | None]:
        """Plain values for JSON; what is not finite becomes None."""
        values = {k: v if math.isfinite(v) else None for k, v in vars(self).items()}
        return {**values, "significant": self.significant, "verdict": self.verdict}


def counting_errors(predicted: Values, truth: Values) -> CountingScore:
    """MAE, RMSE, NAE and bias of `predicted` [n] against `truth` [n].

    >>> score = counting_errors([12.0, 7.0, 1.0], [10, 10, 0])
    >>> score.mae, round(score.rmse, 4), score.nae, score.bias, score.n
    (2.0, 2.1602, 0.25, 0.0, 3)
    """
    predictions, truths = _pair(predicted, truth)
    mae, rmse, nae, bias = _statistics(predictions[None], truths[None])[:, 0]
    return CountingScore(float(mae), float(rmse), float(nae), float(bias), len(truths))


def bootstrap(
    predicted: Values, truth: Values, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of mae, rmse, nae and bias over `samples` resamplings of the images.

    Deterministic, and independent of the order of the images (so also of how many processes evaluated them). NaN with fewer
    than `FEWEST` images: they would give an interval, of no width from one image, and it would say nothing.

    >>> bootstrap([3.0, 5.0, 4.0, 4.0, 4.0, 6.0], [1, 3, 2, 2, 2, 4])["mae"], bootstrap([3.0], [1])["mae"]
    ((2.0, 2.0), (nan, nan))
    """
    predictions, truths = _pair(predicted, truth)
    order = np.lexsort((predictions, truths))
    predictions, truths = predictions[order], truths[order]
    drawn = np.concatenate([_statistics(predictions[i], truths[i]) for i in _resamples(len(order), samples, seed)], 1)
    found = {name: _interval(row, level) for name, row in zip(("mae", "rmse", "nae", "bias"), drawn)}
    return found if len(truths) >= FEWEST else dict.fromkeys(found, (math.nan, math.nan))


def paired_difference(
    pred_a: Values, pred_b: Values, truth: Values, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> PairedDifference:
    """Is a better than b? MAE(a) − MAE(b) with both resampled on the same images, which is far sharper than
    comparing two separate intervals.

    >>> d = paired_difference([11.0, 21.0, 31.0], [14.0, 24.0, 34.0], [10, 20, 30])
    >>> d.difference, d.low, d.high, d.significant
    (-3.0, -3.0, -3.0, True)
    """
    a, truths = _pair(pred_a, truth)
    b, _ = _pair(pred_b, truth)
    gap = np.sort(np.abs(a - truths) - np.abs(b - truths))
    drawn = np.concatenate([gap[i].mean(1) for i in _resamples(len(gap), samples, seed)])
    low, high = _interval(drawn, level)
    return PairedDifference(float(gap.mean()), low, high, level, len(gap))


def by_level(predicted: Values, truth: Values, edges: Sequence[float]) -> dict[str, CountingScore]:
    """Scores apart for images of few and of many objects; `edges` are inclusive upper bounds of the true count.

    Levels without an image are left out.

    >>> {k: s.mae for k, s in by_level([1.0, 60.0, 700.0], [0, 51, 501], JHU_LEVELS).items()}
    {'0-50': 1.0, '51-500': 9.0, '>500': 199.0}
    """
    bounds = [float(e) for e in edges]
    if not bounds or any(b <= a for a, b in pairwise(bounds)):
        raise DataError(f"edges of levels must increase, at least one of them; got {list(edges)}")
    predictions, truths = _pair(predicted, truth)
    place = np.searchsorted(np.asarray(bounds), truths, side="left")
    lows = [0.0, *(b + 1 for b in bounds)]
    names = [f"{low:g}-{high:g}" if high > low else f"{high:g}" for low, high in zip(lows, bounds)]
    names.append(f">{bounds[-1]:g}")
    groups = ((name, place == k) for k, name in enumerate(names))
    return {name: counting_errors(predictions[m], truths[m]) for name, m in groups if m.any()}


def _statistics(predicted: Array, truth: Array) -> Array:
    """[R, n], [R, n] -> [4, R]: mae, rmse, nae, bias of each row."""
    error = predicted - truth
    size = np.abs(error)
    held = truth > 0
    # A diverged network predicts NaN or inf: the figures then are NaN, which is an answer and no reason to warn.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.divide(size, truth, out=np.zeros_like(size), where=held)
        return np.stack(
            [
                size.mean(1),
                np.sqrt((error * error).mean(1)),
                relative.sum(1) / held.sum(1),
                error.sum(1) / truth.sum(1),
            ]
        )


def _pair(predicted: Values, truth: Values) -> tuple[Array, Array]:
    predictions, truths = as_array(predicted).reshape(-1), as_array(truth).reshape(-1)
    if predictions.shape != truths.shape:
        raise DataError(
            f"{len(predictions)} predicted counts for {len(truths)} true ones: give one for each image, in one order"
        )
    if not len(truths):
        raise DataError("no counts to score: give at least one image")
    return predictions, truths


def _resamples(n: int, samples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Index arrays [rows, n], `samples` rows in all, cut so that none passes _CHUNK values."""
    if samples < 1:
        raise DataError(f"a bootstrap needs at least one sample; got {samples}")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // n)
    for start in range(0, samples, rows):
        yield generator.integers(0, n, (min(rows, samples - start), n))


def _interval(drawn: Array, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise DataError(f"a level of confidence lies between 0 and 1; got {level}")
    finite = drawn[np.isfinite(drawn)]  # a resample of empty images only has no NAE and no bias
    if not len(finite):
        return math.nan, math.nan
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
