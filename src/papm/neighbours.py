"""Distances between neighbouring points."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor


def spacing(points: Tensor, neighbours: int = 3, alone: float = 0.0) -> Tensor:
    """Mean distance from each point to its nearest `neighbours`, [n]; fewer where there are fewer; `alone` for one point.

    >>> spacing(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([5., 5.])
    """
    n = len(points)
    if n < 2:
        return torch.full((n,), float(alone))
    xy = points.detach().cpu().numpy().astype(np.float64)
    return torch.from_numpy(nearest(xy, neighbours).mean(1).astype(np.float32))


def nearest(xy: NDArray[np.float64], neighbours: int = 1) -> NDArray[np.float64]:
    """Distances of points [n, 2] to their nearest others, [n, k]; k is n - 1 where that is less than `neighbours`.

    Of points on one place as many as can matter enter the tree: it cannot part them, and would compare all with all.

    >>> nearest(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])).tolist()
    [[5.0], [0.0], [0.0]]
    """
    k = min(neighbours, len(xy) - 1)
    places, which, number = np.unique(xy, axis=0, return_inverse=True, return_counts=True)
    tree = cKDTree(np.repeat(places, np.minimum(number, k + 1), axis=0))
    found: NDArray[np.float64] = tree.query(places, k=range(2, k + 2))[0][which.reshape(-1)]
    return found
