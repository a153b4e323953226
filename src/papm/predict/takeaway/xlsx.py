"""A workbook for Excel and LibreOffice, of the few parts that one needs (ECMA-376, Office Open XML).

Text stands in the cells themselves as text, so that no name is ever a formula.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

from papm.predict.results import classes_of, count_table, point_table
from papm.predict.takeaway.base import OneFile, Taken, register

MOST_ROWS = 1_048_576  # of a sheet, by the format
LONGEST = 32_767  # characters of a cell, by the format
WIDE = 32  # of the first column, in digits

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")  # what a reader takes for a character by its number

Rows = Sequence[Sequence[Any]]


@register
class Xlsx(OneFile):
    """a workbook for Excel and LibreOffice: the counts on one sheet, the points on the next"""

    name, suffix, file = "xlsx", ".xlsx", "results.xlsx"
    needs_points = False

    def content(self, taken: Sequence[Taken]) -> bytes:
        made = [t.prediction for t in taken]
        names, rows = point_table(made)
        classes = classes_of(made)
        if classes:  # by name too
            names = [*names, "class"]
            rows = [[*row, classes[row[-1]] if row[-1] != "" else ""] for row in rows]
        return workbook([("counts", *count_table(made, classes)), *_sheets("points", names, rows)])


def _sheets(name: str, header: Sequence[str], rows: Rows, most: int = MOST_ROWS - 1) -> Iterator[tuple[str, Any, Rows]]:
    """A table on as many sheets as it needs.

    >>> [(name, len(rows)) for name, _, rows in _sheets("points", ["x"], [[1], [2], [3]], most=2)]
    [('points', 2), ('points 2', 1)]
    """
    for k, start in enumerate(range(0, max(1, len(rows)), most), start=1):
        yield f"{name} {k}" if k > 1 else name, header, rows[start : start + most]


def workbook(sheets: Sequence[tuple[str, Sequence[str], Rows]]) -> bytes:
    """The bytes of a workbook: each sheet has a name, a header that stays in sight, and rows of text and numbers."""
    numbers = range(1, len(sheets) + 1)
    parts = [f'<Override PartName="/xl/worksheets/sheet{k}.xml" ContentType="{_KIND}.worksheet+xml"/>' for k in numbers]
    listed = [f'<sheet name="{_text(s[0])}" sheetId="{k}" r:id="rId{k}"/>' for k, s in zip(numbers, sheets)]
    links = [_link(k, "worksheet", f"worksheets/sheet{k}.xml") for k in numbers]
    files = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"/>{"".join(parts)}</Types>',
        "_rels/.rels": _links([_link(1, "officeDocument", "xl/workbook.xml")]),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{"".join(listed)}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _links(links),
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(_member(name), _HEAD + text)
        for k, (_, header, rows) in zip(numbers, sheets):
            with archive.open(_member(f"xl/worksheets/sheet{k}.xml"), "w", force_zip64=True) as part:
                for text in _sheet(header, rows):
                    part.write(text.encode())
    return stream.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)  # of no date: the same bytes again
    made.compress_type = zipfile.ZIP_DEFLATED
    return made


def _links(links: Sequence[str]) -> str:
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(links)}</Relationships>'


def _link(number: int, kind: str, target: str) -> str:
    return f'<Relationship Id="rId{number}" Type="{_OFFICE}/{kind}" Target="{target}"/>'


def _sheet(header: Sequence[str], rows: Rows) -> Iterator[str]:
    yield (
        f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0"><pane ySplit="1" topLeftCell="A2"'
        ' activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
        f'<cols><col min="1" max="1" width="{WIDE}" customWidth="1"/></cols><sheetData>'
    )
    for row in (header, *rows):
        yield f"<row>{''.join(map(_cell, row))}</row>"
    yield "</sheetData></worksheet>"


def _cell(value: Any) -> str:
    """
    >>> _cell(2.5), _cell("=1+1"), _cell(float("nan"))
    ('<c><v>2.5</v></c>', '<c t="inlineStr"><is><t xml:space="preserve">=1+1</t></is></c>', '<c/>')
    """
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t xml:space="preserve">{_text(value)}</t></is></c>' if value else "<c/>"
    return f"<c><v>{value!r}</v></c>" if value is not None and math.isfinite(value) else "<c/>"


def _text(value: str) -> str:
    """Text in XML: what XML has no character for becomes �.

    >>> _text('a<b_x0041_\\x00"')
    'a&lt;b_x005F_x0041_�&quot;'
    """
    text = _ESCAPE.sub("_x005F_", _NO_XML.sub("\ufffd", value[:LONGEST]))
    return escape(text, {'"': "&quot;", "\r": "&#13;"})
