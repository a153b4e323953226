"""One CSV for all images: `image, x, y [, label]` a row, with a header or without; commas, semicolons or tabs separate.

A row with blank x and y states an image without objects. Where semicolons or tabs separate, 12,5 is 12.5: spreadsheets write
both where the comma is the decimal sign. Excel's first line `sep=;` names the separator.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from papm.data.formats.base import NO, SURELY, Context, Points, Sheet, Table, register
from papm.data.formats.items import Item, put_text, written
from papm.data.formats.txt import Columns, add_row, head, header
from papm.data.readers.faults import AnnotationError, Fault, Faults, read_text, safe_relative
from papm.files import guarded, unguarded
from papm.images import is_image_name

_DECLARED = re.compile(r'"?sep=([;,\t|])"?[;,\t|]*(?=\n|$)', re.I)


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
        for number, cells, columns in table_rows(path, table.faults, _columns, wanted):
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
    path: Path, faults: Faults, find: Callable[[Sequence[str]], Columns | None], wanted: str
) -> Iterator[tuple[int, list[str], Columns]]:
    """The rows of a table below its header, with the line of each and where its columns are, which `find` sees in the first.

    Rows with more fields than the header, or than columns are known of, are faults.
    """
    text = read_text(path)
    columns, width, head = None, 0, ""
    for number, cells in filled_rows(text, path, faults):
        if columns is None:
            columns = find(cells)
            if columns is None:
                found = ", ".join(c.strip() for c in cells)[:120]
                raise AnnotationError.of(path, f"expected {wanted}; found: {found}; rename the columns", number)
            columns = replace(columns, commas=separator(text) != ",")
            if columns.named or header(cells) is not None:
                width, head = _width(cells), "the header has"
                continue
            width, head = 1 + max(columns.x, columns.y, columns.label or 0, columns.image or 0), "a row may have"
        if (fields := _width(cells)) > width:
            faults.append(Fault(path, number, f"{fields} fields where {head} {width}; {_remedy(cells, columns)}"))
            continue
        yield number, cells, columns


def _width(cells: Sequence[str]) -> int:
    """The number of fields of a row without those left blank at its end."""
    return max((i for i, cell in enumerate(cells, start=1) if cell.strip()), default=0)


def _remedy(cells: Sequence[str], columns: Columns) -> str:
    """What to do about too many fields: where x and y fall into whole numbers, commas were their decimal signs.

    >>> _remedy(["a.jpg", "101", "2", "56", "4"], Columns(1, 2, None, 0))
    'decimal commas? save it with points as decimal marks, or with semicolons between columns'
    """
    first = min(columns.x, columns.y)
    parts = [cell.strip() for cell in cells[first : first + 3]]
    if not columns.commas and len(parts) == 3 and all(re.fullmatch(r"[+-]?[0-9]+", part) for part in parts):
        return "decimal commas? save it with points as decimal marks, or with semicolons between columns"
    return "give each column a heading, and put a cell that holds the separator in quotes"


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
