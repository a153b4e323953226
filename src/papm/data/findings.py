"""What a check of a dataset finds: a severity, a place, a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from papm.data.readers.faults import AnnotationError
from papm.errors import DataError

Severity = Literal["error", "warning", "info"]


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


def of_error(error: DataError, file: Path | None) -> list[Finding]:
    """What an error says: each fault of an annotation, else its sentence, without the file and line it begins with."""
    if isinstance(error, AnnotationError):
        return [Finding("error", f.file, f.line, f.message) for f in error.faults]
    text = str(error)
    head, _, tail = text.partition(": ")
    if not tail or not ("/" in head or "\\" in head or Path(head).exists()):
        return [Finding("error", file, None, text)]
    name, _, line = head.rpartition(":")
    if name and line.isascii() and line.isdigit() and not Path(head).exists():
        return [Finding("error", Path(name), int(line), tail)]
    return [Finding("error", Path(head), None, tail)]


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first; what is said of many lines of one file in the same words, said once at the first of them."""
    lines: dict[Finding, list[int | None]] = {}
    for f in findings:
        lines.setdefault(replace(f, line=None), []).append(f.line)
    out = []
    for finding, at in lines.items():
        first = min((n for n in at if n is not None), default=None)
        often = "" if len(at) == 1 else f" ({len(at)} {'times' if first is None else 'lines, this one first'})"
        out.append(replace(finding, line=first, message=finding.message + often))
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(out, key=lambda f: rank[f.severity])
