"""What a reader hands on: the points of an image, or of many, as the file gives them. Coordinates stay as written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from papm.data.readers.faults import Fault, Faults


@dataclass
class Points:
    """Points of one image as a file gives them, and what was wrong with the rest."""

    xy: list[tuple[float, float]] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    boxes: list[tuple[float, float, float, float] | None] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=Faults)
    line: int | None = None  # where the image is first mentioned
    meta: dict[str, Any] = field(default_factory=dict)
    relative: bool = False  # coordinates are fractions of the image's width and height
    also: str | None = None  # another name the image may have
    stored: bool = False  # coordinates are those of the pixels before EXIF turns a photograph

    def add(
        self,
        xy: tuple[float, float],
        label: str | None,
        line: int | None,
        box: tuple[float, float, float, float] | None = None,
    ) -> None:
        """Append a point, with all that is known about it."""
        self.xy.append(xy)
        self.labels.append(label)
        self.boxes.append(box)
        if line is not None:
            self.lines.append(line)


@dataclass
class Table:
    """One file for many images: points by image name as written, and faults that belong to no image."""

    path: Path
    images: dict[str, Points] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=Faults)
    classes: tuple[str, ...] = ()  # names in the order of their indices, when the file defines one


def same_labelling(out: Points, path: Path) -> None:
    """All points of an image have a label, or none: half a labelling is a slip of the pen."""
    odd = next((i for i, v in enumerate(out.labels) if (v is None) != (out.labels[0] is None)), None)
    if odd is not None:
        without = odd if out.labels[odd] is None else 0
        line = out.lines[without] if out.lines else None
        out.faults.append(Fault(path, line, "this point has no label, others of its image do"))
