"""Estimated maps on vehicles, and the same dilated.

The paper does not say what a dilation map is. Here: grey-scale dilation, the maximum of the response within `RADIUS` pixels,

    dilated(p) = max over |q − p| ≤ RADIUS of response(q)

so that a response of one cell can be seen, and how many there are. The response of a network of points is 1 at each point.
Each map is scaled by its own maximum, which the colours therefore do not compare; the counts are of the undilated maps.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.draw import coloured, number
from papm.errors import DataError
from papm.predict.prediction import Prediction
from papm.study.figures.base import Asked, Figure, Made, Trainings, drawn_study, register
from papm.study.figures.predictions import shown, side_by_side

METHODS = ("hd-papm", "al-papm", "p2p-papm")  # the paper's columns
RADIUS = 3.0  # px of the image
TOP = 0.8  # of the colours: beyond it they grow dark again


def trainings(steps: int) -> Trainings:
    """The three methods of the paper's figure on drawn vehicles."""
    return ((drawn_study(steps, METHODS, look="vehicles"), (0,)),)


def response(one: Prediction) -> tuple[Tensor, int]:
    """The map [h, w] of a prediction and its stride; 1 at each point where there is no map."""
    if one.density is not None:
        return one.density.sum(0) if one.density.ndim == 3 else one.density, one.stride
    if one.points is None:
        raise DataError(f"{one.name}: neither a map nor points to draw")
    h, w = one.size
    made = torch.zeros(h, w)
    column, row = one.points.detach().cpu().floor().long().unbind(-1)
    made[row.clamp(0, h - 1), column.clamp(0, w - 1)] = 1.0
    return made, 1


def dilated(field: Tensor, radius: float) -> Tensor:
    """The maximum of a map [h, w] within a disc of `radius` cells.

    >>> dilated(torch.tensor([[0.0, 0.0, 1.0, 0.0]]), 1.0).tolist()
    [[0.0, 1.0, 1.0, 1.0]]
    """
    reach = math.floor(radius)
    made = field.clone()
    padded = F.pad(field[None, None], [reach] * 4, value=float("-inf"))[0, 0]
    h, w = field.shape
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dy * dy + dx * dx <= radius * radius:
                made = torch.maximum(made, padded[reach + dy : reach + dy + h, reach + dx : reach + dx + w])
    return made


def dilation_map(one: Prediction, radius: float = RADIUS) -> Tensor:
    """uint8 [3, H, W]: the dilated response in the colours of density, dark where there is none."""
    field, stride = response(one)
    wide = field.clamp(min=0).repeat_interleave(stride, 0).repeat_interleave(stride, 1)[: one.size[0], : one.size[1]]
    level = dilated(wide, radius) / max(float(wide.max()), 1e-12)
    colours, shade = coloured(TOP * level)
    made = colours * shade[..., None] ** 0.5
    return torch.from_numpy(made.clip(0, 255).astype("uint8")).permute(2, 0, 1).contiguous()


def draw(asked: Asked) -> Made:
    """A row for each image: the image, then the estimated map and its dilation for each network."""

    def show(image: Tensor, name: str, one: Prediction) -> dict[str, Tensor]:
        return {f"{name}: {number(one.count)}": shown(image, one), f"{name}, dilated": dilation_map(one)}

    return side_by_side(
        asked, show, f"Dilated: the largest response within {RADIUS:g} px, each map scaled by its own maximum."
    )


FIGURE = register(
    Figure("vehicle-maps", "estimated and dilation maps of several networks on vehicles", "Figure 8", draw, trainings)
)
