"""Selections of ImageJ and Fiji, one file per image: `.roi`, or `RoiSet.zip` of the ROI Manager.

    DATA/a.tif, a.roi          DATA/a.tif, a_RoiSet.zip (or a.zip, RoiSet_a.zip; RoiSet.zip where there is one image)

Every point of a (multi-)point selection is an object; rectangles, ovals and polygons are at their centres, with the box around
them. The counter of a point, or the group of a selection, is its class. Java's image reader passes over EXIF: coordinates are
those of the pixels as they are stored. An archive is bounded before anything of it is unpacked.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.items import XY, Item
from papm.data.formats.jsonfile import peek
from papm.data.formats.roifile import MAGIC, MOST_COUNTERS, MOST_POINTS, marks, multi_point
from papm.data.readers.faults import MAX_ANNOTATION_BYTES, AnnotationError, read_bytes
from papm.errors import DataError

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the second: with nothing in it
_MEMBER = b"PK\x01\x02"
MOST_MEMBERS = 500_000


@register
class Roi(PerImage):
    """selections of ImageJ (.roi, RoiSet.zip): points, the centres of rectangles and ovals, the centroids of polygons"""

    name = "imagej-roi"
    layout = "NAME.jpg with NAME.roi or NAME_RoiSet.zip beside it"
    endings = ("_RoiSet.zip", ".zip", ".roi", "-RoiSet.zip", " RoiSet.zip", "_rois.zip", "_ROIs.zip")
    stored = True
    alone = ("RoiSet.zip",)
    only_one = True

    def names(self, stem: str, endings: Sequence[str]) -> list[str]:
        return [*super().names(stem, endings), *([f"RoiSet_{stem}.zip"] if endings else [])]

    def detect(self, path: Path) -> int:
        head = peek(path)
        if head.startswith(MAGIC) or not head.startswith(_ZIP):
            return SURELY if head.startswith(MAGIC) else MAYBE if path.suffix.lower() == ".roi" else NO
        try:
            found = next(_members(path), None)
        except DataError:  # reading it says what is wrong with it
            return MAYBE
        return SURELY if found else MAYBE if head.startswith(_ZIP[1]) else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        data = read_bytes(path)
        selections = _members(path) if data.startswith(_ZIP) else [("", data)] if data else []
        points, kinds = Points(), []
        for name, content in selections:
            with points.faults.noting(path, None, f"{name[:80]}: " if name else ""):
                for mark in marks(content):
                    points.add(mark.shape[0], str(mark.kind), None, mark.shape[1])
                    kinds.append(mark.counted or mark.kind > 0)
        if not any(kinds):
            points.labels = [None] * len(kinds)
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            kinds = None if item.ids is None else item.numbers("ImageJ")
            if max(kinds or [0]) >= MOST_COUNTERS:
                raise DataError(f"{item.file}: has the class {max(kinds or [0])}; ImageJ counts classes from 0 to 99")
            (folder / item.beside("_RoiSet.zip")).write_bytes(roi_set(item.points, kinds))


def roi_set(points: Sequence[XY], kinds: Sequence[int] | None) -> bytes:
    """The bytes of a RoiSet.zip of multi-point selections, with a counter for each point where `kinds` are given."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for start in range(0, len(points), MOST_POINTS):
            part = slice(start, start + MOST_POINTS)
            name = zipfile.ZipInfo(f"points-{start // MOST_POINTS + 1}.roi")  # of no date: the same bytes again
            archive.writestr(name, multi_point(points[part], kinds and kinds[part]))
    return stream.getvalue()


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The selections in an archive with their names; DataError where it is damaged, or would unpack to too much."""
    data = read_bytes(path)
    if data.count(_MEMBER) > MOST_MEMBERS:
        raise AnnotationError.of(path, f"more than the {MOST_MEMBERS:,} selections that are read of an archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = [m for m in archive.infolist() if m.filename.lower().endswith(".roi")]
            if listed == [] and archive.infolist():
                raise AnnotationError.of(path, "an archive without selections of ImageJ (.roi)")
            if sum(m.file_size for m in listed) > MAX_ANNOTATION_BYTES:
                limit = f"{MAX_ANNOTATION_BYTES / 1e6:.0f} MB"
                raise AnnotationError.of(path, f"unpacked it is more than the limit of {limit} for an annotation file")
            for member in listed:
                with archive.open(member) as stream:  # gives no more than the size that was looked at
                    yield member.filename, stream.read()
    except DataError:
        raise
    except Exception as e:  # BadZipFile, zlib.error, struct.error, RuntimeError (a password), …
        detail = (str(e).strip().splitlines() or [type(e).__name__])[0][:80]
        raise AnnotationError.of(path, f"damaged or not a zip archive ({detail})") from None
