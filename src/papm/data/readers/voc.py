"""Pascal VOC: one XML file per image, a box per object; the point is the centre of the box.

    DATA/images/a.jpg, annotations/a.xml        (or a.xml beside a.jpg)

The file's name says which image it is of; the paths written inside are not used. Pixel origin: 0, as labelImg and CVAT write
it. The VOC challenge itself counts pixels from 1: `origin=-0.5`.
"""

from __future__ import annotations

from pathlib import Path

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate
from papm.data.readers.kinds import NO, SURELY, Context
from papm.data.readers.records import Points
from papm.data.readers.xmlfile import Element, load_xml, root_tag

_SIDES = ("xmin", "ymin", "xmax", "ymax")


def looks_like_voc(path: Path) -> int:
    """Whether the root element is VOC's."""
    return SURELY if root_tag(path) == "annotation" else NO


def read_voc(path: Path, image: Path, context: Context) -> Points:
    """The objects of one XML file; raises AnnotationError with every bad one."""
    root = load_xml(path, "annotation")
    points = Points()
    for item in root.all("object"):
        try:
            xy, box = _box(item)
            points.add(xy, item.value("name") or None, item.line, box)
        except ValueError as e:
            points.faults.append(Fault(path, item.line, str(e)))
    if points.faults:
        raise AnnotationError(points.faults)
    if size := declared_size(root.first("size")):
        points.meta["declared_size"] = size
    return points


def _box(item: Element) -> shapes.Shape:
    box = item.first("bndbox")
    if box is None:
        raise ValueError("this object has no <bndbox>")
    x1, y1, x2, y2 = (coordinate(box.value(side) or "", side) for side in _SIDES)
    if x2 < x1 or y2 < y1:
        raise ValueError(f"the box has a negative size, {x2 - x1:g} × {y2 - y1:g}")
    return shapes.box(x1, y1, x2, y2)


def declared_size(size: Element | None) -> tuple[int, int] | None:
    """(H, W) as the file gives it; some tools leave zeros."""
    if size is None:
        return None
    h, w = (size.value(k) or "" for k in ("height", "width"))
    if not all(v.isascii() and v.isdigit() and len(v) < 10 for v in (h, w)) or not int(h) or not int(w):
        return None
    return int(h), int(w)
