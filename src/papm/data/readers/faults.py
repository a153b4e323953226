"""Faults in annotation files, and the bounded, careful reading every text format shares.

A parser does not stop at the first bad line: it collects `Fault`s and raises them together, so that opening a dataset
reports the first one and `papm data check` all of them.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from papm.data.base import Entry
from papm.errors import DataError

MAX_ANNOTATION_BYTES = 200_000_000  # ten million points at about 20 bytes each
MAX_LINES = 20_000_000
MOST_FAULTS = 10_000  # in one file: the rest says the same, and takes more memory than the file
MAX_COORDINATE = 1e7  # no image is that wide; float32 still resolves a pixel there


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a file."""

    file: Path
    line: int | None
    message: str

    def __post_init__(self) -> None:
        if not self.message.isprintable():  # it may quote a file; one line, whatever is in that
            shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.message)
            object.__setattr__(self, "message", shown)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class AnnotationError(DataError):
    """Faults of an annotation, together. `entries` is what could still be listed, for a check that goes on."""

    def __init__(self, faults: Sequence[Fault], entries: Mapping[str, Sequence[Entry]] | None = None) -> None:
        self.faults = tuple(faults)
        self.entries = entries
        more = f" (and {len(faults) - 1} more; 'papm data check' lists them)" if len(faults) > 1 else ""
        super().__init__(f"{self.faults[0]}{more}")

    @classmethod
    def of(cls, file: Path, message: str, line: int | None = None) -> AnnotationError:
        """The error for one fault."""
        return cls([Fault(file, line, message)])


class Faults(list[Fault]):
    """What is wrong with one file, collected; too much of it is raised at once."""

    def append(self, fault: Fault) -> None:
        super().append(fault)
        if len(self) >= MOST_FAULTS:
            raise AnnotationError(self)

    def noting(self, file: Path, line: int | None = None, what: str = "") -> _Noting:
        """A block that ends at a ValueError, whose message, after `what`, becomes a fault."""
        return _Noting(self, file, line, what)


@dataclass(slots=True)
class _Noting:
    faults: Faults
    file: Path
    line: int | None
    what: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not isinstance(error, ValueError):
            return False
        self.faults.append(Fault(self.file, self.line, f"{self.what}{error}"))
        return True


def read_bytes(path: Path) -> bytes:
    """All of an annotation file, within the size limit."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise DataError(f"{path}: not a file, so not an annotation")
        if size > MAX_ANNOTATION_BYTES:
            raise DataError(
                f"{path}: {size / 1e6:.0f} MB is more than the limit of {MAX_ANNOTATION_BYTES / 1e6:.0f} MB for an annotation"
                " file; split it into one file per image or per split"
            )
        return path.read_bytes()
    except FileNotFoundError as e:
        raise DataError(f"{path}: no such annotation file") from e
    except OSError as e:
        raise DataError(f"{path}: cannot read this annotation file ({e.strerror or e})") from e


def newlines(text: str) -> str:
    """One kind of line end, so that line numbers are those of an editor."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(raw: bytes, errors: str = "strict") -> str:
    """Bytes as text: UTF-8 with or without a byte-order mark, or UTF-16 with one (Excel's "Unicode text").

    >>> decoded("x\\ty".encode("utf-16")), decoded(b"x,y")
    ('x\\ty', 'x,y')
    """
    return raw.decode("utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig", errors)


def read_text(path: Path) -> str:
    """Text of an annotation file, as `decoded` reads it, within the size limit."""
    try:
        text = newlines(decoded(read_bytes(path)))
    except UnicodeDecodeError as e:
        raise DataError(f"{path}: not a text file in UTF-8 (byte {e.start}); save it as UTF-8") from e
    if text.count("\n") > MAX_LINES:
        raise DataError(f"{path}: more than {MAX_LINES:,} lines; split it into one file per image or per split")
    return text


def coordinate(text: object, name: str) -> float:
    """A finite pixel coordinate; ValueError says what is wrong with it.

    >>> coordinate("12.5", "x")
    12.5
    >>> coordinate("nan", "x")
    Traceback (most recent call last):
    ValueError: x is 'nan', not a finite number
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{name} is {str(text)[:40]!r}, not a number")
    try:
        if isinstance(text, str) and "_" in text:  # Python would read 1_0 as 10
            raise ValueError
        value = float(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {str(text)[:40]!r}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {str(text)[:40]!r}, not a finite number")
    if abs(value) > MAX_COORDINATE:
        raise ValueError(f"{name} is {value:g}, not a pixel coordinate")
    return value


def safe_relative(name: str) -> PurePosixPath:
    """A path written in a dataset file, made relative; ValueError when it would leave the dataset's folder.

    >>> safe_relative("train\\\\a.jpg")
    PurePosixPath('train/a.jpg')
    >>> safe_relative("../a.jpg")
    Traceback (most recent call last):
    ValueError: image path '../a.jpg' leaves the dataset's folder; write it relative to that folder, without '..'
    """
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", str(path)) or "\0" in name:
        raise ValueError(
            f"image path {name[:80]!r} leaves the dataset's folder; write it relative to that folder, without '..'"
        )
    if not path.parts:
        raise ValueError("the image name is empty")
    return path
