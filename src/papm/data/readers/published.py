"""What the readers of published datasets share: finding the folder, its files, and lists of image names.

Nothing here walks a tree without bounds: a dataset is looked for at most three levels below the folder a user names, in at
most `_MAX_FOLDERS` folders, so that neither a loop of links nor a home directory keeps it busy. Names read from a file are
looked up among the images that were listed, never joined to a path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from papm.data.base import Annotation, Entry
from papm.data.readers.faults import (
    AnnotationError,
    Fault,
    safe_relative,
)
from papm.data.readers.numbers import parse_lines
from papm.errors import DataError
from papm.images import find_images, natural_key

_MAX_FOLDERS = 500


# --- folders -----------------------------------------------------------------------------------------------------------


def children(folder: Path) -> list[Path]:
    """Sub-folders in natural order; none of a folder that cannot be listed."""
    try:
        with os.scandir(folder) as items:  # knows files from folders without a look at each, as iterdir would need
            found = [i.name for i in items if not i.name.startswith(".") and i.is_dir()]
    except OSError:
        return []
    return [folder / name for name in sorted(found, key=natural_key)]


def named(folder: Path, *names: str) -> Path | None:
    """The file or folder of one of these names, whatever its case; the first name that is there."""
    try:
        found = {name.lower(): name for name in sorted(p.name for p in folder.iterdir())}
    except OSError:
        return None
    return next((folder / found[n.lower()] for n in names if n.lower() in found), None)


def named_folder(folder: Path, *names: str) -> Path | None:
    """The sub-folder of one of these names, whatever its case."""
    found = {d.name.lower(): d for d in children(folder)}
    return next((found[n.lower()] for n in names if n.lower() in found), None)


def subfolder(folder: Path, *names: str) -> Path:
    """`named_folder` where it has to be."""
    found = named_folder(folder, *names)
    if found is None:
        raise DataError(f"{folder}: has no folder '{names[0]}'")
    return found


def search(root: Path, is_it: Callable[[Path], bool], depth: int = 2) -> list[Path]:
    """The folders that `is_it` knows: the root itself, else those nearest below it, at most `depth` levels down."""
    level, visited = [root], 0
    for below in range(depth + 1):
        visited += len(level)
        if found := [d for d in level[:_MAX_FOLDERS] if is_it(d)]:
            return found
        if below == depth or visited > _MAX_FOLDERS:
            break
        level = [c for d in level for c in children(d)]
    return []


@dataclass(frozen=True)
class Home:
    """How the folder of a published dataset is known, and what a user is told where there is none."""

    dataset: str
    is_it: Callable[[Path], bool]
    holds: str  # in words
    depth: int = 2
    surely: Callable[[Path], bool] | None = None  # what else a folder must show that nobody has named

    def find(self, root: Path) -> Path:
        """The dataset's folder, at or below `root`; DataError where there is none, or several."""
        found = search(root, self.is_it, self.depth)
        if len(found) > 1:
            some = ", ".join(str(p) for p in found[:3])
            raise DataError(
                f"{root}: {len(found)} copies of {self.dataset} here ({some}); give the folder of one of them"
            )
        if not found:
            raise DataError(f"{root}: no {self.dataset} here; give the folder that holds {self.holds}")
        return found[0]

    def recognise(self, root: Path) -> bool:
        """Whether `root` holds this dataset, once; no where a folder cannot be read."""
        try:
            found = search(root, self.is_it, self.depth)
            return len(found) == 1 and (self.surely is None or self.surely(found[0]))
        except (DataError, OSError):
            return False


def images_below(folder: Path, depth: int = 2) -> list[Path]:
    """Images of a folder and of its sub-folders (`images/part1/images/…`), at most `depth` levels down."""
    found = find_images(folder)
    if depth:
        for child in children(folder)[:_MAX_FOLDERS]:
            found += images_below(child, depth - 1)
    return found


def by_stem(paths: Iterable[Path]) -> dict[str, Path]:
    """Files by name without suffix; of several the first."""
    out: dict[str, Path] = {}
    for path in paths:
        out.setdefault(path.stem, path)
    return out


class Files(dict[str, Path]):
    """The files of a folder with one suffix, by name without it."""

    def __init__(self, folder: Path, suffix: str, found: Iterable[Path]) -> None:
        super().__init__(by_stem(found))
        self.folder, self.suffix = folder, suffix

    def of(self, stem: str) -> Path:
        """The file of that name; where it should be when it is missing."""
        return self.get(stem) or self.folder / f"{stem}{self.suffix}"


def files(folder: Path, suffix: str) -> Files:
    """The files of a folder with this suffix, in any case."""
    try:
        found = sorted(p for p in folder.iterdir() if p.suffix.lower() == suffix and not p.name.startswith("."))
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e
    return Files(folder, suffix, found)


def entry(image: Path, annotation: Path, read: Callable[..., Annotation], *options: Any) -> Entry:
    """An image whose annotation is `read(annotation, *options)`."""
    return Entry(image.stem, image, annotation, partial(read, annotation, *options))


def hidden_entry(image: Path) -> Entry:
    """An image whose annotation its authors keep for themselves: no points, and `meta` says so."""
    return Entry(image.stem, image, None, partial(Annotation, torch.zeros(0, 2), meta={"hidden": True}))


# --- lists of images ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """One line of a list: the image it names and the fields after the name."""

    image: Path
    rest: tuple[str, ...] = ()


def read_list(path: Path, images: Mapping[str, Path], faults: list[Fault]) -> list[Listed]:
    """The images that a list names, one a line (with or without folder and suffix); what is wrong goes to `faults`."""
    seen: set[Path] = set()
    before = len(faults)

    def parse(text: str) -> Listed:
        first, *rest = text.split()
        name = safe_relative(first.lstrip("/")).name
        image = images.get(name) or images.get(name.rpartition(".")[0])
        if image is None:
            raise ValueError(f"names the image {name[:80]!r}, which is not among the images")
        if image in seen:
            raise ValueError(f"names {name[:80]!r} a second time")
        seen.add(image)
        return Listed(image, tuple(rest))

    out = [listed for _, listed in parse_lines(path, parse, faults)]
    if not out and len(faults) == before:
        faults.append(Fault(path, None, "names no image"))
    return out


def read_lists(
    folder: Path, names: Mapping[str, str], images: Mapping[str, Path], faults: list[Fault]
) -> dict[str, list[Listed]]:
    """`read_list` of each split whose list is in the folder; `names` are split → list, without `.txt`."""
    paths = {split: path for split, name in names.items() if (path := named(folder, f"{name}.txt")) is not None}
    return {split: read_list(path, images, faults) for split, path in paths.items()}


def finish(found: Mapping[str, Sequence[Entry]], faults: Sequence[Fault]) -> dict[str, list[Entry]]:
    """What was found, or all its faults together."""
    if faults:
        raise AnnotationError(faults, found)
    return {split: list(entries) for split, entries in found.items()}
