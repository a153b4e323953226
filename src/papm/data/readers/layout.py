"""Where a folder dataset keeps its images, its splits, its annotations and its regions of interest."""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from papm.data.readers.faults import AnnotationError, Faults
from papm.data.readers.published import by_stem, read_lists
from papm.errors import DataError
from papm.images import find_images, find_unread, natural_key, passed_over
from papm.text import n_of

logger = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
IMAGE_DIRS = ("images", "imgs", "img", "image", "jpegimages", "obj_train_data")
LABEL_DIRS = (
    *("labels", "points", "annotations", "ground_truth", "ground-truth", "gt", "txt", "xml", "xmls", "json", "jsons"),
    *("dots", "dot_maps", "dotmaps", "masks", "mask", "instances"),
)
_ORDER = ("train", "val", "test", "all")


@dataclass(frozen=True)
class Place:
    """The images of one split and the folders where their annotations may lie, nearest first."""

    split: str
    image_dir: Path
    images: tuple[Path, ...]
    dirs: tuple[Path, ...]
    label_dir: Path | None = None  # the folder made for annotations, if there is one

    @cached_property
    def files(self) -> tuple[Mapping[str, Path], ...]:
        """The files of each of `dirs` by name, the suffix in lower case; also by that name as `nfc`."""
        out = []
        for folder in self.dirs:
            named = {p.stem + p.suffix.lower(): p for p in listed(folder) if not p.name.startswith(".")}
            out.append({nfc(name): p for name, p in named.items()} | named)
        return tuple(out)


def nfc(name: str) -> str:
    """A name with every accent as part of its letter: macOS writes ä as a and two dots, others as one character."""
    return unicodedata.normalize("NFC", name)


def uploaded_name(name: str) -> str:
    """A file name as it is after an upload to Label Studio (and to most that is made with Django).

    Blanks are underscores, and what is neither a letter, a digit, nor one of -_. is gone.

    >>> uploaded_name("Plot 3 (left).jpg")
    'Plot_3_left.jpg'
    """
    return re.sub(r"[^-\w.]", "", nfc(name).strip().replace(" ", "_"))


def split_named(folder: str) -> str | None:
    """The split that a folder is for, by its name, which may end with a year.

    >>> split_named("train2017"), split_named("Valid"), split_named("trainer")
    ('train', 'val', None)
    """
    return SPLIT_NAMES.get(re.sub(r"[_-]?(?:19|20)[0-9]{2}$", "", folder.lower()))


def split_of(path: Path) -> str | None:
    """The split a file's name speaks of.

    >>> split_of(Path("instances_val2017.json"))
    'val'
    """
    return next((SPLIT_NAMES[w] for w in re.split(r"[^a-z]+", path.stem.lower()) if w in SPLIT_NAMES), None)


def listed(folder: Path) -> list[Path]:
    """What lies in a folder, in the order of its names."""
    try:
        return sorted(folder.iterdir())
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e


def label_dirs(folder: Path) -> list[Path]:
    """Sub-folders for annotations, by what they are called."""
    return _named(folder, LABEL_DIRS)


def find_regions(root: Path, place: Place) -> list[Path]:
    """The folders of masks (`roi`) and tables of polygons (`roi.json`) that lie with a place's images, nearest first."""
    out: list[Path | None] = []
    for top in (place.image_dir, *(p for p in place.image_dir.parents if p == root or root in p.parents)):
        folder = next(iter(_named(top, ("roi",))), None)
        deeper = (
            None if folder is None else next(iter(_named(folder, (place.image_dir.name.lower(), place.split))), None)
        )
        out += [deeper, folder, *(p for p in listed(top) if p.name.lower() == "roi.json")]
    return [p for p in out if p is not None]


def find_places(root: Path) -> list[Place]:
    """The splits of a folder with their images; DataError when there are no images at all."""
    if not root.is_dir():
        raise DataError(f"{root}: not a folder; give the folder that holds the images and their points")
    found = _split_folders(root) or _split_images(root)
    if not found and (whole := _image_dir(root)):
        everything = _place("all", *whole, label_dirs(root), root)
        found = _listed_splits(root, everything) or [everything]
    places: dict[str, Place] = {}
    for place in found:
        if first := places.get(place.split):
            raise DataError(
                f"{root}: two folders for the split '{place.split}', {first.image_dir} and {place.image_dir}"
            )
        places[place.split] = place
    if not places:
        unread = (root, *_named(root, IMAGE_DIRS), *without_images(root, ()))
        other = passed_over(p for folder in unread for p in find_unread(folder))
        where = "no images here, nor in its sub-folders train, val, test or images"
        raise DataError(f"{root}: {where}{other and f'; {other}'}")
    return [places[s] for s in _ORDER if s in places]


def tell_passed_over(root: Path, places: Sequence[Place], read: Collection[Path]) -> None:
    """A warning about images among those of the places whose format is not read; a table may name some that are."""
    folders = dict.fromkeys(place.image_dir for place in places)  # lists share one out to several splits
    folders |= dict.fromkeys(without_images(root, {place.split for place in places}))
    if other := passed_over(p for folder in folders for p in find_unread(folder) if p not in read):
        logger.warning("%s: %s", root, other)


def without_images(root: Path, found: Collection[str]) -> list[Path]:
    """The folders where the images of splits would lie that are not among those `found`."""
    try:
        parents = (root, *_named(root, IMAGE_DIRS))
        empty = [f for p in parents for f in _children(p) if split_named(f.name) not in {None, *found}]
        return [d for f in empty for d in (f, *_named(f, IMAGE_DIRS))]
    except DataError:  # a folder that cannot be listed is told where its images are needed
        return []


def _split_folders(root: Path) -> list[Place]:
    """`train/`, `train/images/`."""
    out = []
    for folder in _children(root):
        split = split_named(folder.name)
        if split and (found := _image_dir(folder)):
            out.append(_place(split, *found, label_dirs(folder), folder))
    return out


def _split_images(root: Path) -> list[Place]:
    """`images/train/`, with `labels/train/`."""
    out = []
    for folder in (f for parent in _named(root, IMAGE_DIRS) for f in _children(parent)):
        split = split_named(folder.name)
        if split and (images := find_images(folder)):
            labels = [d / folder.name for d in label_dirs(root) if (d / folder.name).is_dir()]
            out.append(_place(split, folder, images, labels, folder))
    return out


def _listed_splits(root: Path, place: Place) -> list[Place]:
    """`ImageSets/Main/train.txt`, as of Pascal VOC: the names of the images of each split, one a line."""
    main = next((m for sets in _named(root, ("imagesets",)) for m in _named(sets, ("main",))), None)
    if main is None:
        return []
    faults = Faults()
    known = by_stem(place.images)
    lists = read_lists(main, {"train": "train", "val": "val", "test": "test"}, known, faults)
    if "train" not in lists and "val" not in lists:
        lists = read_lists(main, {"train": "trainval"}, known, faults) | lists
    if faults:
        raise AnnotationError(faults)
    listed_ones = {x.image for listed in lists.values() for x in listed}
    if lists and (rest := len(place.images) - len(listed_ones)):
        logger.warning("%s: lists do not name %s, left out", main, n_of(rest, "image"))
    return [replace(place, split=s, images=tuple(x.image for x in xs)) for s, xs in lists.items()]


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as items:  # knows files from folders without a look at each of thousands
            found = [i.name for i in items if i.is_dir()]
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e
    return [folder / name for name in sorted(found, key=natural_key)]


def _named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Sub-folders with one of these names, in the order of the names."""
    found = {d.name.lower(): d for d in _children(folder)}
    return [found[n] for n in names if n in found]


def _image_dir(folder: Path) -> tuple[Path, list[Path]] | None:
    for place in (folder, *_named(folder, IMAGE_DIRS)):
        if images := find_images(place):
            return place, images
    return None


def _place(split: str, image_dir: Path, images: Sequence[Path], labels: Sequence[Path], folder: Path) -> Place:
    dirs = dict.fromkeys([image_dir, *labels, folder])
    return Place(split, image_dir, tuple(images), tuple(dirs), labels[0] if labels else None)
