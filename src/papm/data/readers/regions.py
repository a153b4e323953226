"""Regions of interest of people's own images: the part of an image in which objects count.

    DATA/roi/NAME.png       a mask as large as the image NAME.jpg, black where objects do not count
    DATA/roi/all.png        the mask of every image that has none of its own, as for a fixed camera
    DATA/roi.json           polygons: {"NAME.jpg": [[[x, y], [x, y], …], …], "*": …}; "*" is every other image

They may lie beside the images, beside `images/`, or at the top; `roi/train/NAME.png` is of the split `train`. The nearest wins,
a mask before polygons, an image's own before that of all. Several polygons together are the region, a pixel belongs to it
when its centre does, and an empty list is an image in which nothing counts. An image without any counts as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.data.base import Entry
from papm.data.formats.jsonfile import load_json, need
from papm.data.readers.faults import coordinate, safe_relative
from papm.data.readers.published import files
from papm.errors import DataError
from papm.images import image_size, read_image

EVERY = "all"
_MOST_CORNERS = 100_000

Polygons = Sequence[NDArray[np.float64]]  # each [n, 2]
SizeOf = Callable[[Path], tuple[int, int]]


def with_regions(found: Mapping[str, Sequence[Entry]], lying: Mapping[str, Sequence[Path]]) -> dict[str, list[Entry]]:
    """The entries of each split, each with the region that lies there for its image.

    `lying` has the masks and tables of each split; those of `all` hold for the splits that a table makes of one folder.
    """
    sources = {split: [_source(path) for path in paths] for split, paths in lying.items()}

    def region(split: str, image: Path) -> Callable[[], Tensor] | None:
        said = (source(image) for source in sources.get(split, sources.get("all", ())))
        return next((region for region in said if region is not None), None)

    return {split: [replace(e, roi=region(split, e.image)) for e in entries] for split, entries in found.items()}


def read_mask(path: Path, image: Path, size_of: SizeOf = image_size) -> Tensor:
    """Region of interest, bool [H, W], of a mask: the pixels that are not black."""
    mask = read_image(path).amax(0) > 0
    size = size_of(image)
    if tuple(mask.shape) != size:
        region, whole = (f"{w}×{h}" for h, w in (mask.shape, size))
        raise DataError(f"{path}: a region of interest of {region} pixels, the image {image.name} is {whole}")
    return mask


def open_regions(path: Path, size_of: SizeOf = image_size) -> Callable[[Path], Tensor | None]:
    """The regions a user names for images anywhere: a mask for all of them, a folder of masks, or polygons (`roi.json`).

    `size_of` says how large the picture in a file is, (H, W).
    """
    if not path.exists():
        raise DataError(f"{path}: no such mask, folder of masks or table of polygons")
    if path.is_dir() and not files(path, ".png"):
        raise DataError(f"{path}: there are no masks (NAME.png) in this folder")
    source = _source(path, size_of)

    def region(image: Path) -> Tensor | None:
        found = source(image)
        return None if found is None else found()

    return region


def read_polygons(path: Path) -> dict[str, Polygons]:
    """Polygons by image, or by `*` for the other images, of a roi.json."""
    content = load_json(path)
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected {{"NAME.jpg": [[[x, y], …], …]}}, polygons by image')
    out: dict[str, Polygons] = {}
    for name, polygons in content.items():
        try:
            key = name if name == "*" else safe_relative(name).name
            listed = need(polygons, list, f"found {str(polygons)[:40]}, expected a list of polygons")
            out[key] = [_polygon(p) for p in listed]
        except ValueError as e:
            raise DataError(f"{path}: the region of {name[:80]!r}: {e}") from e
    return out


def inside(polygons: Polygons, size: tuple[int, int]) -> Tensor:
    """bool [H, W]: pixels whose centre lies in one of the polygons [n, 2]; where one crosses itself, even-odd.

    >>> inside([np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 2.0], [1.0, 2.0]])], (3, 4)).int().tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    h, w = size
    region = np.zeros((h, w), dtype=bool)
    for k in range(0, len(polygons), 8):
        some = polygons[k : k + 8]
        y = np.concatenate(some)[:, 1]
        top, bottom = (int(np.clip(v, 0, h)) for v in (np.floor(y.min()), np.ceil(y.max())))
        # Along a row each edge that is crossed turns inside to outside from there on; every polygon has a bit.
        turns = np.zeros((bottom - top, w + 1), dtype=np.uint8)
        for bit, corners in enumerate(some):
            _cross(turns, top, corners, 1 << bit)
        region[top:bottom] |= np.bitwise_xor.accumulate(turns[:, :w], axis=1) != 0
    return torch.from_numpy(region)


def _cross(turns: NDArray[np.uint8], top: int, corners: NDArray[np.float64], bit: int) -> None:
    """Turn a bit of [rows from `top`, w + 1] at the first pixel whose centre is not left of an edge, in each row it crosses."""
    rows, w = turns.shape[0], turns.shape[1] - 1
    flat, start, centre = turns.reshape(-1), np.arange(rows) * (w + 1), np.arange(top, top + rows) + 0.5
    after = np.roll(corners, -1, 0)
    low, high = np.minimum(corners[:, 1], after[:, 1]), np.maximum(corners[:, 1], after[:, 1])
    first, last = (np.clip(np.ceil(v - 0.5), top, top + rows).astype(np.int64) - top for v in (low, high))
    crossed = first < last
    run, rise = (after - corners)[crossed].T
    # One edge at a time and in place: with thousands of edges this is where the time goes.
    for x, y, slope, a, b in zip(
        *(v.tolist() for v in (*corners[crossed].T, run / rise, first[crossed], last[crossed]))
    ):
        at = centre[a:b] - y
        at *= slope
        at += x
        at -= 0.5
        np.clip(np.ceil(at, out=at), 0, w, out=at)
        flat[start[a:b] + at.astype(np.int64)] ^= bit


def _polygon(value: Any) -> NDArray[np.float64]:
    corners = need(value, list, f"found {str(value)[:40]}, expected a polygon of corners [x, y]")
    if not 3 <= len(corners) <= _MOST_CORNERS:
        raise ValueError(f"a polygon of {len(corners)} corners; it needs three, and {_MOST_CORNERS:,} at most")
    xy = [[coordinate(v, axis) for v, axis in zip(_pair(c), "xy")] for c in corners]
    return np.array(xy, dtype=np.float64)


def _pair(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"a corner is {str(value)[:40]}, expected [x, y]")
    return value


# --- which there is for an image ---------------------------------------------------------------------------------------

Source = Callable[[Path], Callable[[], Tensor] | None]  # the region of an image, where there is one


def _source(path: Path, size_of: SizeOf = image_size) -> Source:
    """What a folder of masks, a table of polygons, or a mask of every image says."""
    if path.suffix.lower() == ".json":
        polygons = read_polygons(path)

        def drawn(image: Path) -> Callable[[], Tensor] | None:
            name = next((n for n in (image.name, image.stem, "*") if n in polygons), None)
            return None if name is None else partial(_drawn, polygons[name], image, size_of)

        return drawn
    masks = files(path, ".png") if path.is_dir() else {EVERY: path}

    def masked(image: Path) -> Callable[[], Tensor] | None:
        mask = masks.get(image.stem) or masks.get(EVERY)
        return None if mask is None else partial(read_mask, mask, image, size_of)

    return masked


def _drawn(polygons: Polygons, image: Path, size_of: SizeOf) -> Tensor:
    return inside(polygons, size_of(image))
