"""Points of napari: a points layer saved as CSV, one per image.

    index,axis-0,axis-1
    0,40.25,12.5          row, then column

In napari the centre of the first pixel is at 0: pixel origin 0.5. A layer of more than two axes is of a stack, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from papm.data.formats.base import NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.csv import first_rows, table_rows
from papm.data.formats.imagej import named_after
from papm.data.formats.items import Item, put_text, written
from papm.data.formats.txt import Columns, add_row
from papm.errors import DataError


@register
class Napari(PerImage):
    """points of napari, saved as CSV: the columns axis-0 (y) and axis-1 (x)"""

    name = "napari"
    layout = "NAME.jpg with NAME.csv beside it or in points/"
    endings = named_after(".csv")
    origin = 0.5
    labels = False

    def detect(self, path: Path) -> int:
        rows = first_rows(path)
        return SURELY if rows and _columns(rows[0]) else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        out = Points()
        rows = first_rows(path)
        if rows and "axis-2" in _named(rows[0]):
            raise DataError(
                f"{path}: points of a stack (axis-2); save the points of each of its pictures, with two axes"
            )
        for number, cells, columns in table_rows(path, out.faults, _columns, "the columns axis-0 and axis-1"):
            with out.faults.noting(path, number):
                if len(cells) <= max(columns.x, columns.y):
                    raise ValueError(f"expected axis-0 and axis-1, found {len(cells)} fields")
                add_row(out, cells, columns, path, number)
        return out

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            rows = [f"{i},{written(y)},{written(x)}" for i, (x, y) in enumerate(item.points)]
            put_text(folder / item.beside(".csv"), "\n".join(["index,axis-0,axis-1", *rows]) + "\n")


def _named(cells: Sequence[str]) -> list[str]:
    return [c.strip().lower() for c in cells]


def _columns(cells: Sequence[str]) -> Columns | None:
    names = _named(cells)
    if "axis-0" not in names or "axis-1" not in names:
        return None
    return Columns(names.index("axis-1"), names.index("axis-0"), None, named=True)
