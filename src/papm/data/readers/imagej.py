"""Tables of one image: the results of ImageJ's multi-point tool, or any CSV with the columns X and Y.

     ,Area,Mean,Min,Max,X,Y,Ch,Counter,Count
    1,0,121,121,121,12.5,40.0,1,0,2
    2,0,98,98,98,103,88.25,1,0,2

The file is called NAME.csv for NAME.jpg (also NAME.jpg.csv, .tsv, and .txt where ImageJ wrote it), and lies beside the image or
in a folder of annotations. Of ImageJ's columns X, Y and Counter, the kind of a point, are read; other tables may have a column
class or label, as the points that QuPath saves. An empty file, or a header alone, is an image without objects. One table for
all images, with the image in the column Label, is read as `csv`.

Pixel origin: 0. ImageJ gives X and Y in the unit of the image's scale: it has to be pixels. Java's image reader passes over
EXIF: coordinates are those of the pixels as they are stored.
"""

from __future__ import annotations

from pathlib import Path

from papm.data.readers import formats
from papm.data.readers.formats import read_table
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.readers.layout import named_after
from papm.data.readers.records import Points


def table_names(stem: str, folder: Path) -> tuple[str, ...]:
    """The files that may be an image's table."""
    return named_after(stem, ".csv", ".tsv", ".txt")


def looks_like_imagej(path: Path) -> int:
    """Whether a file is a table of one image; that of another program may hold features and not dots."""
    if not formats.looks_like_table(path):
        return NO
    return SURELY if formats.looks_like_imagej(path) else MAYBE


def read_imagej(path: Path, image: Path, context: Context) -> Points:
    """The points of one table, their classes by name where `classes.txt` has names; AnnotationError with every bad row."""
    points = read_table(path)
    known = {str(i): name for i, name in enumerate(context.names)}
    points.labels = [None if v is None else known.get(v, v) for v in points.labels]
    return points
