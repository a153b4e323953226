"""What the page draws over a photo: the density as a transparent PNG, and a JPEG of images no browser shows."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from papm.draw import RAMP, coloured, full_scale, levels, overlay
from papm.legend import SQUARE

MOST_CELLS = 2048  # along a side of the layer: finer than a screen
PREVIEW = 2048  # pixels along the long side of a preview
ALPHA = 0.85  # as the pictures of `papm predict`


def density_layer(density: Tensor, stride: int) -> dict[str, Any]:
    """A map [C, h, w] as a PNG data URL, one pixel a cell, and how many image pixels (x, y) the PNG covers.

    Its colours and opacity are those of `papm.draw`; it is clear where the map is empty. `full`: objects in a square of
    `papm.legend.SQUARE` px that has the last colour; `above`: whether there are denser places.
    """
    field = density.detach().float().cpu().sum(0)
    factor = -(-max(field.shape) // MOST_CELLS)
    if factor > 1:  # several cells per pixel
        h, w = field.shape
        field = F.avg_pool2d(F.pad(field[None, None], (0, -w % factor, 0, -h % factor)), factor)[0, 0]
    full = full_scale(field)
    covers = [field.shape[1] * factor * stride, field.shape[0] * factor * stride]
    scale = {"full": full * SQUARE**2 / stride**2, "above": bool(full) and float(field.max()) > 1.001 * full}
    return {"png": _data_url(_painted(levels(field)), "PNG"), "covers": covers, **scale}


def ramp() -> str:
    """The colours of densities from none to full scale, as a PNG data URL."""
    return _data_url(_painted(torch.linspace(0, 1, RAMP)[None]), "PNG")


def _painted(level: Tensor) -> Image.Image:
    """Levels [h, w] in colours that are more opaque where they are higher."""
    colours, shade = coloured(level)
    return Image.fromarray(np.concatenate([colours, 255 * ALPHA * shade[..., None]], -1).astype(np.uint8))


def preview(image: Tensor) -> bytes:
    """uint8 [3, H, W] as a JPEG, its long side at most PREVIEW pixels."""
    small = overlay(image, max_side=PREVIEW, min_side=None)
    stream = io.BytesIO()
    Image.fromarray(small.permute(1, 2, 0).contiguous().numpy()).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def _data_url(picture: Image.Image, kind: str) -> str:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
