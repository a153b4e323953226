"""What is wrong with one image of a dataset and its annotation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from papm.data.base import Annotation, Entry, Reader, settle
from papm.data.findings import Finding, Severity, of_error
from papm.data.upright import upright
from papm.errors import DataError
from papm.images import frames, image_size, orientation, read_image
from papm.rgb import nearly_black
from papm.text import n_of


@dataclass(frozen=True, eq=False)
class Seen:
    """One image as far as it could be read."""

    entry: Entry
    own: bool  # somebody's own data, where points outside the image are errors
    size: tuple[int, int] | None  # None: the image cannot be read
    annotation: Annotation | None  # upright; None: it cannot be parsed, or is not published
    hidden: bool = False  # it is not published

    @cached_property
    def points(self) -> Tensor:
        """Where a sample would have them [n, 2]."""
        written = torch.zeros(0, 2) if self.annotation is None else self.annotation.points
        return settle(written, self.size) if self.own and self.size else written

    @cached_property
    def repeated(self) -> int:
        """Points that repeat another exactly as it is written."""
        return 0 if self.annotation is None else len(self.points) - len(torch.unique(self.annotation.points, dim=0))

    @cached_property
    def distance(self) -> Tensor:
        """How far each point lies outside the image [n]; 0 where that is not known."""
        return self.points.new_zeros(len(self.points)) if self.size is None else _outside_by(self.points, self.size)

    @cached_property
    def outside(self) -> int:
        """Points outside the image."""
        return int((self.distance > 0).sum())

    @cached_property
    def outside_swapped(self) -> int:
        """Points that would lie outside if x and y changed places."""
        return 0 if self.size is None else int((_outside_by(self.points.flip(-1), self.size) > 0).sum())

    @cached_property
    def turned(self) -> bool:
        """Whether points lie outside an image that EXIF turns by 90 degrees."""
        return self.own and self.outside > 0 and orientation(self.entry.image) >= 5

    @cached_property
    def region(self) -> tuple[int, list[Finding]]:
        """The number of points outside the region of interest, and what is wrong with the region."""
        if self.entry.roi is None or self.size is None:
            return 0, []
        try:
            region = self.entry.roi()
        except DataError as e:
            return 0, of_error(e, self.entry.image)
        if tuple(region.shape) != self.size:
            shape = "×".join(map(str, reversed(region.shape)))
            message = f"the region of interest is {shape}, the upright image {self.size[1]}×{self.size[0]}"
            return 0, [Finding("error", self.entry.image, None, message)]
        x, y = self.points[self.distance == 0].floor().long().unbind(-1)
        return int((~region[y, x].bool()).sum()), []

    def line(self, point: int) -> int | None:
        """The line of a point in its file, where that is known."""
        lines = None if self.annotation is None else self.annotation.lines
        return lines[point] if lines else None


def _outside_by(points: Tensor, size: tuple[int, int]) -> Tensor:
    """How far each point lies outside 0 ≤ x < W, 0 ≤ y < H, in pixels [n]; a point on the far border is just outside."""
    h, w = size
    limit = points.new_tensor([w, h])
    beyond = (points - limit).clamp(min=0) + (-points).clamp(min=0)
    on_border = (points == limit).any(-1).to(points.dtype)
    distance: Tensor = torch.linalg.vector_norm(beyond, dim=-1) + 1e-6 * on_border
    return distance


def look(entry: Entry, r: Reader, decode: bool) -> tuple[Seen, list[Finding]]:
    """Read one image and its annotation, and run every check of `CHECKS` on them."""
    own, findings = r.outside_is_error, list[Finding]()
    size: tuple[int, int] | None = None
    annotation: Annotation | None = None
    try:
        size = image_size(entry.image)
        findings += _pixels(entry, own, decode)
    except DataError as e:
        findings += of_error(e, entry.image)
    try:
        annotation = entry.load()
    except DataError as e:
        findings += of_error(e, entry.annotation)
    if annotation is None or annotation.meta.get("hidden"):
        return Seen(entry, own, size, None, hidden=annotation is not None), findings
    if size is not None and not own:
        annotation = upright(annotation, entry.image, size)
    seen = Seen(entry, own, size, annotation)
    findings += [finding for check in CHECKS for finding in check(seen, annotation)]
    return seen, findings


def _pixels(entry: Entry, own: bool, decode: bool) -> Iterator[Finding]:
    if decode and nearly_black(pixels := read_image(entry.image)) and entry.pixels is None:
        message = (
            f"nearly black, the brightest pixel is {int(pixels.max())} of 255; "
            "stretch such images before training and counting (12 bits in a 16-bit file?)"
        )
        yield Finding("warning", entry.image, None, message)
    if own and (several := frames(entry.image)) > 1:
        yield Finding("warning", entry.image, None, f"{several} pictures in this file; the first is read")


def _remarks(seen: Seen, a: Annotation) -> Iterator[Finding]:
    """What a reader says in `meta`."""
    entry, size = seen.entry, seen.size
    if a.meta.get("unlisted"):
        message = f"{entry.name} has no row; it is taken to show no objects (a row 'NAME,,' says so)"
        yield Finding("warning", entry.annotation, None, message)
    if a.meta.get("missing"):
        message = "no annotation file; the image is taken to show no objects (an empty file says so)"
        yield Finding("warning", entry.image, None, message)
    if crowds := a.meta.get("crowd_regions"):
        yield Finding("info", entry.annotation, None, f"{entry.name}: {n_of(crowds, 'iscrowd region')} left out")
    count = a.meta.get("declared_count")
    if isinstance(count, int) and count != len(a.points):
        message = f"{entry.name}: {n_of(len(a.points), 'point')}, its label says {count}"
        yield Finding("warning", entry.annotation, None, message)
    declared = a.meta.get("declared_size")
    if declared is not None and size is not None and tuple(declared) != size:
        message = f"the annotations say {declared[1]}×{declared[0]}, the upright image is {size[1]}×{size[0]}"
        yield Finding("warning", entry.image, None, message)


def _repeated(seen: Seen, a: Annotation) -> Iterator[Finding]:
    if seen.repeated:
        line, met = None, set[tuple[float, ...]]()
        for point, number in zip(map(tuple, a.points.tolist()), a.lines or ()):
            if point in met:
                line = number
                break
            met.add(point)
        message = f"{seen.entry.name}: {n_of(seen.repeated, 'point')} repeated exactly"
        yield Finding("warning", seen.entry.annotation, line, message)


def _on_border(seen: Seen, a: Annotation) -> Iterator[Finding]:
    moved = (seen.points != a.points).any(-1)
    if number := int(moved.sum()):
        message = f"{seen.entry.name}: {n_of(number, 'point')} on the far border of the image, taken to be just inside"
        yield Finding("info", seen.entry.annotation, seen.line(int(moved.float().argmax())), message)


def _outside(seen: Seen, a: Annotation) -> Iterator[Finding]:
    if seen.outside and seen.size is not None:
        worst = int(seen.distance.argmax())
        x, y = (v + 0.0 for v in seen.points[worst].tolist())  # -0.0 is 0
        away = float(seen.distance[worst])
        message = (
            f"{seen.entry.name}: {n_of(seen.outside, 'point')} outside the {seen.size[1]}×{seen.size[0]} image, "
            f"the farthest at ({x:.1f}, {y:.1f}), " + ("on its border" if away < 0.05 else f"{away:.1f} px away")
        )
        severity: Severity = "error" if seen.own else "warning"
        yield Finding(severity, seen.entry.annotation, seen.line(worst), message, outside=True)


def _region(seen: Seen, a: Annotation) -> Iterator[Finding]:
    yield from seen.region[1]


CHECKS = (_remarks, _repeated, _on_border, _outside, _region)


def is_blank(path: Path | None) -> bool:
    """Whether a file has zero bytes."""
    try:
        return path is not None and path.stat().st_size == 0
    except OSError:
        return False
