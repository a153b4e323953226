"""Tables of one image: the results of ImageJ's multi-point tool, or any CSV with the columns X and Y.

     ,Area,Mean,Min,Max,X,Y,Ch,Counter,Count
    1,0,121,121,121,12.5,40.0,1,0,2
    2,0,98,98,98,103,88.25,1,0,2

Of ImageJ's columns X, Y and Counter, the kind of a point, are read; other tables may have a column class or label, as the
points that QuPath saves. One table for all images, with the image in the column Label, is read as `csv`. The unit of ImageJ's
scale has to be pixels. Java's image reader passes over EXIF: coordinates are those of the pixels as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.csv import first_rows, measured, table_rows
from papm.data.formats.items import Item, put_text, written
from papm.data.formats.txt import Columns, add_row, header
from papm.images import IMAGE_SUFFIXES, is_image_name


def named_after(*suffixes: str) -> tuple[str, ...]:
    """The endings of files named after an image with or without its own suffix.

    >>> named_after(".csv")[:2]
    ('.csv', '.bmp.csv')
    """
    pictures = ("", *sorted(IMAGE_SUFFIXES), *sorted(s.upper() for s in IMAGE_SUFFIXES))
    return tuple(f"{p}{s}" for s in suffixes for p in pictures)


@register
class ImageJ(PerImage):
    """tables of ImageJ or others, one per image: the columns X and Y"""

    name = "imagej"
    layout = "NAME.jpg with NAME.csv beside it or in points/"
    endings = named_after(".csv", ".tsv", ".txt")
    named_labels = True
    stored = True

    def detect(self, path: Path) -> int:
        rows = first_rows(path)
        columns = header(rows[0]) if rows else None
        if columns is None:
            return NO
        if columns.imagej:
            return SURELY
        return MAYBE if columns.image is None and path.suffix.lower() != ".txt" else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        out = Points()
        settled, first = None, ""
        for number, cells, columns in table_rows(path, out.faults, header, "a header with the columns X and Y"):
            settled = _settled(settled or columns, cells)
            with out.faults.noting(path, number):
                own = _image(cells, settled)
                first = first or own
                if len(cells) <= max(settled.x, settled.y):
                    raise ValueError(f"expected X and Y, found {len(cells)} fields")
                if own != first:  # ImageJ goes on with the table it has
                    above = f"{first[:80]!r} above: clear the results before each image"
                    raise ValueError(f"{own[:80]!r} was measured here, {above}")
                add_row(out, cells, settled, path, number)
        return out

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            lines = [" ,X,Y" if item.ids is None else " ,X,Y,Counter"]
            kinds = [""] * len(item.points) if item.ids is None else [f",{i}" for i in item.numbers("ImageJ")]
            for number, ((x, y), kind) in enumerate(zip(item.points, kinds), start=1):
                lines.append(f"{number},{written(x)},{written(y)}{kind}")
            put_text(folder / item.beside(".csv"), "\n".join(lines) + "\n")


def _image(cells: Sequence[str], columns: Columns) -> str:
    return measured(cells[columns.image]) if columns.image is not None and columns.image < len(cells) else ""


def _settled(columns: Columns, row: Sequence[str]) -> Columns:
    """In a table of ImageJ's shape without its measurements, a Label that is no image is the class of a point."""
    at = columns.image
    if not columns.imagej or columns.measured or at is None or at >= len(row) or is_image_name(measured(row[at])):
        return columns
    return replace(columns, image=None, label=at if columns.label is None else columns.label)
