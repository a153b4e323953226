"""Your own data: a folder of images with dots, recognised by what lies beside the images.

    DATA/a.jpg, a.txt           one `x y [label]` a line (spaces or commas, # comments, optional header)
    DATA/*.jpg, points.csv      columns image, x, y (and label); blank x and y state an image without objects
    DATA/*.jpg, any.json        COCO: boxes (their centres) or keypoints, see `coco`

Images may lie in `images/`, annotations in `labels/`, `points/` or `annotations/`. Sub-folders `train`, `val`, `test` (in DATA
or in `images/`), or tables named after them, become splits; without any the one split is called `all`, and training and
evaluation divide it by seed.

Pixel origin: 0. Coordinates are taken as written, with the image spanning 0 ≤ x < W; a tool that writes whole pixel indices
wants `origin=0.5`, one that counts from 1, as MATLAB does, `origin=-0.5`.

Zero points must be said: an image needs its `.txt`, if only an empty one. An image that a CSV does not mention is taken to be
without objects (tools write no rows for those), with a warning in the log; a COCO file lists its images itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from papm.data.base import Annotation, Entry, Reader, readers, register
from papm.data.readers.coco import read_coco
from papm.data.readers.faults import AnnotationError, Fault, read_text
from papm.data.readers.formats import Points, Table, looks_like_txt, read_csv, read_txt
from papm.data.readers.layout import Place, find_places, find_tables, txt_files
from papm.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

ORIGIN = 0.0
FORMATS = ("auto", "txt", "csv", "coco")
_SAMPLED = 5  # files looked into to recognise a format


def entries(
    root: Path,
    *,
    format: str = "auto",
    annotations: str | Path | None = None,
    category: str | int | Iterable[str | int] | None = None,
    keypoint: str | None = None,
    origin: float = ORIGIN,
) -> dict[str, list[Entry]]:
    """Images of each split and how to parse their points.

    `annotations` names the CSV or COCO file when there are several; `category` keeps only these labels (names or ids,
    several separated by commas); `keypoint` picks one of a COCO skeleton.
    """
    if format not in FORMATS:
        raise ConfigError(f"format='{format}' for folder data; known: {', '.join(FORMATS)}")
    wanted = _categories(category)
    places = find_places(root)
    names = _class_names(root)
    found: dict[str, list[Entry]] = {}
    faults: list[Fault] = []
    rest: list[Place] = []
    for place in places:
        if annotations is None and format in ("auto", "txt") and _use_txt(root, place, format):
            found[place.split] = _txt_entries(place, names, wanted, origin, faults)
        else:
            rest.append(place)
    if rest:
        sources = find_tables(root, rest, annotations, format)
        tables = {p: _read_table(p, wanted, keypoint) for p in sources}
        names = names or _table_classes(tables.values())
        for path, targets in sources.items():
            faults += tables[path].faults
            alone = len(targets) == 1 and sum(targets[0].images == t.images for ts in sources.values() for t in ts) == 1
            for split, items in _table_entries(root, tables[path], targets, names, origin, alone, faults).items():
                found.setdefault(split, []).extend(items)
    if faults:
        raise AnnotationError(faults, found)
    return found


def _categories(category: str | int | Iterable[str | int] | None) -> frozenset[str] | None:
    if category is None:
        return None
    parts = str(category).split(",") if isinstance(category, str | int) else [str(c) for c in category]
    return frozenset(p.strip() for p in parts if p.strip())


def _class_names(root: Path) -> tuple[str, ...]:
    path = root / "classes.txt"
    if not path.is_file():
        return ()
    return tuple(name for line in read_text(path).split("\n") if (name := line.split("#")[0].strip()))


# --- one .txt an image -------------------------------------------------------------------------------------------------


def _use_txt(root: Path, place: Place, format: str) -> bool:
    """Text files if any belongs to an image and reads as points; also when none does but there is nothing else."""
    files = [p for p in txt_files(place).values() if p is not None]
    if format == "txt" or not files:
        return format == "txt"
    return any(looks_like_txt(p) for p in files[:_SAMPLED]) or not find_tables(
        root, [place], None, "auto", missing_ok=True
    )


def _txt_entries(
    place: Place, names: tuple[str, ...], wanted: Collection[str] | None, origin: float, faults: list[Fault]
) -> list[Entry]:
    out: list[Entry] = []
    stems: set[str] = set()
    for image, annotation in txt_files(place).items():
        if image.stem in stems:
            faults.append(
                Fault(image, None, f"another image is called '{image.stem}' too, so {image.stem}.txt is of both")
            )
            continue
        stems.add(image.stem)
        expected = annotation or (place.label_dir or image.parent) / f"{image.stem}.txt"
        out.append(Entry(image.stem, image, expected, partial(_load_txt, image, expected, names, wanted, origin)))
    return out


def _load_txt(
    image: Path, path: Path, names: tuple[str, ...], wanted: Collection[str] | None, origin: float
) -> Annotation:
    if not path.exists():
        raise DataError(
            f"{image}: no annotation file; expected {path} (an empty file there says that the image shows no objects)"
        )
    return _annotation(read_txt(path, wanted), path, names, origin)


# --- one table for many images -----------------------------------------------------------------------------------------


def _read_table(path: Path, wanted: Collection[str] | None, keypoint: str | None) -> Table:
    return read_coco(path, wanted, keypoint) if path.suffix.lower() == ".json" else read_csv(path, wanted)


def _table_classes(tables: Collection[Table]) -> tuple[str, ...]:
    """Class names over all tables, so that an index means the same in every split; none when all labels are numbers."""
    if any(t.classes for t in tables):
        return tuple(dict.fromkeys(name for t in tables for name in t.classes))
    labels = {v for t in tables for p in t.images.values() for v in p.labels if v is not None}
    return () if all(_is_int(v) for v in labels) else tuple(sorted(labels))


def _table_entries(
    root: Path,
    table: Table,
    places: list[Place],
    names: tuple[str, ...],
    origin: float,
    alone: bool,
    faults: list[Fault],
) -> dict[str, list[Entry]]:
    """Entries by split; `alone`: no other table speaks of these images, so those a CSV leaves out have no objects."""
    found: dict[Path, Points] = {}
    for name, points in table.images.items():
        matches = _find(name, table.path.parent, root, places)
        if len(matches) != 1:
            problem = "is not in this dataset" if not matches else f"could be any of {len(matches)} files"
            faults.append(Fault(table.path, points.line, f"the image '{name}' {problem}"))
        elif matches[0] in found:
            faults.append(Fault(table.path, points.line, f"the image '{name}' was already named in another way"))
        else:
            found[matches[0]] = points
    out: dict[str, list[Entry]] = {}
    for place in places:
        direct = set(place.images)
        deeper = [i for i in found if i not in direct and place.image_dir in i.parents]
        whole = table.path.suffix.lower() != ".json" and (alone or len(places) > 1)
        mine = [*(i for i in place.images if whole or i in found), *deeper]
        if silent := sum(i not in found for i in mine):
            logger.warning("%s: %d images have no row and are taken to show no objects", table.path, silent)
        stems = [i.stem for i in mine]
        unique = len(set(stems)) == len(stems)
        out[place.split] = [
            Entry(
                image.stem if unique else image.name,
                image,
                table.path,
                partial(_load_row, found.get(image) or Points(meta={"unlisted": True}), table.path, names, origin),
            )
            for image in mine
        ]
    return out


def _find(name: str, beside: Path, root: Path, places: list[Place]) -> list[Path]:
    """Images a name in a table may mean: a path from the table or an image folder, else a file name, else without suffix."""
    known = {i for p in places for i in p.images}

    def there(path: Path) -> bool:
        return path in known or (any(p.image_dir in path.parents for p in places) and path.is_file())

    for bases in ([p.image_dir for p in places], [beside], [root]):
        if matches := list(dict.fromkeys(base / name for base in bases if there(base / name))):
            return matches
    last = Path(name).name
    for tables in ([p.by_name for p in places], [p.by_stem for p in places]):
        if matches := list(dict.fromkeys(m for t in tables for m in t.get(last, ()))):
            return matches
    return []


def _load_row(points: Points, path: Path, names: tuple[str, ...], origin: float) -> Annotation:
    if points.faults:
        raise AnnotationError(points.faults)
    return _annotation(points, path, names, origin)


# --- both --------------------------------------------------------------------------------------------------------------


def _annotation(points: Points, path: Path, names: tuple[str, ...], origin: float) -> Annotation:
    labels = None
    if points.labels and points.labels[0] is not None:
        labels = torch.tensor(_indices(points, path, names), dtype=torch.int64)
    boxes = None
    if points.boxes and all(b is not None for b in points.boxes):
        boxes = torch.tensor(points.boxes, dtype=torch.float64).add(origin).float()
    meta: Mapping[str, Any] = points.meta | ({"classes": names} if names and labels is not None else {})
    xy = torch.tensor(points.xy, dtype=torch.float64).reshape(-1, 2).add(origin).float()
    return Annotation(xy, labels, boxes, lines=points.lines or None, meta=meta)


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 19  # fits int64


def _indices(points: Points, path: Path, names: tuple[str, ...]) -> list[int]:
    index = {name: i for i, name in enumerate(names)}
    out: list[int] = []
    faults: list[Fault] = []
    for i, label in enumerate(points.labels):
        if label is not None and label in index:
            out.append(index[label])
        elif label is not None and _is_int(label):
            out.append(int(label))
        else:
            line = points.lines[i] if points.lines else None
            message = f"the label {str(label)[:40]!r} is neither a whole number nor a name listed in classes.txt"
            faults.append(Fault(path, line, message))
    if faults:
        raise AnnotationError(faults)
    return out


def recognise(root: Path) -> bool:
    """Images with points beside them, in none of the published layouts; images alone are not a dataset."""
    if not root.is_dir() or any(r.recognise(root) for r in readers().values() if r.name != "folder"):
        return False
    try:
        for place in find_places(root):
            files = [p for p in txt_files(place).values() if p is not None][:_SAMPLED]
            if any(looks_like_txt(p) for p in files) or find_tables(root, [place], None, "auto", missing_ok=True):
                return True
    except DataError:
        return False
    return False


register(
    Reader(
        name="folder",
        summary="your own images with dots: .txt beside each image, one CSV, or COCO JSON",
        entries=entries,
        recognise=recognise,
        origin=ORIGIN,
        layout="[train|val|test/][images/]NAME.jpg with NAME.txt ('x y' lines), points.csv (image,x,y) or a COCO .json",
        outside_is_error=True,
    )
)
