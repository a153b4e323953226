"""Your own data: a folder of images with dots, recognised by what lies beside the images.

    DATA/a.jpg, a.txt           one `x y [label]` a line (spaces or commas, # comments, optional header)
    DATA/*.jpg, points.csv      columns image, x, y (and label); blank x and y state an image without objects
    DATA/*.jpg, any.json        COCO: boxes (their centres) or keypoints, see `coco`

and what annotation tools write: YOLO, Pascal VOC, CVAT, Label Studio, LabelMe, VIA, ImageJ, QuPath, DotDotGoose, dot maps,
and the files of NWPU-Crowd and ShanghaiTech. `papm.data.file_formats` lists them; each has a file here that tells how.

Images may lie in `images/`, annotations in `labels/`, `points/` or `annotations/`. Sub-folders `train`, `val`, `test` (in DATA
or in `images/`), or tables named after them, become splits; without any the one split is called `all`, and training and
evaluation divide it by seed. Masks in `roi/`, or polygons in `roi.json`, say where objects count (`regions`).

Pixel origin: the format's own, 0 for most. Coordinates are taken as written, with the image spanning 0 ≤ x < W; a tool that
writes whole pixel indices wants `origin=0.5`, one that counts from 1, as MATLAB does, `origin=-0.5`.

Zero points must be said: an image needs its `.txt`, if only an empty one. An image that a CSV does not mention is taken to be
without objects (tools write no rows for those), with a warning in the log; so is an image without a YOLO file. Other tables
list their images themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from papm.data.base import Annotation, Entry, Reader, readers, register
from papm.data.file_formats import FORMATS
from papm.data.readers import multi_annotator
from papm.data.readers.choice import choose, is_blank, is_told
from papm.data.readers.dotmap import ENDINGS, WAYS
from papm.data.readers.faults import AnnotationError, Fault, read_text
from papm.data.readers.kinds import Context, Format, Sheet, Sidecar
from papm.data.readers.layout import Place, find_places, named_sheet, nfc, sidecars, uploaded_name
from papm.data.readers.records import Points, Table, same_labelling
from papm.data.readers.regions import with_regions
from papm.data.readers.yolo import class_names, is_pose
from papm.data.upright import upright
from papm.errors import ConfigError, DataError, unknown
from papm.images import image_size

logger = logging.getLogger(__name__)

ORIGIN = 0.0


def entries(
    root: Path,
    *,
    format: str = "auto",
    annotations: str | Path | None = None,
    category: str | int | Iterable[str | int] | None = None,
    keypoint: str | None = None,
    origin: float | None = None,
    dots: str = "auto",
    annotators: str = "merge",
    roi: bool = True,
    stored: bool | None = None,
) -> dict[str, list[Entry]]:
    """Images of each split and how to parse their points.

    `format` names one of `papm.data.file_formats` where the folder does not tell; `annotations` the file for many images
    when there are several; `category` keeps only these labels (names or ids, several separated by commas); `keypoint`
    picks one of a COCO skeleton; `origin` is added to coordinates in place of what the format asks for; `dots` says how a
    dot map is read; `annotators` whose points count where several people marked the images; `roi=false` leaves
    regions of interest aside (`regions`); `stored` says whether coordinates are those of the pixels as they are stored, before
    EXIF turns a photograph upright, in place of what the format's tools do.
    """
    if format not in ("auto", *FORMATS):
        raise ConfigError(f"format='{format}' for folder data; known: auto, {', '.join(FORMATS)}")
    if dots not in WAYS:
        raise ConfigError(f"dots='{dots}' for folder data; known: {', '.join(WAYS)}")
    if origin is not None and (isinstance(origin, bool) or not isinstance(origin, int | float)):
        raise ConfigError(f"origin is a number, not '{origin}'")
    if stored is not None and not isinstance(stored, bool):
        raise ConfigError(f"stored is true or false, not '{stored}'")
    formats = list(FORMATS.values()) if format == "auto" else [FORMATS[format]]
    context = Context(root, _categories(category), keypoint, _class_names(root), dots=dots)

    def read(folder: Path, places: Sequence[Place]) -> dict[str, list[Entry]]:
        opened = _Folder(folder, replace(context, root=folder), origin, stored)
        if annotations is not None:
            opened.sheets(*[(*named_sheet(folder, annotations, formats), p) for p in places])
            return opened.finish()
        sheets = []
        chosen = [choose(folder, place, formats) for place in places]
        for place, choice in zip(places, chosen):
            if isinstance(choice, Format):
                blank = choice.name == "txt" and FORMATS["yolo"] in chosen and is_blank(place, choice)
                opened.files(place, FORMATS["yolo"] if blank else choice)
            else:
                sheets += choice
        opened.sheets(*sheets)
        return opened.finish()

    known = multi_annotator.people(root)
    multi_annotator.check_choice(annotators, known, root)
    places = find_places(root)
    try:
        found = multi_annotator.read_people(known, places, annotators, read) if known else read(root, places)
        return with_regions(root, places, found) if roi else found
    except AnnotationError as e:
        if roi and e.entries:
            raise AnnotationError(e.faults, with_regions(root, places, e.entries)) from None
        raise


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


# --- what was chosen, read ---------------------------------------------------------------------------------------------


class _Folder:
    """Entries of a folder as its places are read; labels that are names get their indices at the end, over all of them."""

    def __init__(self, root: Path, context: Context, origin: float | None, stored: bool | None) -> None:
        self.root, self.context, self.origin, self.stored = root, context, origin, stored
        self.found: dict[str, list[Entry]] = {}
        self.faults: list[Fault] = []
        self.pending: list[tuple[Table, Format, list[Place]]] = []  # tables, read; their labels are text

    def of(self, f: Format) -> Context:
        """The context a format is read in."""
        origin = f.origin if self.origin is None else self.origin
        context = replace(
            self.context, origin=origin, stored=(f.stored or None) if self.stored is None else self.stored
        )
        if f.name == "yolo":
            context = replace(context, names=class_names(self.root), pose=is_pose(self.root))
        return context

    def files(self, place: Place, f: Format) -> None:
        """One file per image."""
        assert isinstance(f.reader, Sidecar)
        context = self.of(f)
        own = sidecars(place, f.reader)
        maps = _companions(place)
        stems: set[str] = set()
        table = Table(place.image_dir)
        out = self.found.setdefault(place.split, [])
        if f.reader.missing_is_empty and not any(own.values()):
            raise DataError(f"{place.image_dir}: no {f.name} files for these images; expected {f.layout}")
        missing = 0
        for image, path in own.items():
            if image in maps and (path is None or f.name == "dotmap"):
                continue
            if image.stem in stems:
                name = f.reader.names(image.stem, place.image_dir)[0]
                self.faults.append(
                    Fault(image, None, f"another image is called '{image.stem}' too, so {name} is of both")
                )
                continue
            stems.add(image.stem)
            folder = place.label_dir or image.parent
            expected = path or folder / f.reader.names(image.stem, folder)[0]
            missing += path is None
            if not f.reader.named_labels:
                load = partial(_load_file, f, image, expected, context)
                out.append(Entry(image.stem, image, expected, load, file_format=f.name))
                continue
            try:
                _must_exist(image, expected)
                read = f.reader.read(expected, image, context)
                assert isinstance(read, Points)
                points = read
            except AnnotationError as e:
                points = Points(faults=list(e.faults))
            except DataError as e:
                points = Points(faults=[_fault(image if str(e).startswith(f"{image}: ") else expected, e)])
            points.meta["file"] = expected
            table.images[str(image)] = points
        if missing and f.reader.missing_is_empty:
            files = "1 image has no file and is" if missing == 1 else f"{missing} images have no file and are"
            logger.warning("%s: %s taken to show no objects", place.image_dir, files)
        if table.images:
            self.pending.append((table, f, [place]))

    def sheets(self, *found: tuple[Path, Format, Place]) -> None:
        """One file for many images, perhaps of several places."""
        places: dict[Path, list[Place]] = {}
        for path, _, place in found:
            places.setdefault(path, []).append(place)
        for path, f in {p: f for p, f, _ in found}.items():
            assert isinstance(f.reader, Sheet)
            table = f.reader.read(path, self.of(f))
            self.faults += table.faults
            self.pending.append((table, f, places[path]))

    def finish(self) -> dict[str, list[Entry]]:
        """All entries; AnnotationError with the faults that belong to no image, and the entries that there are."""
        names = self.context.names or _table_classes([t for t, _, _ in self.pending])
        known = {v for t, f, _ in self.pending if not f.own_filter for p in t.images.values() for v in p.labels}
        if any(not f.own_filter for _, f, _ in self.pending):
            for wanted in sorted(self.context.wanted or ()):
                if wanted not in known and wanted not in names and not (_is_int(wanted) and int(wanted) < len(names)):
                    raise unknown("category", wanted, names or [str(v) for v in known])
        for table, f, places in self.pending:
            for points in table.images.values():
                if not points.faults:
                    same_labelling(points, points.meta.get("file", table.path))
                if not f.own_filter:
                    _keep(points, self.context.wanted, names)
            context = replace(self.of(f), names=names)
            if isinstance(f.reader, Sidecar):
                listed = {places[0].split: _file_entries(table, context)}
            else:
                speakers = [p for _, g, ps in self.pending if isinstance(g.reader, Sheet) for p in ps]
                alone = len(places) == 1 and sum(places[0].images == p.images for p in speakers) == 1
                whole = f.reader.unlisted_is_empty and (alone or len(places) > 1)
                listed = _table_entries(self.root, table, places, context, whole, self.faults)
            for split, items in listed.items():
                self.found.setdefault(split, []).extend(replace(e, file_format=f.name) for e in items)
        if self.faults:
            raise AnnotationError(self.faults, self.found)
        return self.found


def _fault(path: Path, e: DataError) -> Fault:
    return Fault(path, None, str(e).removeprefix(f"{path}: "))


def _companions(place: Place) -> frozenset[Path]:
    """Images that are dot maps of others, by their names."""
    return frozenset(
        i
        for i in place.images
        if i.suffix.lower() == ".png"
        and any(i.stem.endswith(e) and nfc(i.stem[: -len(e)]) in place.by_stem for e in ENDINGS)
    )


# --- one file per image -------------------------------------------------------------------------------------------------


def _must_exist(image: Path, path: Path) -> None:
    if not path.exists():
        hint = " (an empty file there says that the image shows no objects)" if path.suffix in (".txt", ".csv") else ""
        raise DataError(f"{image}: no annotation file; expected {path}{hint}")


def _load_file(f: Format, image: Path, path: Path, context: Context) -> Annotation:
    assert isinstance(f.reader, Sidecar)
    if not f.reader.missing_is_empty:
        _must_exist(image, path)
    read = f.reader.read(path, image, context)
    if isinstance(read, Annotation):
        return upright(read, image, image_size(image)) if context.stored else read
    if not f.own_filter:
        _keep(read, context.wanted, context.names)
    return _annotation(read, image, path, context)


def _file_entries(table: Table, context: Context) -> list[Entry]:
    out = []
    for name, points in table.images.items():
        path = points.meta.pop("file")
        out.append(Entry(Path(name).stem, Path(name), path, partial(_load_row, points, Path(name), path, context)))
    return out


# --- one table for many images -----------------------------------------------------------------------------------------


def _table_classes(tables: Collection[Table]) -> tuple[str, ...]:
    """Class names over all tables, so that an index means the same in every split; none when all labels are numbers."""
    if any(t.classes for t in tables):
        return tuple(dict.fromkeys(name for t in tables for name in t.classes))
    labels = {v for t in tables for p in t.images.values() for v in p.labels if v is not None}
    return () if all(_is_int(v) for v in labels) else tuple(sorted(labels))


def _keep(points: Points, wanted: Collection[str] | None, names: Sequence[str]) -> None:
    """Leave only points whose label, or its index, is wanted."""
    if wanted is None:
        return
    index = {name: str(i) for i, name in enumerate(names)}
    kept = [i for i, v in enumerate(points.labels) if v is not None and (v in wanted or index.get(v) in wanted)]
    points.xy = [points.xy[i] for i in kept]
    points.boxes = [points.boxes[i] for i in kept]
    points.lines = [points.lines[i] for i in kept] if points.lines else []
    points.labels = [points.labels[i] for i in kept]


def _table_entries(
    root: Path, table: Table, places: list[Place], context: Context, whole: bool, faults: list[Fault]
) -> dict[str, list[Entry]]:
    """Entries by split; `whole`: images that the table leaves out have no objects."""
    found: dict[Path, Points] = {}
    for name, points in table.images.items():
        matches = _find(name, table.path.parent, root, places)
        if not matches and points.also:
            matches = _find(points.also, table.path.parent, root, places)
        if not matches and points.also:
            matches = [m for p in places for m in p.by_upload.get(uploaded_name(points.also), ())]
        if len(matches) != 1:
            problem = (
                f"could be any of {len(matches)} files" if matches else f"is not in this dataset{_but(name, places)}"
            )
            faults.append(Fault(table.path, points.line, f"the image {name[:200]!r} {problem}"))
        elif matches[0] in found:
            faults.append(Fault(table.path, points.line, f"the image {name[:200]!r} was already named in another way"))
        else:
            found[matches[0]] = points
    out: dict[str, list[Entry]] = {}
    for place in places:
        direct, maps = set(place.images), _companions(place)
        deeper = [i for i in found if i not in direct and place.image_dir in i.parents]
        mine = [*(i for i in place.images if i in found or (whole and i not in maps)), *deeper]
        if silent := sum(i not in found for i in mine):
            rows = "1 image has no row and is" if silent == 1 else f"{silent} images have no row and are"
            logger.warning("%s: %s taken to show no objects", table.path, rows)
        stems = [i.stem for i in mine]
        unique = len(set(stems)) == len(stems)
        out[place.split] = [
            Entry(
                image.stem if unique else image.name,
                image,
                table.path,
                partial(_load_row, found.get(image) or Points(meta={"unlisted": True}), image, table.path, context),
            )
            for image in mine
        ]
    return out


def _find(name: str, beside: Path, root: Path, places: list[Place]) -> list[Path]:
    """Images a name in a table may mean: a path from the table or an image folder, else a file name, else without suffix."""
    known = {i for p in places for i in p.images}

    def there(path: Path) -> bool:
        try:
            return path in known or (any(p.image_dir in path.parents for p in places) and path.is_file())
        except OSError:  # a name that is too long to be one
            return False

    for bases in ([p.image_dir for p in places], [beside], [root]):
        if matches := list(dict.fromkeys(base / name for base in bases if there(base / name))):
            return matches
    last = nfc(Path(name).name)
    for tables in ([p.by_name for p in places], [p.by_stem for p in places]):
        if matches := list(dict.fromkeys(m for t in tables for m in t.get(last, ()))):
            return matches
    return []


def _but(name: str, places: list[Place]) -> str:
    """What to do about an image that is not there; one of the same name with another ending may be."""
    alike = next((m for p in places for m in p.by_stem.get(nfc(Path(name).stem), ())), None)
    return "; put it back or take it out here" if alike is None else f"; {alike.name!r} is, and the names must agree"


def _load_row(points: Points, image: Path, path: Path, context: Context) -> Annotation:
    if points.faults:
        raise AnnotationError(points.faults)
    return _annotation(points, image, path, context)


# --- both --------------------------------------------------------------------------------------------------------------


def _annotation(points: Points, image: Path, path: Path, context: Context) -> Annotation:
    labels = None
    if points.labels and points.labels[0] is not None:
        labels = torch.tensor(_indices(points, path, context.names), dtype=torch.int64)
    scale = torch.ones(2, dtype=torch.float64)
    if points.relative:
        scale = torch.tensor(image_size(image)[::-1], dtype=torch.float64)
    boxes = None
    if points.boxes and all(b is not None for b in points.boxes):
        boxes = (torch.tensor(points.boxes, dtype=torch.float64) * scale.repeat(2)).add(context.origin).float()
    meta: Mapping[str, Any] = points.meta | ({"classes": context.names} if context.names and labels is not None else {})
    xy = torch.tensor(points.xy, dtype=torch.float64).reshape(-1, 2) * scale
    if points.relative:  # the centre of a box in fractions may come out a rounding error beyond 0
        xy = torch.where((xy < 0) & (xy > -1e-6), 0.0, xy)
    xy = xy.add(context.origin).float()
    read = Annotation(xy, labels, boxes, lines=points.lines or None, meta=meta)
    stored = points.stored if context.stored is None else context.stored
    return upright(read, image, image_size(image)) if stored else read


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
            message = (
                f"the label {str(label)[:40]!r} is neither a whole number nor a name listed in classes.txt (one a line)"
            )
            faults.append(Fault(path, line, message))
    if faults:
        raise AnnotationError(faults)
    return out


def recognise(root: Path) -> bool:
    """Images with points beside them, in none of the published layouts; images alone are not a dataset."""
    if not root.is_dir() or any(r.recognise(root) for r in readers().values() if r.name != "folder"):
        return False
    try:
        return any(is_told(root, place) for place in find_places(root)) or bool(multi_annotator.people(root))
    except DataError:
        return False


register(
    Reader(
        name="folder",
        summary="your own images with dots: .txt beside each image, one CSV, or COCO JSON; files of annotation tools",
        entries=entries,
        recognise=recognise,
        origin=ORIGIN,
        layout="[train|val|test/][images/]NAME.jpg with NAME.txt ('x y' lines), points.csv (image,x,y) or a COCO .json",
        outside_is_error=True,
    )
)
