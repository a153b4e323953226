"""Which format the annotations of a folder have: what a look into a few files is surest of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papm.data.file_formats import FORMATS
from papm.data.readers.formats import first_row, head_lines
from papm.data.readers.kinds import NO, SURELY, Format, Sheet, Sidecar
from papm.data.readers.layout import Place, ambiguous, find_sheets, sidecars
from papm.errors import DataError

_SAMPLED = 5  # files looked into to recognise a format


def choose(root: Path, place: Place, formats: Sequence[Format]) -> Format | list[tuple[Path, Format, Place]]:
    """One format of files per image, or the files that speak of many images: what a look into them is surest of."""
    if len(formats) == 1 and isinstance(formats[0].reader, Sidecar):
        return formats[0]
    sure: dict[str, tuple[int, Path]] = {}
    taken: set[Path] = set()
    for f in formats:
        if isinstance(f.reader, Sidecar):
            files = [p for p in sidecars(place, f.reader).values() if p is not None]
            looked = [(f.reader.looks_like(p), p) for p in _sample(files)]
            if looked and (best := max(looked, key=lambda s: s[0]))[0] > NO:
                sure[f.name] = best
                taken |= set(files) if best[0] == SURELY else set()
    sheets = find_sheets(root, place, formats, taken)
    if not sheets and len(formats) == 1:  # asked for: read it, if only to say what is wrong with it
        sheets = find_sheets(root, place, formats, any_sheet=True)
    for path, f, _ in sheets:
        if isinstance(f.reader, Sheet):
            sure[f.name] = max(f.reader.looks_like(path), 1), path
    most = max((s for s, _ in sure.values()), default=NO)
    found = {name: path for name, (s, path) in sure.items() if s == most}
    if len(found) > 1:
        raise ambiguous(place.image_dir, {name: path.name for name, path in found.items()})
    if found and isinstance(FORMATS[next(iter(found))].reader, Sheet):
        return sheets
    if found:
        return FORMATS[next(iter(found))]
    text = FORMATS["txt"]
    if text in formats and isinstance(text.reader, Sidecar) and any(sidecars(place, text.reader).values()):
        return text  # which says what is wrong with them, and where
    raise DataError(
        f"{place.image_dir}: images but no points{_unread(place)}; put a NAME.txt of 'x y' lines beside each NAME.jpg, or one"
        " CSV with the columns image, x, y; 'papm data list' shows all formats"
    )


def _unread(place: Place) -> str:
    """A file beside the images that no format fits, in words."""
    files = {p.name: p for files in place.files for p in files.values() if p.suffix and p.is_file()}
    others = sorted(set(files) - {i.name for i in place.images})
    if not others:
        return ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    tables = [name for name in others if files[name].suffix.lower() in (".csv", ".tsv") and first_row(files[name])]
    if tables:
        return (
            f" that papm can read (the columns of {tables[0]} are {first_row(files[tables[0]])}; rename those it needs)"
        )
    return f" that papm can read ({others[0]}{more}: not in a form it knows, or not named after an image)"


def is_blank(place: Place, f: Format) -> bool:
    """Whether no text file of a place has anything in it, so that other places tell what they are."""
    assert isinstance(f.reader, Sidecar)
    return not any(head_lines(p) for p in sidecars(place, f.reader).values() if p is not None)


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


def is_told(root: Path, place: Place) -> bool:
    """Whether anything beside a place's images looks like points."""
    for f in FORMATS.values():
        if isinstance(f.reader, Sidecar):
            files = [p for p in sidecars(place, f.reader).values() if p is not None]
            if any(f.reader.looks_like(p) for p in _sample(files)):
                return True
    try:
        return bool(find_sheets(root, place, list(FORMATS.values())))
    except DataError:  # more than one: opening it asks which
        return True
