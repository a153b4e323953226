"""ShanghaiTech A and B: JPEG images with MATLAB files of head positions.

    ROOT/part_A_final/{train,test}_data/{images/IMG_k.jpg, ground_truth/GT_IMG_k.mat}

`part_A` and `ground-truth` (as in a widely used copy) do as well, and ROOT may be the part's folder itself. Points outside
their image are kept: they count in published figures.

Pixel origin: −0.5. The files come from MATLAB, where the centre of the first pixel is 1 and an image spans [0.5, W + 0.5].
Checked on part A, where three readings are possible (x_ours = x_file + origin):

    file coordinates        origin   gradient-symmetry axis it predicts   border it predicts
    0-based pixel indices    +0.5     0                                   [-0.5, W - 0.5]
    0-based, as ours          0      -0.5                                 [0, W]
    1-based (MATLAB)         -0.5    -1                                   [0.5, W + 0.5]

1. Heads are symmetric left to right on average. The mean gradient magnitude along the row through each point (461 images,
   up to 500 points each) is mirror-symmetric about array column x_file − 1.0; bootstrap over images, 95 %: −1.1 … −0.85.
   Two smoothing widths and two window widths give −0.95 … −1.05; a third of the training images alone −0.8, wherever the
   window is centred. (Mean brightness is too flat to decide, −1.6 … 2.5; local variance only echoes the window's centre.)
2. The border [e, W + e] at which as many points lie near the left as near the right edge has e = 0.40 (90 %: 0.29 … 0.48).
   Images whose longer side is not 1024 give 0.48 (0.34 … 0.68) with strips of 2 px and 0.66 (0.48 … 0.80) with 4 px; those of
   exactly 1024 give 0.28 and 0.16: they look as if annotated larger and scaled down together with their coordinates, which
   shrinks the half pixel by the same factor.
3. No coordinate equals 0, 0.5, 1 or W exactly, so there is no clipping to read a limit from, and single crops with both
   dots drawn do not tell half a pixel apart.

So −0.5 is supported by content and by borders; the remaining doubt is below half a pixel. With it 17 points of part A fall
out of their image and 16 come in: 294 train / 108 test points lie outside in the files' coordinates, 294 / 109 in ours.
Part B was not examined; the same origin is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import MAX_COORDINATE
from papm.data.readers.matfile import load_mat
from papm.errors import DataError
from papm.images import find_images

ORIGIN = -0.5
# Images and points of the release; of part B the total that its paper gives (Zhang et al. 2016, Table 1).
EXPECTED: dict[str, dict[str, tuple[int, int | None]]] = {
    "A": {"train": (300, 162_707), "test": (182, 78_970)},
    "B": {"train": (400, None), "test": (316, None), "*": (716, 88_488)},
}
SPLITS = ("train", "test")
GROUND_TRUTH = ("ground_truth", "ground-truth")


def read_points(path: Path, origin: float = ORIGIN) -> Annotation:
    """Head positions of one GT_IMG_k.mat: `image_info{1}.location`, n × 2, as (x, y)."""
    expected = "a MATLAB 5 file with image_info{1}.location of n × 2 numbers"
    info = _unwrap(load_mat(path, "image_info", expected=expected)["image_info"])
    if not isinstance(info, np.ndarray | np.void) or "location" not in (info.dtype.names or ()):
        raise DataError(f"{path}: 'image_info' has no field 'location'; expected {expected}")
    location = np.asarray(_unwrap(info["location"]))
    if location.size == 0:
        return Annotation(torch.zeros(0, 2))
    if location.dtype.kind not in "fiu" or location.ndim != 2 or location.shape[1] != 2:
        shape = "×".join(map(str, location.shape))
        raise DataError(f"{path}: 'location' is {shape} of {location.dtype}; expected {expected}")
    xy = location.astype(np.float64)
    bad = np.flatnonzero(~(np.abs(xy) <= MAX_COORDINATE).all(1))  # NaN compares false
    if len(bad):
        x, y = xy[bad[0]]
        raise DataError(f"{path}: row {bad[0] + 1} of 'location' is ({x:g}, {y:g}), not a pixel position")
    return Annotation(torch.from_numpy((xy + origin).astype(np.float32)))


def entries(root: Path, *, part: str, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of each split with the .mat file that should belong to each. `origin=0` keeps the files' coordinates."""
    folder = _part_folder(root, part)
    if folder is None:
        raise DataError(
            f"{root}: no ShanghaiTech part {part} here; give the folder that holds part_{part}_final/"
            "{train,test}_data/{images,ground_truth}, or part_" + part + "_final itself"
        )
    found: dict[str, list[Entry]] = {}
    for split in SPLITS:
        base = folder / f"{split}_data"
        if not base.is_dir():
            continue
        images = find_images(base / "images") if (base / "images").is_dir() else []
        if not images:
            raise DataError(f"{base / 'images'}: no images here; expected IMG_1.jpg, IMG_2.jpg, …")
        truth = next((base / g for g in GROUND_TRUTH if (base / g).is_dir()), None)
        if truth is None:
            raise DataError(f"{base}: no folder 'ground_truth' (or 'ground-truth') beside 'images'")
        found[split] = [_entry(image, truth / f"GT_{image.stem}.mat", origin) for image in images]
    return found


def _entry(image: Path, annotation: Path, origin: float) -> Entry:
    return Entry(image.stem, image, annotation, partial(read_points, annotation, origin))


def _unwrap(value: Any) -> Any:
    """MATLAB cells and structs of one element, down to what they hold."""
    while isinstance(value, np.ndarray) and value.dtype == object and value.size == 1:
        value = value.reshape(-1)[0]
    return value


def _is_part(folder: Path) -> bool:
    return any((folder / f"{s}_data" / "images").is_dir() for s in SPLITS)


def _part_named(folder: Path) -> str | None:
    """'A' or 'B' when a folder's name says which part it is."""
    for name in (folder.absolute().name, folder.resolve().name):
        if match := re.fullmatch(r"part[_-]?([ab])(_final)?", name.lower()):
            return match[1].upper()
    return None


def _part_folder(root: Path, part: str) -> Path | None:
    """The folder of a part: below the root or one level further down, else the root itself if not the other part's."""
    if not root.is_dir():
        return None
    if _is_part(root):
        return root if _part_named(root) in (part, None) else None
    children = sorted(d for d in root.iterdir() if d.is_dir())
    for place in (root, *children):
        for name in (f"part_{part}_final", f"part_{part}", f"part_{part.lower()}_final", f"part_{part.lower()}"):
            if _is_part(place / name):
                return place / name
    return None


def _recognise(part: str) -> Callable[[Path], bool]:
    other = "B" if part == "A" else "A"

    def recognise(root: Path) -> bool:
        """Only when the folder says which part it is: named so, or holding this part and not the other."""
        if not root.is_dir():
            return False
        if _is_part(root):
            return _part_named(root) == part
        return _part_folder(root, part) is not None and _part_folder(root, other) is None

    return recognise


for _part, _what in (
    ("A", "crowds from the web, 300 train / 182 test"),
    ("B", "streets of Shanghai, 400 train / 316 test"),
):
    register(
        Reader(
            name=f"shanghaitech-{_part.lower()}",
            summary=f"ShanghaiTech part {_part}: {_what}",
            entries=partial(entries, part=_part),
            recognise=_recognise(_part),
            origin=ORIGIN,
            expected=EXPECTED[_part],
            layout=f"part_{_part}_final/{{train,test}}_data/{{images/IMG_k.jpg, ground_truth/GT_IMG_k.mat}}",
        )
    )
