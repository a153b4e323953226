"""CARPK and PUCPR+: parked cars from above, each with a box.

    CARPK_devkit/data/{Images/20160331_NTU_00001.png, Annotations/20160331_NTU_00001.txt, ImageSets/{train,test}.txt}
    PUCPR+_devkit/data/{Images/*.jpg, Annotations/*.txt, ImageSets/{train,test}.txt}

A line of an annotation is `x1 y1 x2 y2 class`, the class always 1. The point of a car is the centre of its box; box and size
are kept. An empty annotation is an empty car park. The folder may be `data`, the devkit, or one that holds one devkit or both.

Pixel origin: 0, corners taken as positions. Were they indices of the first and last pixel, the centre would lie half a pixel
further; not published, and small against cars of 40 px.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.published import (
    by_stem,
    cheaply,
    corners,
    extents,
    files,
    finish,
    named,
    named_folder,
    number_rows,
    only_one,
    read_list,
    search,
    tensor,
)
from papm.errors import DataError
from papm.images import find_images, is_image_name

ORIGIN = 0.0
SPLITS = ("train", "val", "test")
_SUFFIX = {"carpk": ".png", "pucpr": ".jpg"}
_DEPTH = 3  # a folder that holds datasets/CARPK_devkit/data


def read_cars(path: Path, origin: float = ORIGIN) -> Annotation:
    """Cars of one annotation: the centre of each box, the box, and √(w·h) as extent."""
    rows, lines = number_rows(path, ("x1", "y1", "x2", "y2", "class"), least=4)
    boxes = corners(rows[:, :4])
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return Annotation(tensor(centres, origin), boxes=tensor(boxes, origin), extents=extents(boxes), lines=lines)


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


def _looks_like(folder: Path) -> str | None:
    """Which dataset the images look like: CARPK has PNG files, PUCPR+ JPEG."""
    pictures = named_folder(folder, "images")
    try:
        suffixes = {p.suffix.lower() for p in pictures.iterdir() if is_image_name(p.name)} if pictures else set()
    except OSError:
        return None
    return next((d for d, s in _SUFFIX.items() if suffixes == {s}), None)


def _find(root: Path, dataset: str) -> list[Path]:
    """Devkits that are this dataset's by name, else those without a name that have its kind of images."""
    found = search(root, _is_devkit, _DEPTH)
    mine = [d for d in found if _said(d) == dataset]
    return mine or [d for d in found if _said(d) is None and _looks_like(d) == dataset]


def entries(root: Path, *, dataset: str, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of each list with the boxes that should belong to each."""
    found = _find(root, dataset) or [d for d in search(root, _is_devkit, _DEPTH) if _said(d) is None]
    folder = only_one(found, dataset, root)
    if folder is None:
        raise DataError(
            f"{root}: no {dataset} here; give the folder that holds Images, Annotations and ImageSets/train.txt, or its devkit"
        )
    pictures, truth, lists = (named_folder(folder, n) for n in ("images", "annotations", "imagesets"))
    assert pictures is not None and truth is not None and lists is not None
    images, known = by_stem(find_images(pictures)), files(truth, ".txt")
    out: dict[str, list[Entry]] = {}
    faults: list[Fault] = Faults()
    for split in SPLITS:
        path = named(lists, f"{split}.txt")
        if path is None:
            continue
        out[split] = []
        for listed in read_list(path, images, faults):
            annotation = known.get(listed.image.stem) or truth / f"{listed.image.stem}.txt"
            load = partial(read_cars, annotation, origin)
            out[split].append(Entry(listed.image.stem, listed.image, annotation, load))
    return finish(out, faults)


def _recognise(root: Path, dataset: str) -> bool:
    return len(_find(root, dataset)) == 1


for _name, _what, _images, _cars in (  # cars: Hsieh et al. 2017, Table 1
    ("carpk", "CARPK: car parks from a drone, 989 train / 459 test", (989, 459), 89_777),
    ("pucpr", "PUCPR+: a car park from a building, 100 train / 25 test", (100, 25), 16_456),
):
    register(
        Reader(
            name=_name,
            summary=_what,
            entries=partial(entries, dataset=_name),
            recognise=cheaply(partial(_recognise, dataset=_name)),
            origin=ORIGIN,
            layout=f"{{Images/*{_SUFFIX[_name]}, Annotations/*.txt, ImageSets/{{train,test}}.txt}}",
            expected={"train": (_images[0], None), "test": (_images[1], None), "*": (sum(_images), _cars)},
            blank_is_empty=True,
            strays="never",
        )
    )
