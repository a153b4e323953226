"""What a dataset holds, in plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.data.base import Dataset
from papm.points import nearest


def summary(datasets: Mapping[str, Dataset]) -> dict[str, dict[str, Any]]:
    """What is in each split, in plain numbers (ready for JSON): images, points, counts an image, and blemishes.

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
