"""Images as networks take them: RGB in [0, 1], minus a mean, over a deviation; ImageNet's for the networks of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def normalize(image: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """uint8 [..., 3, H, W] → float32, (image/255 − mean)/std: zero at the mean colour."""
    shift, scale = (torch.tensor(v, device=image.device).view(3, 1, 1) for v in (mean, std))
    return image.to(torch.float32, copy=True).div_(255).sub_(shift).div_(scale)
