"""Writing files so that a reader sees the old one or the new one, never half of one; reading our own JSON; the cache folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from papm.errors import PapmError, WriteError


def cache_root() -> Path:
    """Where papm keeps what it can make again: $PAPM_CACHE, or ~/.cache/papm."""
    return Path(os.environ.get("PAPM_CACHE") or "~/.cache/papm").expanduser()


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside the target, flush to disk, rename. On any failure the previous file stays and the draft is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({error.strerror})") from None
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        kept = "; what was there before is kept" if path.exists() else ""
        raise WriteError(f"{path}: cannot be written ({error.strerror}){kept}") from None
    finally:
        draft.unlink(missing_ok=True)


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
