"""Objects of a label mask: for each value above 0 its centroid, the upright box around it, and √area as its size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from papm.data.base import Annotation
from papm.data.readers.numbers import tensor

ORIGIN = 0.5  # centroids of pixel indices
Labels = NDArray[np.int64]


def objects(labels: Labels, origin: float = ORIGIN, min_area: int = 0) -> Annotation:
    """The objects of a mask whose labels are 1 … n, those of at least `min_area` pixels.

    >>> objects(np.array([[0, 1, 1], [2, 0, 0]])).points.tolist()
    [[2.0, 0.5], [0.5, 1.5]]
    """
    rows, columns = np.nonzero(labels)
    owner = labels[rows, columns] - 1
    area = np.bincount(owner)
    sums = np.stack([np.bincount(owner, weights=at) for at in (columns, rows)], 1)
    spans = [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(labels)]
    boxes = np.array(spans, dtype=np.float64).reshape(-1, 4)
    kept = area >= min_area
    centres, sizes = sums[kept] / area[kept, None], np.sqrt(area[kept])
    return Annotation(tensor(centres, origin), boxes=tensor(boxes[kept], origin - ORIGIN), extents=tensor(sizes))


def numbered(values: NDArray[Any]) -> Labels:
    """The values of a mask as 1 … n, in their order; 0 stays 0.

    >>> numbered(np.array([[0, 700], [9, 9]])).tolist()
    [[0, 2], [1, 1]]
    """
    known, index = np.unique(values, return_inverse=True)
    return index.reshape(values.shape).astype(np.int64) + (0 if 0 in known[:1] else 1)


def parts(labels: Labels, structure: NDArray[Any] | None = None, most: int | None = None) -> Labels:
    """Every group of pixels of one value that touch as a label of its own; `most`: of the first so many values.

    Pixels touch where they share a side, or as `structure` says (ndimage.label).

    >>> parts(np.array([[1, 0, 1], [2, 0, 0]])).tolist()
    [[1, 0, 2], [3, 0, 0]]
    """
    out, count = np.zeros(labels.shape, np.int64), 0
    for value, place in enumerate(ndimage.find_objects(labels)[:most], start=1):
        own, number = ndimage.label(labels[place] == value, structure)
        out[place] += np.where(own > 0, own + count, 0)
        count += number
    return out
