"""DOTA: aerial images with oriented boxes of 15, 16 or 18 classes (releases 1.0, 1.5, 2.0).

    DOTA/{train,val}/images/P0706.png               (also images/part1/images/…, as they are unpacked)
    DOTA/{train,val}/labelTxt/P0706.txt             (also labelTxt-v1.0/labelTxt, labelTxt-v1.5/DOTA-v1.5_train, …)
    DOTA/test/images/…                               annotations are not published: opens as `test-hidden`
    DOTAv1/{images/train, labels/train_original}    as Ultralytics gives it out

A file may begin with `imagesource:…` and `gsd:…`; every other line is `x1 y1 x2 y2 x3 y3 x4 y4 class difficult`. The point of
an object is the mean of its corners, its box the upright one around it. Pixel origin: 0; corners are positions.
docs/datasets.md explains the options and the choices of classes of the papers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.layout import SPLIT_NAMES
from papm.data.readers.numbers import Array, numbers, parse_lines, tensor
from papm.data.readers.published import Home, by_stem, children, entry, files, hidden_entry, images_below, named_folder
from papm.errors import ConfigError, DataError, unknown
from papm.registry import Whole

ORIGIN = 0.0
SPLITS = ("train", "val", "test", "all")
HIDDEN = "test-hidden"
_V1 = (
    *("plane", "baseball-diamond", "bridge", "ground-track-field", "small-vehicle", "large-vehicle", "ship"),
    *("tennis-court", "basketball-court", "storage-tank", "soccer-ball-field", "roundabout", "harbor"),
    *("swimming-pool", "helicopter"),
)
RELEASES = {
    "1.0": _V1,
    "1.5": (*_V1, "container-crane"),
    "2.0": (*_V1, "container-crane", "airport", "helipad"),
}
CLASSES = RELEASES["2.0"]
SIX = ("large-vehicle", "helicopter", "plane", "ship", "small-vehicle", "storage-tank")  # the paper's, after ADMG
_SIX_MIN_COUNT = 11  # "numbers larger than 10" (paper, after ADMG)
_CORNERS = tuple(f"{axis}{k}" for k in range(1, 5) for axis in "xy")
_HEADER = re.compile(r"\s*(imagesource|acquisition dates|gsd)\s*:\s*(.*)", re.IGNORECASE)
# Folders of the same objects as upright boxes, and of what is known of the images.
_OTHER = re.compile(r"hbb|rec[_-]?label|task2|meta", re.IGNORECASE)


def read_objects(
    path: Path, classes: Sequence[str] = CLASSES, difficult: bool = True, origin: float = ORIGIN
) -> Annotation:
    """Objects of the chosen classes of one file; `difficult` keeps those marked so."""
    index = {name: i for i, name in enumerate(classes)}
    meta: dict[str, Any] = {"classes": tuple(classes)}

    def parse(text: str) -> _Object | None:
        header = _HEADER.match(text)
        if header is None:
            return _object(text)
        if header[1].lower() == "gsd" and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,18})?", header[2].strip()):
            meta["gsd"] = float(header[2])  # metres a pixel
        return None

    rows = [(line, o) for line, o in parse_lines(path, parse) if o is not None and o.name in index]
    rows = [(line, o) for line, o in rows if difficult or not o.difficult]
    quads = np.array([o.corners for _, o in rows], dtype=np.float64).reshape(-1, 4, 2)
    return Annotation(
        tensor(quads.mean(1), origin),
        torch.tensor([index[o.name] for _, o in rows], dtype=torch.int64),
        tensor(np.hstack([quads.min(1), quads.max(1)]), origin),
        tensor(np.sqrt(areas(quads))),
        [line for line, _ in rows],
        meta | {"difficult": sum(o.difficult for _, o in rows)},
    )


class _Object(NamedTuple):
    corners: list[float]
    name: str
    difficult: bool


def _object(text: str) -> _Object:
    cells = text.split()
    if not 9 <= len(cells) <= 10:
        raise ValueError(f"expected eight corners, a class and a 0 or 1, found {len(cells)} fields: {text[:60]!r}")
    corners = numbers(cells[:8], _CORNERS)
    name, mark = cells[8].lower().replace("_", "-"), cells[9] if len(cells) == 10 else "0"
    if name not in CLASSES:
        raise ValueError(f"{cells[8][:40]!r} is not a class of DOTA")
    if mark not in ("0", "1", "2"):  # 2 is in some files of later releases: difficult as well
        raise ValueError(f"the mark of a difficult object is 0 or 1, found {mark[:40]!r}")
    return _Object(corners, name, mark != "0")


def areas(quads: Array) -> Array:
    """Area of each quadrilateral [n, 4, 2], whichever way its corners go round (the shoelace formula).

    >>> areas(np.array([[[0, 0], [4, 0], [4, 3], [0, 3]]], dtype=float)).tolist()
    [12.0]
    """
    quads = quads - quads[:, :1]
    x, y = quads[..., 0], quads[..., 1]
    area: Array = np.abs((x * np.roll(y, -1, 1) - np.roll(x, -1, 1) * y).sum(1)) / 2
    return area


# --- the folder --------------------------------------------------------------------------------------------------------


def _release_of(path: Path, base: Path) -> str | None:
    found = re.findall(r"v?([12])[._]([05])", path.relative_to(base).as_posix())
    return next((f"{a}.{b}" for a, b in found if f"{a}.{b}" in RELEASES), None)


def _label_folders(base: Path, below: str = "") -> dict[Path, str | None]:
    """Folders of oriented labels of a split, with the release their name speaks of."""
    out: dict[Path, str | None] = {}
    for top in children(base):
        if not re.match(r"labeltxt|annfiles", top.name.lower()) or _OTHER.search(top.name):
            continue
        top = named_folder(top, below) or top if below else top
        for place in (top, *(d for c in children(top) for d in (c, *children(c)))):
            if not _OTHER.search(place.relative_to(base).as_posix()) and files(place, ".txt"):
                out[place] = _release_of(place, base)
    converted = named_folder(base, "labels") if below else None  # to YOLO, the files it was made of beside it
    original = named_folder(converted, f"{below}_original") if converted is not None else None
    return out if original is None else out | {original: None}


def _places(folder: Path) -> dict[str, tuple[Path, dict[Path, str | None]]]:
    """Image folder and label folders of each split; without splits the whole is `all`."""
    out: dict[str, tuple[Path, dict[Path, str | None]]] = {}
    for d in children(folder):
        split, images = SPLIT_NAMES.get(d.name.lower()), named_folder(d, "images", "image", "img")
        if split and images:
            out.setdefault(split, (images, _label_folders(d)))
    images = named_folder(folder, "images", "image", "img")
    if images is not None and not out:
        for d in children(images):
            if split := SPLIT_NAMES.get(d.name.lower()):
                out.setdefault(split, (d, _label_folders(folder, d.name)))
        if not out and (labels := _label_folders(folder)):
            split = SPLIT_NAMES.get(folder.absolute().name.lower())
            out[split or "all"] = (images, labels)
    return out


def _is_dota(folder: Path) -> bool:
    return any(labels for _, labels in _places(folder).values())


HOME = Home("DOTA", _is_dota, "{train,val}/{images,labelTxt}")


def _choose(folder: Path, labels: dict[Path, str | None], release: str | None) -> Path | None:
    """The label folder of a release, or the only one."""
    if not labels:
        return None
    if release is not None:
        of_it = [p for p, r in labels.items() if r == release] or [p for p, r in labels.items() if r is None]
        if not of_it:
            there = ", ".join(sorted({r for r in labels.values() if r}))
            raise DataError(f"{folder}: no labels of release {release}, only of {there}; give release= one of these")
        return of_it[0]
    if len(set(labels.values())) > 1 and None not in labels.values():
        there = ", ".join(sorted({r for r in labels.values() if r}))
        raise ConfigError(f"{folder}: labels of releases {there}; say which with release={there.split(',')[0]}")
    return next((p for p, r in labels.items() if r is None), next(iter(labels)))


def _wanted(classes: str | int | Iterable[str], release: str | None) -> tuple[str, ...]:
    """Names of the chosen classes, in the order of their labels."""
    text = str(classes) if isinstance(classes, str | int) else ",".join(str(c) for c in classes)
    if text == "all":
        return RELEASES[release] if release else CLASSES
    if text in ("6", "18"):
        return SIX if text == "6" else CLASSES
    names = [re.sub(r"[\s_]+", "-", name.strip().lower()) for name in text.split(",") if name.strip()]
    for name in names:
        if name not in CLASSES:
            raise unknown("class of DOTA", name, CLASSES)
    if not names:
        raise ConfigError("classes names no class of DOTA; write all, 6, 18, or names separated by commas")
    return tuple(dict.fromkeys(names))


def _release(release: str | float | None) -> str | None:
    if release is None:
        return None
    text = str(release).lower().removeprefix("v")
    text = f"{text}.0" if text in ("1", "2") else text
    if text not in RELEASES:
        raise unknown("release of DOTA", text, RELEASES)
    return text


def entries(
    root: Path,
    *,
    classes: str | int | Iterable[str] = "all",
    release: str | float | None = None,
    min_count: Whole | None = None,
    include_difficult: bool = True,
    origin: float = ORIGIN,
) -> dict[str, list[Entry]]:
    """Images of each split with the objects of the chosen classes."""
    version = _release(release)
    if min_count is None:
        min_count = _SIX_MIN_COUNT if str(classes) == "6" else 0
    _wanted(classes, version)  # a wrong name is told before anything is read
    folder = HOME.find(root)
    places = _places(folder)
    found: dict[str, list[Entry]] = {}
    for split in (s for s in SPLITS if s in places):
        pictures, labels = places[split]
        images = by_stem(images_below(pictures))
        chosen = _choose(pictures.parent, labels, version)
        if chosen is None and split == "test":
            found[HIDDEN] = [hidden_entry(i) for i in images.values()]
            continue
        if chosen is None or not images:
            what = "no images here" if chosen is not None else "images without a folder labelTxt beside them"
            raise DataError(f"{pictures}: {what}; expected images/P0706.png and labelTxt/P0706.txt")
        names = _wanted(classes, version or labels[chosen])
        known = files(chosen, ".txt")
        found[split] = []
        for stem, image in images.items():
            labelled = entry(image, known.of(stem), read_objects, names, include_difficult, origin)
            if min_count == 0 or _count(labelled) >= min_count:
                found[split].append(labelled)
    if not any(found.values()):
        raise DataError(f"{folder}: no image has {min_count} or more objects of the chosen classes")
    return found


def _count(entry: Entry) -> float:
    """Number of chosen objects; an annotation that cannot be read stays in, for its fault to be told."""
    try:
        return len(entry.load().points)
    except DataError:
        return float("inf")


register(
    Reader(
        name="dota",
        summary="DOTA: objects in aerial images, 15 to 18 classes, 1411 train / 458 val (1.0 and 1.5)",
        entries=entries,
        recognise=HOME.recognise,
        origin=ORIGIN,
        layout="{train,val}/{images/P0706.png, labelTxt/P0706.txt}",
        # Releases 1.0 and 1.5, and 2.0 (Ding et al. 2021). Images only: objects differ between releases of one image.
        expected=({"train": (1411, None), "val": (458, None)}, {"train": (1830, None), "val": (593, None)}),
        blank_is_empty=True,
        strays="plain",
    )
)
