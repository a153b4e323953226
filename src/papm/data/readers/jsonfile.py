"""JSON annotation files: read whole within the size limit, or looked at near both ends to tell what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from papm.data.readers.faults import AnnotationError, Fault, read_text

_PEEK = 65536


def load_json(path: Path) -> Any:
    """The content of a JSON file; AnnotationError names the file, and the line where there is one."""
    text = read_text(path)
    try:
        content = json.loads(text)
        if (
            "\\ud" in text or "\\uD" in text
        ):  # half a character, written as an escape, could be shown and written nowhere
            json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as e:
        raise AnnotationError([Fault(path, e.lineno, f"not valid JSON ({e.msg})")]) from e
    except UnicodeEncodeError as e:
        raise AnnotationError([Fault(path, None, "not usable JSON (half a character, \\ud800 to \\udfff)")]) from e
    except (RecursionError, ValueError) as e:  # nested beyond reason, or a number of thousands of digits
        raise AnnotationError([Fault(path, None, f"not usable JSON ({e})")]) from e
    return content


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
