"""Which images the names in a table mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from papm.data.formats.base import Points, Table
from papm.data.readers.faults import Fault
from papm.data.readers.layout import Place, nfc, uploaded_name
from papm.images import find_unread, is_image, is_unread_name


def images_of(root: Path, table: Table, places: Sequence[Place], faults: list[Fault]) -> dict[Path, Points]:
    """The images that a table speaks of; what cannot be found goes to `faults`."""
    names = _Names(places, [[p.image_dir for p in places], [table.path.parent], [root]])
    out: dict[Path, Points] = {}
    for name, points in table.images.items():
        matches = names.find(name) or (names.find_upload(points.also) if points.also else [])
        if len(matches) == 1 and matches[0] not in out:
            out[matches[0]] = points
            continue
        problem = f"is not in this dataset; {names.advice(name)}"
        if matches:
            several = f"could be any of {len(matches)} files"
            problem = several if len(matches) > 1 else "was already named in another way"
        faults.append(Fault(table.path, points.line, f"the image {name[:200]!r} {problem}"))
    return out


class _Names:
    """The images of some places, by path from one of the `bases`, else by file name, else by that without suffix."""

    def __init__(self, places: Sequence[Place], bases: Sequence[Sequence[Path]]) -> None:
        self.images = list(dict.fromkeys(i for p in places for i in p.images))
        self.known, self.folders, self.bases = set(self.images), {p.image_dir for p in places}, bases
        self.by_name = self._by(lambda i: nfc(i.name))
        self.by_stem = self._by(lambda i: nfc(i.stem))
        self.by_upload = self._by(lambda i: uploaded_name(i.name))

    @cached_property
    def by_folded(self) -> Mapping[str, list[Path]]:
        """The images by name, whatever its case."""
        return self._by(lambda i: nfc(i.name).casefold())

    @cached_property
    def unread(self) -> set[str]:
        """The names of images beside these whose format is not read."""
        return {nfc(p.name) for folder in self.folders for p in find_unread(folder)}

    def _by(self, key: Callable[[Path], str]) -> Mapping[str, list[Path]]:
        out: dict[str, list[Path]] = {}
        for i in self.images:
            out.setdefault(key(i), []).append(i)
        return out

    def find(self, name: str) -> list[Path]:
        """The images that a name may mean."""
        for bases in self.bases:
            if matches := list(dict.fromkeys(base / name for base in bases if self._is_there(base / name))):
                return matches
        last = nfc(Path(name).name)
        return self.by_name.get(last) or self.by_stem.get(last, [])

    def find_upload(self, name: str) -> list[Path]:
        """Those that a name from before an upload may mean."""
        return self.find(name) or self.by_upload.get(uploaded_name(name), [])

    def _is_there(self, path: Path) -> bool:
        try:
            if path in self.known or self.folders.isdisjoint(path.parents):
                return path in self.known
            return is_image(path) if is_unread_name(path.name) else path.is_file()
        except OSError:  # a name that is too long to be one
            return False

    def advice(self, name: str) -> str:
        """What to do about an image that is not there; one of the same name with another ending may be."""
        last = Path(name).name
        if alike := self.by_stem.get(nfc(Path(name).stem)):
            return f"{alike[0].name!r} is, and the names must agree"
        if alike := self.by_folded.get(nfc(last).casefold()):
            return f"{alike[0].name!r} is, which differs only in upper and lower case: write it so here"
        if nfc(last) in self.unread:
            return "it is there, but its format is not read; save it as JPEG or PNG"
        return "put it back or take it out here"
