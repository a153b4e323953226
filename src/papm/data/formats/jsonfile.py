"""JSON annotation files: read whole within the size limit, or looked at near both ends to tell what they are."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from papm.data.readers.faults import AnnotationError, read_text
from papm.errors import DataError

MOST_MEMORY = 2_500_000_000  # bytes for the values of one file; COCO files of two million points pass
_PEEK = 65536


def load_json(path: Path) -> Any:
    """The content of a JSON file; AnnotationError names the file, and the line where there is one."""
    text = read_text(path)
    if (need := memory_of(text)) > MOST_MEMORY:
        raise DataError(
            f"{path}: its values would take about {need / 1e9:.1f} GB of memory, more than the limit of"
            f" {MOST_MEMORY / 1e9:g}; split it into one file per image or per split"
        )
    try:
        with uncollected():
            content = json.loads(text)
        # Half a character, written as an escape, could be shown and written nowhere.
        if "\\ud" in text or "\\uD" in text:
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as e:
        raise AnnotationError.of(path, f"not valid JSON ({e.msg})", e.lineno) from e
    except UnicodeEncodeError as e:
        raise AnnotationError.of(path, "not usable JSON (half a character, \\ud800 to \\udfff)") from e
    except (RecursionError, ValueError) as e:  # nested beyond reason, or a number of thousands of digits
        raise AnnotationError.of(path, f"not usable JSON ({e})") from e
    return content


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, which looks through millions of new values again and again, and finds nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def memory_of(text: str) -> int:
    """About how many bytes the values of a JSON text take: `{},` is three in a file, and some hundred in Python.

    Objects and lists, texts and other values are counted by the marks they have in the file.

    >>> memory_of("[{}, {}]")
    632
    """
    return 200 * (text.count("{") + text.count("[")) + 30 * text.count('"') + 32 * text.count(",")


def peek(path: Path) -> bytes:
    """The first and the last 64 KiB of a file, without a byte-order mark; nothing of one that cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as f:
            head = f.read(_PEEK)
            f.seek(max(_PEEK, path.stat().st_size - _PEEK))
            return head.removeprefix(b"\xef\xbb\xbf") + f.read(_PEEK)
    except OSError:
        return b""


def has_keys(content: bytes, *keys: str) -> int:
    """How many of these occur as keys, at whatever depth.

    >>> has_keys(b'{"images": ["annotations"]}', "images", "annotations")
    1
    """
    return sum(re.search(rb'"' + re.escape(k.encode()) + rb'"\s*:', content) is not None for k in keys)


def is_object(content: bytes) -> bool:
    """Whether the text begins as an object."""
    return content.lstrip(b" \t\r\n").startswith(b"{")
