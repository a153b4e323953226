"""Where a folder dataset keeps its images, its splits and its annotation files."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from papm.data.readers.kinds import MAYBE, NO, Format, Sheet, Sidecar
from papm.errors import DataError
from papm.images import IMAGE_SUFFIXES, find_images, natural_key

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
    *("dots", "dot_maps", "dotmaps"),
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
    def by_name(self) -> Mapping[str, list[Path]]:
        """Images by file name, as `nfc`."""
        return _group(self.images, stem=False)

    @cached_property
    def by_stem(self) -> Mapping[str, list[Path]]:
        """Images by file name without suffix, as `nfc`."""
        return _group(self.images, stem=True)

    @cached_property
    def by_upload(self) -> Mapping[str, list[Path]]:
        """Images by `uploaded_name`."""
        out: dict[str, list[Path]] = {}
        for i in self.images:
            out.setdefault(uploaded_name(i.name), []).append(i)
        return out

    @cached_property
    def files(self) -> tuple[Mapping[str, Path], ...]:
        """The files of each of `dirs` by name, the suffix in lower case; also by that name as `nfc`."""
        out = []
        for folder in self.dirs:
            try:
                found = sorted(folder.iterdir())
            except OSError as e:
                raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e
            named = {p.stem + p.suffix.lower(): p for p in found if not p.name.startswith(".")}
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


def _group(images: Sequence[Path], stem: bool) -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {}
    for i in images:
        out.setdefault(nfc(i.stem if stem else i.name), []).append(i)
    return out


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


def named_after(stem: str, *suffixes: str) -> tuple[str, ...]:
    """Files named after an image with or without its own suffix.

    >>> named_after("a", ".csv")[:2]
    ('a.csv', 'a.bmp.csv')
    """
    pictures = ("", *sorted(IMAGE_SUFFIXES), *sorted(s.upper() for s in IMAGE_SUFFIXES))
    return tuple(f"{stem}{p}{s}" for s in suffixes for p in pictures)


def sidecars(place: Place, kind: Sidecar) -> dict[Path, Path | None]:
    """Each image with its own annotation file, or None where there is none."""
    out: dict[Path, Path | None] = {}
    for image in place.images:
        found = (
            files[name]
            for folder, files in zip(place.dirs, place.files)
            for written in kind.names(image.stem, folder)
            for name in dict.fromkeys((written, nfc(written)))
            if name in files and files[name] != image
        )
        out[image] = next(found, None)
    return out


Recognised = tuple[Path, Format]


def _sheets_in(folder: Path, formats: Sequence[Format], taken: Collection[Path], any_sheet: bool) -> list[Recognised]:
    """The files of a folder that speak of many images, each with its format; only the surest kind."""
    found: list[tuple[int, Path, Format]] = []
    try:
        files = sorted(folder.iterdir(), key=lambda p: natural_key(p.name))
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e
    for p in files:
        if p.name.startswith(".") or p in taken or not p.is_file():
            continue
        fitting = [
            (f, f.reader) for f in formats if isinstance(f.reader, Sheet) and p.suffix.lower() in f.reader.suffixes
        ]
        found += [(max(r.looks_like(p), MAYBE if any_sheet else NO), p, f) for f, r in fitting]
    best = max((sure for sure, _, _ in found), default=NO)
    return [(p, f) for sure, p, f in found if sure == best > NO]


def _split_of(path: Path) -> str | None:
    """The split a file's name speaks of.

    >>> _split_of(Path("instances_val2017.json"))
    'val'
    """
    return next((SPLIT_NAMES[w] for w in re.split(r"[^a-z]+", path.stem.lower()) if w in SPLIT_NAMES), None)


def named_sheet(root: Path, annotations: str | Path, formats: Sequence[Format]) -> Recognised:
    """The annotation file a user names, with its format: by its content, else by its suffix."""
    path = next((p for p in (Path(annotations), root / annotations) if p.is_file()), None)
    if path is None:
        raise DataError(f"{annotations}: no such annotation file, neither here nor in {root}")
    fitting = [f for f in formats if isinstance(f.reader, Sheet) and path.suffix.lower() in f.reader.suffixes]
    if not fitting:
        known = sorted({s for f in formats if isinstance(f.reader, Sheet) for s in f.reader.suffixes})
        raise DataError(f"{path}: not an annotation file of many images; expected one of {', '.join(known) or 'none'}")
    return path, max(fitting, key=lambda f: f.reader.looks_like(path))


def find_sheets(
    root: Path, place: Place, formats: Sequence[Format], taken: Collection[Path] = (), any_sheet: bool = False
) -> list[tuple[Path, Format, Place]]:
    """The files that speak of a place's images, each with what it speaks of; DataError when several do not differ.

    `taken` are files known to be something else; `any_sheet` takes what does not look like its format too. Several over one
    folder of images that are named after splits make the splits.
    """
    shared = tuple(d for d in (root, *_named(root, LABEL_DIRS)) if d not in place.dirs)
    for folder in (*place.dirs, *shared):
        found = _sheets_in(folder, formats, taken, any_sheet)
        if folder in shared:  # of several, those that name this split, else those that name none
            found = [t for t in found if _split_of(t[0]) == place.split] or [t for t in found if not _split_of(t[0])]
        if not found:
            continue
        splits = [_split_of(p) for p, _ in found]
        if len(found) == 1:
            own = place.split == "all" and splits[0]
            return [(*found[0], replace(place, split=own) if own else place)]
        if len({f.name for _, f in found}) > 1:
            raise ambiguous(folder, {f.name: p.name for p, f in reversed(found)})
        if place.split == "all" and None not in splits and len(set(splits)) == len(splits):
            return [(p, f, replace(place, split=split or place.split)) for (p, f), split in zip(found, splits)]
        if mine := [t for t in found if _split_of(t[0]) == place.split][:1]:
            return [(*mine[0], place)]
        names = ", ".join(p.name for p, _ in found)
        raise DataError(f"{folder}: several annotation files ({names}); say which with annotations=NAME")
    return []


def ambiguous(folder: Path, found: Mapping[str, str]) -> DataError:
    """The error for points in several formats; `found` has a file of each."""
    files = ", ".join(f"{file} is {name}" for name, file in sorted(found.items()))
    ways = " or ".join(f"format={name}" for name in sorted(found))
    return DataError(f"{folder}: points in several formats ({files}); say which to read with {ways}")
