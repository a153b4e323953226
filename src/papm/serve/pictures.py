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

from papm.predict.overlay import overlay

MOST_CELLS = 2048  # along a side of the layer: finer than a screen
PREVIEW = 2048  # pixels along the long side of a preview
ALPHA = 0.85  # as the pictures of `papm predict`


def density_layer(density: Tensor, stride: int) -> dict[str, Any]:
    """A map [C, h, w] as a PNG data URL, one pixel a cell, and how many image pixels (x, y) the PNG covers."""
    field = torch.nan_to_num(density.detach().float().cpu().sum(0), nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
    factor = -(-max(field.shape) // MOST_CELLS)
    if factor > 1:  # several cells a pixel
        h, w = field.shape
        field = F.avg_pool2d(F.pad(field[None, None], (0, -w % factor, 0, -h % factor)), factor)[0, 0]
    covers = [field.shape[1] * factor * stride, field.shape[0] * factor * stride]
    return {"png": _data_url(_tinted(field), "PNG"), "covers": covers}


def _tinted(field: Tensor) -> Image.Image:
    """A map [h, w] in the colours and the opacity of `papm.predict.overlay`, clear where it is empty."""
    import matplotlib

    shade = np.zeros(tuple(field.shape), dtype=np.float32)
    peak = float(field.max()) if field.numel() else 0.0
    if peak > 0:
        # The brightest cells may lie far above the rest: the top percent of those that hold something saturates.
        held = field[field > 0.02 * peak].numpy()
        shade = (field / max(float(np.quantile(held, 0.99)), 1e-12)).clamp(0, 1).sqrt().numpy()
    table = np.asarray(255 * matplotlib.colormaps["turbo"](np.linspace(0, 1, 256)), dtype=np.uint8)
    rgba = table[(shade**1.5 * 255).astype(np.uint8)]
    rgba[..., 3] = (255 * ALPHA * shade).astype(np.uint8)
    return Image.fromarray(rgba)


def preview(image: Tensor) -> bytes:
    """uint8 [3, H, W] as a JPEG, its long side at most PREVIEW pixels."""
    small = overlay(image, max_side=PREVIEW, label=False)
    stream = io.BytesIO()
    Image.fromarray(small.permute(1, 2, 0).contiguous().numpy()).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def _data_url(picture: Image.Image, kind: str) -> str:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
