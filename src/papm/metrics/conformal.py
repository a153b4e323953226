"""How far a count may be off: a split-conformal interval from checked images.

With counts p_i and truths t_i of n images that chose nothing about the model, and their errors in units of the spread,

    r_i = |t_i − p_i| / √max(p_i, 1),

the interval of a new count p is p ± r·√max(p, 1), where r is the ⌈(n + 1)·level⌉-th smallest of the r_i. It holds the truth of
a new image of the same kind with a probability of at least `level`, whatever the errors are like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from papm.errors import DataError
from papm.inference import CountInterval
from papm.metrics.arrays import Values, as_array
from papm.text import n_of


def interval(predicted: Values, truth: Values, level: float = 0.9) -> CountInterval:
    """The interval that these images give; nine of them or more for 90 %.

    >>> interval([100.0] * 9, [100, 101, 99, 102, 98, 103, 97, 104, 90]).around(100.0)
    (90.0, 110.0)
    """
    p, t = as_array(predicted), as_array(truth)
    needed = math.ceil(level / (1 - level) - 1e-9)
    if len(p) < needed:
        raise DataError(
            f"an interval of {100 * level:g} % needs {needed} checked images that the model is not calibrated on, not {len(p)}:"
            f" check {n_of(needed - len(p), 'more image')}"
        )
    errors = np.sort(np.abs(t - p) / np.sqrt(np.maximum(p, 1)))
    return CountInterval(float(errors[math.ceil((len(p) + 1) * level - 1e-9) - 1]), len(p), level)


def coverage(intervals: Sequence[tuple[float, float]], truth: Values) -> float:
    """The share of images whose truth their interval holds.

    >>> coverage([(90.0, 110.0), (0.0, 3.0)], [100, 4])
    0.5
    """
    ends = np.asarray(intervals, dtype=np.float64).reshape(-1, 2)
    return float(np.mean((ends[:, 0] <= as_array(truth)) & (as_array(truth) <= ends[:, 1])))
