"""CVAT for images 1.1: one XML file for all images.

    <annotations><image id="0" name="a.jpg" width="640" height="480">
      <points label="head" points="12.5,30.0;80.1,44.2"/> <box label="car" xtl= ytl= xbr= ybr= rotation=/>
      <polygon label="cell" points="…"/> <ellipse label="cell" cx= cy= rx= ry= rotation=/> <mask … left= top= width= height=/>

Every point of a `points` shape is an object of its own. Boxes and ellipses are their centres, polygons their centroids, masks
the centres of their boxes. Tags of whole images are passed over. Lines, cuboids and skeletons are no objects with a place, and
videos (`track`) no images: they are refused. Pixel origin: 0.
"""

from __future__ import annotations

import math
from pathlib import Path

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate, safe_relative
from papm.data.readers.kinds import NO, SURELY, Context
from papm.data.readers.records import Points, Table
from papm.data.readers.xmlfile import Element, load_xml, root_tag

_ASIDE = frozenset({"tag", "attribute"})


def looks_like_cvat(path: Path) -> int:
    """Whether the root element is CVAT's."""
    return SURELY if root_tag(path) == "annotations" else NO


def read_cvat(path: Path, context: Context) -> Table:
    """The points of every image of a file."""
    root = load_xml(path, "annotations")
    if track := root.first("track"):
        message = "holds tracks of a video; export it as 'CVAT for images 1.1'"
        raise AnnotationError([Fault(path, track.line, message)])
    table = Table(path)
    for image in root.all("image"):
        try:
            name = str(safe_relative(image.attributes.get("name", "")))
            if name in table.images:
                raise ValueError(f"the image {name[:80]!r} is given a second time")
        except ValueError as e:
            table.faults.append(Fault(path, image.line, str(e)))
            continue
        points = table.images[name] = Points(line=image.line)
        _declared(points, image)
        for item in image.children:
            try:
                _add(points, item)
            except ValueError as e:
                points.faults.append(Fault(path, item.line, str(e)))
    return table


def _declared(points: Points, image: Element) -> None:
    h, w = (image.attributes.get(k, "") for k in ("height", "width"))
    if all(v.isascii() and v.isdigit() and len(v) < 10 for v in (h, w)):
        points.meta["declared_size"] = int(h), int(w)


def _add(points: Points, item: Element) -> None:
    """Append what one shape stands for; ValueError says what is wrong with it."""
    a = item.attributes
    label = a.get("label") or None

    def number(key: str) -> float:
        return coordinate(a.get(key, ""), key)

    turn = coordinate(a.get("rotation", "0"), "rotation")
    if item.tag == "points":
        for xy in _pairs(a.get("points", "")):
            points.add(xy, label, item.line)
        return
    if item.tag == "box":
        x1, y1, x2, y2 = (number(k) for k in ("xtl", "ytl", "xbr", "ybr"))
        xy, box = shapes.box(x1, y1, x2, y2)
        if turn and box is not None:  # about its centre
            c, s = abs(math.cos(math.radians(turn))), abs(math.sin(math.radians(turn)))
            w, h = box[2] - box[0], box[3] - box[1]
            w, h = w * c + h * s, w * s + h * c
            box = xy[0] - w / 2, xy[1] - h / 2, xy[0] + w / 2, xy[1] + h / 2
    elif item.tag == "polygon":
        xy, box = shapes.polygon(_pairs(a.get("points", "")))
    elif item.tag == "ellipse":
        xy, box = shapes.ellipse(number("cx"), number("cy"), number("rx"), number("ry"), math.radians(turn))
    elif item.tag == "mask":
        x, y = number("left"), number("top")
        xy, box = shapes.box(x, y, x + number("width"), y + number("height"))
    elif item.tag in _ASIDE:
        return
    else:
        raise ValueError(f"a <{item.tag[:40]}> cannot be read as a point; use points, boxes, polygons or ellipses")
    points.add(xy, label, item.line, box)


def _pairs(text: str) -> list[shapes.XY]:
    out = []
    for pair in text.split(";"):
        cells = pair.split(",")
        if len(cells) != 2:
            raise ValueError(f"points should be written 'x,y;x,y', found {pair[:40]!r}")
        out.append((coordinate(cells[0].strip(), "x"), coordinate(cells[1].strip(), "y")))
    return out
