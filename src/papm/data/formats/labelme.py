"""LabelMe: one JSON file per image, beside it or in a folder of annotations.

    {"version": "5.2.1", "shapes": [{"label": "head", "points": [[x, y], …], "shape_type": "point"}], "imagePath": "a.jpg", …}

A circle is its centre, then a place on the rim. The file's name says which image it is of; `imagePath` and the picture in
`imageData` are not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from papm.data.formats import shapes
from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, Points, register, text_label
from papm.data.formats.items import Item, put_json
from papm.data.formats.jsonfile import has_keys, load_keys, need, peek_object

_POINTS = {"point": 1, "points": 1, "rectangle": 2, "circle": 2, "mask": 2, "polygon": 3}  # that a shape has at least


@register
class LabelMe(PerImage):
    """LabelMe JSON: points, the centres of rectangles and circles, the centroids of polygons"""

    name = "labelme"
    layout = "NAME.jpg with NAME.json beside it or in annotations/"
    endings = (".json",)
    named_labels = True
    boxes = "instead"

    def detect(self, path: Path) -> int:
        content = peek_object(path)
        if not has_keys(content, "shapes"):
            return NO
        return SURELY if has_keys(content, "imagePath", "imageData", "shape_type") else MAYBE

    def read(self, path: Path, image: Path, context: Context) -> Points:
        content = load_keys(path, "LabelMe", list, "shapes")
        points = Points()
        for number, shape in enumerate(content["shapes"], start=1):
            with points.faults.noting(path, None, f"shape #{number}: "):
                for xy, box in _shapes(need(shape, dict, "is not an object")):
                    points.add(xy, text_label(shape.get("label")), None, box)
        points.declare(content.get("imageHeight"), content.get("imageWidth"))
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            drawn: list[dict[str, Any]] = []
            for i, label in enumerate(item.labels):
                corners = [item.boxes[i][:2], item.boxes[i][2:]] if item.boxes else [item.points[i]]
                kind = "rectangle" if item.boxes else "point"
                drawn.append({"label": label, "points": corners, "group_id": None, "shape_type": kind, "flags": {}})
            content: dict[str, Any] = {
                "version": "5.2.1",
                "flags": {},
                "shapes": drawn,
                "imagePath": item.file.name,
                "imageData": None,
                "imageHeight": item.size[0],
                "imageWidth": item.size[1],
            }
            put_json(folder / item.beside(".json"), content, indent=1)


def _shapes(shape: Mapping[str, Any]) -> list[shapes.Shape]:
    corners = shapes.pairs(shape.get("points"))
    kind = shape.get("shape_type") or "polygon"  # files of old releases do not say
    need = _POINTS.get(str(kind))
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
    xs, ys = zip(*corners)
    return [shapes.box(min(xs), min(ys), max(xs), max(ys))]
