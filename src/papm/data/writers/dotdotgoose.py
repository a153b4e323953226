"""DotDotGoose, `images/points.pnt`: points by image and class."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papm.data.writers.base import Item, Writer, all_classes, put_json

_COLORS = ([255, 0, 0], [0, 170, 255], [255, 200, 0], [0, 200, 80], [200, 0, 255], [255, 255, 255])


def _write(items: Iterable[Item], folder: Path) -> None:
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


DOTDOTGOOSE = Writer(_write)
