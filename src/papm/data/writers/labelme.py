"""LabelMe JSON, `images/NAME.json`: points, or rectangles where the point is the centre."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.writers.base import Item, Writer, put_json


def _write(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        shapes: list[dict[str, Any]] = []
        for i, label in enumerate(item.labels):
            corners = [list(item.points[i])]
            if item.boxes:
                x1, y1, x2, y2 = item.boxes[i]
                corners = [[x1, y1], [x2, y2]]
            kind = "rectangle" if item.boxes else "point"
            shapes.append({"label": label, "points": corners, "group_id": None, "shape_type": kind, "flags": {}})
        content: dict[str, Any] = {
            "version": "5.2.1",
            "flags": {},
            "shapes": shapes,
            "imagePath": item.file.name,
            "imageData": None,
            "imageHeight": item.size[0],
            "imageWidth": item.size[1],
        }
        put_json(folder / item.file.with_name(f"{item.name}.json"), content, indent=1)


LABELME = Writer(_write, boxes="instead")
