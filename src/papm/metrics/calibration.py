"""A factor for counts, fitted on a few checked images, and whether it helps by more than chance.

With counts p_i and truths t_i of n images, the factor is the s that makes

    Σ |t_i − s·p_i| / √p_i

least (but for interpolation between two images): the median of t_i / p_i with weights √p_i. A count of p objects is off by
about √p, so errors are compared in units of their spread, and one image that is counted or annotated wrongly moves a median
little where it would move Σt / Σp much.
"""

from __future__ import annotations

import math

import numpy as np

from papm.errors import DataError
from papm.inference import LARGEST_FACTOR, Calibration
from papm.metrics.arrays import Array, Values, as_array

FEWEST = 5  # images: with all n differences of one sign a sign-flip test gives p = 2⁻ⁿ, 3 % with five
LEVEL = 0.05  # how often a factor that is worth nothing may be taken for one that helps
_EXACT = 12  # images up to which all 2ⁿ signs are tried
_DRAWS = 10_000


def factor(predicted: Values, truth: Values) -> float:
    """The median of truth / predicted, weighted by √predicted; images in which nothing was counted say nothing.

    >>> factor([10.0, 20.0, 40.0], [12, 24, 48]), round(factor([10.0, 20.0, 40.0, 5.0], [12, 24, 48, 500]), 2)
    (1.2, 1.2)
    """
    p, t = as_array(predicted), as_array(truth)
    seen = p > 0
    if not seen.any():
        return math.nan
    ratio, weight = t[seen] / p[seen], np.sqrt(p[seen])
    order = np.argsort(ratio, kind="stable")
    ratio, weight = ratio[order], weight[order]
    return float(np.interp(0.5, (np.cumsum(weight) - weight / 2) / weight.sum(), ratio))


def leave_one_out(predicted: Values, truth: Values) -> Array:
    """Every count multiplied by the factor of the other images."""
    p, t = as_array(predicted), as_array(truth)
    others = (np.arange(len(p)) != k for k in range(len(p)))
    return np.array([p[k] * factor(p[mask], t[mask]) for k, mask in enumerate(others)])


def chance(gains: Values, seed: int = 0) -> float:
    """How often differences with signs by chance have a mean as large as these: the one-sided sign-flip test.

    >>> chance([1.0, 2.0, 1.0, 3.0, 1.0]), chance([1.0, -1.0])
    (0.03125, 0.75)
    """
    gain = as_array(gains)
    n = len(gain)
    if n <= _EXACT:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], (_DRAWS, n))
        signs[0] = 1  # what was seen is one of the draws
    return float(np.mean(signs @ gain >= gain.sum() - 1e-9 * np.abs(gain).sum()))


def calibrate(predicted: Values, truth: Values, samples: int = 2000, seed: int = 0) -> Calibration:
    """The factor with its bootstrap interval; refused where the leave-one-out MAE does not fall by more than chance.

    >>> found = calibrate([10.0, 20, 40, 30, 50, 25], [13, 25, 51, 36, 62, 31])
    >>> round(found.scale, 2), found.images, found.mae_after < found.mae_before
    (1.24, 6, True)
    """
    p, t = as_array(predicted), as_array(truth)
    n = len(p)
    if n < FEWEST:
        raise DataError(f"a calibration needs {FEWEST} checked images or more, not {n}: check {FEWEST - n} more")
    scale = factor(p, t)
    if not 1 / LARGEST_FACTOR <= scale <= LARGEST_FACTOR:  # also where it is NaN
        raise DataError(
            f"{p.sum():.1f} objects counted and {t.sum():.0f} annotated in {n} images: no factor makes up for that; is this"
            " the right model, and do the annotations count the same objects?"
        )
    with np.errstate(invalid="ignore"):
        after = np.nan_to_num(leave_one_out(p, t))
    before, after = np.abs(p - t), np.abs(after - t)
    index = np.random.default_rng(seed).integers(0, n, (samples, n))
    drawn = [f for i in index if (f := factor(p[i], t[i])) > 0]
    low, high = (float(v) for v in np.quantile(drawn, [0.025, 0.975]))
    found = Calibration(scale, low, high, n, float(before.mean()), float(after.mean()))
    by_chance = chance(before - after)
    if found.mae_after >= found.mae_before or by_chance > LEVEL:
        raise DataError(
            f"not calibrated: a factor of {scale:.3g} (95 % {low:.3g} to {high:.3g}) from {n} images does not lower the error"
            f" by more than chance: MAE {found.mae_before:.2f} without it, {found.mae_after:.2f} with it, leaving each"
            f" image out (p = {by_chance:.2f}); check more images, or count as it is"
        )
    return found
