"""CVAT for images 1.1: one XML file for all images.

    <annotations><image id="0" name="a.jpg" width="640" height="480">
      <points label="head" points="12.5,30.0;80.1,44.2"/> <box label="car" xtl= ytl= xbr= ybr= rotation=/>
      <polygon label="cell" points="…"/> <ellipse label="cell" cx= cy= rx= ry= rotation=/> <mask … left= top= width= height=/>

Every point of a `points` shape is an object of its own. Tags of whole images are passed over. Lines, cuboids and skeletons are
no objects with a place, and videos (`track`) no images: they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from papm.data.formats import shapes
from papm.data.formats.base import NO, SURELY, Context, Sheet, Table, register
from papm.data.formats.items import XY, Item, put_text, written
from papm.data.formats.xmlfile import Element, attributes, escaped, load_xml, root_tag
from papm.data.readers.faults import AnnotationError, coordinate


@register
class Cvat(Sheet):
    """CVAT for images 1.1: points, the centres of boxes and ellipses, the centroids of polygons"""

    name = "cvat"
    layout = "images/NAME.jpg, annotations.xml"
    suffixes = (".xml",)
    boxes = "instead"

    def detect(self, path: Path) -> int:
        return SURELY if root_tag(path) == "annotations" else NO

    def read(self, path: Path, context: Context) -> Table:
        root = load_xml(path, "annotations")
        if track := root.first("track"):
            raise AnnotationError.of(path, "holds tracks of a video; export it as 'CVAT for images 1.1'", track.line)
        table = Table(path)
        for image in root.all("image"):
            with table.faults.noting(path, image.line):
                points = table.new(image.attributes.get("name", ""), line=image.line)
                points.declare(image.attributes.get("height"), image.attributes.get("width"))
                for item in image.children:
                    with points.faults.noting(path, item.line):
                        for xy, box in _shapes(item):
                            points.add(xy, item.attributes.get("label") or None, item.line, box)
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        images: list[str] = []
        labels: dict[str, None] = {}
        count = 0
        for item in items:
            size = attributes(width=item.size[1], height=item.size[0])
            images.append(f"  <image{attributes(id=count, name=item.reference)}{size}>")
            for i, label in enumerate(item.labels):
                labels[label] = None
                about = attributes(label=label, source="manual", occluded=0)
                if item.boxes:
                    corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), (written(v) for v in item.boxes[i])))
                    images.append(f"    <box{about}{attributes(**corners, z_order=0)}></box>")
                else:
                    xy = ",".join(written(v) for v in item.points[i])
                    images.append(f"    <points{about}{attributes(points=xy, z_order=0)}></points>")
            images.append("  </image>")
            count += 1
        known = "".join(f"<label><name>{escaped(k)}</name><attributes></attributes></label>" for k in labels)
        meta = f"  <meta><task><size>{count}</size><labels>{known}</labels></task></meta>"
        head = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations>", "  <version>1.1</version>", meta]
        put_text(folder / "annotations.xml", "\n".join([*head, *images, "</annotations>"]) + "\n")


def _shapes(item: Element) -> list[shapes.Shape]:
    """What one element stands for; ValueError says what is wrong with it."""
    a = item.attributes

    def numbers(*keys: str) -> list[float]:
        return [coordinate(a.get(key, ""), key) for key in keys]

    turn = math.radians(coordinate(a.get("rotation", "0"), "rotation"))
    if item.tag == "points":
        return [(xy, None) for xy in _pairs(a.get("points", ""))]
    if item.tag == "box":
        return [shapes.turned(shapes.box(*numbers("xtl", "ytl", "xbr", "ybr")), turn)]
    if item.tag == "polygon":
        return [shapes.polygon(_pairs(a.get("points", "")))]
    if item.tag == "ellipse":
        x, y, rx, ry = numbers("cx", "cy", "rx", "ry")
        return [shapes.ellipse(x, y, rx, ry, turn)]
    if item.tag == "mask":
        x, y, w, h = numbers("left", "top", "width", "height")
        return [shapes.box(x, y, x + w, y + h)]
    if item.tag in ("tag", "attribute"):
        return []
    raise ValueError(f"a <{item.tag[:40]}> cannot be read as a point; use points, boxes, polygons or ellipses")


def _pairs(text: str) -> list[XY]:
    out = []
    for pair in text.split(";"):
        cells = pair.split(",")
        if len(cells) != 2:
            raise ValueError(f"points should be written 'x,y;x,y', found {pair[:40]!r}")
        out.append((coordinate(cells[0].strip(), "x"), coordinate(cells[1].strip(), "y")))
    return out
