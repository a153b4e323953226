"""Cell Counter, a plugin of ImageJ and Fiji: `CellCounter_NAME.xml` per image.

    <CellCounter_Marker_File><Image_Properties><Image_Filename>a.tif</Image_Filename></Image_Properties>
      <Marker_Data><Current_Type>1</Current_Type>
        <Marker_Type><Type>1</Type><Name>Type 1</Name>
          <Marker><MarkerX>12</MarkerX><MarkerY>40</MarkerY><MarkerZ>1</MarkerZ></Marker>

The class of a marker is the name of its type, `Type 1` where a file gives none. Markers are whole pixels, at whose centres the
points are: pixel origin 0.5. Java's image reader passes over EXIF: coordinates are those of the pixels as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from papm.data.formats.base import NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.imagej import named_after
from papm.data.formats.items import Item, put_text
from papm.data.formats.xmlfile import Element, escaped, load_xml, root_tag
from papm.data.readers.faults import coordinate

_ROOT = "CellCounter_Marker_File"


@register
class CellCounter(PerImage):
    """markers of ImageJ's Cell Counter"""

    name = "cellcounter"
    layout = "NAME.jpg with CellCounter_NAME.xml beside it or in annotations/"
    prefix = "CellCounter_"
    endings = named_after(".xml")
    origin = 0.5
    stored = True
    named_labels = True

    def detect(self, path: Path) -> int:
        return SURELY if root_tag(path) == _ROOT else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        root = load_xml(path, _ROOT)
        points = Points()
        for data in root.all("Marker_Data"):
            for kind in data.all("Marker_Type"):
                label = kind.value("Name") or f"Type {kind.value('Type') or '?'}"
                for marker in kind.all("Marker"):
                    with points.faults.noting(path, marker.line):
                        points.add(_place(marker), label, marker.line)
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            ids = item.numbers("Cell Counter")
            of_kind: dict[int, list[str]] = {}
            for i, (x, y) in zip(ids, item.points):  # the plugin reads whole numbers only
                where = f"<MarkerX>{math.floor(x + 0.5)}</MarkerX><MarkerY>{math.floor(y + 0.5)}</MarkerY>"
                of_kind.setdefault(i, []).append(f"      <Marker>{where}<MarkerZ>1</MarkerZ></Marker>")
            named = dict(zip(ids, item.labels)) if item.ids is not None else {}
            lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<{_ROOT}>"]
            about = f"<Image_Filename>{escaped(item.file.name)}</Image_Filename>"
            lines += [f"  <Image_Properties>{about}</Image_Properties>", "  <Marker_Data>"]
            lines.append("    <Current_Type>1</Current_Type>")
            for i, markers in sorted(of_kind.items()):
                name = f"<Name>{escaped(named[i])}</Name>" if named else ""
                lines += [f"    <Marker_Type><Type>{i + 1}</Type>{name}", *markers, "    </Marker_Type>"]
            file = item.file.with_name(f"{self.prefix}{item.name}.xml")
            put_text(folder / file, "\n".join([*lines, "  </Marker_Data>", f"</{_ROOT}>"]) + "\n")


def _place(marker: Element) -> tuple[float, float]:
    """Where a marker is; ValueError says what is wrong with it."""
    depth = coordinate(marker.value("MarkerZ") or "1", "MarkerZ")
    if depth > 1:
        raise ValueError(
            f"this marker lies on picture {depth:g} of a stack, of which the first is read; save its pictures as files"
        )
    return coordinate(marker.value("MarkerX") or "", "MarkerX"), coordinate(marker.value("MarkerY") or "", "MarkerY")
