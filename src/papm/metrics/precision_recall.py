"""The area under precision over recall of scored predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from papm.metrics.pairing import Array


def average_precision(scores: Array, hits: NDArray[np.bool_], objects: int) -> float:
    """Area under the upper envelope of precision over recall; predictions of equal score enter together.

    >>> average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]), 2)
    0.8333333333333333
    """
    if not objects or not len(scores):
        return 0.0
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    tp = np.cumsum(hits[order])[ends]
    best = np.maximum.accumulate((tp / (ends + 1))[::-1])[::-1]
    return float((best * np.diff(tp, prepend=0)).sum() / objects)
