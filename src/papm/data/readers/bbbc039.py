"""BBBC039: 200 fluorescence images of U2OS cells, with a mask of every nucleus.

    BBBC039/images/IXMtest_A02_s1_w1….tif                520 × 696, 12 bits of a camera in 16-bit files
    BBBC039/masks/IXMtest_A02_s1_w1….png                 red: 0 is background, nuclei that touch have different values
    BBBC039/metadata/{training,validation,test}.txt      the published split, 100 / 50 / 50

A nucleus is a group of mask pixels of one value that share sides; its point is the centroid, its size the root of its area.
Copies without `metadata` are divided in the order of their names: of every four images the third is for validation and the
fourth for testing. `min_area` leaves out specks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.labelmask import ORIGIN, numbered, objects, parts
from papm.data.readers.published import Home, by_stem, entry, files, finish, named_folder, read_lists, subfolder
from papm.errors import DataError
from papm.images import find_images, image_size, read_image
from papm.registry import Whole

WHITE = 4095  # of a camera of 12 bits
LISTS = {"train": "training", "val": "validation", "test": "test"}
_MASKS = ("masks", "labels")
_TURNS = ("train", "train", "val", "test")


def read_nuclei(path: Path, image: Path, min_area: int = 0) -> Annotation:
    """The nuclei of one mask that have at least `min_area` pixels."""
    mask = read_image(path)[0].numpy()
    if mask.shape != (size := image_size(image)):
        raise DataError(f"{path}: the mask is {mask.shape[0]}×{mask.shape[1]}, the image {size[0]}×{size[1]}")
    return objects(parts(numbered(mask)), ORIGIN, min_area)


def _is_bbbc039(folder: Path) -> bool:
    images = named_folder(folder, "images")
    return images is not None and named_folder(folder, *_MASKS) is not None and any(images.glob("IXMtest_*.tif"))


HOME = Home("BBBC039", _is_bbbc039, "images/IXMtest_….tif and masks")


def entries(root: Path, *, min_area: Whole = 0) -> dict[str, list[Entry]]:
    """Images of train, val and test with the mask that should belong to each."""
    folder = HOME.find(root)
    images, masks = find_images(subfolder(folder, "images")), files(subfolder(folder, *_MASKS), ".png")
    faults: list[Fault] = Faults()
    lists = read_lists(named_folder(folder, "metadata") or folder, LISTS, by_stem(images), faults)
    splits = {split: [x.image for x in listed] for split, listed in lists.items()}
    if not lists:
        splits = {split: [i for k, i in enumerate(images) if _TURNS[k % 4] == split] for split in LISTS}

    def one(image: Path) -> Entry:
        made = entry(image, masks.of(image.stem), read_nuclei, image, min_area)
        return replace(made, pixels=partial(read_image, image, white=WHITE))

    return finish({split: [one(image) for image in of_it] for split, of_it in splits.items() if of_it}, faults)


register(
    Reader(
        name="bbbc039",
        summary="BBBC039: nuclei in fluorescence, 100 train / 50 val / 50 test",
        entries=entries,
        recognise=HOME.recognise,
        origin=ORIGIN,
        layout="{images/IXMtest_*.tif, masks/IXMtest_*.png, metadata/{training,validation,test}.txt}",
        # Points: counted in the masks; the dataset's page says "approximately 23,000".
        expected={"train": (100, None), "val": (50, None), "test": (50, None), "*": (200, 23_617)},
        strays="never",
    )
)
