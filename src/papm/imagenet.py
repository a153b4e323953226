"""The normalisation every network here expects: RGB in [0, 1], minus ImageNet's mean, over its deviation."""

from __future__ import annotations

import torch
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def normalize(image: Tensor) -> Tensor:
    """uint8 [..., 3, H, W] → float32, zero at the mean colour."""
    mean, std = (torch.tensor(v, device=image.device).view(3, 1, 1) for v in (MEAN, STD))
    return (image.float() / 255 - mean) / std
