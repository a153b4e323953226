"""Label masks: a picture or an array of the image's size that says for each pixel which object it belongs to, 0 to none.

    DATA/images/a.jpg, masks/a.png (.tif, .npy)          DATA/a.jpg, a_cp_masks.png (of Cellpose), a_masks.png, a_mask.tif
    DATA/000_img.png, 000_masks.png                      as Cellpose is trained

An object's point is its centroid, its box the upright one around it, its size √area. `masks=values`: every value is one object;
of colours, every colour. `masks=parts`: every group of pixels of one value that touch, corners included. `masks=auto`: a mask
of one value is read as parts, one of several as values, unless most of these are in pieces: then it may be of classes, and is
refused. Masks of Cellpose are of values. Pixel origin: 0.5, for centroids are of the indices of pixels.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from papm.data.base import Annotation
from papm.data.formats.base import MAYBE, SURELY, Context, PerImage, register
from papm.data.formats.items import Item
from papm.data.readers.labelmask import Labels, numbered, objects, parts
from papm.data.readers.npyfile import load_npy
from papm.errors import DataError
from papm.images import image_size, read_values
from papm.text import n_of

logger = logging.getLogger(__name__)

WAYS = ("auto", "values", "parts")
_WORDS = ("_cp_masks", "_masks", "_mask", "_labels", "_label", "_instances")
_FILES = (".png", ".tif", ".tiff", ".npy")
_PICKLE = "_seg.npy"
_IMAGE_WORD = re.compile(r"(.+)_(?:img|image)", re.I)
_LOOKED_AT = 100  # values, to see whether they are in pieces
_CORNERS = np.ones((3, 3))


@register
class Masks(PerImage):
    """label masks (PNG, TIFF, NumPy; Cellpose): the centroid of each object"""

    name = "masks"
    layout = "images/NAME.jpg, masks/NAME.png, or NAME_masks.png (NAME_cp_masks.png) beside NAME.jpg"
    endings = (
        *(f"{folder}/{s}" for folder in ("masks", "mask", "labels", "instances") for s in _FILES),
        *(f"{word}{s}" for word in _WORDS for s in _FILES),
        _PICKLE,
    )
    origin = 0.5
    labels = False
    inside_only = True
    only_one = True
    last_resort = (_PICKLE,)
    pictures = ("_mask", "_cp_", "_label", "_instances", "_flows")
    leftovers = ("_flows.tif", "_cp_output.png", "_cp_outlines.png")  # of Cellpose

    def names(self, stem: str, endings: Sequence[str]) -> list[str]:
        """With those of Cellpose's training images.

        >>> Masks().names("000_img", ("_masks.png",))
        ['000_img_masks.png', '000_masks.png']
        """
        short = _IMAGE_WORD.fullmatch(stem)
        return [f"{s}{e}" for s in ((stem, short[1]) if short else (stem,)) for e in endings]

    def detect(self, path: Path) -> int:
        if path.name.endswith(_PICKLE):
            return MAYBE  # reading it says what to do
        try:
            several = len(np.unique(_values(path))) > 2
        except DataError:  # its name says what it should be; reading it says what is wrong with it
            return MAYBE
        return SURELY if several or _is_cellpose(path) else MAYBE

    def read(self, path: Path, image: Path, context: Context) -> Annotation:
        values, size = _values(path), image_size(image)
        if values.shape != size:
            own = f"{values.shape[1]}×{values.shape[0]}"
            raise DataError(f"{path}: the mask is {own}, its image {size[1]}×{size[0]}; they must be the same")
        found = objects(_separated(path, values, context.masks), context.origin)
        sizes = found.extents
        if sizes is not None and not bool((sizes > 1).any()):  # single pixels are points, and say nothing of sizes
            return replace(found, boxes=None, extents=None)
        return found

    def write(self, items: Iterable[Item], folder: Path) -> None:
        merged = 0
        (folder / "masks").mkdir(parents=True, exist_ok=True)
        for item in items:
            labels = np.zeros(item.size, dtype=np.int32)
            for number, (x, y) in enumerate(item.points, start=1):  # pixel indices plus a fraction of ±½
                labels[min(int(y + 0.5), item.size[0] - 1), min(int(x + 0.5), item.size[1] - 1)] = number
            merged += len(item.points) - int((labels > 0).sum())
            Image.fromarray(labels).save(folder / "masks" / f"{item.name}.tif", compression="tiff_deflate")
        if merged:
            logger.warning("%s on the pixel of another: lost in a mask", n_of(merged, "point"))


def _is_cellpose(path: Path) -> bool:
    return path.stem.endswith("_cp_masks")


def _values(path: Path) -> NDArray[Any]:
    """The mask [H, W] as whole numbers from 0; a colour is one number."""
    if path.name.endswith(_PICKLE):
        raise DataError(
            f"{path}: a pickle of Cellpose, which could run code and is not read; in Cellpose, File > Save masks as PNG/tif"
        )
    if path.suffix.lower() == ".npy":
        values = load_npy(path, kinds="fiub", expected="an array of labels, one for each pixel")
    else:
        values = read_values(path)
    if path.suffix.lower() != ".npy" and values.ndim == 3:
        if values.shape[-1] in (2, 4) and not values[..., :-1].any() and len(np.unique(values[..., -1])) > 1:
            raise DataError(
                f"{path}: objects are drawn in its transparency alone; save the mask with values, without alpha"
            )
        values = _of_colours(values)
    while values.ndim > 2 and 1 in values.shape:  # a stack or channels of one; an image may be 1 px wide
        values = values.squeeze(values.shape.index(1))
    if values.ndim != 2:
        shape = "×".join(map(str, values.shape))
        raise DataError(
            f"{path}: an array of {shape}; a mask has one value for each pixel of a picture, height × width"
        )
    if values.dtype.kind == "f" and not bool((np.isfinite(values) & (values == np.floor(values))).all()):
        raise DataError(f"{path}: has fractions; a mask has whole numbers, 0 where there is no object")
    if values.size and values.min() < 0:
        raise DataError(f"{path}: has negative values; a mask has 0 where there is no object, and 1, 2, … on objects")
    return values


def _of_colours(values: NDArray[Any]) -> NDArray[Any]:
    """Pixels [H, W, C] as one number each: the value where all channels agree, else the colour; alpha is left out."""
    channels = values[..., : 1 if values.shape[-1] < 3 else 3].astype(np.int64)
    if bool((channels == channels[..., :1]).all()):
        return channels[..., 0]
    packed: NDArray[Any] = channels @ np.array([65536, 256, 1])
    return packed


def _separated(path: Path, values: NDArray[Any], how: str) -> Labels:
    """The mask with a label for each object, 1 … n."""
    if values.size and values.min() > 0:
        raise DataError(f"{path}: no pixel is 0; a mask is 0 (black) where there is no object")
    labels = numbered(values)
    count = int(labels.max(initial=0))
    if how == "values" or (how == "auto" and _is_cellpose(path)):
        return labels
    if how == "parts" or count <= 1:
        return parts(labels, _CORNERS)
    seen = min(count, _LOOKED_AT)
    pieces = int(parts(labels, _CORNERS, most=seen).max())
    if pieces > 2 * seen:
        raise DataError(
            f"{path}: {n_of(seen, 'value')} in {pieces} separate parts, so they may be classes or soft edges; masks=parts makes"
            " every part an object, masks=values every value"
        )
    return labels
