"""Which annotation files lie with the images of a folder, and their format: what a look into a few files is surest of."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from papm.data.formats import FORMATS, Format, PerImage, Sheet, formats
from papm.data.formats.base import MAYBE, NO, SURELY
from papm.data.formats.csv import first_rows
from papm.data.readers.layout import Place, label_dirs, listed, nfc, split_of
from papm.errors import DataError
from papm.images import natural_key

logger = logging.getLogger(__name__)

_SAMPLED = 5  # files looked into to recognise a format

Found = tuple[Path, Sheet, Place]  # a file for many images, and what it speaks of


def choose(root: Path, place: Place, allowed: Sequence[Format]) -> PerImage | list[Found]:
    """One format of files per image, or the files that speak of many images: what a look into them is surest of."""
    if len(allowed) == 1 and isinstance(allowed[0], PerImage):
        return allowed[0]
    sure, taken = _look(place, allowed)
    sheets = find_sheets(root, place, allowed, taken)
    if not sheets and len(allowed) == 1:  # asked for: read it, if only to say what is wrong with it
        sheets = find_sheets(root, place, allowed, any_sheet=True)
    sure |= {f: (max(f.detect(path), MAYBE), path) for path, f, _ in sheets}
    most = max((s for s, _ in sure.values()), default=NO)
    found = {f: path for f, (s, path) in sure.items() if s == most}
    if len(found) > 1:
        raise _ambiguous(place.image_dir, found)
    chosen = next(iter(found), FORMATS.get("txt"))
    if isinstance(chosen, Sheet):
        return sheets
    assert isinstance(chosen, PerImage)
    # Text files that do not look like points are read as such, which says what is wrong with them, and where.
    if found or (chosen in allowed and any(sidecars(place, chosen).values())):
        return chosen
    raise DataError(
        f"{place.image_dir}: images but no points{_unread(place)}; put a NAME.txt of 'x y' lines beside each NAME.jpg, or one"
        " CSV with the columns image, x, y; 'papm data list' shows all formats"
    )


def is_told(root: Path, place: Place) -> bool:
    """Whether anything beside a place's images looks like points."""
    if any(f.detect(p) for f in formats() if isinstance(f, PerImage) for p in _sample(_files(place, f))):
        return True
    try:
        return bool(find_sheets(root, place, formats()))
    except DataError:  # more than one: opening it asks which
        return True


# --- one file per image ------------------------------------------------------------------------------------------------


def sidecars(place: Place, f: PerImage) -> dict[Path, Path | None]:
    """Each image with its own annotation file, or None where there is none; without dot maps and masks of others."""
    dirs = [(files, f.endings_in(folder)) for folder, files in zip(place.dirs, place.files)]
    maps = annotation_pictures(place)
    out: dict[Path, Path | None] = {}
    for image in place.images:
        found = _named_after(image, f, dirs)
        path = next(found, None)
        if path is not None and f.only_one:
            _require_alone(image, path, found, f)
        if image not in maps or (path is not None and not f.pictures):
            out[image] = path
    if f.pictures:
        _require_own(out)
    if f.alone and [*out.values()] == [None]:
        out = dict.fromkeys(out, next((files[n] for files in place.files for n in f.alone if n in files), None))
    return out


def _named_after(image: Path, f: PerImage, dirs: Iterable[tuple[Mapping[str, Path], Sequence[str]]]) -> Iterator[Path]:
    """The files whose names say that they are of an image, nearest first."""
    stem = image.stem
    stems = (stem,) if stem.isascii() else dict.fromkeys((stem, nfc(stem)))
    for files, endings in dirs:
        for one in stems:
            for name in f.names(one, endings):
                if name in files and files[name] != image:
                    yield files[name]


def _require_alone(image: Path, path: Path, others: Iterable[Path], f: PerImage) -> None:
    """DataError where another file has as good a name for the same image."""
    for other in others:
        if other != path and not other.name.endswith(f.last_resort or ("\0",)):
            raise DataError(f"{path}: {other} is of {image.name} too, by its name; take one of both away")


def _require_own(found: Mapping[Path, Path | None]) -> None:
    """DataError where a file is, by its name, of two images."""
    owners: dict[Path, Path] = {}
    for image, path in found.items():
        if path is not None and owners.setdefault(path, image) != image:
            both = f"{owners[path].name} and of {image.name}"
            raise DataError(f"{path}: by its name it may be of {both}; rename it after its image, or take one away")


def annotation_pictures(place: Place) -> set[Path]:
    """Images that are dot maps or masks of others, by their names."""
    kinds = [f for f in formats() if isinstance(f, PerImage) and f.pictures]
    marked = re.compile("|".join(re.escape(w) for f in kinds for w in f.pictures))
    maps = {i for i in place.images if marked.search(i.name)}
    if not maps:
        return set()
    files = place.files[place.dirs.index(place.image_dir)]
    beside = [(f, [(files, [*f.endings_in(place.image_dir), *f.leftovers])]) for f in kinds]
    return {p for i in place.images for f, dirs in beside for p in _named_after(i, f, dirs) if p in maps}


def expected(place: Place, image: Path, f: PerImage) -> Path:
    """The file that an image without one should have."""
    folder = place.label_dir or image.parent
    return folder / f"{f.prefix}{image.stem}{f.endings_in(folder)[0]}"


def _files(place: Place, f: PerImage) -> list[Path]:
    return [p for p in sidecars(place, f).values() if p is not None]


def _look(place: Place, allowed: Sequence[Format]) -> tuple[dict[Format, tuple[int, Path]], set[Path]]:
    """How sure a look into some files is of each format, with the file that says it; and the files that surely are of one."""
    sure: dict[Format, tuple[int, Path]] = {}
    taken: set[Path] = set()
    told: set[Path] = set()  # files that are surely of a format, and need not be shown to the others
    for f in allowed:
        files = _files(place, f) if isinstance(f, PerImage) else []
        looked = [(f.detect(p), p) for p in _sample(files) if p not in told]
        told |= {p for s, p in looked if s == SURELY}
        if looked and (best := max(looked, key=lambda s: s[0]))[0] > NO:
            sure[f] = best
            taken |= set(files) if best[0] == SURELY else set()
    return sure, taken


def _sample(files: Sequence[Path]) -> list[Path]:
    """A few files to look into, with something in them where there are any."""
    filled: list[Path] = []
    for p in files:
        try:
            if p.is_file() and p.stat().st_size:
                filled.append(p)
        except OSError:
            continue
        if len(filled) == _SAMPLED:
            break
    return filled or list(files[:_SAMPLED])


def _unread(place: Place) -> str:
    """A file beside the images that no format fits, in words."""
    files = {p.name: p for files in place.files for p in files.values() if p.suffix and p.is_file()}
    others = sorted(set(files) - {i.name for i in place.images})
    if not others:
        return ""
    for name in others:
        rows = first_rows(files[name]) if files[name].suffix.lower() in (".csv", ".tsv") else []
        if rows and len(rows[0]) > 1:
            columns = ", ".join(c.strip() for c in rows[0])[:120]
            return f" that papm can read (the columns of {name} are {columns}; rename those it needs)"
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f" that papm can read ({others[0]}{more}: not in a form it knows, or not named after an image)"


# --- one file for many images ------------------------------------------------------------------------------------------


def named_sheets(
    root: Path, places: Sequence[Place], annotations: str | Path, allowed: Sequence[Format]
) -> list[Found]:
    """What a user names: one file for all places, or with `*` in its name those that the splits have."""
    pattern = Path(annotations).name
    if "*" not in pattern:
        return [(*_named_sheet(root, annotations, allowed), p) for p in places]
    out: list[Found] = []
    for place in places:
        folders = dict.fromkeys([*place.dirs, root, *label_dirs(root)])
        others = {p for d in folders for p in listed(d) if not fnmatchcase(p.name, pattern)}
        found = find_sheets(root, place, allowed, others)
        if not found:
            logger.warning("%s: no annotation file '%s' for these images: left out", place.image_dir, pattern)
        out += found
    if not out:
        raise DataError(f"{root}: no annotation file '{pattern}' for any of its images")
    return out


def _named_sheet(root: Path, annotations: str | Path, allowed: Sequence[Format]) -> tuple[Path, Sheet]:
    """The annotation file a user names, with its format: by its content, else by its suffix."""
    path = next((p for p in (Path(annotations), root / annotations) if p.is_file()), None)
    if path is None:
        raise DataError(f"{annotations}: no such annotation file, neither here nor in {root}")
    sheets = [f for f in allowed if isinstance(f, Sheet)]
    fitting = [f for f in sheets if path.suffix.lower() in f.suffixes]
    if not fitting:
        known = sorted({s for f in sheets for s in f.suffixes})
        raise DataError(f"{path}: not an annotation file of many images; expected one of {', '.join(known) or 'none'}")
    return path, max(fitting, key=lambda f: f.detect(path))


def find_sheets(
    root: Path, place: Place, allowed: Sequence[Format], taken: Collection[Path] = (), any_sheet: bool = False
) -> list[Found]:
    """The files that speak of a place's images, each with what it speaks of; DataError when several do not differ.

    `taken` are files known to be something else; `any_sheet` takes what does not look like its format too. Several over one
    folder of images that are named after splits make the splits.
    """
    shared = tuple(d for d in (root, *label_dirs(root)) if d not in place.dirs)
    for folder in (*place.dirs, *shared):
        found = _sheets_in(folder, allowed, taken, any_sheet)
        if folder in shared:  # of several, those that name this split, else those that name none
            found = [t for t in found if split_of(t[0]) == place.split] or [t for t in found if not split_of(t[0])]
        if found:
            return _shared_out(folder, place, found)
    return []


def _sheets_in(
    folder: Path, allowed: Sequence[Format], taken: Collection[Path], any_sheet: bool
) -> list[tuple[Path, Sheet]]:
    """The files of a folder that speak of many images, each with its format; only the surest kind."""
    found: list[tuple[int, Path, Sheet]] = []
    for p in sorted(listed(folder), key=lambda p: natural_key(p.name)):
        if p.name.startswith(".") or p in taken or not p.is_file():
            continue
        fitting = [f for f in allowed if isinstance(f, Sheet) and p.suffix.lower() in f.suffixes]
        found += [(max(f.detect(p), MAYBE if any_sheet else NO), p, f) for f in fitting]
    best = max((sure for sure, _, _ in found), default=NO)
    return [(p, f) for sure, p, f in found if sure == best > NO]


def _shared_out(folder: Path, place: Place, found: Sequence[tuple[Path, Sheet]]) -> list[Found]:
    """What each of the files in a folder speaks of."""
    if len({f for _, f in found}) > 1:
        raise _ambiguous(folder, {f: p for p, f in reversed(found)})
    splits = [split_of(p) for p, _ in found]
    if place.split == "all" and None not in splits and len(set(splits)) == len(splits):
        return [(p, f, replace(place, split=split or "all")) for (p, f), split in zip(found, splits)]
    if len(found) == 1:
        return [(*found[0], place)]
    mine = [(p, f, place) for p, f in found if split_of(p) == place.split]
    if len(mine) == 1:
        return mine
    names = [p.name for p, _, _ in mine] or [p.name for p, _ in found]
    how = re.split("train|val|test", names[0])[0] + "*" if mine else "NAME"  # for the files of all splits
    raise DataError(
        f"{folder}: several annotation files ({', '.join(names)}); say which with annotations={how}"
        f" (papm train: data.annotations={how})"
    )


def _ambiguous(folder: Path, found: Mapping[Format, Path]) -> DataError:
    """The error for points in several formats, with a file of each."""
    files = {f.name: path.name for f, path in found.items()}
    said = ", ".join(f"{file} is {name}" for name, file in sorted(files.items()))
    ways = " or ".join(f"format={name}" for name in sorted(files))
    return DataError(
        f"{folder}: points in several formats ({said}); say which to read with {ways} (papm train: data.format=…)"
    )
