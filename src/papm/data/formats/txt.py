"""Text: one `x y [label]` a line, with spaces or separators, `#` comments, and perhaps a header.

The names that a header may have are those of every table here. Coordinates stay as written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.items import Item, put_text, written
from papm.data.readers.faults import Fault, coordinate, decoded, newlines, read_text
from papm.files import unguarded

_WORDS = ("px", "pos", "position", "coord", "coordinate", "center", "centre", "centroid", "koordinate", "wert", "mitte")
# Names that go together, x and y.
PAIRS = (
    *(("x", "y"), ("col", "row"), ("column", "row"), ("spalte", "zeile"), ("px", "py"), ("cx", "cy"), ("xc", "yc")),
    *(("xcenter", "ycenter"), ("xcentre", "ycentre"), ("centroid x px", "centroid y px")),
    *((f"x_{w}", f"y_{w}") for w in _WORDS),
    *((f"{w}_x", f"{w}_y") for w in _WORDS),
)
X_NAMES, Y_NAMES = (frozenset(names) for names in zip(*PAIRS))
LABEL_NAMES = frozenset(
    {"label", "class", "category", "type", "class_id", "label_id", "category_id", "klasse", "kategorie", "typ", "art"}
)
IMAGE_NAMES = frozenset(
    {"image", "file", "filename", "file_name", "image_name", "img", "path", "image_path", "image_id", "image_file"}
    | {"photo", "photograph", "picture", "photo_name", "picture_name"}
    | {"bild", "bilddatei", "bildname", "datei", "dateiname", "foto"}
)
# What ImageJ measures of a point, some of it at least.
MEASUREMENTS = frozenset({"area", "mean", "min", "max", "ch", "slice", "frame", "counter", "count"})
_UNIT = re.compile(r"\s*[(\[]\s*(px|pixels?)\s*[)\]]$")  # of a heading; other units are not pixels
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Columns:
    """Where the cells of a row are."""

    x: int = 0
    y: int = 1
    label: int | None = 2
    image: int | None = None
    imagej: bool = False  # the shape of ImageJ's tables,
    measured: bool = False  # with measurements of its own
    commas: bool = False  # 12,5 is 12.5
    named: bool = False  # they were found by the names in a row, which is no point


def header(cells: Sequence[str]) -> Columns | None:
    """Columns by name, when a row names x and y; not when it names them twice (x and y, x_center and y_center).

    A table of ImageJ begins with a column without a name, the number of the row, and calls the others X, Y, Label (the image
    that was measured) and Counter (the kind of a point).
    """
    names = [_heading(c) for c in cells]

    def column(known: Collection[str]) -> int | None:
        return next((i for i, n in enumerate(names) if n in known), None)

    pairs = [{x, y} for x, y in PAIRS if x in names and y in names]
    if len(pairs) > 1:
        return None
    x, y = (column(known & pairs[0] if pairs else known) for known in (X_NAMES, Y_NAMES))
    if x is None or y is None:
        return None
    image = column(IMAGE_NAMES)
    if image is None and not names[0] and {"X", "Y"} <= set(cells):
        measured = not MEASUREMENTS.isdisjoint(names)
        return Columns(x, y, column(("counter",)), column(("label",)), imagej=True, measured=measured)
    return Columns(x, y, column(LABEL_NAMES), image)


def _heading(cell: str) -> str:
    """A heading as the known names are written.

    >>> _heading(" X (px)"), _heading("File name"), _heading("x-Koordinate"), _heading("X (mm)")
    ('x', 'file_name', 'x_koordinate', 'x_(mm)')
    """
    name = _UNIT.sub("", cell.strip().strip("\"'").lower())
    return name if name in X_NAMES or name in Y_NAMES else re.sub(r"[\s-]+", "_", name)


def add_row(out: Points, cells: Sequence[str], columns: Columns, path: Path, number: int) -> None:
    """Append the point of a row, or what is wrong with it."""
    x, y = cells[columns.x].strip(), cells[columns.y].strip()
    if columns.commas:
        x, y = _with_point(x), _with_point(y)
    try:
        xy = coordinate(x, "x"), coordinate(y, "y")
    except ValueError as e:
        out.faults.append(Fault(path, number, str(e)))
        return
    label = cells[columns.label].strip() if columns.label is not None and columns.label < len(cells) else ""
    out.add(xy, unguarded(label) if label else None, number)


def _with_point(cell: str) -> str:
    """A number with a decimal comma written with a point; anything else as it is.

    >>> _with_point("12,5"), _with_point("12.5"), _with_point("1.234,5")
    ('12.5', '12.5', '1.234,5')
    """
    return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell


def head(path: Path) -> str | None:
    """The first whole lines of a text file; None of one that cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with path.open("rb") as f:
            raw = f.read(_HEAD_BYTES)
    except OSError:
        return None
    text = newlines(decoded(raw, errors="replace"))
    return text if len(raw) < _HEAD_BYTES else text.rpartition("\n")[0] or text


def head_lines(path: Path) -> list[str]:
    """Those of the first lines that are neither blank nor comments."""
    return [line for raw in (head(path) or "").split("\n") if (line := raw.split("#", 1)[0].strip())]


def listed_names(path: Path) -> tuple[str, ...]:
    """The names of classes in a file such as classes.txt, one a line; none where there is no such file."""
    lines = read_text(path).split("\n") if path.is_file() else []
    return tuple(name for line in lines if (name := line.split("#")[0].strip()))


@register
class Txt(PerImage):
    """text, 'x y [label]' a line"""

    name = "txt"
    layout = "NAME.jpg with NAME.txt beside it or in labels/"
    endings = (".txt",)

    def detect(self, path: Path) -> int:
        text = head(path)
        if text is None:
            return NO
        points = parse(text, path)
        if points.faults and not points.xy:
            return NO
        return SURELY if head_lines(path) else MAYBE

    def read(self, path: Path, image: Path | None = None, context: Context | None = None) -> Points:
        return parse(read_text(path), path)

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            lines = ["# x y" if item.ids is None else "# x y label"]
            for i, (x, y) in enumerate(item.points):
                label = "" if item.ids is None else f" {item.ids[i]}"
                lines.append(f"{written(x)} {written(y)}{label}")
            put_text(folder / item.beside(".txt"), "\n".join(lines) + "\n")


def parse(text: str, path: Path) -> Points:
    """The points of a text, and its faults by line.

    >>> parse("x,y\\n1, 2\\n# a comment\\n3 4", Path("a.txt")).xy
    [(1.0, 2.0), (3.0, 4.0)]
    """
    out, columns, width = Points(), None, 3
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.split("#", 1)[0].strip(" \t\r,;")
        if not line:
            continue
        cells = re.split(r"\s*[,;]\s*|\s+", line)
        if columns is None:
            columns = header(cells)
            if columns is not None:
                width = len(cells)
                continue
            columns = Columns()
        if not max(columns.x, columns.y) < len(cells) <= width:
            want = "'x y' or 'x y label'" if width == 3 else f"{width} fields as in the header"
            out.faults.append(Fault(path, number, f"expected {want}, found {len(cells)} fields: {line[:60]!r}"))
        else:
            add_row(out, cells, columns, path, number)
    return out
