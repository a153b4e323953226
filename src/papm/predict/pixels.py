"""Whatever a user calls an image, as pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from papm.errors import DataError
from papm.images import read_image
from papm.rgb import image_pixels


def pixels(image: Any) -> Tensor:
    """A file, a Pillow image, an array [H, W, 3] or a tensor [3, H, W] as that tensor (uint8, RGB).

    A Pillow image of any mode is read as its file would be: grey made RGB, turned upright by its EXIF.
    """
    if isinstance(image, str | Path):
        image = read_image(Path(image))
    elif isinstance(image, Image.Image):
        try:
            image = image_pixels(image)
        except OSError as e:  # Pillow decodes when the pixels are asked for
            raise DataError(f"the Pillow image cannot be decoded ({e})") from e
    elif not isinstance(image, Tensor):
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise DataError(f"an image is a file, or uint8 [H, W, 3], not {array.dtype} {list(array.shape)}")
        image = torch.from_numpy(array.transpose(2, 0, 1).copy())
    tensor: Tensor = image
    if tensor.dim() != 3 or tensor.shape[0] != 3 or tensor.dtype != torch.uint8 or not tensor.numel():
        raise DataError(f"an image is uint8 [3, H, W], not {tensor.dtype} {list(tensor.shape)}")
    return tensor
