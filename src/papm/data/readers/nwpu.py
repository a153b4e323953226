"""NWPU-Crowd: crowds with a point and a box for every head; the annotations of the test images are not published.

    NWPU-Crowd/images/0001.jpg … 5109.jpg       (or images_part1 … images_part5, as they are unpacked)
    NWPU-Crowd/jsons/0001.json … 3609.json       {"human_num": n, "points": [[x, y], …], "boxes": [[x1, y1, x2, y2], …]}
    NWPU-Crowd/mats/0001.mat … 3609.mat          annPoints n × 2, annBoxes n × 4
    NWPU-Crowd/{train,val,test}.txt              `id luminance level` a line

`annotation` says which files are read: json, mat, txt (the `val_gt_loc.txt` of the localization task, see `nwpu_files`), or
auto: json where there is one, else mat, else txt. Files from before the release of boxes have none. The two numbers of the
lists are kept in `meta` as `luminance` and `level`. Without lists the ids decide: 3110–3609 are for validation, with 3169 and
3098 exchanged, those above for testing.

Test images without annotation open as the split `test-hidden`: their samples have no points and `meta["hidden"]`. Its name
keeps them out of training and of everything that asks for `test`; `papm.data.require_annotated` refuses to evaluate them.

Pixel origin: 0. The coordinates are fractions of pixels from a web annotation tool; half a pixel of doubt remains.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.nwpu_files import Objects, read_ground_truth
from papm.data.readers.faults import Fault, Faults, read_text
from papm.data.readers.matfile import load_mat
from papm.data.readers.published import (
    Array,
    Listed,
    by_stem,
    cheaply,
    children,
    corners,
    extents,
    files,
    finish,
    hidden_entry,
    named,
    named_folder,
    only_one,
    read_list,
    search,
    table,
    tensor,
)
from papm.errors import ConfigError, DataError
from papm.images import find_images, is_image_name

logger = logging.getLogger(__name__)

ORIGIN = 0.0
SPLITS = ("train", "val", "test")
HIDDEN = "test-hidden"
KINDS = ("auto", "json", "mat", "txt")
_FIRST_VAL, _FIRST_TEST = 3110, 3610
_EXCHANGED = {3169: "train", 3098: "val"}
_EXPECTED = "a MATLAB 5 file with annPoints of n × 2 numbers"


def read_json(path: Path, meta: Mapping[str, Any] | None = None, origin: float = ORIGIN) -> Annotation:
    """Heads of one JSON file."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as e:
        raise DataError(f"{path}:{e.lineno}: not valid JSON ({e.msg})") from e
    except (RecursionError, ValueError) as e:  # nested beyond reason, or a number of thousands of digits
        raise DataError(f"{path}: not usable JSON ({e})") from e
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
    boxes = corners(boxes)
    return Annotation(tensor(points, origin), boxes=tensor(boxes, origin), extents=extents(boxes), meta=meta)


def _from_text(path: Path, image: str, objects: Objects | None, meta: dict[str, Any], origin: float) -> Annotation:
    if objects is None:
        raise DataError(f"{path}: has no line for the image {image}")
    short = 2 * objects.sigma_s  # of w² + h² = 4σ_l² with min(w, h) = 2σ_s, so w·h is known, which side is which is not
    long = np.sqrt(np.maximum(4 * objects.sigma_l**2 - short**2, short**2))
    size = torch.from_numpy(np.sqrt(short * long).astype(np.float32))
    return Annotation(tensor(objects.points, origin), extents=size, meta=meta)


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


def _recognise(root: Path) -> bool:
    """Images that are called 0001 … 5109: other datasets were brought into these folders too."""
    found = search(root, _is_nwpu)
    if len(found) != 1:
        return False
    for d in _image_folders(found[0]):
        try:
            names = [p.name for p in d.iterdir() if is_image_name(p.name)]
        except OSError:
            return False
        if names:
            return all(re.fullmatch(r"[0-9]{4}\.[a-zA-Z]+", n) for n in names[:20])
    return False


def entries(root: Path, *, annotation: str = "auto", origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of train and val, and of the test list: `test` where annotated, `test-hidden` where not."""
    if annotation not in KINDS:
        raise ConfigError(f"annotation='{annotation}' for nwpu; known: {', '.join(KINDS)}")
    folder = only_one(search(root, _is_nwpu), "NWPU-Crowd", root)
    if folder is None:
        raise DataError(f"{root}: no NWPU-Crowd here; give the folder that holds images, jsons or mats, and train.txt")
    images = by_stem(i for d in _image_folders(folder) for i in find_images(d))
    faults: list[Fault] = Faults()
    lists = _lists(folder, images, faults)
    loaders = _Loaders(folder, annotation, origin)
    found: dict[str, list[Entry]] = {}
    for split in (s for s in SPLITS if s in lists):
        for listed in lists[split]:
            image = listed.image
            source = loaders.of(image, split, _meta(listed))
            if source is not None:
                found.setdefault(split, []).append(Entry(image.stem, image, *source))
            elif split == "test":
                found.setdefault(HIDDEN, []).append(hidden_entry(image))
            else:
                faults.append(Fault(image, None, f"no annotation; expected {loaders.expected(image)}"))
    if not found and not faults:
        raise DataError(f"{folder}: no images here; expected images/0001.jpg … 5109.jpg")
    return finish(found, faults)


class _Loaders:
    """Finds the annotation of an image among the kinds of files that are there."""

    def __init__(self, folder: Path, kind: str, origin: float) -> None:
        truth = _truth(folder)
        self.folder, self.origin = folder, origin
        wanted = ("json", "mat", "txt") if kind == "auto" else (kind,)
        self.tables: dict[str, dict[str, Path]] = {
            k: files(truth[k], f".{k}") for k in ("json", "mat") if k in wanted and k in truth
        }
        self.text: dict[str, tuple[Path, dict[int, Objects]]] = {}
        if "txt" in wanted and not any(self.tables.values()):
            paths = {s: p for s in SPLITS if (p := _gt_loc(folder, s)) is not None}
            self.text = {s: (p, read_ground_truth(p)) for s, p in paths.items()}
        if not any(self.tables.values()) and not self.text:
            raise DataError(f"{folder}: no annotations of the kind {kind}; expected jsons/, mats/ or val_gt_loc.txt")

    def of(self, image: Path, split: str, meta: dict[str, Any]) -> tuple[Path, Callable[[], Annotation]] | None:
        for kind, read in (("json", read_json), ("mat", read_mat)):
            if path := self.tables.get(kind, {}).get(image.stem):
                return path, partial(read, path, meta, self.origin)
        if split in self.text and image.stem.isascii() and image.stem.isdigit() and len(image.stem) < 10:
            path, objects = self.text[split]
            found = objects.get(int(image.stem))
            if found is not None:
                return path, partial(_from_text, path, image.stem, found, meta, self.origin)
        return None

    def expected(self, image: Path) -> str:
        if self.text:
            return "a line in " + ", ".join(p.name for p, _ in self.text.values())
        return " or ".join(f"{k}s/{image.stem}.{k}" for k in self.tables)


def _lists(folder: Path, images: Mapping[str, Path], faults: list[Fault]) -> dict[str, list[Listed]]:
    paths = {s: p for s in SPLITS if (p := named(folder, f"{s}.txt")) is not None}
    if paths:
        return {s: read_list(p, images, faults) for s, p in paths.items()}
    out: dict[str, list[Listed]] = {}
    for stem, image in images.items():
        if stem.isascii() and stem.isdigit() and len(stem) < 10:
            n = int(stem)
            by_id = "train" if n < _FIRST_VAL else "val" if n < _FIRST_TEST else "test"
            out.setdefault(_EXCHANGED.get(n, by_id), []).append(Listed(image, 0))
        else:
            faults.append(Fault(image, None, "the name of an image of NWPU-Crowd is its number, such as 3110.jpg"))
    return out


def _meta(listed: Listed) -> dict[str, Any]:
    """`luminance` and `level` where the list gives them as whole numbers."""
    found = zip(("luminance", "level"), listed.rest)
    return {k: int(v) for k, v in found if v.isascii() and v.isdigit() and len(v) < 10}


register(
    Reader(
        name="nwpu",
        summary="NWPU-Crowd: crowds with boxes, 3109 train / 500 val / 1500 test (annotations of test not published)",
        entries=entries,
        recognise=cheaply(_recognise),
        origin=ORIGIN,
        layout="{images/0001.jpg, jsons/0001.json or mats/0001.mat, train.txt, val.txt, test.txt}",
        expected={"train": (3109, None), "val": (500, None), HIDDEN: (1500, None)},
        strays="never",
    )
)
