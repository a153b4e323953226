"""A prediction made on a resized image, brought back to the pixels of the image it is about."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from papm.predict.prediction import Prediction


def restore(prediction: Prediction, size: tuple[int, int]) -> Prediction:
    """The same count, its points and its map on an image of `size` (H, W).

    The map keeps its stride: the mass of each cell is shared by area among the cells of the larger or smaller image that it
    covers there, so that the sum stays what it was.
    """
    if prediction.size == size:
        return prediction
    (h, w), (height, width) = prediction.size, size
    density, points = prediction.density, prediction.points
    if density is not None:
        rows = _shares(h, height, prediction.stride).to(density)
        columns = _shares(w, width, prediction.stride).to(density)
        density = rows @ density @ columns.T
    if points is not None:
        points = points * points.new_tensor([width / w, height / h])
        last = points.new_tensor([width, height])
        points = points.minimum(torch.nextafter(last, torch.zeros_like(last)))
    return replace(prediction, size=size, density=density, points=points)


def _shares(length: int, other: int, stride: int) -> Tensor:
    """[m, n]: how much of each of the n cells along a side lies in each of the m cells of that side at another length.

    >>> _shares(16, 24, 8)
    tensor([[0.6667, 0.0000],
            [0.3333, 0.3333],
            [0.0000, 0.6667]])
    """
    source, target = (
        torch.cat([torch.arange(0, n, stride), torch.tensor([n])]).double() * (other / n) for n in (length, other)
    )
    overlap = torch.minimum(source[None, 1:], target[1:, None]) - torch.maximum(source[None, :-1], target[:-1, None])
    return (overlap.clamp(min=0) / (source[1:] - source[:-1])).float()
