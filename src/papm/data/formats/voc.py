"""Pascal VOC: one XML file per image, a box per object, written with fractions of pixels so that its centre stays the point.

The file's name says which image it is of; the paths written inside are not used. Pixel origin: 0, as labelImg and CVAT write
it. The VOC challenge itself counts pixels from 1: `origin=-0.5`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papm.data.formats import shapes
from papm.data.formats.base import NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.items import Item, put_text, written
from papm.data.formats.xmlfile import Element, escaped, load_xml, root_tag
from papm.data.readers.faults import coordinate

_SIDES = ("xmin", "ymin", "xmax", "ymax")


@register
class Voc(PerImage):
    """Pascal VOC XML: the centres of boxes"""

    name = "voc"
    layout = "images/NAME.jpg, annotations/NAME.xml; splits in ImageSets/Main/{train,val,test}.txt"
    endings = (".xml",)
    named_labels = True
    boxes = "always"

    def detect(self, path: Path) -> int:
        return SURELY if root_tag(path) == "annotation" else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        root = load_xml(path, "annotation")
        points = Points()
        for item in root.all("object"):
            with points.faults.noting(path, item.line):
                xy, box = _box(item)
                points.add(xy, item.value("name") or None, item.line, box)
        size = root.first("size")
        if size is not None and size.value("height") != "0" != size.value("width"):  # some tools leave zeros
            points.declare(size.value("height"), size.value("width"))
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            assert item.boxes is not None
            h, w = item.size
            lines = [
                "<annotation>",
                f"  <folder>images</folder><filename>{escaped(item.file.name)}</filename>",
                f"  <size><width>{w}</width><height>{h}</height><depth>3</depth></size><segmented>0</segmented>",
            ]
            for label, box in zip(item.labels, item.boxes):
                corners = "".join(f"<{k}>{written(round(v, 6))}</{k}>" for k, v in zip(_SIDES, box))
                lines.append(
                    f"  <object><name>{escaped(label)}</name><pose>Unspecified</pose><truncated>0</truncated>"
                    f"<difficult>0</difficult><bndbox>{corners}</bndbox></object>"
                )
            put_text(folder / "annotations" / f"{item.name}.xml", "\n".join([*lines, "</annotation>"]) + "\n")


def _box(item: Element) -> shapes.Shape:
    box = item.first("bndbox")
    if box is None:
        raise ValueError("this object has no <bndbox>")
    x1, y1, x2, y2 = (coordinate(box.value(side) or "", side) for side in _SIDES)
    if x2 < x1 or y2 < y1:
        raise ValueError(f"the box has a negative size, {x2 - x1:g} × {y2 - y1:g}")
    return shapes.box(x1, y1, x2, y2)
