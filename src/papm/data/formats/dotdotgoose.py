"""DotDotGoose: a `.pnt` file in the folder of the images.

    {"classes": ["goose"], "points": {"a.jpg": {"goose": [{"x": 12.5, "y": 30.0}]}}, "colors": …, "metadata": …}

An image that the file lists without points has no objects; one that it does not list has not been looked at, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.formats.base import MAYBE, NO, SURELY, Context, Points, Sheet, Table, register
from papm.data.formats.items import Item, all_classes, put_json
from papm.data.formats.jsonfile import has_keys, load_keys, need, peek_object
from papm.data.readers.faults import coordinate

_COLORS = ([255, 0, 0], [0, 170, 255], [255, 200, 0], [0, 200, 80], [200, 0, 255], [255, 255, 255])


@register
class DotDotGoose(Sheet):
    """DotDotGoose points"""

    name = "dotdotgoose"
    layout = "NAME.jpg, points.pnt in the same folder"
    suffixes = (".pnt",)

    def detect(self, path: Path) -> int:
        content = peek_object(path)
        return SURELY if has_keys(content, "points") else MAYBE if content else NO

    def read(self, path: Path, context: Context) -> Table:
        content = load_keys(path, "DotDotGoose", dict, "points")
        table = Table(path)
        named = content.get("classes")
        classes = dict.fromkeys(named if isinstance(named, list) and all(isinstance(c, str) for c in named) else ())
        for image, by_class in content["points"].items():
            with table.faults.noting(path):
                by_class = need(by_class, dict, f"the points of {image[:80]!r} should be an object of classes")
                points = table.new(image)
                for label, items in by_class.items():
                    classes.setdefault(label)
                    with points.faults.noting(path):
                        _add(points, items, label, f"{label[:40]!r} of {image[:80]!r}", path)
        table.classes = tuple(classes)
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        points: dict[str, dict[str, list[dict[str, float]]]] = {}
        used: dict[int, str] = {}
        for item in items:
            used |= item.classes
            used |= dict(zip(item.ids or [0], item.labels))
            by_class = points.setdefault(item.reference, {})
            for label, (x, y) in zip(item.labels, item.points):
                by_class.setdefault(label, []).append({"x": x, "y": y})
        classes = list(dict.fromkeys(all_classes(used).values()))
        content = {
            "classes": classes,
            "points": points,
            "colors": {c: _COLORS[i % len(_COLORS)] for i, c in enumerate(classes)},
            "metadata": {"survey_id": "", "coordinates": {name: {"x": "", "y": ""} for name in points}},
            "custom_fields": {"fields": [], "data": {}},
            "ui": {"grid": {"size": 200, "color": [255, 255, 255]}, "point": {"radius": 25, "color": [255, 255, 0]}},
        }
        put_json(folder / "images" / "points.pnt", content)


def _add(points: Points, items: Any, label: str, where: str, path: Path) -> None:
    for number, item in enumerate(need(items, list, f"{where} should be a list of points"), start=1):
        with points.faults.noting(path, None, f"point #{number} of {where}: "):
            place = need(item, dict, "is not an object")
            points.add((coordinate(place.get("x"), "x"), coordinate(place.get("y"), "y")), label or None)
