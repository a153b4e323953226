"""Dot maps: a black PNG of the image's size with a dot on each object.

    DATA/a.jpg, a_dots.png (or adots.png, a-dots.png)          DATA/images/a.jpg, dots/a.png
    DATA/001cell.png, 001dots.png                              DATA/X_000.png (or X_img_000.png), X_dots_000.png

A pixel that is not black is a dot. `dots=pixels`: every such pixel is a point, at its centre. `dots=groups`: pixels that touch,
corners included, are one point, at their middle, as painted with a brush. `dots=auto`: pixels, when at least half of the groups
are single pixels or papm wrote the map, else groups. Two points on one pixel are one dot. Pixel origin: 0.5, for a dot's
coordinate is the index of its pixel.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from papm.data.base import Annotation
from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, register
from papm.data.formats.items import Item
from papm.errors import DataError
from papm.images import image_size, read_image

logger = logging.getLogger(__name__)

ENDINGS = ("_dots.png", "dots.png", "-dots.png")
WAYS = ("auto", "pixels", "groups")
# As published: a word for the picture, in whose place the map has "dots", and a number after it.
_PUBLISHED = re.compile(r"(?P<head>.*?)(?P<word>[_-]?(?:cells?|images?|imgs?))?(?P<number>[_-][0-9]+)?", re.I)
_NOTE = ("papm", "every pixel is a point")  # in the text of the maps that papm wrote
_MOST = 0.5  # a map with more dots than that is a photograph, or white where it should be black


@register
class DotMap(PerImage):
    """dot maps: black PNGs with a dot on each object"""

    name = "dotmap"
    layout = "images/NAME.jpg, dots/NAME.png, or NAME_dots.png beside NAME.jpg (001dots.png beside 001cell.png)"
    endings = ("dots/.png", "dot_maps/.png", "dotmaps/.png", *ENDINGS)
    origin = 0.5
    labels = False
    inside_only = True
    only_one = True
    pictures = ("dots",)

    def names(self, stem: str, endings: Sequence[str]) -> list[str]:
        """With the names of published maps.

        >>> DotMap().names("001cell", ("_dots.png", "dots.png")), DotMap().names("X_000", ("_dots.png",))
        (['001cell_dots.png', '001celldots.png', '001_dots.png', '001dots.png'], ['X_000_dots.png', 'X_dots_000.png'])
        """
        parts = _PUBLISHED.fullmatch(stem)
        head, number = (parts["head"], parts["number"] or "") if parts else (stem, "")
        marked = [e.removesuffix(".png") for e in endings if e in ENDINGS]
        published = [f"{head}{e}{number}.png" for e in marked] if head != stem else []
        return [*super().names(stem, endings), *published]

    def detect(self, path: Path) -> int:
        try:
            return SURELY if float((read_image(path) > 0).any(0).float().mean()) <= _MOST else NO
        except DataError:  # its name says what it should be; reading it says what is wrong with it
            return MAYBE

    def read(self, path: Path, image: Path, context: Context) -> Annotation:
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

    def write(self, items: Iterable[Item], folder: Path) -> None:
        merged = 0
        note = PngInfo()
        note.add_text(*_NOTE)
        (folder / "dots").mkdir(parents=True, exist_ok=True)
        for item in items:
            lit = np.zeros(item.size, dtype=np.uint8)
            for x, y in item.points:  # pixel indices plus a fraction of ±½
                lit[min(int(y + 0.5), item.size[0] - 1), min(int(x + 0.5), item.size[1] - 1)] = 255
            merged += len(item.points) - int((lit > 0).sum())
            Image.fromarray(lit).save(folder / "dots" / f"{item.name}.png", pnginfo=note)
        if merged:
            logger.warning("%d points fall on the pixel of another and are lost in a dot map", merged)


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path, formats=("PNG",)) as im:
            return im.info.get(_NOTE[0]) == _NOTE[1]
    except Exception:  # it was decoded above; whatever else is wrong with its text does not matter
        return False
