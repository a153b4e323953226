"""Where a folder dataset keeps its images, its splits and its annotation files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from papm.data.readers.coco import looks_like_coco
from papm.data.readers.formats import looks_like_csv
from papm.errors import DataError
from papm.images import find_images, natural_key

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
IMAGE_DIRS = ("images", "imgs", "img", "image")
LABEL_DIRS = ("labels", "points", "annotations", "ground_truth", "gt", "txt")
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
    def by_name(self) -> Mapping[str, list[Path]]:
        """Images by file name."""
        return _group(self.images, stem=False)

    @cached_property
    def by_stem(self) -> Mapping[str, list[Path]]:
        """Images by file name without suffix."""
        return _group(self.images, stem=True)


def _group(images: Sequence[Path], stem: bool) -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {}
    for i in images:
        out.setdefault(i.stem if stem else i.name, []).append(i)
    return out


def _children(folder: Path) -> list[Path]:
    try:
        return sorted((d for d in folder.iterdir() if d.is_dir()), key=lambda d: natural_key(d.name))
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e


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


def find_places(root: Path) -> list[Place]:
    """The splits of a folder with their images; DataError when there are no images at all."""
    if not root.is_dir():
        raise DataError(f"{root}: not a folder; give the folder that holds the images and their points")
    places: dict[str, Place] = {}

    def add(split: str, place: Place) -> None:
        if split in places:
            raise DataError(
                f"{root}: two folders for the split '{split}', {places[split].image_dir} and {place.image_dir}"
            )
        places[split] = place

    for folder in _children(root):
        split = SPLIT_NAMES.get(folder.name.lower())
        if split and (found := _image_dir(folder)):
            add(split, _place(split, *found, _named(folder, LABEL_DIRS), folder))
    if not places:
        for parent in _named(root, IMAGE_DIRS):
            for folder in _children(parent):
                split = SPLIT_NAMES.get(folder.name.lower())
                if split and (images := find_images(folder)):
                    labels = [d / folder.name for d in _named(root, LABEL_DIRS) if (d / folder.name).is_dir()]
                    add(split, _place(split, folder, images, labels, folder))
    if not places and (found := _image_dir(root)):
        places["all"] = _place("all", *found, _named(root, LABEL_DIRS), root)
    if not places:
        raise DataError(f"{root}: no images here, nor in its sub-folders train, val, test or images")
    return [places[s] for s in _ORDER if s in places]


def txt_files(place: Place) -> dict[Path, Path | None]:
    """Each image with its .txt file, or None where there is none."""
    stems: dict[str, Path] = {}
    for folder in place.dirs:
        for p in folder.iterdir():
            if p.suffix.lower() == ".txt" and not p.name.startswith("."):
                stems.setdefault(p.stem, p)
    return {i: stems.get(i.stem) for i in place.images}


def _tables_in(folder: Path, format: str) -> list[Path]:
    out = []
    for p in sorted(folder.iterdir(), key=lambda p: natural_key(p.name)):
        suffix = p.suffix.lower()
        if p.name.startswith(".") or not p.is_file():
            continue
        if (suffix in (".csv", ".tsv") and format in ("auto", "csv") and looks_like_csv(p)) or (
            suffix == ".json" and format in ("auto", "coco") and looks_like_coco(p)
        ):
            out.append(p)
    return out


def _split_of(path: Path) -> str | None:
    """The split a file's name speaks of.

    >>> _split_of(Path("instances_val2017.json"))
    'val'
    """
    return next((SPLIT_NAMES[w] for w in re.split(r"[^a-z]+", path.stem.lower()) if w in SPLIT_NAMES), None)


def find_tables(
    root: Path, places: Sequence[Place], annotations: str | Path | None, format: str, missing_ok: bool = False
) -> dict[Path, list[Place]]:
    """CSV or COCO files and the places each speaks of; DataError when a place has none, or several that do not differ.

    Several tables over one folder of images that are named after splits make the splits.
    """
    if annotations is not None:
        path = next((p for p in (Path(annotations), root / annotations) if p.is_file()), None)
        if path is None:
            raise DataError(f"{annotations}: no such annotation file, neither here nor in {root}")
        return {path: list(places)}
    out: dict[Path, list[Place]] = {}
    for place in places:
        shared = tuple(d for d in (root, *_named(root, LABEL_DIRS)) if d not in place.dirs)
        for folder in (*place.dirs, *shared):
            tables = _tables_in(folder, format)
            if folder in shared:  # of several, those that name this split, else those that name none
                tables = [t for t in tables if _split_of(t) == place.split] or [t for t in tables if not _split_of(t)]
            if not tables:
                continue
            splits = [_split_of(t) for t in tables]
            if len(tables) == 1 and place.split != "all":
                out.setdefault(tables[0], []).append(place)
            elif len(tables) == 1:
                out.setdefault(tables[0], []).append(replace(place, split=splits[0]) if splits[0] else place)
            elif place.split == "all" and None not in splits and len(set(splits)) == len(splits):
                for table, split in zip(tables, splits):
                    out.setdefault(table, []).append(replace(place, split=split or place.split))
            elif mine := [t for t in tables if _split_of(t) == place.split][:1]:
                out.setdefault(mine[0], []).append(place)
            else:
                names = ", ".join(t.name for t in tables)
                raise DataError(f"{folder}: several annotation files ({names}); say which with annotations=NAME")
            break
        else:
            if not missing_ok:
                raise DataError(
                    f"{place.image_dir}: images but no points; put a NAME.txt of 'x y' lines beside each NAME.jpg, or one CSV"
                    " with the columns image, x, y, or a COCO .json in that folder"
                )
    return out
