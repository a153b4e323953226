"""Look for everything that is wrong with a dataset.

Opening a dataset stops at its first fault; `check` goes on and collects them. Errors make the data unusable or wrong,
warnings deserve a look, infos are legitimate but worth knowing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.data.base import Entries, Entry, Reader, check_options, nearest, reader, unexpected
from papm.data.check_image import Seen, is_blank, look
from papm.data.check_split import Split, check_split
from papm.data.findings import Finding, Severity, has_errors, of_error, once
from papm.data.formats import FORMATS
from papm.data.readers.faults import AnnotationError
from papm.data.readers.layout import nfc, without_images
from papm.data.resize import take
from papm.errors import DataError
from papm.images import find_images, find_unread, is_image_name, passed_over
from papm.text import n_of

__all__ = ["Finding", "Severity", "check", "has_errors"]

_TABLES = (".csv", ".tsv")
NOT_ANNOTATIONS = ("classes.txt", "roi.json")  # beside the annotations of folder data


def check(
    name: str,
    root: str | Path | None = None,
    *,
    decode: bool = True,
    on_item: Callable[[int, int], None] | None = None,
    on_entries: Callable[[Entries], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """Every fault of a dataset, errors first. Bad data never raises; an unknown dataset or option does.

    `decode=False` reads image headers only; `on_entries` is called with what the reader listed, `on_item(done, total)` after
    each image.
    """
    r = reader(name)
    options = take(name, options)[1]  # files are checked at the size they have
    if r.entries is None:
        return []  # made on the spot, not read from files
    check_options(r, options)
    findings: list[Finding] = []
    folder = None if root is None else Path(root).expanduser()
    if folder is None or not folder.is_dir():
        return [Finding("error", folder, None, f"no such folder (for dataset '{name}')")]
    try:
        splits: Entries = r.entries(folder, **options)
    except DataError as e:
        findings += of_error(e, folder)
        splits = (e.entries or {}) if isinstance(e, AnnotationError) else {}
    if on_entries is not None:
        on_entries(splits)
    if not any(splits.values()) and not findings:
        findings.append(Finding("error", folder, None, "no images in this dataset"))
    seen = _look_at_all(splits, r, decode, on_item, findings)
    for split, images in seen.items():
        findings += check_split(Split(split, folder, r, images))
    if not options:
        findings += _compared(r, folder, seen)
    if r.strays == "always" or (r.strays == "plain" and not options):
        entries = [e for es in splits.values() for e in es]
        findings += _strays(entries, own_data=r.outside_is_error)
        findings += _left_aside(entries, folder, splits if r.outside_is_error else None)
    return once(findings)


def _look_at_all(
    splits: Entries, r: Reader, decode: bool, on_item: Callable[[int, int], None] | None, findings: list[Finding]
) -> dict[str, list[Seen]]:
    """What was seen of the images of each split; splits may overlap (folds, trainval), and each image is told of once."""
    total = len({(e.image, e.annotation) for es in splits.values() for e in es})
    known: dict[tuple[Path, Path | None], Seen] = {}
    contents: dict[bytes, tuple[str, Path]] = {}
    for split, entries in splits.items():
        for entry in entries:
            if (entry.image, entry.annotation) not in known:
                known[entry.image, entry.annotation], found = look(entry, r, decode)
                findings += found
                if decode:
                    findings += _same_file(entry.image, split, contents)
                if on_item is not None:
                    on_item(len(known), total)
    return {split: [known[e.image, e.annotation] for e in entries] for split, entries in splits.items()}


def _compared(r: Reader, folder: Path, seen: Mapping[str, Sequence[Seen]]) -> Iterator[Finding]:
    """Numbers of images and points that differ from the published ones, and splits whose numbers are these."""
    counted = {split: [(s.entry.image, len(s.points)) for s in images] for split, images in seen.items()}
    expected = nearest(r.expected, counted)
    for difference in unexpected(expected, counted):
        yield Finding("warning", folder, None, difference)
    for split, (images, points) in expected.items():
        if split in counted and not unexpected({split: (images, points)}, counted):
            more = "" if points is None else f" and {n_of(points, 'point')}"
            yield Finding("info", folder, None, f"the split '{split}' has {n_of(images, 'image')}{more}, as published")


def _same_file(image: Path, split: str, contents: dict[bytes, tuple[str, Path]]) -> Iterator[Finding]:
    """Warn about identical image files: between splits they leak test images into training."""
    try:
        if not image.is_file():  # a pipe would be waited for
            return
        with image.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
    except OSError:
        return
    other, first = contents.setdefault(digest, (split, image))
    if first != image:
        where = f"in the split '{split}'" if other == split else f"of the split '{split}', also in '{other}'"
        yield Finding("warning", image, None, f"the same file as {first} ({where})")


def _looks_like_points(path: Path) -> bool:
    """Whether a text file or a table of somebody's own holds points, rather than notes or a summary."""
    kinds = ("imagej",) if path.suffix in _TABLES else ("txt", "yolo")
    return any(FORMATS.get(kind).detect(path) for kind in kinds) and not is_blank(path)


def _strays(entries: Sequence[Entry], own_data: bool) -> list[Finding]:
    """Annotation files whose image is missing, and images that no annotation speaks of.

    In people's own data a text file may be a note, and a table a summary: it has to look like points.
    """
    out: list[Finding] = []
    # Files named after their image; a table for all images has no siblings that could be orphans.
    named = [(e.annotation, nfc(e.image.stem) in nfc(e.annotation.stem)) for e in entries if e.annotation is not None]
    own = {a for a, alike in named if alike or is_image_name(a.name)}
    images = {e.image for e in entries}
    unread = {nfc(p.stem): p for d in _homes(entries) for p in find_unread(d)}
    for folder in sorted({(a.parent, a.suffix) for a in own}):
        for p in sorted(_listed(folder[0])):
            if p in own or p in images or p.suffix != folder[1] or p.name.startswith(".") or p.name in NOT_ANNOTATIONS:
                continue
            if not own_data or p.suffix not in (".txt", *_TABLES) or _looks_like_points(p):
                image = unread.get(nfc(p.stem)) or unread.get(nfc(Path(p.stem).stem))
                there = image and f"its image {image.name} is there, but its format is not read; save it as JPEG or PNG"
                out.append(Finding("error", p, None, there or "an annotation whose image is missing"))
            else:
                out.append(Finding("info", p, None, "not an annotation; left aside"))
    for parent in _homes(entries):
        rest = [p for p in find_images(parent) if p not in images and p not in own]
        out += [Finding("info", p, None, "this image is not part of the dataset") for p in rest]
    return out


def _left_aside(entries: Sequence[Entry], folder: Path, own: Collection[str] | None) -> Iterator[Finding]:
    """Images whose format is not read, and, in own data with the splits `own`, those above the folders of the splits."""
    homes, read = _homes(entries), {e.image for e in entries}
    for home in [*homes, *(without_images(folder, own) if own and homes else ())]:
        if other := passed_over(p for p in find_unread(home) if p not in read):
            yield Finding("warning", home, None, other)
    if own and homes and folder not in homes and (above := find_images(folder)):
        lie = f"{n_of(len(above), 'image')} {'lies' if len(above) == 1 else 'lie'} directly in this folder"
        inner = ", ".join(sorted({h.relative_to(folder).parts[0] for h in homes if folder in h.parents}))
        yield Finding("info", folder, None, f"{lie} and not in its sub-folders ({inner}): not part of the dataset")


def _homes(entries: Sequence[Entry]) -> list[Path]:
    """The folders of the images."""
    return [d for d in sorted({e.image.parent for e in entries}) if d.is_dir()]


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
