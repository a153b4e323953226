"""Annotations of published datasets, and of tools that pass over EXIF, in the frame of the upright image.

A photograph may be stored turned, with a tag that says how to show it. papm shows it upright; the points of the published
datasets are positions in the stored pixels, for MATLAB, the web browsers of their time and the code that published figures come
from all pass over the tag. So do ImageJ and QuPath. Where the tag exchanges the sides, and more of the points fit the upright
image than the stored one, they are taken to be upright already.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from papm.data.base import Annotation
from papm.images import orientation


def upright(annotation: Annotation, image: Path, size: tuple[int, int]) -> Annotation:
    """The annotation moved from the stored pixels of an image file to the upright image of `size` (H, W)."""
    how = orientation(image) if len(annotation.points) else 1
    stored = (size[1], size[0]) if how >= 5 else size
    if how == 1 or (how >= 5 and _fitting(annotation.points, size) > _fitting(annotation.points, stored)):
        return annotation
    boxes = annotation.boxes
    if boxes is not None:
        ends = turn(boxes.reshape(-1, 2), stored, how).reshape(-1, 2, 2)
        boxes = torch.cat([ends.amin(1), ends.amax(1)], 1)
    return replace(annotation, points=turn(annotation.points, stored, how), boxes=boxes)


def as_stored(points: Tensor, image: Path, size: tuple[int, int]) -> Tensor:
    """Points [n, 2] of the upright image of `size` (H, W) in its stored pixels, as a benchmark's server knows it."""
    how = orientation(image)
    return turn(points, size, {6: 8, 8: 6}.get(how, how))  # the others undo themselves


def turn(points: Tensor, stored: tuple[int, int], how: int) -> Tensor:
    """Points [n, 2] of the stored image of (H, W) in the upright one; `how` is the orientation of EXIF.

    >>> turn(torch.tensor([[0.5, 0.5]]), (20, 30), 6).tolist()  # the first pixel of a photograph that lies on its side
    [[19.5, 0.5]]
    """
    h, w = stored
    x, y = points.unbind(-1)
    if how in (2, 3, 7, 8):
        x = w - x
    if how in (3, 4, 6, 7):
        y = h - y
    return torch.stack([y, x] if how >= 5 else [x, y], -1)


def _fitting(points: Tensor, size: tuple[int, int]) -> int:
    limit = points.new_tensor([size[1], size[0]])
    return int(((points >= 0) & (points <= limit)).all(-1).sum())
