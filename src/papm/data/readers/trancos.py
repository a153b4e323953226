"""TRANCOS: traffic jams from surveillance cameras, 640 × 480, with points, dot maps and a region of interest.

    TRANCOS/images/{image-1-000001.jpg, .txt (x y a line), …dots.png (red dots on black), …mask.mat (BW)}
    TRANCOS/image_sets/{training,validation,trainval,test}.txt

With `trainval=true` training and validation images take the place of `train`, as published figures are trained. Points outside
the mask are kept in `points`. Pixel origin: −0.5, measured: the text counts pixels from 1 (docs/datasets.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.matfile import load_mat
from papm.data.readers.numbers import number_rows, tensor
from papm.data.readers.published import Home, by_stem, entry, files, finish, named, named_folder, read_lists, subfolder
from papm.errors import DataError
from papm.images import find_images, image_size, read_image

ORIGIN = -0.5
LISTS = {"train": "training", "val": "validation", "test": "test", "trainval": "trainval"}
_DOT = 0.5  # pixel index to pixel centre


def read_points(path: Path, origin: float = ORIGIN) -> Annotation:
    """Vehicles of one text file, `x y` a line."""
    rows, lines = number_rows(path, ("x", "y"))
    return Annotation(tensor(rows, origin), lines=lines)


def read_dots(path: Path) -> Annotation:
    """Vehicles of one dot map: the pixels with red in them; coincident points have become one."""
    y, x = torch.nonzero(read_image(path)[0] > 0, as_tuple=True)
    return Annotation(torch.stack([x, y], 1).float() + _DOT)


def read_mask(path: Path, image: Path) -> Tensor:
    """Region of interest, bool [H, W], of one mask.mat (`BW`, nonzero where vehicles count)."""
    expected = "a MATLAB 5 file with BW of H × W numbers"
    mask = np.asarray(load_mat(path, "BW", expected=expected)["BW"])
    size = image_size(image)
    if mask.dtype.kind not in "fiub" or mask.shape != size:
        shape = "×".join(map(str, mask.shape))
        raise DataError(f"{path}: BW is {shape} of {mask.dtype}, the image is {size[0]}×{size[1]}; expected {expected}")
    return torch.from_numpy(mask != 0)


def _is_trancos(folder: Path) -> bool:
    lists = named_folder(folder, "image_sets")
    return (
        named_folder(folder, "images") is not None
        and lists is not None
        and any(named(lists, f"{name}.txt") for name in ("training", "trainval", "test"))
    )


HOME = Home("TRANCOS", _is_trancos, "images and image_sets/training.txt")


def entries(
    root: Path,
    *,
    points: Literal["auto", "txt", "dots"] = "auto",
    roi: bool = True,
    trainval: bool = False,
    origin: float = ORIGIN,
) -> dict[str, list[Entry]]:
    """Images of each list. `points` is txt, dots, or auto (txt where there is one); `roi=false` leaves the masks aside."""
    folder = HOME.find(root)
    pictures, lists = subfolder(folder, "images"), subfolder(folder, "image_sets")
    known = by_stem(i for i in find_images(pictures) if not i.stem.endswith("dots"))
    text, dots, masks = (files(pictures, suffix) for suffix in (".txt", ".png", ".mat"))
    faults: list[Fault] = Faults()

    def one(image: Path, needs_mask: bool) -> Entry:
        stem = image.stem
        if points == "dots" or (points == "auto" and stem not in text and f"{stem}dots" in dots):
            made = entry(image, dots.of(f"{stem}dots"), read_dots)
        else:
            made = entry(image, text.of(stem), read_points, origin)
        mask = masks.get(f"{stem}mask")
        if mask is None and needs_mask:
            message = f"its region of interest {stem}mask.mat is missing; fetch it, or open with roi=false"
            faults.append(Fault(image, None, message))
        return made if mask is None or not roi else replace(made, roi=partial(read_mask, mask, image))

    listed = read_lists(lists, LISTS, known, faults)
    found = {s: [one(x.image, roi and s != "trainval") for x in xs] for s, xs in listed.items()}
    if trainval:
        whole = found.pop("trainval", None) or [*found.get("train", ()), *found.get("val", ())]
        found = {"train": whole} | {s: es for s, es in found.items() if s == "test"}
    return finish(found, faults)


register(
    Reader(
        name="trancos",
        summary="TRANCOS: traffic jams with regions of interest, 403 train / 420 val / 421 test",
        entries=entries,
        recognise=HOME.recognise,
        origin=ORIGIN,
        layout="{images/image-1-000001{.jpg,.txt,dots.png,mask.mat}, image_sets/{training,validation,trainval,test}.txt}",
        expected={"train": (403, 13_543), "val": (420, 16_541), "test": (421, 16_666), "trainval": (823, 30_084)},
        strays="never",
    )
)
