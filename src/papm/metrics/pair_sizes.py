"""The sizes of maximum pairings at many distances, by a compiled loop: pairing.c, made at first use."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

from papm.compiled import c_library
from papm.metrics.pairing import Array, Indices, require_few

SOURCE = Path(__file__).with_name("pairing.c")
TOO_MANY = 2
MOST = 200_000_000  # candidates held at once, 8 bytes each; 200,000 points in one image have 80 million within 100 px


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    # No fused multiply-add: a pair exactly at a limit must be in here if it is in for NumPy.
    library = c_library(SOURCE, "-ffp-contract=off", functions=("papm_pair_sizes",))
    if library is not None:
        number, pointer = ctypes.c_int, ctypes.c_void_p
        library.papm_pair_sizes.restype = number
        points = (pointer, number)
        library.papm_pair_sizes.argtypes = (*points * 3, ctypes.c_longlong, pointer, pointer)
    return library


def available() -> bool:
    """Whether the compiled loop can be used here (builds it at the first call)."""
    return _library() is not None


def sizes(predicted: Array, truth: Array, limits: Array, most: int) -> Indices:
    """Pairs in a maximum pairing of points [n, 2] and [m, 2] at each of the rising `limits` [T], of at most `most` candidates.

    >>> p, t = np.array([[5.0, 0.0], [11.0, 0.0]]), np.array([[0.0, 0.0], [6.0, 0.0]])
    >>> sizes(p, t, np.array([0.5, 1.0, 5.0]), 100).tolist() if available() else [0, 1, 2]
    [0, 1, 2]
    """
    made = np.zeros(len(limits), np.int64)
    if not len(predicted) or not len(truth) or not len(limits):
        return made
    library = _library()
    assert library is not None
    p, t, at = (np.ascontiguousarray(values, np.float64) for values in (predicted, truth, limits))
    pairs = ctypes.c_longlong()
    # In a crowd candidates grow with the square of the distance, and often all have a partner long before the last limit.
    for near in [n for n in (int((at <= at[-1] / 4).sum()), len(at)) if n]:
        given = (p.ctypes.data, len(p), t.ctypes.data, len(t), at.ctypes.data, near)
        code = library.papm_pair_sizes(*given, most, made.ctypes.data, ctypes.byref(pairs))
        if code == TOO_MANY:
            require_few(len(p), len(t), pairs.value, most)
        if code:
            raise MemoryError(f"no memory to pair {len(p)} predictions with {len(t)} annotated points")
        if made[near - 1] == min(len(p), len(t)):
            made[near:] = made[near - 1]
            break
    return made
