"""LabelMe: one JSON file per image, beside it or in a folder of annotations.

    {"version": "5.2.1", "shapes": [{"label": "head", "points": [[x, y], …], "shape_type": "point"}], "imagePath": "a.jpg", …}

Points are points; rectangles and circles (centre, then a place on the rim) their centres, polygons their centroids, masks the
centres of their boxes. Lines are refused. The file's name says which image it is of; `imagePath` and the picture in `imageData`
are not used. Pixel origin: 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate
from papm.data.readers.jsonfile import has_keys, is_object, load_json, peek
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.readers.records import Points


def looks_like_labelme(path: Path) -> int:
    """Whether a JSON file has LabelMe's keys."""
    content = peek(path)
    if not is_object(content) or not has_keys(content, "shapes"):
        return NO
    return SURELY if has_keys(content, "imagePath", "imageData", "shape_type") else MAYBE


def read_labelme(path: Path, image: Path, context: Context) -> Points:
    """The objects of one file; raises AnnotationError with every bad one."""
    content = load_json(path)
    listed = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise AnnotationError([Fault(path, None, "not a LabelMe file: the list 'shapes' is missing")])
    points = Points()
    for number, shape in enumerate(listed, start=1):
        try:
            if not isinstance(shape, dict):
                raise ValueError("is not an object")
            label = shape.get("label")
            for xy, box in _shapes(shape):
                points.add(xy, str(label) if isinstance(label, str | int) and label != "" else None, None, box)
        except ValueError as e:
            points.faults.append(Fault(path, None, f"shape #{number}: {e}"))
    if points.faults:
        raise AnnotationError(points.faults)
    height, width = content.get("imageHeight"), content.get("imageWidth")
    if type(height) is int and type(width) is int:
        points.meta["declared_size"] = height, width
    return points


def _shapes(shape: Mapping[str, Any]) -> list[shapes.Shape]:
    listed = shape.get("points")
    if not isinstance(listed, list) or not all(isinstance(p, list) and len(p) == 2 for p in listed):
        raise ValueError("'points' should be a list of [x, y]")
    corners = [(coordinate(x, "x"), coordinate(y, "y")) for x, y in listed]
    kind = shape.get("shape_type") or "polygon"  # files of old releases do not say
    need = {"point": 1, "points": 1, "rectangle": 2, "circle": 2, "mask": 2, "polygon": 3}.get(str(kind))
    if need is None:
        raise ValueError(f"a {str(kind)[:40]!r} cannot be read as a point; use points, rectangles, circles or polygons")
    if len(corners) < need or (need == 2 and kind != "rectangle" and len(corners) != 2):
        raise ValueError(f"a {kind} has {need} points, not {len(corners)}")
    if kind in ("point", "points"):
        return [(xy, None) for xy in corners]
    if kind == "circle":
        r = math.dist(*corners)
        return [shapes.ellipse(*corners[0], r, r)]
    if kind == "polygon":
        return [shapes.polygon(corners)]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    return [shapes.box(min(xs), min(ys), max(xs), max(ys))]
