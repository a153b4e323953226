"""BBBC039: 200 fluorescence images of U2OS cells, with a mask of every nucleus.

    ROOT/images/IXMtest_A02_s1_w1….tif       520 × 696, 12 bits of a camera in 16-bit files
    ROOT/masks/IXMtest_A02_s1_w1….png        red: 0 is background, nuclei that touch have different values (also `labels`)
    ROOT/metadata/{training,validation,test}.txt      the published split, 100 / 50 / 50

A nucleus is a group of mask pixels of one value that share sides; its point is the centroid, its size the root of its area.
Copies without `metadata` are divided in the order of their names: of every four images the third is for validation and the
fourth for testing. `min_area` leaves out specks: 894 of the 23,617 nuclei have fewer than 25 pixels, half have 625 or more.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from scipy import ndimage

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.published import (
    by_stem,
    cheaply,
    files,
    finish,
    named,
    named_folder,
    only_one,
    read_list,
    search,
    tensor,
)
from papm.errors import ConfigError, DataError
from papm.images import find_images, image_size, read_image

ORIGIN = 0.5  # centroids of pixel indices
WHITE = 4095  # of a camera of 12 bits
LISTS = {"train": "training", "val": "validation", "test": "test"}
_TURNS = ("train", "train", "val", "test")


def read_nuclei(path: Path, image: Path, min_area: int = 0) -> Annotation:
    """The nuclei of one mask that have at least `min_area` pixels."""
    mask = read_image(path)[0].numpy()
    if mask.shape != (size := image_size(image)):
        raise DataError(f"{path}: the mask is {mask.shape[0]}×{mask.shape[1]}, the image {size[0]}×{size[1]}")
    groups, count = np.zeros(mask.shape, np.int64), 0
    for value in np.unique(mask[mask > 0]):
        own, number = ndimage.label(mask == value)
        groups += np.where(own > 0, own + count, 0)
        count += number
    rows, columns = np.nonzero(groups)
    owner = groups[rows, columns] - 1
    area = np.bincount(owner, minlength=count)
    sums = np.stack([np.bincount(owner, weights=at, minlength=count) for at in (columns, rows)], 1)
    spans = [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(groups)]
    boxes = np.array(spans, dtype=np.float64).reshape(-1, 4)
    kept = area >= min_area
    return Annotation(
        tensor(sums[kept] / area[kept, None], ORIGIN), boxes=tensor(boxes[kept]), extents=tensor(np.sqrt(area[kept]))
    )


def _is_bbbc039(folder: Path) -> bool:
    images = named_folder(folder, "images")
    return images is not None and _masks(folder) is not None and any(images.glob("IXMtest_*.tif"))


def _masks(folder: Path) -> Path | None:
    return named_folder(folder, "masks", "labels")


def entries(root: Path, *, min_area: int = 0) -> dict[str, list[Entry]]:
    """Images of train, val and test with the mask that should belong to each."""
    if isinstance(min_area, bool) or not isinstance(min_area, int) or min_area < 0:
        raise ConfigError(f"min_area is a whole number of pixels, 0 or more, not {min_area!r}")
    folder = only_one(search(root, _is_bbbc039), "BBBC039", root)
    if folder is None:
        raise DataError(f"{root}: no BBBC039 here; give the folder that holds images/IXMtest_….tif and masks")
    pictures, masks = named_folder(folder, "images"), _masks(folder)
    assert pictures is not None and masks is not None
    faults: list[Fault] = Faults()
    known = files(masks, ".png")
    found: dict[str, list[Entry]] = {}
    for split, images in _split(folder, find_images(pictures), faults).items():
        found[split] = []
        for image in images:
            mask = known.get(image.stem) or masks / f"{image.stem}.png"
            load, pixels = partial(read_nuclei, mask, image, min_area), partial(read_image, image, white=WHITE)
            found[split].append(Entry(image.stem, image, mask, load, pixels=pixels))
    return finish(found, faults)


def _split(folder: Path, images: list[Path], faults: list[Fault]) -> dict[str, list[Path]]:
    """Images of each split: by the published lists, else by their turn."""
    lists = named_folder(folder, "metadata") or folder
    paths = {split: path for split, name in LISTS.items() if (path := named(lists, f"{name}.txt")) is not None}
    if paths:
        stems = by_stem(images)
        return {split: [x.image for x in read_list(path, stems, faults)] for split, path in paths.items()}
    turns = {split: [i for k, i in enumerate(images) if _TURNS[k % 4] == split] for split in LISTS}
    return {split: of_it for split, of_it in turns.items() if of_it}


register(
    Reader(
        name="bbbc039",
        summary="BBBC039: nuclei in fluorescence, 100 train / 50 val / 50 test",
        entries=entries,
        recognise=cheaply(lambda root: len(search(root, _is_bbbc039)) == 1),
        origin=ORIGIN,
        layout="{images/IXMtest_*.tif, masks/IXMtest_*.png, metadata/{training,validation,test}.txt}",
        # Points: counted in the masks; the dataset's page says "approximately 23,000".
        expected={"train": (100, None), "val": (50, None), "test": (50, None), "*": (200, 23_617)},
        strays="never",
    )
)
