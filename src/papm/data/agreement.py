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

from papm.errors import ConfigError
from papm.structures import Sample

Array = NDArray[np.float64]
LEAST_REACH = 4.0  # px; nobody clicks more exactly
ALONE = 32.0  # px of reach where no spacing can be measured


def reach_of(sets: Iterable[Tensor]) -> float:
    """Half the median distance of a point to its nearest neighbour in its own set.

    >>> reach_of([torch.tensor([[0.0, 0.0], [20.0, 0.0]])])
    10.0
    """
    from scipy.spatial import cKDTree

    distances = [cKDTree(xy).query(xy, k=2)[0][:, 1] for p in sets if len(p) > 1 for xy in (p.double().numpy(),)]
    if not distances:
        return ALONE
    return max(LEAST_REACH, 0.5 * float(np.median(np.concatenate(distances))))


def pair(a: Tensor, b: Tensor, reach: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Indices of paired points of `a` [n, 2] and `b` [m, 2], and their distances.

    >>> pair(torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([[3.0, 4.0]]), 10.0)[2].tolist()
    [5.0]
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    distance: Array = cdist(a.double().numpy().reshape(-1, 2), b.double().numpy().reshape(-1, 2))
    rows, columns = linear_sum_assignment(np.minimum(distance, reach))
    found: Array = distance[rows, columns]
    near = found < reach
    return rows[near], columns[near], found[near]


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
    unpaired = points = images = 0
    differences: list[tuple[float, float]] = []
    names: set[str] = set()
    for sample in samples:
        sets = sample.annotations
        if len(sets) < 2:
            continue
        images += 1
        names |= set(sets)
        reach = reach_of(sets.values())
        for a, b in itertools.combinations(sorted(sets), 2):
            n, m = len(sets[a]), len(sets[b])
            found = pair(sets[a], sets[b], reach)[2]
            distances.append(found)
            unpaired += n + m - 2 * len(found)
            points += n + m
            differences.append((abs(n - m), abs(n - m) / (0.5 * (n + m)) if n + m else 0.0))
    if not images:
        return None
    every = np.concatenate(distances)
    mean = float(every.mean()) if len(every) else None
    return {
        "annotators": sorted(names),
        "images": images,
        "distance_mean": mean,
        "distance_median": float(np.median(every)) if len(every) else None,
        "distance_90": float(np.quantile(every, 0.9)) if len(every) else None,
        "click_error": None if mean is None else mean / math.sqrt(math.pi),
        "unpaired": unpaired / points if points else 0.0,
        "count_difference": float(np.mean([d for d, _ in differences])),
        "count_difference_relative": float(np.mean([r for _, r in differences])),
    }
