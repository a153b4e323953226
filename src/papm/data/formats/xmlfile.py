"""XML annotation files: text as they take it, and files parsed without what makes XML dangerous.

No document type and no entity may be declared, so nothing expands and nothing outside the file is read; size, depth and the
number of elements are bounded. What remains is a tree of names, attributes and text, with the line of each element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from papm.data.formats.jsonfile import peek, uncollected
from papm.data.readers.faults import AnnotationError, read_bytes
from papm.errors import DataError

MAX_ELEMENTS = 2_000_000  # 700 MB of memory; a file at the size limit, of elements as long as those of CVAT, has fewer
MAX_ATTRIBUTES = 10 * MAX_ELEMENTS
MAX_DEPTH = 64
_NEVER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class Element:
    """One element: its name, attributes, children, the text directly in it, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # of its text

    @property
    def text(self) -> str:
        """The text directly in it, without blanks around it."""
        return "".join(self.parts).strip()

    def all(self, tag: str) -> Iterator[Element]:
        """The children of that name."""
        return (c for c in self.children if c.tag == tag)

    def first(self, tag: str) -> Element | None:
        """The first child of that name."""
        return next(self.all(tag), None)

    def value(self, tag: str) -> str | None:
        """The text of the first child of that name."""
        child = self.first(tag)
        return None if child is None else child.text


def load_xml(path: Path, root: str) -> Element:
    """The root element, which must have that name; AnnotationError names the file and the line."""
    data = read_bytes(path)
    if data.count(b"<") - data.count(b"</") > MAX_ELEMENTS or data.count(b"=") > MAX_ATTRIBUTES:
        raise AnnotationError.of(
            path,
            f"more elements than the {MAX_ELEMENTS:,} that are read; split it into one file per image or per split",
        )
    builder = _Builder()
    try:
        with uncollected():
            builder.parser.Parse(data, True)
    except expat.ExpatError as e:
        raise AnnotationError.of(path, f"not valid XML ({expat.ErrorString(e.code)})", e.lineno) from e
    except (ValueError, LookupError) as e:  # ours, and encodings that are not known
        raise AnnotationError.of(path, f"not usable XML ({e})", builder.parser.CurrentLineNumber or None) from e
    found = builder.top.children[0]
    if found.tag != root:
        raise AnnotationError.of(path, f"expected <{root}>, found <{found.tag[:40]}>", found.line)
    return found


class _Builder:
    """Collects elements as the parser meets them."""

    def __init__(self) -> None:
        self.top = Element("", {}, 0)
        self.open = [self.top]
        self.count = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.StartDoctypeDeclHandler = self.refuse
        self.parser.EntityDeclHandler = self.refuse

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) > MAX_DEPTH:
            raise ValueError("more elements, or deeper ones, than an annotation has")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        self.open[-1].children.append(element)
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        self.open[-1].parts.append(text)

    def refuse(self, *_: object) -> None:
        raise ValueError("it declares a document type or entities; remove the <!DOCTYPE …>")


def root_tag(path: Path) -> str | None:
    """The name of the root element, from the beginning of a file; None where it is not XML."""
    head = peek(path)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        head = head[: len(head) // 2 * 2].decode("utf-16", errors="replace").encode()
    head = re.sub(rb"^\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>\s*)*", b"", head, flags=re.S)
    match = re.match(rb"<([A-Za-z_][\w.\-]*)[\s/>]", head)
    return match[1].decode() if match else None


# --- writing -----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
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
