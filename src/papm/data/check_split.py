"""What is wrong with a split as a whole: each check looks at all of its images and says what it finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from papm.data.base import Reader
from papm.data.check_image import Seen, is_blank
from papm.data.findings import Finding, Severity
from papm.data.fractions import are_fractions, span
from papm.text import n_of

ENOUGH = 20  # points; fewer may be whole numbers by chance or because somebody typed them


@dataclass(frozen=True)
class Split:
    """A split of a dataset and what was seen of its images."""

    name: str
    folder: Path
    reader: Reader
    seen: Sequence[Seen]

    @cached_property
    def parsed(self) -> list[Seen]:
        """The images whose annotation could be read."""
        return [s for s in self.seen if s.annotation is not None]

    @cached_property
    def points(self) -> int:
        """All points of the split."""
        return sum(len(s.points) for s in self.parsed)

    @property
    def severity(self) -> Severity:
        """Of points that are where they cannot be."""
        return "error" if self.reader.outside_is_error else "warning"

    def finding(self, severity: Severity, message: str) -> Finding:
        """A finding about the whole split."""
        return Finding(severity, self.folder, None, message)


def check_split(split: Split) -> Iterator[Finding]:
    """Every finding about a split as a whole."""
    if not split.seen:
        yield split.finding("error", f"the split '{split.name}' has no images")
        return
    for check in CHECKS:
        yield from check(split)


def _not_published(split: Split) -> Iterator[Finding]:
    if hidden := sum(s.hidden for s in split.seen):
        message = f"the annotations of {n_of(hidden, 'image')} of the split '{split.name}' are not published"
        yield split.finding("info", message)


def _outside_region(split: Split) -> Iterator[Finding]:
    if away := sum(s.region[0] for s in split.parsed):
        message = f"{n_of(away, 'point')} of the split '{split.name}' outside the region of interest"
        yield split.finding("info", message)


def _totals(split: Split) -> Iterator[Finding]:
    """The sum of what is said image by image, where there are several."""
    for each, what in (
        ([s.outside for s in split.parsed if s.outside], "outside their image"),
        ([s.repeated for s in split.parsed if s.repeated], "repeated exactly"),
    ):
        if len(each) > 1:
            points, images = n_of(sum(each), "point"), n_of(len(each), "image")
            yield split.finding("info", f"{points} of the split '{split.name}' {what}, in {images}")


def _without_points(split: Split) -> Iterator[Finding]:
    empty = sum(len(s.points) == 0 for s in split.parsed)
    if split.points == 0 and len(split.parsed) == len(split.seen):
        yield split.finding("error", f"the split '{split.name}' has no points at all")
    elif empty:
        yield split.finding("info", f"{n_of(empty, 'image')} of the split '{split.name}' without points")


def _blank_files(split: Split) -> Iterator[Finding]:
    if split.points and not split.reader.blank_is_empty:
        message = "the file is empty (0 bytes) where others hold points; if the image shows no objects, it is right"
        for s in split.parsed:
            if len(s.points) == 0 and is_blank(s.entry.annotation):
                yield Finding("warning", s.entry.annotation, None, message)


def _fractions(split: Split) -> Iterator[Finding]:
    """Points beside the corner of images that are larger than that."""
    if are_fractions((s.points, s.size) for s in split.parsed):
        where = span([s.points for s in split.parsed])
        message = f"all coordinates are {where}: fractions of the image, where pixels are wanted?"
        yield split.finding(split.severity, f"split '{split.name}': {message}")


def _whole_numbers(split: Split) -> Iterator[Finding]:
    if not split.reader.outside_is_error or split.points < ENOUGH:
        return
    if sum(int((s.points == s.points.round()).all(-1).sum()) for s in split.parsed if s.size) == split.points:
        message = "all coordinates are whole numbers; if they are pixel indices, add origin=0.5"
        yield split.finding("info", f"split '{split.name}': {message}")


def _swapped(split: Split) -> Iterator[Finding]:
    """x and y exchanged, in the whole split or else in single images."""
    outside, swapped = sum(s.outside for s in split.parsed), sum(s.outside_swapped for s in split.parsed)
    if _looks_swapped(split.points, outside, swapped):
        hint = _swap_hint([s for s in split.parsed if s.outside])
        message = f"split '{split.name}': {outside - swapped} of {n_of(outside, 'point')} outside their image {hint}"
        yield split.finding(split.severity, message)
        return
    for s in split.parsed:
        if _looks_swapped(len(s.points), s.outside, s.outside_swapped):
            inside = f"{s.outside - s.outside_swapped} of {n_of(s.outside, 'point')} outside"
            message = f"{s.entry.name}: {inside} {_swap_hint([s])}"
            yield Finding(split.severity, s.entry.annotation, None, message)


def _looks_swapped(points: int, outside: int, swapped: int) -> bool:
    """Too many outside to be strays, and nearly all inside with x and y exchanged.

    At least three: a single stray below a wide image fits the exchanged frame by chance.
    """
    return outside >= max(3, 0.1 * points) and swapped <= 0.1 * outside


def _swap_hint(seen: Sequence[Seen]) -> str:
    """What to do about points that fit with the sides of their images exchanged."""
    if all(s.turned for s in seen):
        return "would lie inside the photograph as it is stored, before EXIF turns it: annotated like that? Add stored=true"
    return "would lie inside with x and y exchanged: are the columns swapped?"


CHECKS = (
    _not_published,
    _outside_region,
    _totals,
    _without_points,
    _blank_files,
    _fractions,
    _whole_numbers,
    _swapped,
)
