"""Dot maps: a black PNG of the image's size with a dot on each object.

    DATA/a.jpg, a_dots.png (or adots.png, a-dots.png)          DATA/images/a.jpg, dots/a.png

A pixel that is not black is a dot. `dots=pixels`: every such pixel is a point, at its centre. `dots=groups`: pixels that touch,
corners included, are one point, at their middle, as painted with a brush. `dots=auto`: pixels, when at least half of the groups
are single pixels or papm wrote the map, else groups. Two points on one pixel are one dot. Pixel origin: 0.5, for a dot's
coordinate is the index of its pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from papm.data.base import Annotation
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.writers.base import DOT_NOTE
from papm.errors import DataError
from papm.images import image_size, read_image

ORIGIN = 0.5
FOLDERS = frozenset({"dots", "dot_maps", "dotmaps"})
ENDINGS = ("_dots", "dots", "-dots")
WAYS = ("auto", "pixels", "groups")
_MOST = 0.5  # a map with more dots than that is a photograph, or white where it should be black


def dot_names(stem: str, folder: Path) -> Sequence[str]:
    """The dot maps that an image of that stem may have in a folder."""
    own = (f"{stem}.png",) if FOLDERS & {folder.name.lower(), folder.parent.name.lower()} else ()
    return (*own, *(f"{stem}{e}.png" for e in ENDINGS))


def looks_like_dots(path: Path) -> int:
    """Whether an image is mostly black."""
    try:
        return SURELY if float((read_image(path) > 0).any(0).float().mean()) <= _MOST else NO
    except DataError:  # its name says what it should be; reading it says what is wrong with it
        return MAYBE


def read_dots(path: Path, image: Path, context: Context) -> Annotation:
    """The dots of one map."""
    size, own = image_size(image), image_size(path)
    if size != own:
        raise DataError(
            f"{path}: the dot map is {own[1]}×{own[0]}, its image {size[1]}×{size[0]}; they must be the same"
        )
    lit = (read_image(path) > 0).any(0).numpy()
    if lit.mean() > _MOST:
        raise DataError(
            f"{path}: more than half of the pixels are not black; a dot map is black with a dot on each object"
        )
    rows, columns = np.nonzero(lit)
    xy = np.stack([columns, rows], 1).astype(np.float64)
    if len(xy) and context.dots != "pixels":
        from scipy import ndimage

        groups = ndimage.label(lit, structure=np.ones((3, 3)))[0][rows, columns] - 1
        sizes = np.bincount(groups)
        if context.dots == "groups" or (2 * int((sizes == 1).sum()) < len(sizes) and not _is_ours(path)):
            xy = np.stack([np.bincount(groups, v) / sizes for v in xy.T], 1)
    return Annotation(torch.from_numpy((xy + context.origin).astype(np.float32)).reshape(-1, 2))


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path, formats=("PNG",)) as im:
            return im.info.get(DOT_NOTE[0]) == DOT_NOTE[1]
    except Exception:  # it was decoded above; whatever else is wrong with its text does not matter
        return False
