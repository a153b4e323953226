"""Several people marked the same image: one set of points from all of them, and how far they disagree.

Two people's points are paired one to one so that the sum of distances is least, where leaving two points unpaired costs as
much as a pair at `reach`; no pair is farther apart. `reach` is half the spacing of the objects: two clicks nearer than that
mean the same object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.points import nearest
from papm.structures import Sample

Array = NDArray[np.float64]
LEAST_REACH = 4.0  # px; nobody clicks more exactly
MOST_PAIRS = 2_000_000  # of two people's points in one image
ALONE = 32.0  # px of reach where no spacing can be measured


def reach_of(sets: Iterable[Tensor]) -> float:
    """Half the median distance of a point to its nearest neighbour in its own set.

    >>> reach_of([torch.tensor([[0.0, 0.0], [20.0, 0.0]])])
    10.0
    """
    distances = [nearest(p.double().numpy())[:, 0] for p in sets if len(p) > 1]
    if not distances:
        return ALONE
    return max(LEAST_REACH, 0.5 * float(np.median(np.concatenate(distances))))


def pair(a: Tensor, b: Tensor, reach: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Indices of paired points of `a` [n, 2] and `b` [m, 2], and their distances.

    >>> pair(torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([[3.0, 4.0]]), 10.0)[2].tolist()
    [5.0]
    """
    one, other = a.double().numpy().reshape(-1, 2), b.double().numpy().reshape(-1, 2)
    i, j = _near(one, other, reach)
    distance: Array = np.sqrt(((one[i] - other[j]) ** 2).sum(1))
    near = distance < reach
    i, j, distance = i[near], j[near], distance[near]
    # Most points of two careful people have no choice; the others are few.
    taken = (np.bincount(i)[i] == 1) & (np.bincount(j)[j] == 1)
    rest = np.flatnonzero(~taken)
    if len(rest):
        taken[rest[_cheapest(i[rest], j[rest], distance[rest], reach)]] = True
    order = np.flatnonzero(taken)[np.argsort(i[taken])]
    return i[order], j[order], distance[order]


def _cheapest(i: NDArray[np.int64], j: NDArray[np.int64], distance: Array, reach: float) -> NDArray[np.int64]:
    """Which of the pairs (i, j) to take, each point at most once, for the least Σ (distance − reach)."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    (points, row), (others, column) = (np.unique(x, return_inverse=True) for x in (i, j))
    n, m, alone = len(points), len(others), np.arange(len(points))
    # A point is paired with a near one or, for `reach`, with a column of its own. All costs are 1 more than that: an entry
    # of 0 is none in a sparse matrix.
    cost = np.concatenate([distance, np.full(n, reach)]) + 1
    places = (np.concatenate([row, alone]), np.concatenate([column, m + alone]))
    taken = min_weight_full_bipartite_matching(csr_matrix((cost, places), shape=(n, m + n)))[1]
    return np.flatnonzero(taken[row] == column)


def _near(a: Array, b: Array, reach: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of all pairs of points [n, 2] and [m, 2] that are not farther apart."""
    from scipy.spatial import cKDTree

    if not len(a) or not len(b):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    one, other = cKDTree(a), cKDTree(b)
    if (number := int(one.count_neighbors(other, reach))) > MOST_PAIRS:
        raise DataError(f"{number:,} pairs of two people's points are nearer than {reach:.3g} px; are points repeated?")
    found = one.sparse_distance_matrix(other, reach, output_type="ndarray")
    return found["i"].astype(np.int64), found["j"].astype(np.int64)


def merge(sets: Mapping[str, Tensor], reach: float | None = None) -> Tensor:
    """One point for each object that at least half of the people marked: the mean of their clicks.

    >>> merge({"a": torch.tensor([[0.0, 0.0]]), "b": torch.tensor([[2.0, 0.0], [90.0, 0.0]])})
    tensor([[ 1.,  0.],
            [90.,  0.]])
    """
    people = [sets[name] for name in sorted(sets)]
    if not people:
        raise ConfigError("there are no annotators to merge")
    limit = reach_of(people) if reach is None else reach
    total = people[0].double()
    votes = torch.ones(len(total), dtype=torch.float64)
    for points in people[1:]:
        rows, columns, _ = pair(total / votes[:, None], points, limit)
        total[rows] += points[columns].double()
        votes[rows] += 1
        rest = torch.ones(len(points), dtype=torch.bool)
        rest[columns] = False
        total = torch.cat([total, points[rest].double()])
        votes = torch.cat([votes, torch.ones(int(rest.sum()), dtype=torch.float64)])
    kept = 2 * votes >= len(people)
    return (total[kept] / votes[kept, None]).float()


def choose(sets: Mapping[str, Tensor], annotators: str) -> Tensor:
    """The points that `annotators` asks for: `merge`, or the name of one of the people."""
    if annotators == "merge":
        return merge(sets)
    if annotators not in sets:
        raise ConfigError(f"annotators='{annotators}', and this image was marked by: {', '.join(sorted(sets))}")
    return sets[annotators]


def agreement(samples: Iterable[Sample]) -> dict[str, Any] | None:
    """How far people disagree, over all pairs of people and images; None where no image was marked by two.

    `distance_…` are pixels between two clicks on one object; `click_error` is the error of one person along each axis that
    explains their mean, σ = mean / √π (the distance of two points with independent errors of σ). `unpaired` is the share of
    points that the other did not mark, `count_difference` the mean of |n − m|, `count_difference_relative` of
    |n − m| / mean(n, m).
    """
    distances: list[Array] = []
    sizes: list[tuple[int, int]] = []  # of each pair of sets
    names: set[str] = set()
    images = 0
    for sample in (s for s in samples if len(s.annotations) > 1):
        sets = sample.annotations
        images += 1
        names |= set(sets)
        reach = reach_of(sets.values())
        for a, b in itertools.combinations(sorted(sets), 2):
            try:
                distances.append(pair(sets[a], sets[b], reach)[2])
            except DataError as error:
                raise DataError(f"{sample.name}: {error}") from None
            sizes.append((len(sets[a]), len(sets[b])))
    if not images:
        return None
    every = np.concatenate(distances)
    mean = float(every.mean()) if len(every) else None
    points, differences = sum(map(sum, sizes)), [abs(n - m) for n, m in sizes]
    relative = [d / (0.5 * (n + m)) if n + m else 0.0 for d, (n, m) in zip(differences, sizes)]
    return {
        "annotators": sorted(names),
        "images": images,
        "distance_mean": mean,
        "distance_median": float(np.median(every)) if len(every) else None,
        "distance_90": float(np.quantile(every, 0.9)) if len(every) else None,
        "click_error": None if mean is None else mean / math.sqrt(math.pi),
        "unpaired": 1 - 2 * len(every) / points if points else 0.0,
        "count_difference": float(np.mean(differences)),
        "count_difference_relative": float(np.mean(relative)),
    }
