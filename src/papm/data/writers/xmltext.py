"""Text and attributes as XML takes them."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from papm.errors import DataError

_NEVER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def content(text: str) -> str:
    """Text between tags."""
    return escape(_valid(text))


def attributes(**values: object) -> str:
    """Attributes of an element, with a blank before each.

    >>> attributes(name="a & b", x=1.5)
    ' name="a &amp; b" x="1.5"'
    """
    return "".join(f" {k}={quoteattr(_valid(str(v)))}" for k, v in values.items())


def _valid(text: str) -> str:
    if found := _NEVER.search(text):
        raise DataError(f"XML cannot hold the character {found[0]!r} of {text[:80]!r}; rename it")
    return text
