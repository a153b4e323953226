"""JSON annotation files: read whole within the size limit, or looked at near both ends to tell what they are."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from papm.data.readers.faults import AnnotationError, read_text
from papm.errors import DataError

MOST_MEMORY = 2_500_000_000  # bytes for the values of one file; COCO files of two million points pass
_PEEK = 65536

T = TypeVar("T")


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


def load_keys(path: Path, tool: str, kind: type, *keys: str) -> dict[str, Any]:
    """The object in a JSON file of a tool, which has a list or an object under each of these keys."""
    content = load_json(path)
    for key in keys:
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            noun = "list" if kind is list else "object"
            raise AnnotationError.of(path, f"not a {tool} file: the {noun} '{key}' is missing")
    assert isinstance(content, dict)
    return content


def need(value: Any, kind: type[T], problem: str) -> T:
    """A value that must be of a kind; else ValueError says what is wrong."""
    if not isinstance(value, kind):
        raise ValueError(problem)
    return value


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
    """About how many bytes the values of a JSON text take, by its marks: `{},` is three in a file, and some hundred in Python.

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


def peek_object(path: Path) -> bytes:
    """The same of a file that begins as an object; nothing of others."""
    content = peek(path)
    return content if content.lstrip(b" \t\r\n").startswith(b"{") else b""


def has_keys(content: bytes, *keys: str) -> int:
    """How many of these occur as keys, at whatever depth.

    >>> has_keys(b'{"images": ["annotations"]}', "images", "annotations")
    1
    """
    return sum(re.search(rb'"' + re.escape(k.encode()) + rb'"\s*:', content) is not None for k in keys)
