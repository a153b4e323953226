"""Pictures of dots before and after they were moved, so that a number of pixels means something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from papm.draw import OUTLINE, PREDICTED, TRUTH

SIDE = 480  # px of a picture
LEAST = 64  # px of an image that are shown, so that one sees what it is of
FINE = 3  # drawn this many times larger and shrunk: smooth lines


def window(points: Tensor, size: tuple[int, int], wanted: float) -> tuple[int, int, int]:
    """(left, top, side) of a square of about `wanted` px inside the image (H, W), around the dot in the middle of the others.

    >>> window(torch.tensor([[10.0, 10.0], [200.0, 120.0], [390.0, 280.0]]), (300, 400), 100)
    (150, 70, 100)
    """
    h, w = size
    side = max(1, min(round(max(wanted, LEAST)), h, w))
    middle = points.new_tensor([w / 2, h / 2])
    if len(points):
        middle = points[(points - points.median(0).values).square().sum(-1).argmin()]
    left = int(min(max(0, round(float(middle[0]) - side / 2)), w - side))
    top = int(min(max(0, round(float(middle[1]) - side / 2)), h - side))
    return left, top, side


def draw_moved(image: Tensor, before: Tensor, after: Tensor, place: tuple[int, int, int]) -> Tensor:
    """uint8 [3, SIDE, SIDE]: a square of the image, rings where dots were, dots where they are, lines between where known.

    Lines are drawn where there are as many dots after as before: the k-th is then the same one.
    """
    left, top, side = place
    cut = image[:, top : top + side, left : left + side].expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    edge = SIDE * FINE
    sheet = Image.fromarray(cut).resize((edge, edge), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(sheet)
    zoom = edge / side
    was, now = ([((x - left) * zoom, (y - top) * zoom) for x, y in p.tolist()] for p in (before, after))
    thick = 2 * FINE
    if len(was) == len(now):
        for a, b in zip(was, now):
            pen.line((*a, *b), fill=OUTLINE, width=2 * thick)
            pen.line((*a, *b), fill=(255, 255, 255), width=thick)
    for at in was:
        _circle(pen, at, 7 * FINE, None, OUTLINE, 2 * thick)
        _circle(pen, at, 6.4 * FINE, None, TRUTH, thick)
    for at in now:
        _circle(pen, at, 4 * FINE, PREDICTED, OUTLINE, FINE)
    made = sheet.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(made).transpose(2, 0, 1).copy())


def _circle(
    pen: ImageDraw.ImageDraw,
    at: Sequence[float],
    radius: float,
    fill: tuple[int, int, int] | None,
    outline: tuple[int, int, int],
    width: int,
) -> None:
    x, y = at
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill, outline=outline, width=width)
