"""Coordinates that are fractions of the image, 0 to 1, where pixels are wanted: all dots beside the corner.

A dot on the border may come out a little beyond 0 or 1. It does not make pixels of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from papm.data.base import Dataset
from papm.data.several import origin
from papm.errors import DataError
from papm.structures import Sample
from papm.text import n_of

LEAST, MOST = -1.0, 2.0  # fractions of the image; those that leave it may pass 0 or 1 a little, pixels pass them by far
LARGE = 8  # px; in a smaller image points may well lie within two pixels of the corner
ENOUGH = 4  # points; fewer may lie there by chance


def are_fractions(images: Iterable[tuple[Tensor, tuple[int, int] | None]]) -> bool:
    """Whether all points [n, 2] of images with their sizes (H, W) lie between LEAST and MOST.

    >>> points = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.2, 0.3], [1.0004, -0.002]])
    >>> are_fractions([(points, (30, 40))]), are_fractions([(points * 20, (30, 40))]), are_fractions([(points[:1], (30, 40))])
    (True, False, False)
    """
    total = 0
    for points, size in images:
        beside = (points > LEAST) & (points < MOST)
        if len(points) and (size is None or min(size) <= LARGE or not bool(beside.all())):
            return False
        total += len(points)
    return total >= ENOUGH


def span(points: Sequence[Tensor]) -> str:
    """From where to where the coordinates of points lie, in words; 0 and 1 at least.

    >>> span([torch.tensor([[0.1, 0.9]])]), span([torch.tensor([[0.1, 0.9]]), torch.tensor([[1.0004, -0.002]])])
    ('between 0 and 1', 'between -0.002 and 1.0004')
    """
    values = torch.cat([p.flatten() for p in points])
    return f"between {min(0.0, float(values.min())):g} and {max(1.0, float(values.max())):g}"


def complaint(dataset: Dataset) -> str:
    """What is wrong where the points of a dataset, or of one of several that are joined, are fractions; else nothing."""
    parts: dict[str, list[Sample]] = {}
    for sample in dataset:
        parts.setdefault(origin(sample), []).append(sample.published)
    for name, samples in parts.items():
        if are_fractions((s.points, s.size) for s in samples):
            where = name or dataset.root or dataset.name or "the data"
            return (
                f"{where}: all {n_of(sum(s.count for s in samples), 'point')} lie {span([s.points for s in samples])},"
                " fractions of the image where pixels are wanted; multiply x by the width of the image and y by its height"
            )
    return ""


def require_pixels(dataset: Dataset) -> None:
    """DataError where points are fractions of the image, from which nothing can be learned."""
    if said := complaint(dataset):
        raise DataError(said)
