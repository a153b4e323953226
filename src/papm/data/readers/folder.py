"""Your own data: a folder of images with dots, recognised by what lies beside the images (docs/datasets.md).

    DATA/a.jpg, a.txt           one `x y [label]` a line (spaces or commas, # comments, optional header)
    DATA/*.jpg, points.csv      columns image, x, y (and label); blank x and y state an image without objects
    DATA/*.jpg, any.json        COCO: boxes (their centres) or keypoints

and what annotation tools write (`papm.data.formats`). Where things lie, `layout`; of which format they are, `detect`; where
objects count, `regions`. Pixel origin: the format's own, 0 for most: coordinates as written, with the image spanning 0 ≤ x
< W.

Zero points must be said: an image needs its `.txt`, if only an empty one. An image that a CSV does not mention is taken to be
without objects (tools write no rows for those), with a warning in the log; so is an image without a YOLO file. Other tables
list their images themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from papm.data.base import Annotation, Entry, Reader, readers, register
from papm.data.formats import FORMATS, Format, PerImage, dotmap, formats
from papm.data.formats import masks as label_masks
from papm.data.formats.base import Context, Points, is_int
from papm.data.formats.txt import head_lines, listed_names
from papm.data.readers import multi_annotator
from papm.data.readers.detect import Found, annotation_pictures, choose, expected, is_told, named_sheets, sidecars
from papm.data.readers.faults import AnnotationError, Fault, Faults
from papm.data.readers.layout import Place, find_places, find_regions, tell_passed_over
from papm.data.readers.matching import images_of
from papm.data.readers.regions import with_regions
from papm.data.upright import upright
from papm.errors import ConfigError, DataError, unknown
from papm.images import image_size

logger = logging.getLogger(__name__)


def entries(
    root: Path,
    *,
    format: str = "auto",
    annotations: str | Path | None = None,
    category: str | int | Iterable[str | int] | None = None,
    keypoint: str | None = None,
    origin: float | None = None,
    dots: str = "auto",
    masks: str = "auto",
    annotators: str = "merge",
    roi: bool = True,
    stored: bool | None = None,
) -> dict[str, list[Entry]]:
    """Images of each split and how to parse their points.

    `format` and `annotations` name the format and the file for many images where the folder does not tell; `category` keeps
    only these labels (names or ids, several separated by commas); `keypoint` picks one of a COCO skeleton; `origin` and
    `stored` stand in for what the format says of its coordinates; `dots` and `masks` say how a dot map or a label mask is
    read, `annotators` whose points count.
    """
    _check_options(format, dots, masks, origin, stored)
    allowed = formats() if format == "auto" else [FORMATS.get(format)]
    context = Context(root, _categories(category), keypoint, listed_names(root / "classes.txt"), dots=dots, masks=masks)

    def read(folder: Path, places: Sequence[Place]) -> dict[str, list[Entry]]:
        opened = _Folder(replace(context, root=folder), origin, stored)
        if annotations is not None:
            opened.sheets(named_sheets(folder, places, annotations, allowed))
        else:
            opened.places(places, allowed)
        return opened.finish()

    people = multi_annotator.people(root)
    multi_annotator.check_choice(annotators, people, root)
    places = find_places(root)
    regions = {p.split: lying for p in places if roi and (lying := find_regions(root, p))}
    found: dict[str, list[Entry]] = {}
    try:
        found = multi_annotator.read_people(people, places, annotators, read) if people else read(root, places)
        return with_regions(found, regions) if regions else found
    except AnnotationError as e:
        if regions and e.entries:
            raise AnnotationError(e.faults, with_regions(e.entries, regions)) from None
        raise
    finally:
        tell_passed_over(root, places, {entry.image for split in found.values() for entry in split})


def _check_options(format: str, dots: str, masks: str, origin: object, stored: object) -> None:
    ways = ("way to read dots", dots, dotmap.WAYS), ("way to read masks", masks, label_masks.WAYS)
    for what, given, known in (("format", format, ("auto", *FORMATS)), *ways):
        if given not in known:
            raise unknown(what, given, known)
    if origin is not None and (isinstance(origin, bool) or not isinstance(origin, int | float)):
        raise ConfigError(f"origin is a number, not '{origin}'")
    if stored is not None and not isinstance(stored, bool):
        raise ConfigError(f"stored is true or false, not '{stored}'")


def _categories(category: str | int | Iterable[str | int] | None) -> frozenset[str] | None:
    if category is None:
        return None
    parts = str(category).split(",") if isinstance(category, str | int) else [str(c) for c in category]
    return frozenset(p.strip() for p in parts if p.strip())


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
        layout="[train|val|test/][images/]NAME.jpg with NAME.txt ('x y' lines), points.csv (image,x,y) or a COCO .json",
        outside_is_error=True,
    )
)


# --- what was chosen, read ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """An image whose points are read, with labels that may be names."""

    split: str
    name: str
    image: Path
    path: Path  # of the annotation
    points: Points
    format: Format


class _Folder:
    """Entries of a folder as its places are read; labels that are names get their indices at the end, over all of them."""

    def __init__(self, context: Context, origin: float | None, stored: bool | None) -> None:
        self.context, self.origin, self.stored = context, origin, stored
        self.found: dict[str, list[Entry]] = {}
        self.faults: list[Fault] = []
        self.read: list[_Read] = []
        self.classes: dict[str, None] = {}  # that tables name

    def of(self, f: Format) -> Context:
        """The context a format is read in."""
        origin = f.origin if self.origin is None else self.origin
        stored = (f.stored or None) if self.stored is None else self.stored
        return f.prepare(replace(self.context, origin=origin, stored=stored))

    def places(self, places: Sequence[Place], allowed: Sequence[Format]) -> None:
        """Whatever lies with the images of each place."""
        chosen = [choose(self.context.root, place, allowed) for place in places]
        yolo = FORMATS.get("yolo")
        sheets: list[Found] = []
        for place, choice in zip(places, chosen):
            if not isinstance(choice, PerImage):
                sheets += choice
            elif choice.name == "txt" and yolo in chosen and _is_blank(place, choice):
                self.files(place, yolo)  # text files with nothing in them: other places tell what they are
            else:
                self.files(place, choice)
        self.sheets(sheets)

    def files(self, place: Place, f: Format) -> None:
        """One file per image."""
        assert isinstance(f, PerImage)
        context = self.of(f)
        own = sidecars(place, f)
        missing = sum(path is None for path in own.values())
        if f.missing_is_empty and missing == len(own):
            raise DataError(f"{place.image_dir}: no {f.name} files for these images; expected {f.layout}")
        if f.missing_is_empty and missing:
            _warn_of_silence(place.image_dir, missing, "file")
        stems: set[str] = set()
        out = self.found.setdefault(place.split, [])
        for image, there in own.items():
            path = there or expected(place, image, f)
            if image.stem in stems:
                both = f"another image is called '{image.stem}' too, so {path.name} is of both"
                self.faults.append(Fault(image, None, both))
            elif f.named_labels:
                self.read.append(_Read(place.split, image.stem, image, path, _read_file(f, image, path, context), f))
            else:
                load = partial(_load_file, f, image, path, context)
                out.append(Entry(image.stem, image, path, load, file_format=f.name))
            stems.add(image.stem)

    def sheets(self, found: Sequence[Found]) -> None:
        """One file for many images, perhaps of several places."""
        for path, f in {p: f for p, f, _ in found}.items():
            places = [place for p, _, place in found if p == path]
            table = f.read(path, self.of(f))
            self.faults += table.faults
            self.classes |= dict.fromkeys(table.classes)
            # What it leaves out has no objects, unless other tables speak of the same images.
            alone = len(places) > 1 or sum(places[0].images == p.images for _, _, p in found) == 1
            rows = images_of(self.context.root, table, places, self.faults)
            for place in places:
                self.read += _rows(place, rows, f, path, f.unlisted_is_empty and alone)

    def finish(self) -> dict[str, list[Entry]]:
        """All entries; AnnotationError with the faults that belong to no image, and the entries that there are."""
        self._check_wanted(names := self.context.names or self._names())
        contexts = {f: replace(self.of(f), names=names) for f in {r.format for r in self.read}}
        for r in self.read:
            r.points.check_labels(r.path)
            if not r.format.filters:
                r.points.keep(self.context.wanted, names)
            load = partial(r.points.annotation, r.image, r.path, contexts[r.format])
            self.found.setdefault(r.split, []).append(Entry(r.name, r.image, r.path, load, file_format=r.format.name))
        if self.faults:
            raise AnnotationError(self.faults, self.found)
        return self.found

    def _names(self) -> tuple[str, ...]:
        """Class names over all files, so that an index means the same in every split; none when all labels are numbers."""
        if self.classes:
            return tuple(self.classes)
        labels = {v for r in self.read for v in r.points.labels if v is not None}
        return () if all(is_int(v) for v in labels) else tuple(sorted(labels))

    def _check_wanted(self, names: Sequence[str]) -> None:
        """Refuse a category that no file speaks of."""
        plain = [r for r in self.read if not r.format.filters]
        known = {v for r in plain for v in r.points.labels if v is not None}
        for wanted in sorted(self.context.wanted or ()) if plain else ():
            if wanted not in known and wanted not in names and not (is_int(wanted) and int(wanted) < len(names)):
                raise unknown("category", wanted, names or known)


def _warn_of_silence(path: Path, number: int, what: str) -> None:
    images = f"1 image has no {what} and is" if number == 1 else f"{number} images have no {what} and are"
    logger.warning("%s: %s taken to show no objects", path, images)


# --- one file per image -------------------------------------------------------------------------------------------------


def _is_blank(place: Place, f: PerImage) -> bool:
    """Whether no text file of a place has anything in it."""
    return not any(head_lines(p) for p in sidecars(place, f).values() if p is not None)


def _must_exist(image: Path, path: Path) -> None:
    if not path.exists():
        hint = " (an empty file there says that the image shows no objects)" if path.suffix in (".txt", ".csv") else ""
        raise DataError(f"{image}: no annotation file; expected {path}{hint}")


def _read_file(f: PerImage, image: Path, path: Path, context: Context) -> Points:
    """The points of a file, or what is wrong with it."""
    try:
        _must_exist(image, path)
        points = f.read(path, image, context)
        assert isinstance(points, Points)
        return points
    except AnnotationError as e:
        return Points(faults=Faults(e.faults))
    except DataError as e:
        about = image if str(e).startswith(f"{image}: ") else path
        return Points(faults=Faults([Fault(about, None, str(e).removeprefix(f"{about}: "))]))


def _load_file(f: PerImage, image: Path, path: Path, context: Context) -> Annotation:
    if not f.missing_is_empty:
        _must_exist(image, path)
    read = f.read(path, image, context)
    if isinstance(read, Annotation):
        return upright(read, image, image_size(image)) if context.stored else read
    read.check_labels(path)
    read.keep(context.wanted, context.names)
    return read.annotation(image, path, context)


# --- one table for many images -----------------------------------------------------------------------------------------


def _rows(place: Place, found: Mapping[Path, Points], f: Format, path: Path, whole: bool) -> Iterator[_Read]:
    """The images of a place that a table speaks of; `whole`: those that it leaves out have no objects."""
    direct, maps = set(place.images), annotation_pictures(place)
    mine = [i for i in place.images if i in found or (whole and i not in maps)]
    mine += [i for i in found if i not in direct and place.image_dir in i.parents]
    if silent := sum(i not in found for i in mine):
        _warn_of_silence(path, silent, "row")
    unique = len({i.stem for i in mine}) == len(mine)
    for image in mine:
        points = found.get(image) or Points(meta={"unlisted": True})
        yield _Read(place.split, image.stem if unique else image.name, image, path, points, f)
