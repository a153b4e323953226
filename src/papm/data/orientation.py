"""Whether images have an up and a down: photographs do, images through a microscope or from above do not.

Five numbers of an image would change if it were turned: light above less light below, gradients across against gradients down,
texture above against texture below, dots above against dots below, and how the spacing of dots grows downwards. Over images
without an up and down each is zero on average, and the sum of their squared t-values is about χ² of five degrees of freedom.
"""

from __future__ import annotations

import numpy as np
import torch

from papm.data.base import Dataset
from papm.neighbours import spacing
from papm.structures import Sample

FEWEST = 10  # images: below, nothing can be told
LOOKED_AT = 64  # at least, of larger datasets
SIDE = 512  # pixels of a side that are looked at
# Draws of ten images: 99 of 100 have 42 or more on ShanghaiTech A, 133 on TRANCOS; of twenty drawn cells 95 of 100 at most 18.
ORIENTED = 25.0


def orientation(dataset: Dataset) -> float:
    """Σ t² of the five numbers over some 64 to 127 images, evenly spread; infinite where there are too few images to tell."""
    few = range(0, len(dataset), max(1, len(dataset) // LOOKED_AT))
    if len(dataset) < FEWEST:
        return float("inf")
    values = np.array([_numbers(dataset[k]) for k in few])
    spread = values.std(0, ddof=1) / np.sqrt(len(values))
    return float(((values.mean(0) / np.maximum(spread, 1e-9)) ** 2).sum())


def has_up_and_down(dataset: Dataset) -> bool:
    """Whether turning these images would show a network what it never meets; yes where that cannot be told."""
    return orientation(dataset) > ORIENTED


def _numbers(sample: Sample) -> list[float]:
    grey = sample.image.float().mean(0)
    height = grey.shape[0]
    grey = grey[:: max(1, height // SIDE), :: max(1, grey.shape[1] // SIDE)]
    grey = (grey - grey.mean()) / (grey.std(correction=0) + 1e-6)
    half = max(1, len(grey) // 2)
    across, down = (torch.diff(grey, dim=d).abs() + 1e-3 for d in (1, 0))
    light = float(grey[:half].mean() - grey[-half:].mean())
    texture = float((down[:half].mean() / down[-half:].mean()).log()) if len(down) else 0.0
    gradients = float((across.mean() / down.mean()).log()) if len(down) and across.shape[1] else 0.0
    points = sample.points_inside
    if len(points) < 4:
        return [light, gradients, texture, 0.0, 0.0]
    y = points[:, 1]
    above = float((y < height / 2).float().mean()) - 0.5
    both = torch.stack([spacing(points, 1), y])
    grows = float(torch.corrcoef(both)[0, 1]) if float(both.std(1).min()) > 0 else 0.0
    return [light, gradients, texture, above, grows]
