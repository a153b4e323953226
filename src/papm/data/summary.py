"""What a dataset holds, in plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.data.base import Dataset
from papm.points import nearest, spacing


def summary(datasets: Mapping[str, Dataset]) -> dict[str, dict[str, Any]]:
    """What is in each split, in plain numbers (ready for JSON): images, points, counts per image, and blemishes.

    `neighbour_distance` is the spacing in a typical image: the median over images of the median distance of a point to its
    nearest neighbour, in pixels; `neighbour_distance_of_points` the median over all points, which dense images dominate.
    Only points inside their image enter these two. `size_min` and `size_max` are [H, W] of the fewest and most pixels.
    """
    return {split: _summary(d) for split, d in datasets.items()}


def _summary(dataset: Dataset) -> dict[str, Any]:
    counts = [s.count for s in dataset]
    distances = [d for s in dataset if len(d := _neighbour_distances(s.points_inside))]
    heights, widths = [s.size[0] for s in dataset], [s.size[1] for s in dataset]
    pixels = [s.size[0] * s.size[1] for s in dataset]
    smallest, largest = (f(range(len(pixels)), key=pixels.__getitem__) if pixels else None for f in (min, max))
    return {
        "images": len(counts),
        "points": sum(counts),
        "count_min": min(counts, default=0),
        "count_mean": statistics.fmean(counts) if counts else 0.0,
        "count_median": float(statistics.median(counts)) if counts else 0.0,
        "count_max": max(counts, default=0),
        "without_points": sum(c == 0 for c in counts),
        "outside": sum(int((~s.inside).sum()) for s in dataset),
        "duplicates": sum(s.count - len(torch.unique(s.points, dim=0)) for s in dataset),
        "neighbour_distance": float(np.median([np.median(d) for d in distances])) if distances else None,
        "neighbour_distance_of_points": float(np.median(np.concatenate(distances))) if distances else None,
        "short_side_min": min((min(h, w) for h, w in zip(heights, widths)), default=0),
        "size_min": None if smallest is None else [heights[smallest], widths[smallest]],
        "size_max": None if largest is None else [heights[largest], widths[largest]],
    }


def _neighbour_distances(points: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Distance of each point to its nearest neighbour [n]; none for fewer than two points."""
    return nearest(points.double().numpy())[:, 0] if len(points) > 1 else np.zeros(0)


def spread(datasets: Mapping[str, Dataset]) -> dict[str, dict[str, list[dict[str, float | int]]]]:
    """How counts and distances between neighbours are spread in each split: bins with `from`, `to` and `n`."""
    found = {}
    for name, dataset in datasets.items():
        distances = [d for s in dataset if len(s.points_inside) > 1 for d in spacing(s.points_inside, 1).tolist()]
        found[name] = {
            "objects per image": bins([s.count for s in dataset]),
            "px to the nearest neighbour": bins(distances),
        }
    return found


def bins(values: Sequence[float]) -> list[dict[str, float | int]]:
    """About ten bins of a round width; the last one takes in the farthest hundredth, which would flatten the rest."""
    if not values:
        return []
    v = np.asarray(values, dtype=np.float64)
    low, high = float(v.min()), float(np.quantile(v, 0.99))
    widths = (m * 10.0**e for e in range(0 if (v % 1 == 0).all() else -3, 12) for m in (1, 2, 5))
    step = next(w for w in widths if high - low <= 10 * w)
    edges = np.round(np.arange(np.floor(low / step), np.floor(high / step) + 2) * step, 6)
    top = max(round(float(np.ceil(v.max() / step) * step), 6), float(v.max()))
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], top)
    counted = np.histogram(v, edges)[0]  # the last bin holds its upper edge too
    return [{"from": float(a), "to": float(b), "n": int(n)} for a, b, n in zip(edges, edges[1:], counted)]
