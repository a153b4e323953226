"""CARPK and PUCPR+: parked cars from above, each with a box.

    CARPK_devkit/data/{Images/20160331_NTU_00001.png, Annotations/20160331_NTU_00001.txt, ImageSets/{train,test}.txt}
    PUCPR+_devkit/data/{Images/*.jpg, Annotations/*.txt, ImageSets/{train,test}.txt}

A line of an annotation is `x1 y1 x2 y2 class`, the class always 1; the point of a car is the centre of its box. Pixel origin:
0, corners taken as positions; half a pixel of doubt is small against cars of 40 px.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.numbers import boxed, corners, number_rows
from papm.data.readers.published import Home, by_stem, entry, files, finish, named, named_folder, read_lists, subfolder
from papm.images import find_images, is_image_name

ORIGIN = 0.0
SPLITS = ("train", "val", "test")
_SUFFIX = {"carpk": ".png", "pucpr": ".jpg"}


def read_cars(path: Path, origin: float = ORIGIN) -> Annotation:
    """Cars of one annotation: the centre of each box, the box, and √(w·h) as extent."""
    rows, lines = number_rows(path, ("x1", "y1", "x2", "y2", "class"), least=4)
    boxes = corners(rows[:, :4])
    return boxed((boxes[:, :2] + boxes[:, 2:]) / 2, boxes, origin, lines=lines)


def _is_devkit(folder: Path) -> bool:
    lists = named_folder(folder, "imagesets")
    if lists is None or not any(named(lists, f"{s}.txt") for s in SPLITS):
        return False
    truth = named_folder(folder, "annotations")
    return truth is not None and named_folder(folder, "images") is not None and not files(truth, ".xml")


def _said(folder: Path) -> str | None:
    """Which dataset a folder's name speaks of, or that of one of the two folders it lies in."""
    absolute = folder.absolute()
    for place in (absolute, *list(absolute.parents)[:2]):
        for dataset in _SUFFIX:
            if dataset in place.name.lower():
                return dataset
    return None


def _home(dataset: str) -> Home:
    def surely(folder: Path) -> bool:
        """By its name, or without a telling one by its kind of images: CARPK has PNG files, PUCPR+ JPEG."""
        suffixes = {p.suffix.lower() for p in subfolder(folder, "images").iterdir() if is_image_name(p.name)}
        return _said(folder) == dataset or suffixes == {_SUFFIX[dataset]}

    return Home(
        dataset,
        lambda d: _is_devkit(d) and _said(d) in (dataset, None),
        "Images, Annotations and ImageSets/train.txt, or its devkit",
        depth=3,  # a folder that holds datasets/CARPK_devkit/data
        surely=surely,
    )


HOMES = {dataset: _home(dataset) for dataset in _SUFFIX}


def entries(root: Path, *, dataset: str, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of each list with the boxes that should belong to each."""
    folder = HOMES[dataset].find(root)
    pictures, truth, lists = (subfolder(folder, n) for n in ("images", "annotations", "imagesets"))
    images, known = by_stem(find_images(pictures)), files(truth, ".txt")
    faults: list[Fault] = Faults()
    listed = read_lists(lists, {split: split for split in SPLITS}, images, faults)
    out = {s: [entry(x.image, known.of(x.image.stem), read_cars, origin) for x in xs] for s, xs in listed.items()}
    return finish(out, faults)


for _name, _what, _images, _cars in (  # cars: Hsieh et al. 2017, Table 1
    ("carpk", "CARPK: car parks from a drone, 989 train / 459 test", (989, 459), 89_777),
    ("pucpr", "PUCPR+: a car park from a building, 100 train / 25 test", (100, 25), 16_456),
):
    register(
        Reader(
            name=_name,
            summary=_what,
            entries=partial(entries, dataset=_name),
            recognise=HOMES[_name].recognise,
            origin=ORIGIN,
            layout=f"{{Images/*{_SUFFIX[_name]}, Annotations/*.txt, ImageSets/{{train,test}}.txt}}",
            expected={"train": (_images[0], None), "test": (_images[1], None), "*": (sum(_images), _cars)},
            blank_is_empty=True,
            strays="never",
        )
    )
