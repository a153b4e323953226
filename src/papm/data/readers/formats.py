"""Points in text: one `.txt` or one table an image, or one CSV for all images.

All accept whitespace or separators, `#` comments, an optional header (a table of one image needs it), and an optional label.
Coordinates stay as written.

A table of ImageJ begins with a column without a name, the number of the row, and calls the others X, Y, Label (the image that
was measured) and Counter (the kind of a point).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papm.data.readers.faults import AnnotationError, Fault, coordinate, newlines, read_text, safe_relative
from papm.data.readers.records import Points, Table, same_labelling
from papm.files import unguarded
from papm.images import is_image_name

X_NAMES = frozenset({"x", "col", "column", "px", "pos_x", "x_px", "x_coord", "center_x", "cx", "centroid x px"})
Y_NAMES = frozenset({"y", "row", "py", "pos_y", "y_px", "y_coord", "center_y", "cy", "centroid y px"})
LABEL_NAMES = frozenset({"label", "class", "category", "type", "class_id", "label_id", "category_id"})
IMAGE_NAMES = frozenset(
    {"image", "file", "filename", "file_name", "image_name", "img", "path", "image_path", "image_id", "image_file"}
    | {"photo", "photograph", "picture", "photo_name", "picture_name"}
)
_UNIT = re.compile(r"\s*[(\[]\s*(px|pixels?)\s*[)\]]$")  # of a heading; other units are not pixels


# What ImageJ measures of a point, some of it at least.
MEASUREMENTS = frozenset({"area", "mean", "min", "max", "ch", "slice", "frame", "counter", "count"})


@dataclass(frozen=True)
class _Columns:
    x: int = 0
    y: int = 1
    label: int | None = 2
    image: int | None = None
    imagej: bool = False  # the shape of ImageJ's tables,
    measured: bool = False  # with measurements of its own


def _column(names: Sequence[str], known: Collection[str]) -> int | None:
    return next((i for i, n in enumerate(names) if n in known), None)


def _heading(cell: str) -> str:
    """A heading as the known names are written.

    >>> _heading(" X (px)"), _heading("File name"), _heading("Centroid X px"), _heading("X (mm)")
    ('x', 'file_name', 'centroid x px', 'x_(mm)')
    """
    name = _UNIT.sub("", cell.strip().strip("\"'").lower())
    return name if name in X_NAMES or name in Y_NAMES else re.sub(r"\s+", "_", name)


def _header(cells: Sequence[str]) -> _Columns | None:
    """Columns by name, when a row names x and y."""
    names = [_heading(c) for c in cells]
    x, y = _column(names, X_NAMES), _column(names, Y_NAMES)
    if x is None or y is None:
        return None
    image = _column(names, IMAGE_NAMES)
    if image is None and not names[0] and {"X", "Y"} <= set(cells):
        image, measured = _column(names, ("label",)), not MEASUREMENTS.isdisjoint(names)
        return _Columns(x, y, _column(names, ("counter",)), image, imagej=True, measured=measured)
    return _Columns(x, y, _column(names, LABEL_NAMES), image)


def read_txt(path: Path, categories: Collection[str] | None = None) -> Points:
    """`x y [label]` a line; raises AnnotationError with every bad line. Parsed labels are left as text."""
    points = parse_txt(read_text(path), path, categories)
    if points.faults:
        raise AnnotationError(points.faults)
    return points


def parse_txt(text: str, path: Path, categories: Collection[str] | None = None) -> Points:
    """The points of a text, and its faults by line.

    >>> parse_txt("x,y\\n1, 2\\n# a comment\\n3 4", Path("a.txt")).xy
    [(1.0, 2.0), (3.0, 4.0)]
    """
    out, columns, width = Points(), None, None
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.split("#", 1)[0].strip(" \t\r,;")
        if not line:
            continue
        cells = re.split(r"\s*[,;]\s*|\s+", line)
        if columns is None:
            columns = _header(cells)
            if columns is not None:
                width = len(cells)
                continue
            columns, width = _Columns(), 3
        needed = max(columns.x, columns.y) + 1
        if not needed <= len(cells) <= (width or 3):
            want = "'x y' or 'x y label'" if width == 3 else f"{width} fields as in the header"
            out.faults.append(Fault(path, number, f"expected {want}, found {len(cells)} fields: {line[:60]!r}"))
            continue
        _add_row(out, cells, columns, path, number, categories)
    same_labelling(out, path)
    return out


def _add_row(
    out: Points, cells: Sequence[str], columns: _Columns, path: Path, number: int, categories: Collection[str] | None
) -> None:
    try:
        xy = coordinate(cells[columns.x].strip(), "x"), coordinate(cells[columns.y].strip(), "y")
    except ValueError as e:
        out.faults.append(Fault(path, number, str(e)))
        return
    label = cells[columns.label].strip() if columns.label is not None and columns.label < len(cells) else None
    label = None if label is None else unguarded(label)
    if categories is None or (label or "") in categories:
        out.add(xy, label or None, number)


def looks_like_txt(path: Path) -> bool:
    """Whether the first lines of a file are points; an empty file may be."""
    text = _head(path)
    if text is None:
        return False
    whole = text if len(text) < _HEAD_BYTES else text.rpartition("\n")[0]
    points = parse_txt(whole, path)
    return bool(points.xy) or not points.faults


def head_lines(path: Path) -> list[str]:
    """The first whole lines of a text file that are neither blank nor comments; none of one that cannot be read."""
    text = _head(path) or ""
    whole = text if len(text) < _HEAD_BYTES else text.rpartition("\n")[0]
    return [line for raw in whole.split("\n") if (line := raw.split("#", 1)[0].strip())]


def read_csv(path: Path, categories: Collection[str] | None = None) -> Table:
    """`image, x, y [, label]` a row, with a header or without; a row with blank x and y states an image without objects.

    Where semicolons or tabs separate, 12,5 is 12.5: spreadsheets write both where the comma is the decimal sign.
    """
    text = read_text(path)
    table = Table(path)
    commas = _separator(text) != ","
    columns = None
    for number, cells in _filled_rows(text, path, table.faults):
        if columns is None:
            columns = csv_columns(cells)
            if columns is None:
                found = ", ".join(c.strip() for c in cells)[:120]
                message = (
                    "expected a header with the columns image, x and y (and label), or rows of these; found:"
                    f" {found}; rename the columns"
                )
                raise AnnotationError([Fault(path, number, message)])
            if _header(cells) is not None:
                continue
        assert columns.image is not None
        if len(cells) <= max(columns.image, columns.x, columns.y):
            table.faults.append(Fault(path, number, f"expected image, x and y, found {len(cells)} fields"))
            continue
        try:
            cell = unguarded(cells[columns.image])
            name = str(safe_relative(_measured(cell) if columns.imagej else cell))
        except ValueError as e:
            table.faults.append(Fault(path, number, str(e)))
            continue
        points = table.images.setdefault(name, Points(line=number, stored=columns.imagej))
        if cells[columns.x].strip() or cells[columns.y].strip():
            if commas:
                cells = [_with_point(c) if i in (columns.x, columns.y) else c for i, c in enumerate(cells)]
            _add_row(points, cells, columns, path, number, categories)
    for points in table.images.values():
        same_labelling(points, path)
    return table


def _measured(label: str) -> str:
    """The image that a `Label` of ImageJ speaks of; the name of a selection may follow.

    >>> _measured("a 1.tif:0001-0234"), _measured("a.tif")
    ('a 1.tif', 'a.tif')
    """
    name, _, more = label.partition(":")
    return name if more and is_image_name(name) else label


def read_table(path: Path) -> Points:
    """The points of one image, a row each; a header names the columns. An empty file: no objects."""
    text = read_text(path)
    out = Points()
    commas = _separator(text) != ","
    columns, first = None, ""
    for number, cells in _filled_rows(text, path, out.faults):
        if columns is None:
            columns = _header(cells)
            if columns is None:
                found = ", ".join(c.strip() for c in cells)[:120]
                raise AnnotationError(
                    [Fault(path, number, f"expected a header with the columns X and Y; found: {found}")]
                )
            continue
        columns = _settled(columns, cells)
        if len(cells) <= max(columns.x, columns.y):
            out.faults.append(Fault(path, number, f"expected X and Y, found {len(cells)} fields"))
            continue
        image = _measured(cells[columns.image]) if columns.image is not None and columns.image < len(cells) else ""
        first = first or image
        if image != first:  # ImageJ goes on with the table it has
            message = f"{image[:80]!r} was measured here, {first[:80]!r} above: clear the results before each image"
            out.faults.append(Fault(path, number, message))
            continue
        if commas:
            cells = [_with_point(c) if i in (columns.x, columns.y) else c for i, c in enumerate(cells)]
        _add_row(out, cells, columns, path, number, None)
    if out.faults:
        raise AnnotationError(out.faults)
    return out


def _settled(columns: _Columns, row: Sequence[str]) -> _Columns:
    """In a table of ImageJ's shape without its measurements, a Label that is no image is the class of a point."""
    at = columns.image
    if not columns.imagej or columns.measured or at is None or at >= len(row) or is_image_name(_measured(row[at])):
        return columns
    return replace(columns, image=None, label=at if columns.label is None else columns.label)


def looks_like_table(path: Path) -> bool:
    """Whether the first row of a file is the header of the points of one image; text files are those of ImageJ alone."""
    columns = _columns_of(path)
    if columns is None or columns.imagej:
        return columns is not None
    return columns.image is None and path.suffix.lower() != ".txt"


def looks_like_imagej(path: Path) -> bool:
    """Whether a table has the shape of ImageJ's own."""
    columns = _columns_of(path)
    return columns is not None and columns.imagej


def _columns_of(path: Path) -> _Columns | None:
    """What the header of a table names."""
    first = _first_rows(path)[:1]
    return _header(first[0]) if first else None


def _first_rows(path: Path) -> list[list[str]]:
    """The first rows of a file that are neither blank nor comments; none of one that cannot be read."""
    text = _head(path)
    return [] if text is None else [cells for _, cells in _filled_rows(text, path, [])]


def csv_columns(cells: Sequence[str]) -> _Columns | None:
    """Where image, x and y are: by a header's names, or image name first and two numbers after it."""
    columns = _header(cells)
    if columns is not None:
        return columns if columns.image is not None else None
    if len(cells) >= 3 and is_image_name(cells[0].strip().replace("\\", "/").rsplit("/", 1)[-1]):
        return _Columns(1, 2, 3, 0)
    return None


def first_row(path: Path) -> str:
    """What the first row of a table says, its cells divided by commas; nothing of a file that is no table."""
    rows = _first_rows(path)[:1]
    return ", ".join(c.strip() for c in rows[0])[:120] if rows and len(rows[0]) > 1 else ""


def looks_like_csv(path: Path) -> bool:
    """Whether the first row of a file is a header or a row of points of many images."""
    rows = _first_rows(path)
    columns = csv_columns(rows[0]) if rows else None
    if columns is None or not columns.imagej or len(rows) < 2:
        return columns is not None
    assert columns.image is not None
    return columns.image < len(rows[1]) and is_image_name(_measured(rows[1][columns.image]))


_HEAD_BYTES = 4096


def _head(path: Path) -> str | None:
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        with path.open("rb") as f:
            return newlines(f.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace"))
    except OSError:
        return None


def _separator(text: str) -> str:
    """The commonest of semicolon, tab and comma in the first line; a;1,5;2,5 has as many of both, and is of semicolons."""
    lines = (line.strip() for line in io.StringIO(text, newline="\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return max(";\t,", key=first.count) if any(c in first for c in ";\t,") else ","


def _with_point(cell: str) -> str:
    """A number with a decimal comma written with a point; anything else as it is.

    >>> _with_point("12,5"), _with_point("12.5"), _with_point("1.234,5")
    ('12.5', '12.5', '1.234,5')
    """
    return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell


def _filled_rows(text: str, path: Path, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are neither blank nor comments, with the line each begins at."""
    for number, cells in _rows(text, path, faults):
        if any(c.strip() for c in cells) and not cells[0].lstrip().startswith("#"):
            yield number, cells


def _rows(text: str, path: Path, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line each begins at."""
    lines = io.StringIO(text + "\n", newline="\n")
    parser = csv.reader(lines, delimiter=_separator(text), skipinitialspace=True, strict=True)
    start = 1
    while True:
        try:
            row = next(parser)
        except StopIteration:
            return
        except csv.Error as e:
            faults.append(Fault(path, start, f"not a row of a table ({e})"))
            if parser.line_num < start:  # the end of the file inside an open quote
                return
        else:
            yield start, row
        start = parser.line_num + 1
