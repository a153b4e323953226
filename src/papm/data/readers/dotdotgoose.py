"""DotDotGoose: a `.pnt` file in the folder of the images.

    {"classes": ["goose"], "points": {"a.jpg": {"goose": [{"x": 12.5, "y": 30.0}]}}, "colors": …, "metadata": …}

An image that the file lists without points has no objects; one that it does not list has not been looked at, and is left
out. Pixel origin: 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papm.data.readers.faults import AnnotationError, Fault, coordinate, safe_relative
from papm.data.readers.jsonfile import has_keys, is_object, load_json, peek
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.readers.records import Points, Table


def looks_like_dotdotgoose(path: Path) -> int:
    """Whether a file has DotDotGoose's keys."""
    content = peek(path)
    if not is_object(content):
        return NO
    return SURELY if has_keys(content, "points") else MAYBE


def read_dotdotgoose(path: Path, context: Context) -> Table:
    """The points of every image of a file."""
    content = load_json(path)
    listed = content.get("points") if isinstance(content, dict) else None
    if not isinstance(listed, dict):
        raise AnnotationError([Fault(path, None, "not a DotDotGoose file: the object 'points' is missing")])
    table = Table(path)
    named = content.get("classes")
    classes = dict.fromkeys(named if isinstance(named, list) and all(isinstance(c, str) for c in named) else ())
    for image, by_class in listed.items():
        try:
            name = str(safe_relative(image))
            if name in table.images:
                raise ValueError(f"the image {name[:80]!r} is given a second time")
            if not isinstance(by_class, dict):
                raise ValueError(f"the points of {image[:80]!r} should be an object of classes")
        except ValueError as e:
            table.faults.append(Fault(path, None, str(e)))
            continue
        points = table.images[name] = Points()
        for label, items in by_class.items():
            classes.setdefault(label)
            _add(points, items, label, image, path)
    table.classes = tuple(classes)
    return table


def _add(points: Points, items: Any, label: str, image: str, path: Path) -> None:
    where = f"{label[:40]!r} of {image[:80]!r}"
    if not isinstance(items, list):
        points.faults.append(Fault(path, None, f"{where} should be a list of points"))
        return
    for number, item in enumerate(items, start=1):
        try:
            if not isinstance(item, dict):
                raise ValueError("is not an object")
            points.add((coordinate(item.get("x"), "x"), coordinate(item.get("y"), "y")), label or None, None)
        except ValueError as e:
            points.faults.append(Fault(path, None, f"point #{number} of {where}: {e}"))
