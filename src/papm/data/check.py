"""Look for everything that is wrong with a dataset, and sum up what is in it.

Opening a dataset stops at its first fault; `check` goes on and collects them. Errors make the data unusable or wrong,
warnings deserve a look, infos are legitimate but worth knowing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from papm.data.base import Annotation, Entries, Entry, Expected, Reader, nearest, reader, settle, unexpected
from papm.data.formats import FORMATS
from papm.data.readers.faults import AnnotationError
from papm.data.readers.layout import nfc
from papm.data.resize import take
from papm.data.upright import upright
from papm.errors import DataError, PapmError
from papm.images import find_images, frames, image_size, nearly_black, orientation, read_image
from papm.text import n_of

Severity = Literal["error", "warning", "info"]

_TABLES = (".csv", ".tsv")
NOT_ANNOTATIONS = ("classes.txt", "roi.json")  # beside the annotations of folder data
ENOUGH = 20  # points; fewer may be whole numbers by chance or because somebody typed them


@dataclass(frozen=True)
class Finding:
    """One thing found in a dataset."""

    severity: Severity
    file: Path | None
    line: int | None
    message: str
    outside: bool = False  # points outside their image, which `papm data convert --inside-only` leaves out

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{'note' if self.severity == 'info' else self.severity}: {where}{self.message}"


def has_errors(findings: Iterable[Finding], strict: bool = False) -> bool:
    """Whether a dataset fails its check; `strict` counts warnings too."""
    return any(f.severity == "error" or (strict and f.severity == "warning") for f in findings)


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
    findings: list[Finding] = []
    folder = None if root is None else Path(root).expanduser()
    if folder is None or not folder.is_dir():
        return [Finding("error", folder, None, f"no such folder (for dataset '{name}')")]
    try:
        splits: Entries = r.entries(folder, **options)
    except AnnotationError as e:
        findings += [Finding("error", f.file, f.line, f.message) for f in e.faults]
        splits = e.entries or {}
    except DataError as e:
        return [_error(folder, e)]
    if on_entries is not None:
        on_entries(splits)
    total = len({(e.image, e.annotation) for es in splits.values() for e in es})
    if total == 0 and not findings:
        findings.append(Finding("error", folder, None, "no images in this dataset"))
    done = 0
    contents: dict[bytes, tuple[str, Path]] = {}
    known: dict[
        tuple[Path, Path | None], _Seen
    ] = {}  # splits may overlap (folds, trainval): each image is told of once
    by_split: dict[str, list[_Seen]] = {}
    for split, es in splits.items():
        seen = by_split[split] = []
        for entry in es:
            key = (entry.image, entry.annotation)
            if key not in known:
                known[key] = _look(entry, r, decode, findings)
                if decode:
                    _same_file(entry.image, split, contents, findings)
                done += 1
                if on_item is not None:
                    on_item(done, total)
            seen.append(known[key])
        _whole_split(split, folder, seen, r, findings)
    if not options:
        counted = {s: [(x.entry.image, x.points or 0) for x in seen] for s, seen in by_split.items()}
        expected = nearest(r.expected, counted)
        findings += [Finding("warning", folder, None, d) for d in unexpected(expected, counted)]
        findings += [Finding("info", folder, None, a) for a in _as_published(expected, counted)]
    if r.strays == "always" or (r.strays == "plain" and not options):
        findings += _strays([e for es in splits.values() for e in es], own_data=r.outside_is_error)
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(_once(findings), key=lambda f: rank[f.severity])


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """What is said of many lines of one file in the same words, said once at the first of them."""
    lines: dict[tuple[Severity, Path | None, str], list[int | None]] = {}
    for f in findings:
        lines.setdefault((f.severity, f.file, f.message), []).append(f.line)
    out = []
    for (severity, file, message), at in lines.items():
        first = min((n for n in at if n is not None), default=None)
        often = "" if len(at) == 1 else f" ({len(at)} {'times' if first is None else 'lines, this one first'})"
        out.append(Finding(severity, file, first, message + often))
    return out


def _as_published(expected: Expected, found: Mapping[str, Sequence[tuple[object, int]]]) -> list[str]:
    """The splits whose numbers are the published ones, in words."""
    out = []
    for split, (images, points) in expected.items():
        if split in found and not unexpected({split: (images, points)}, found):
            more = "" if points is None else f" and {n_of(points, 'point')}"
            out.append(f"the split '{split}' has {n_of(images, 'image')}{more}, as published")
    return out


@dataclass(frozen=True)
class _Seen:
    """What one image contributes to the findings about its whole split."""

    entry: Entry
    points: int | None  # None: could not be parsed
    outside: int = 0
    outside_swapped: int = 0  # outside if x and y changed places
    blank_file: bool = False  # the annotation file has zero bytes
    hidden: bool = False  # its annotation is not published
    outside_region: int = 0  # points inside the image and outside its region of interest
    fractions: int = 0  # points within one pixel of the corner of an image that is larger than that
    whole: int = 0  # points whose coordinates are whole numbers
    again: int = 0  # points that repeat another exactly
    lying: bool = False  # points lie outside, and EXIF turns the image by 90 degrees


def _error(file: Path | None, e: PapmError) -> Finding:
    """A DataError as a finding, its file and line taken out of the sentence when it begins with them."""
    text = str(e)
    head, _, tail = text.partition(": ")
    if tail and ("/" in head or "\\" in head or Path(head).exists()):
        name, _, line = head.rpartition(":")
        if name and line.isascii() and line.isdigit() and not Path(head).exists():
            return Finding("error", Path(name), int(line), tail)
        return Finding("error", Path(head), None, tail)
    return Finding("error", file, None, text)


def _look(entry: Entry, r: Reader, decode: bool, findings: list[Finding]) -> _Seen:
    size: tuple[int, int] | None = None
    annotation: Annotation | None = None
    try:
        size = image_size(entry.image)
        if decode and nearly_black(pixels := read_image(entry.image)):
            message = (
                f"nearly black, the brightest pixel is {int(pixels.max())} of 255; "
                "stretch such images before training and counting (12 bits in a 16-bit file?)"
            )
            findings.append(Finding("warning", entry.image, None, message))
        if r.outside_is_error and (several := frames(entry.image)) > 1:
            message = f"{several} pictures in this file; the first is read"
            findings.append(Finding("warning", entry.image, None, message))
    except DataError as e:
        findings.append(_error(entry.image, e))
    try:
        annotation = entry.load()
    except AnnotationError as e:
        findings += [Finding("error", f.file, f.line, f.message) for f in e.faults]
    except DataError as e:
        findings.append(_error(entry.annotation, e))
    if annotation is None:
        return _Seen(entry, None)
    if annotation.meta.get("hidden"):
        return _Seen(entry, None, hidden=True)
    if size is not None and not r.outside_is_error:
        annotation = upright(annotation, entry.image, size)
    points = annotation.points
    _remarks(entry, annotation, size, findings)
    if again := len(points) - len(torch.unique(points, dim=0)):
        line = _first_repeat(points, annotation.lines)
        findings.append(
            Finding("warning", entry.annotation, line, f"{entry.name}: {n_of(again, 'point')} repeated exactly")
        )
    blank = entry.annotation is not None and len(points) == 0 and _is_blank(entry.annotation)
    if size is None:
        return _Seen(entry, len(points), blank_file=blank, again=again)
    if r.outside_is_error:
        written, points = points, settle(points, size)
        if moved := int((points != written).any(-1).sum()):
            message = f"{entry.name}: {n_of(moved, 'point')} on the far border of the image, taken to be just inside"
            first = int((points != written).any(-1).float().argmax())
            line = annotation.lines[first] if annotation.lines else None
            findings.append(Finding("info", entry.annotation, line, message))
    distance = _outside_by(points, size)
    outside = int((distance > 0).sum())
    swapped = int((_outside_by(points.flip(-1), size) > 0).sum())
    if outside:
        worst = int(distance.argmax())
        x, y = (v + 0.0 for v in points[worst].tolist())  # -0.0 is 0
        away = float(distance[worst])
        message = (
            f"{entry.name}: {n_of(outside, 'point')} outside the {size[1]}×{size[0]} image, "
            f"the farthest at ({x:.1f}, {y:.1f}), " + ("on its border" if away < 0.05 else f"{away:.1f} px away")
        )
        line = annotation.lines[worst] if annotation.lines else None
        severity: Severity = "error" if r.outside_is_error else "warning"
        findings.append(Finding(severity, entry.annotation, line, message, outside=True))
    fractions = int(((points >= 0) & (points <= 1)).all(-1).sum()) if min(size) > 8 else 0
    region = _region(entry, points, size, findings)
    whole = int((points == points.round()).all(-1).sum())
    lying = outside > 0 and r.outside_is_error and orientation(entry.image) >= 5
    return _Seen(entry, len(points), outside, swapped, blank, False, region, fractions, whole, again, lying)


def _region(entry: Entry, points: Tensor, size: tuple[int, int], findings: list[Finding]) -> int:
    """Number of points outside the region of interest; a region that cannot be read, or of another size, is a finding."""
    if entry.roi is None:
        return 0
    try:
        region = entry.roi()
    except DataError as e:
        findings.append(_error(entry.image, e))
        return 0
    if tuple(region.shape) != size:
        shape = "×".join(map(str, reversed(region.shape)))
        message = f"the region of interest is {shape}, the upright image {size[1]}×{size[0]}"
        findings.append(Finding("error", entry.image, None, message))
        return 0
    x, y = points[_outside_by(points, size) == 0].floor().long().unbind(-1)
    return int((~region[y, x].bool()).sum())


def _remarks(entry: Entry, a: Annotation, size: tuple[int, int] | None, findings: list[Finding]) -> None:
    if a.meta.get("unlisted"):
        message = f"{entry.name} has no row; it is taken to show no objects (a row 'NAME,,' says so)"
        findings.append(Finding("warning", entry.annotation, None, message))
    if a.meta.get("missing"):
        message = "no annotation file; the image is taken to show no objects (an empty file says so)"
        findings.append(Finding("warning", entry.image, None, message))
    if crowds := a.meta.get("crowd_regions"):
        findings.append(
            Finding("info", entry.annotation, None, f"{entry.name}: {n_of(crowds, 'iscrowd region')} left out")
        )
    declared_count = a.meta.get("declared_count")
    if isinstance(declared_count, int) and declared_count != len(a.points):
        message = f"{entry.name}: {n_of(len(a.points), 'point')}, its label says {declared_count}"
        findings.append(Finding("warning", entry.annotation, None, message))
    declared = a.meta.get("declared_size")
    if declared is not None and size is not None and tuple(declared) != size:
        message = f"the annotations say {declared[1]}×{declared[0]}, the upright image is {size[1]}×{size[0]}"
        findings.append(Finding("warning", entry.image, None, message))


def _first_repeat(points: Tensor, lines: Sequence[int] | None) -> int | None:
    """The line of the first point that repeats an earlier one, where lines are known."""
    met: set[tuple[float, ...]] = set()
    for point, line in zip(points.tolist(), lines or ()):
        if tuple(point) in met:
            return line
        met.add(tuple(point))
    return None


def _is_blank(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _outside_by(points: Tensor, size: tuple[int, int]) -> Tensor:
    """How far each point lies outside 0 ≤ x < W, 0 ≤ y < H, in pixels [n]; a point on the far border is just outside."""
    h, w = size
    limit = points.new_tensor([w, h])
    beyond = (points - limit).clamp(min=0) + (-points).clamp(min=0)
    on_border = (points == limit).any(-1).to(points.dtype)
    distance: Tensor = torch.linalg.vector_norm(beyond, dim=-1) + 1e-6 * on_border
    return distance


def _looks_swapped(points: int, outside: int, swapped: int) -> bool:
    """Too many outside to be strays, and nearly all inside with x and y exchanged.

    At least three: a single stray below a wide image fits the exchanged frame by chance.
    """
    return outside >= max(3, 0.1 * points) and swapped <= 0.1 * outside


def _whole_split(split: str, root: Path, seen: Sequence[_Seen], r: Reader, findings: list[Finding]) -> None:
    if not seen:
        findings.append(Finding("error", root, None, f"the split '{split}' has no images"))
        return
    if hidden := sum(s.hidden for s in seen):
        message = f"the annotations of {n_of(hidden, 'image')} of the split '{split}' are not published"
        findings.append(Finding("info", root, None, message))
    if away := sum(s.outside_region for s in seen):
        message = f"{n_of(away, 'point')} of the split '{split}' outside the region of interest"
        findings.append(Finding("info", root, None, message))
    parsed = [s for s in seen if s.points is not None]
    for numbers, what in (
        ([s.outside for s in parsed if s.outside], "outside their image"),
        ([s.again for s in parsed if s.again], "repeated exactly"),
    ):
        if len(numbers) > 1:  # the sum of what is said image by image
            message = f"{n_of(sum(numbers), 'point')} of the split '{split}' {what}, in {n_of(len(numbers), 'image')}"
            findings.append(Finding("info", root, None, message))
    points = sum(s.points or 0 for s in parsed)
    if points == 0 and len(parsed) == len(seen):
        findings.append(Finding("error", root, None, f"the split '{split}' has no points at all"))
    elif empty := [s for s in parsed if s.points == 0]:
        findings.append(
            Finding("info", root, None, f"{n_of(len(empty), 'image')} of the split '{split}' without points")
        )
    if points and not r.blank_is_empty:
        for s in parsed:
            if s.blank_file:
                message = (
                    "the file is empty (0 bytes) where others hold points; if the image shows no objects, it is right"
                )
                findings.append(Finding("warning", s.entry.annotation, None, message))
    severity: Severity = "error" if r.outside_is_error else "warning"
    if points > 3 and sum(s.fractions for s in parsed) == points:
        message = (
            f"split '{split}': all coordinates are between 0 and 1: fractions of the image, where pixels are wanted?"
        )
        findings.append(Finding(severity, root, None, message))
    if r.outside_is_error and points >= ENOUGH and sum(s.whole for s in parsed) == points:
        message = f"split '{split}': all coordinates are whole numbers; if they are pixel indices, add origin=0.5"
        findings.append(Finding("info", root, None, message))
    outside, swapped = sum(s.outside for s in parsed), sum(s.outside_swapped for s in parsed)
    if _looks_swapped(points, outside, swapped):
        hint = _swap_hint([s for s in parsed if s.outside])
        message = f"split '{split}': {outside - swapped} of {n_of(outside, 'point')} outside their image {hint}"
        findings.append(Finding(severity, root, None, message))
        return
    for s in parsed:
        if _looks_swapped(s.points or 0, s.outside, s.outside_swapped):
            inside = f"{s.outside - s.outside_swapped} of {n_of(s.outside, 'point')} outside"
            findings.append(Finding(severity, s.entry.annotation, None, f"{s.entry.name}: {inside} {_swap_hint([s])}"))


def _swap_hint(seen: Sequence[_Seen]) -> str:
    """What to do about points that fit with the sides of their images exchanged."""
    if all(s.lying for s in seen):
        return "would lie inside the photograph as it is stored, before EXIF turns it: annotated like that? Add stored=true"
    return "would lie inside with x and y exchanged: are the columns swapped?"


def _same_file(image: Path, split: str, contents: dict[bytes, tuple[str, Path]], findings: list[Finding]) -> None:
    """Warn about identical image files: between splits they leak test images into training."""
    try:
        if not image.is_file():  # a pipe would be waited for
            return
        with image.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
    except OSError:
        return
    first = contents.setdefault(digest, (split, image))
    if first[1] != image:
        where = f"in the split '{split}'" if first[0] == split else f"of the split '{split}', also in '{first[0]}'"
        findings.append(Finding("warning", image, None, f"the same file as {first[1]} ({where})"))


def _looks_like_points(path: Path) -> bool:
    """Whether a text file or a table of somebody's own holds points, rather than notes or a summary."""
    kinds = ("imagej",) if path.suffix in _TABLES else ("txt", "yolo")
    return any(FORMATS.get(kind).detect(path) for kind in kinds) and not _is_blank(path)


def _strays(entries: Sequence[Entry], own_data: bool) -> list[Finding]:
    """Annotation files whose image is missing, and images that no annotation speaks of.

    In people's own data a text file may be a note, and a table a summary: it has to look like points.
    """
    out: list[Finding] = []
    # Files named after their image; a table for all images has no siblings that could be orphans.
    own = {e.annotation for e in entries if e.annotation is not None and nfc(e.image.stem) in nfc(e.annotation.stem)}
    images = {e.image for e in entries}
    for folder in sorted({(a.parent, a.suffix) for a in own}):
        for p in sorted(_listed(folder[0])):
            if p in own or p in images or p.suffix != folder[1] or p.name.startswith(".") or p.name in NOT_ANNOTATIONS:
                continue
            if not own_data or p.suffix not in (".txt", *_TABLES) or _looks_like_points(p):
                out.append(Finding("error", p, None, "an annotation whose image is missing"))
            else:
                out.append(Finding("info", p, None, "not an annotation; left aside"))
    for parent in sorted({i.parent for i in images}):
        if parent.is_dir():
            rest = [p for p in find_images(parent) if p not in images and p not in own]
            out += [Finding("info", p, None, "this image is not part of the dataset") for p in rest]
    return out


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
