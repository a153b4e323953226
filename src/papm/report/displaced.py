"""Pictures of dots before and after they were moved, so that a number of pixels means something."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from papm.draw import from_pil, overlay, to_pil
from papm.marks import OUTLINE

SIDE = 640  # px of a picture
LEAST = 64  # px of an image that are shown, so that one sees what it is of
FINE = 3  # lines are drawn this many times larger and shrunk: smooth


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
    was, now = ((p - p.new_tensor([left, top])) * (SIDE / side) for p in (before, after))
    cut = to_pil(image[:, top : top + side, left : left + side].expand(3, -1, -1))
    sheet = cut.resize((SIDE * FINE, SIDE * FINE), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(sheet)
    for ends in (FINE * torch.cat([was, now], 1)).tolist() if len(was) == len(now) else []:
        pen.line(ends, fill=OUTLINE, width=4 * FINE)
        pen.line(ends, fill=(255, 255, 255), width=2 * FINE)
    lined = from_pil(sheet.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    return overlay(lined, points=now, truth=was, min_side=None)
