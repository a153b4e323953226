"""Images that several people marked, each in a folder of their own:

    DATA/images/a.jpg                   (or any other place for images, also train, val and test)
    DATA/annotators/anna/a.txt          what Anna marked, in any format that folder data may have
    DATA/annotators/ben/a.txt           what Ben marked; with splits in annotators/ben/train/a.txt, or all in one folder

`Sample.annotations` has the points of each. `annotators=merge` trains on one point for each object that at least half of them
marked (`papm.data.agreement`), `annotators=anna` on Anna's. Nobody has to mark every image; one that nobody marked is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from papm.data.agreement import choose
from papm.data.base import Annotation, Entry
from papm.data.readers.faults import AnnotationError, Fault
from papm.data.readers.layout import Place
from papm.errors import ConfigError, DataError
from papm.images import natural_key

FOLDER = "annotators"
Read = Callable[[Path, Sequence[Place]], Mapping[str, Sequence[Entry]]]


def people(root: Path) -> dict[str, Path]:
    """The folders of the people by name; none when the folder has no `annotators`."""
    folder = root / FOLDER
    try:
        found = [d for d in folder.iterdir() if d.is_dir() and not d.name.startswith(".")] if folder.is_dir() else []
    except OSError as e:
        raise DataError(f"{folder}: cannot list this folder ({e.strerror or e})") from e
    return {d.name: d for d in sorted(found, key=lambda d: natural_key(d.name))}


def check_choice(annotators: str, known: Mapping[str, Path], root: Path) -> None:
    """Refuse the name of somebody who has no folder."""
    if annotators != "merge" and annotators not in known:
        names = ", ".join(known) if known else f"there is no {root / FOLDER}"
        raise ConfigError(f"annotators='{annotators}' is neither merge nor one of the annotators: {names}")
    if "merge" in known:
        raise ConfigError(f"{known['merge']}: an annotator cannot be called 'merge'; rename the folder")


def read_people(
    known: Mapping[str, Path], places: Sequence[Place], annotators: str, read: Read
) -> dict[str, list[Entry]]:
    """Entries of each split with the points of everybody; `read` reads one person's folder for given places."""
    marked: dict[str, dict[Path, dict[str, Entry]]] = {}
    faults: list[Fault] = []
    for who, folder in known.items():
        for split, entries in read(folder, [_for(place, folder) for place in places]).items():
            for entry in entries:
                if entry.annotation is None or entry.annotation.exists():
                    marked.setdefault(split, {}).setdefault(entry.image, {})[who] = entry
    out: dict[str, list[Entry]] = {}
    for place in places:
        found = marked.get(place.split, {})
        for image in place.images:
            by = found.get(image, {})
            if not by:
                faults.append(
                    Fault(image, None, f"nobody marked this image (looked in {FOLDER}/{{{','.join(known)}}})")
                )
            elif annotators == "merge" or annotators in by:
                first = by.get(annotators) or next(iter(by.values()))
                load = partial(_load, {who: e.load for who, e in by.items()}, annotators, image)
                out.setdefault(place.split, []).append(replace(first, load=load))
    if faults:
        raise AnnotationError(faults, out)
    return out


def _for(place: Place, folder: Path) -> Place:
    """The images of a place with one person's annotations."""
    own = next((d for d in (folder / place.image_dir.name, folder / place.split) if d.is_dir()), folder)
    return replace(place, dirs=tuple(dict.fromkeys((own, folder))), label_dir=own)


def _load(loads: Mapping[str, Callable[[], Annotation]], annotators: str, image: Path) -> Annotation:
    found = {who: load() for who, load in loads.items()}
    sets = {who: a.points for who, a in found.items()}
    if annotators in found:
        return replace(found[annotators], annotations=sets)
    if len(found) == 1:
        return replace(next(iter(found.values())), annotations=sets)
    try:
        return Annotation(choose(sets, annotators), annotations=sets)
    except DataError as error:
        raise DataError(f"{image}: {error}") from None
