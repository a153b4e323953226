"""NWPU-Crowd: crowds with a point and a box for every head; the annotations of the test images are not published.

    NWPU-Crowd/images/0001.jpg … 5109.jpg       (or images_part1 … images_part5, as they are unpacked)
    NWPU-Crowd/jsons/0001.json … 3609.json       {"human_num": n, "points": [[x, y], …], "boxes": [[x1, y1, x2, y2], …]}
    NWPU-Crowd/mats/0001.mat … 3609.mat          annPoints n × 2, annBoxes n × 4
    NWPU-Crowd/{train,val,test}.txt              `id luminance level` a line

`annotation` says which files are read: json, mat, txt (the `val_gt_loc.txt` of the localization task, see `nwpu_files`), or the
first of these that is there. Files from before the release of boxes have none. Test images without annotation open as the split
`test-hidden`. Pixel origin: 0, coordinates of a web annotation tool.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.formats.jsonfile import load_json
from papm.data.nwpu_files import Objects, read_ground_truth
from papm.data.readers.faults import Fault, Faults
from papm.data.readers.matfile import load_mat
from papm.data.readers.numbers import Array, boxed, corners, table, tensor, whole
from papm.data.readers.published import (
    Home,
    Listed,
    by_stem,
    children,
    entry,
    files,
    finish,
    hidden_entry,
    named,
    named_folder,
    read_lists,
)
from papm.errors import DataError
from papm.images import find_images, is_image_name

logger = logging.getLogger(__name__)

ORIGIN = 0.0
SPLITS = ("train", "val", "test")
HIDDEN = "test-hidden"
Kind = Literal["auto", "json", "mat", "txt"]
_FIRST_VAL, _FIRST_TEST = 3110, 3610
_EXCHANGED = {3169: "train", 3098: "val"}
_EXPECTED = "a MATLAB 5 file with annPoints of n × 2 numbers"


def read_json(path: Path, meta: Mapping[str, Any] | None = None, origin: float = ORIGIN) -> Annotation:
    """Heads of one JSON file."""
    content = load_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("points"), list):
        raise DataError(f'{path}: no list "points"; expected {{"points": [[x, y], …], "boxes": [[x1, y1, x2, y2], …]}}')
    points = _numbers(path, content["points"], "points", 2)
    boxes = _numbers(path, content["boxes"], "boxes", 4) if content.get("boxes") else None
    declared = content.get("human_num")
    more = {"declared_count": declared} if isinstance(declared, int) and not isinstance(declared, bool) else {}
    return _annotation(path, points, boxes, more | dict(meta or {}), origin)


def _numbers(path: Path, rows: Any, what: str, columns: int) -> Array:
    """Rows of a JSON file; true and false are not numbers, whatever Python says."""
    if isinstance(rows, list):
        for i, row in enumerate(rows, start=1):
            if not isinstance(row, list) or len(row) != columns or not all(type(v) in (int, float) for v in row):
                raise DataError(f'{path}: row {i} of "{what}" is {str(row)[:60]}, expected {columns} numbers')
            if any(isinstance(v, int) and abs(v) > 10**9 for v in row):
                raise DataError(f'{path}: row {i} of "{what}" is {str(row)[:60]}, not a pixel position')
    return table(path, rows, f'"{what}"', columns)


def read_mat(path: Path, meta: Mapping[str, Any] | None = None, origin: float = ORIGIN) -> Annotation:
    """Heads of one MATLAB file."""
    points = table(path, load_mat(path, "annPoints", expected=_EXPECTED)["annPoints"], "'annPoints'", 2)
    try:
        found = load_mat(path, "annBoxes", expected=_EXPECTED)["annBoxes"]
    except DataError:  # the file was found well formed above: it is from before the release of boxes
        found = None
    boxes = None if found is None else table(path, found, "'annBoxes'", 4)
    return _annotation(path, points, boxes, dict(meta or {}), origin)


def _annotation(path: Path, points: Array, boxes: Array | None, meta: dict[str, Any], origin: float) -> Annotation:
    if boxes is not None and len(boxes) != len(points):
        logger.warning("%s: %d boxes for %d points; the boxes are left out", path, len(boxes), len(points))
        boxes = None
    if boxes is None:
        return Annotation(tensor(points, origin), meta=meta)
    return boxed(points, corners(boxes), origin, meta=meta)


def _from_text(path: Path, objects: Objects, meta: dict[str, Any], origin: float) -> Annotation:
    short = 2 * objects.sigma_s  # of w² + h² = 4σ_l² with min(w, h) = 2σ_s, so w·h is known, which side is which is not
    long = np.sqrt(np.maximum(4 * objects.sigma_l**2 - short**2, short**2))
    return Annotation(tensor(objects.points, origin), extents=tensor(np.sqrt(short * long)), meta=meta)


# --- the folder --------------------------------------------------------------------------------------------------------


def _image_folders(folder: Path) -> list[Path]:
    return [d for d in children(folder) if re.fullmatch(r"images?|imgs?|images[_-]?part[_-]?[0-9]+", d.name.lower())]


def _truth(folder: Path) -> dict[str, Path]:
    found = {"json": named_folder(folder, "jsons", "json"), "mat": named_folder(folder, "mats", "mat")}
    return {kind: d for kind, d in found.items() if d is not None}


def _gt_loc(folder: Path, split: str) -> Path | None:
    return named(folder, f"{split}_gt_loc.txt", f"{split}_loc_gt.txt")


def _is_nwpu(folder: Path) -> bool:
    return bool(_image_folders(folder)) and (bool(_truth(folder)) or any(_gt_loc(folder, s) for s in SPLITS))


def _surely(folder: Path) -> bool:
    """Images that are called 0001 … 5109: other datasets were brought into these folders too."""
    for d in _image_folders(folder):
        if names := [p.name for p in d.iterdir() if is_image_name(p.name)]:
            return all(re.fullmatch(r"[0-9]{4}\.[a-zA-Z]+", n) for n in names[:20])
    return False


HOME = Home("NWPU-Crowd", _is_nwpu, "images, jsons or mats, and train.txt", surely=_surely)


def entries(root: Path, *, annotation: Kind = "auto", origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of train and val, and of the test list: `test` where annotated, `test-hidden` where not."""
    folder = HOME.find(root)
    images = by_stem(i for d in _image_folders(folder) for i in find_images(d))
    faults: list[Fault] = Faults()
    lists = read_lists(folder, {split: split for split in SPLITS}, images, faults) or _by_number(images, faults)
    annotations = _Annotations(folder, annotation, origin)
    found: dict[str, list[Entry]] = {}
    for split in (s for s in SPLITS if s in lists):
        for listed in lists[split]:
            annotated = annotations.entry(listed, split)
            if annotated is not None:
                found.setdefault(split, []).append(annotated)
            elif split == "test":
                found.setdefault(HIDDEN, []).append(hidden_entry(listed.image))
            else:
                faults.append(
                    Fault(listed.image, None, f"no annotation; expected {annotations.expected(listed.image)}")
                )
    if not found and not faults:
        raise DataError(f"{folder}: no images here; expected images/0001.jpg … 5109.jpg")
    return finish(found, faults)


class _Annotations:
    """Finds the annotation of an image among the kinds of files that are there."""

    def __init__(self, folder: Path, kind: Kind, origin: float) -> None:
        self.origin = origin
        wanted = get_args(Kind)[1:] if kind == "auto" else (kind,)
        self.tables = {k: files(d, f".{k}") for k, d in _truth(folder).items() if k in wanted}
        self.text: dict[str, tuple[Path, dict[int, Objects]]] = {}
        if "txt" in wanted and not any(self.tables.values()):
            paths = {s: p for s in SPLITS if (p := _gt_loc(folder, s)) is not None}
            self.text = {s: (p, read_ground_truth(p)) for s, p in paths.items()}
        if not any(self.tables.values()) and not self.text:
            raise DataError(f"{folder}: no annotations of the kind {kind}; expected jsons/, mats/ or val_gt_loc.txt")

    def entry(self, listed: Listed, split: str) -> Entry | None:
        image, fields = listed.image, zip(("luminance", "level"), map(whole, listed.rest))
        meta = {key: number for key, number in fields if number is not None}
        for kind, known in self.tables.items():
            if path := known.get(image.stem):
                return entry(image, path, read_json if kind == "json" else read_mat, meta, self.origin)
        path, objects = self.text.get(split, (image, {}))
        number = whole(image.stem)
        if number in objects:
            return entry(image, path, _from_text, objects[number], meta, self.origin)
        return None

    def expected(self, image: Path) -> str:
        if self.text:
            return "a line in " + ", ".join(p.name for p, _ in self.text.values())
        return " or ".join(f"{k}s/{image.stem}.{k}" for k in self.tables)


def _by_number(images: Mapping[str, Path], faults: list[Fault]) -> dict[str, list[Listed]]:
    out: dict[str, list[Listed]] = {}
    for stem, image in images.items():
        if (n := whole(stem)) is None:
            faults.append(Fault(image, None, "the name of an image of NWPU-Crowd is its number, such as 3110.jpg"))
            continue
        split = "train" if n < _FIRST_VAL else "val" if n < _FIRST_TEST else "test"
        out.setdefault(_EXCHANGED.get(n, split), []).append(Listed(image))
    return out


register(
    Reader(
        name="nwpu",
        summary="NWPU-Crowd: crowds with boxes, 3109 train / 500 val / 1500 test (annotations of test not published)",
        entries=entries,
        recognise=HOME.recognise,
        origin=ORIGIN,
        layout="{images/0001.jpg, jsons/0001.json or mats/0001.mat, train.txt, val.txt, test.txt}",
        expected={"train": (3109, None), "val": (500, None), HIDDEN: (1500, None)},
        strays="never",
    )
)
