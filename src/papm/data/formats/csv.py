"""One CSV for all images: `image, x, y [, label]` a row, with a header or without; commas, semicolons or tabs separate.

A row with blank x and y states an image without objects. Where semicolons or tabs separate, 12,5 is 12.5: spreadsheets write
both where the comma is the decimal sign. Excel's first line `sep=;` names the separator.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from papm.data.formats.base import NO, SURELY, Context, Points, Sheet, Table, register
from papm.data.formats.items import Item, put_text, written
from papm.data.formats.txt import Columns, add_row, head, header
from papm.data.readers.faults import MAX_COORDINATE, AnnotationError, Fault, Faults, read_text, safe_relative
from papm.files import guarded, unguarded
from papm.images import is_image_name

logger = logging.getLogger(__name__)

_DECLARED = re.compile(r'"?sep=([;,\t|])"?[;,\t|]*(?=\n|$)', re.I)
_POINT = re.compile(r"\s*[+-]?[0-9]*\.[0-9]+\s*")  # a number with one
_PLAIN = re.compile(r"\s*[+-]?[0-9]*[.,]?[0-9]+\s*")  # a number with one, a comma or neither
_CORNER = (
    "x and y are taken for the point of an object; where they are a corner of the box of sides %s and %s, write its middle,"
    " x + %s/2 and y + %s/2, in their place"
)
_REMEDY = (
    "decimal commas? save it with points as decimal marks, or with semicolons between columns; else give each column a"
    " heading, and put a cell that holds commas in quotes"
)


@register
class Csv(Sheet):
    """one CSV with the columns image, x, y and perhaps label"""

    name = "csv"
    layout = "images/NAME.jpg, points.csv"
    suffixes = (".csv", ".tsv")
    unlisted_is_empty = True

    def detect(self, path: Path) -> int:
        rows = first_rows(path)
        columns = _columns(rows[0]) if rows else None
        if columns is None:
            return NO
        if not columns.imagej or len(rows) < 2:
            return SURELY
        assert columns.image is not None
        return SURELY if columns.image < len(rows[1]) and is_image_name(measured(rows[1][columns.image])) else NO

    def read(self, path: Path, context: Context) -> Table:
        table = Table(path)
        wanted = "a header with the columns image, x and y (and label), or rows of these"
        for number, cells, columns in table_rows(path, table.faults, _columns, wanted, tell=True):
            try:
                _add(table, cells, columns, number)
            except ValueError as e:
                table.faults.append(Fault(path, number, str(e)))
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        rows: list[list[str]] = []
        labelled = False
        for item in items:
            labelled = labelled or item.ids is not None
            labels = [guarded(k) for k in item.labels] if item.ids is not None else [""] * len(item.points)
            reference = guarded(item.reference)
            rows += [[reference, written(x), written(y), k] for (x, y), k in zip(item.points, labels)]
            if not item.points:
                rows.append([reference, "", "", ""])  # looked at, nothing there
        text = io.StringIO()
        width = 4 if labelled else 3
        csv.writer(text, lineterminator="\n").writerows(r[:width] for r in [["image", "x", "y", "label"], *rows])
        put_text(folder / "points.csv", text.getvalue())


def _add(table: Table, cells: Sequence[str], columns: Columns, number: int) -> None:
    assert columns.image is not None
    if len(cells) <= max(columns.image, columns.x, columns.y):
        raise ValueError(f"expected image, x and y, found {len(cells)} fields")
    cell = unguarded(cells[columns.image])
    name = str(safe_relative(measured(cell) if columns.imagej else cell))
    points = table.images.setdefault(name, Points(line=number, stored=columns.imagej))
    if cells[columns.x].strip() or cells[columns.y].strip():
        add_row(points, cells, columns, table.path, number)


def measured(label: str) -> str:
    """The image that a `Label` of ImageJ speaks of; the name of a selection may follow.

    >>> measured("a 1.tif:0001-0234"), measured("a.tif")
    ('a 1.tif', 'a.tif')
    """
    name, _, more = label.partition(":")
    return name if more and is_image_name(name) else label


def _columns(cells: Sequence[str]) -> Columns | None:
    """Where image, x and y are: by a header's names, or image name first and two numbers after it."""
    columns = header(cells)
    if columns is not None:
        return columns if columns.image is not None else None
    if len(cells) >= 3 and is_image_name(cells[0].strip().replace("\\", "/").rsplit("/", 1)[-1]):
        return Columns(1, 2, 3, 0)
    return None


def first_rows(path: Path) -> list[list[str]]:
    """The first rows of a file that are neither blank nor comments; none of one that cannot be read."""
    return [cells for _, cells in filled_rows(head(path) or "", path, Faults())]


def separator(text: str) -> str:
    """What `sep=` declares, else the commonest of semicolon, tab and comma in the first line.

    a;1,5;2,5 has as many of both, and is of semicolons.
    """
    if declared := _DECLARED.match(text):
        return declared[1]
    lines = (line.strip() for line in io.StringIO(text, newline="\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return max(";\t,", key=first.count) if any(c in first for c in ";\t,") else ","


def table_rows(
    path: Path, faults: Faults, find: Callable[[Sequence[str]], Columns | None], wanted: str, tell: bool = False
) -> Iterator[tuple[int, list[str], Columns]]:
    """The rows of a table below its header, with the line of each and where its columns are, which `find` sees in the first.

    Fields beyond the header, or beyond the columns that are known, are not read; `tell` warns of them. Rows whose x and y
    fell apart at decimal commas are faults. A table whose header does not name the numbers of its rows is refused.
    """
    text = read_text(path)
    shape, apart, widest = None, None, 0
    for number, cells in filled_rows(text, path, faults):
        if shape is None:
            columns = find(cells)
            if columns is None:
                found = ", ".join(c.strip() for c in cells)[:120]
                raise AnnotationError.of(path, f"expected {wanted}; found: {found}; rename the columns", number)
            columns = replace(columns, commas=separator(text) != ",")
            shape = _Shape(columns, cells if columns.named or header(cells) is not None else None)
            if shape.head is not None:
                if tell and (sides := shape.sides):
                    logger.warning(f"%s: {_CORNER}", path, *sides, *sides)
                continue
        if (fields := shape.excess(cells)) and apart is None:  # seldom, so that a second look at the text costs little
            below = [islice(filled_rows(text, path, Faults()), int(shape.head is not None), None) for _ in range(2)]
            apart = shape.fell_apart(cells for _, cells in below[0])
            if not apart and shape.numbered(cells for _, cells in below[1]):
                unnamed = "if the first is the number of the row, give it a heading too (in R: col.names=NA)"
                raise AnnotationError.of(path, f"{fields} fields where {shape.told}; {unnamed}", number)
        joined = shape.joined(cells) if fields and apart else None
        if joined:
            faults.append(Fault(path, number, f"{fields} fields where {shape.told}; {_REMEDY}"))
        widest = max(widest, fields)
        yield number, joined or cells, shape.columns  # with a row for the image, where a check goes on
    if tell and not apart and shape is not None and shape.head is not None and widest > len(shape.head):
        what = "rows have up to %d fields where the header has %d; those beyond are not read"
        logger.warning(f"%s: {what}", path, widest, len(shape.head))


class _Shape:
    """The columns of a table, and what is to be thought of rows with more fields."""

    def __init__(self, columns: Columns, head: Sequence[str] | None) -> None:
        self.columns, self.head = columns, head
        self.least = 1 + max(columns.x, columns.y, columns.image or 0)  # fields that a row must have,
        self.width = max(self.least, 1 + (columns.label or 0))  # and those that it may have
        if head is not None:
            self.least = self.width = _width(head)
        self.others = head is None or self.width > 2 + (columns.image is not None)  # columns besides image, x and y

    @property
    def sides(self) -> tuple[str, str] | None:
        """The columns with the sides of boxes, where x and y may be the corner of a box; ImageJ has it in BX and BY."""
        names = [name.strip().lower() for name in self.head or ()]
        if "bx" in names or "x" not in names or names.index("x") != self.columns.x:
            return None
        return next((pair for pair in (("w", "h"), ("width", "height")) if set(pair) <= set(names)), None)

    @property
    def told(self) -> str:
        """The number of fields that are known, in words."""
        return f"{'a row may have' if self.head is None else 'the header has'} {self.width}"

    def excess(self, cells: Sequence[str]) -> int:
        """The number of fields of a row that has too many, else 0."""
        return fields if len(cells) > self.width and (fields := _width(cells)) > self.width else 0

    def fell_apart(self, rows: Iterable[Sequence[str]]) -> bool:
        """Whether commas were decimal signs in a table that they separate.

        A row with x and y in two whole numbers each shows it. Where one of x and y is, all long rows have to look so: the
        number may be anything. A decimal point speaks against it.
        """
        if self.columns.commas:
            return False
        both = one = other = False
        for cells in rows:
            fields = self.excess(cells)
            at = range(len(cells)) if fields else (self.columns.x, self.columns.y)
            if any(_POINT.fullmatch(cells[k]) for k in at if k < len(cells) and k != self.columns.image):
                return False
            if fields:
                found = self.joined(cells) is not None
                both, one, other = both or (found and fields > 1 + self.least), one or found, other or not found
        return both or (one and not other)

    def numbered(self, rows: Iterable[Sequence[str]]) -> bool:
        """Whether rows begin with their number, which the header does not name: R writes tables so.

        >>> _Shape(Columns(0, 1, None), ["x", "y"]).numbered([["1", "12.5", "30"], ["2", "9.25", "8"]])
        True
        """
        before = -1
        for cells in rows:
            if self.head is None or len(cells) != len(self.head) + 1 or not re.fullmatch("[0-9]{1,9}", cells[0]):
                return False
            if int(cells[0]) <= before or not all(
                _PLAIN.fullmatch(cells[k + 1]) for k in (self.columns.x, self.columns.y)
            ):
                return False
            before = int(cells[0])
        return True

    def joined(self, cells: Sequence[str]) -> list[str] | None:
        """A long row with x and y put together again, where whole numbers stand for their parts.

        >>> _Shape(Columns(1, 2, None, 0), ["image", "x", "y"]).joined(["a.jpg", "101", "2", "56", "4"])
        ['a.jpg', '101.2', '56.4']
        """
        fields = self.excess(cells)
        more, (first, second) = fields - self.least, sorted((self.columns.x, self.columns.y))
        if more == 2 or (more > 2 and self.others):
            return _together(cells, first, second + 1)
        if more == 1 and (self.head is None or fields > len(self.head)):  # else the header has an empty cell for it
            ways = (first, second + 1), (second, first)
            found = (_together(cells, pair) for pair, other in ways if _number(cells[other], "0"))
            return next(filter(None, found), None)
        return None


def _width(cells: Sequence[str]) -> int:
    """The number of fields of a row without those left blank at its end."""
    return max((i for i, cell in enumerate(cells, start=1) if cell.strip()), default=0)


def _together(cells: Sequence[str], *pairs: int) -> list[str] | None:
    """A row whose cells from each of `pairs` on are the two parts of a coordinate, with these put together."""
    out = list(cells)
    for at in reversed(pairs):
        if not (number := _number(*out[at : at + 2])):
            return None
        out[at : at + 2] = [number]
    return out


def _number(whole: str, fraction: str) -> str:
    """A coordinate from what stood before and after its decimal comma; nothing where it is none.

    >>> _number("101", "2"), _number("1", "0.98"), _number("-1", "2")
    ('101.2', '', '')
    """
    number = f"{whole.strip()}.{fraction.strip()}"
    plausible = re.fullmatch(r"(\+?[0-9]+|-0+)\.[0-9]+", number) and float(number) <= MAX_COORDINATE
    return number if plausible else ""


def filled_rows(text: str, path: Path, faults: Faults) -> Iterator[tuple[int, list[str]]]:
    """Rows that are neither blank nor comments, nor declare the separator, with the line each begins at."""
    declared = _DECLARED.match(text)
    lines = io.StringIO(text[declared.end() if declared else 0 :] + "\n", newline="\n")
    parser = csv.reader(lines, delimiter=separator(text), skipinitialspace=True, strict=True)
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
            if any(c.strip() for c in row) and not row[0].lstrip().startswith("#"):
                yield start, row
        start = parser.line_num + 1
