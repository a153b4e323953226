"""Which images the names in a table mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from papm.data.formats.base import Points, Table
from papm.data.readers.faults import Fault
from papm.data.readers.layout import Place, nfc, uploaded_name


def images_of(root: Path, table: Table, places: Sequence[Place], faults: list[Fault]) -> dict[Path, Points]:
    """The images that a table speaks of."""
    known = {i for p in places for i in p.images}
    find = partial(_find, table.path.parent, root, places, known)
    out: dict[Path, Points] = {}
    for name, points in table.images.items():
        matches = find(name)
        if not matches and points.also:
            matches = find(points.also)
            matches = matches or [m for p in places for m in p.by_upload.get(uploaded_name(points.also), ())]
        problem = ""
        if not matches:
            problem = f"is not in this dataset{_but(name, places)}"
        elif len(matches) > 1:
            problem = f"could be any of {len(matches)} files"
        elif matches[0] in out:
            problem = "was already named in another way"
        else:
            out[matches[0]] = points
        if problem:
            faults.append(Fault(table.path, points.line, f"the image {name[:200]!r} {problem}"))
    return out


def _find(beside: Path, root: Path, places: Sequence[Place], known: Collection[Path], name: str) -> list[Path]:
    """Images a name in a table may mean: a path from the table or an image folder, else a file name, else without suffix."""

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


def _but(name: str, places: Sequence[Place]) -> str:
    """What to do about an image that is not there; one of the same name with another ending may be."""
    alike = next((m for p in places for m in p.by_stem.get(nfc(Path(name).stem), ())), None)
    return "; put it back or take it out here" if alike is None else f"; {alike.name!r} is, and the names must agree"
