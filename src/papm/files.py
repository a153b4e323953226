"""Writing files so that a reader sees the old one or the new one, never half of one; reading our own JSON; cells of
tables; the cache folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from papm.errors import PapmError, WriteError


def cache_root() -> Path:
    """Where papm keeps what it can make again: $PAPM_CACHE, else `papm` in $XDG_CACHE_HOME, else ~/.cache/papm."""
    if given := os.environ.get("PAPM_CACHE"):
        return Path(given).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "papm"  # the XDG rule for relative paths


def private_folder(folder: Path) -> None:
    """Make a folder that no other user may enter, or close one that is open; PermissionError where that cannot be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another user's
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    if not is_private(folder.stat()):
        raise PermissionError(errno.EPERM, "belongs to another user, or others may write there")


def is_private(found: os.stat_result) -> bool:
    """Whether a file or folder is this user's and no other user may change it."""
    return not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)


@contextlib.contextmanager
def replacing(path: Path, mode: str = "wb", *, permissions: int = 0o666, **options: Any) -> Iterator[IO[Any]]:
    """Open a file that takes the place of `path` when all of it is on the disk; until then, and on any failure, the old
    one stays. Folders are made, and the umask restricts `permissions` as for any new file. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.encode(errors="ignore")[:200].decode(errors="ignore")  # of the 255 bytes a name may have
    draft = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), permissions)
    try:
        with os.fdopen(handle, mode, **options) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a file that takes the place of `path`; on any failure the previous file stays."""
    try:
        with replacing(path) as stream:
            write(stream)
    except OSError as error:
        kept = "; what was there before is kept" if path.exists() else ""
        why = error.strerror
        if isinstance(error, FileExistsError | NotADirectoryError):
            why = next((f"{p} is a file, not a folder" for p in path.parents if p.is_file()), why)
        raise WriteError(f"{path}: cannot be written ({why}){kept}") from None


def write_text(path: Path, text: str) -> None:
    """A whole text file, atomically."""
    write_atomic(path, lambda stream: stream.write(text.encode("utf-8")))


def write_json(path: Path, value: Any) -> None:
    """A JSON file, atomically; NaN and infinity are refused rather than written as what no other reader accepts."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in a file that papm wrote; `advice` says what to do where it holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise PapmError(f"{path}: cannot be read as JSON; {advice}") from None
    if not isinstance(value, dict):
        raise PapmError(f"{path}: holds no JSON object; {advice}")
    return value


_FORMULA = re.compile(
    r"'*[=+\-@\t\r\n]"
)  # what a cell begins with that a spreadsheet computes, behind our own sign or not
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def guarded(text: str) -> str:
    """Text for a cell of a CSV file, with an apostrophe before what a spreadsheet would take for a formula; not numbers.

    >>> guarded("=1+1.png"), guarded("a=1.png"), guarded("-2.5"), guarded("'=1")
    ("'=1+1.png", 'a=1.png', '-2.5', "''=1")
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(cell: str) -> str:
    """The text that `guarded` was given.

    >>> unguarded("'=1+1.png"), unguarded("'a'"), unguarded("''=1")
    ('=1+1.png', "'a'", "'=1")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
