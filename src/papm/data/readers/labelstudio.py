"""Label Studio JSON (export "JSON"): a list of tasks, coordinates in percent of the image.

    [{"id": 1, "file_upload": "1f2e3d4c-a.jpg", "data": {"image": "/data/upload/1/1f2e3d4c-a.jpg"}, "annotations": [{"result": [
      {"type": "keypointlabels", "value": {"x": 12.5, "y": 40, "width": 0.5, "keypointlabels": ["head"]}},
      {"type": "rectanglelabels", "value": {"x": 10, "y": 10, "width": 5, "height": 8, "rectanglelabels": ["car"]}}]}]}]

- Keypoints are points; boxes and ellipses their centres, polygons their centroids.
- Of several annotations of a task the one marked as ground truth is read, else the last; cancelled ones are not. A task
  without any has not been looked at: its image is left out. An empty `result` is an image without objects.
- Images are found by the last part of their address, also without the eight digits that an upload puts before a name.

Percent are taken of the upright image, so there is no pixel origin to state: 0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate, safe_relative
from papm.data.readers.jsonfile import has_keys, load_json, peek
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.readers.records import Points, Table
from papm.images import is_image_name

logger = logging.getLogger(__name__)

_SHAPES = ("keypoint", "rectangle", "polygon", "ellipse")
_DRAWN = (*_SHAPES, "brush", "bitmask", "vector")


def looks_like_labelstudio(path: Path) -> int:
    """Whether a JSON file is a list of tasks."""
    content = peek(path)
    if not content.lstrip(b" \t\r\n").startswith(b"["):
        return NO
    if has_keys(content, "data") and has_keys(content, "annotations", "completions"):
        return SURELY
    return MAYBE if has_keys(content, "keypointlabels", "rectanglelabels") else NO


def read_labelstudio(path: Path, context: Context) -> Table:
    """The points of every annotated task, in fractions of the image."""
    tasks = load_json(path)
    if not isinstance(tasks, list):
        raise AnnotationError([Fault(path, None, "not a Label Studio export: a list of tasks is expected")])
    table = Table(path)
    several = 0
    for number, task in enumerate(tasks, start=1):
        what = f"task {task['id']}" if isinstance(task, dict) and isinstance(task.get("id"), int) else f"task #{number}"
        try:
            found = _annotations(task)
            several += len(found) > 1
            if not found:
                continue
            name = _image(task)
            if name in table.images:
                raise ValueError(f"the image {name[:80]!r} is given a second time")
        except ValueError as e:
            table.faults.append(Fault(path, None, f"{what}: {e}"))
            continue
        points = table.images[name] = Points(relative=True, also=_without_prefix(name))
        chosen = next((a for a in found if a.get("ground_truth") is True), found[-1])
        _read(points, chosen, path, what)
    if several:
        logger.warning("%s: %d tasks have several annotations; the ground truth, or the last, is read", path, several)
    return table


def _annotations(task: Any) -> list[Mapping[str, Any]]:
    if not isinstance(task, dict):
        raise ValueError("is not an object")
    found = task.get("annotations", task.get("completions"))
    if not isinstance(found, list) or not all(isinstance(a, dict) for a in found):
        raise ValueError("has no list 'annotations'; export as 'JSON', not 'JSON-MIN'")
    return [a for a in found if not a.get("was_cancelled") and not a.get("skipped")]


def _image(task: Mapping[str, Any]) -> str:
    """The image of a task as a relative name."""
    data = task.get("data")
    texts = [v for v in data.values() if isinstance(v, str)] if isinstance(data, dict) else []
    address = next((v for v in texts if is_image_name(_last(v).rpartition("/")[2])), None) or task.get("file_upload")
    if not isinstance(address, str):
        raise ValueError("names no image in 'data'")
    return str(safe_relative(_last(address)))


def _last(address: str) -> str:
    """The file of an address: what a local file's `?d=` says, else the last part of the path."""
    try:
        parts = urlsplit(address)
        local = parse_qs(parts.query).get("d", [])
    except ValueError:
        return address
    path = unquote(parts.path).replace("\\", "/")
    if local:
        return local[0].lstrip("/")
    if ".." in path.split("/"):
        return path  # which is refused
    return path.rpartition("/")[2]


def _without_prefix(name: str) -> str | None:
    """The name before it was uploaded.

    >>> _without_prefix("1f2e3d4c-a.jpg")
    'a.jpg'
    """
    match = re.fullmatch(r"[0-9a-f]{8}-(.+)", name.rpartition("/")[2])
    return match[1] if match else None


def _read(points: Points, annotation: Mapping[str, Any], path: Path, what: str) -> None:
    results = annotation.get("result")
    if not isinstance(results, list):
        points.faults.append(Fault(path, None, f"{what}: has no list 'result'"))
        return
    labels: dict[str, str] = {}  # a label may stand in a result of its own, with the id of its shape
    for r in results:
        if isinstance(r, dict) and isinstance(r.get("id"), str) and (label := _label(r)):
            labels.setdefault(r["id"], label)
    for number, r in enumerate(results, start=1):
        kind = r.get("type") if isinstance(r, dict) else None
        if not isinstance(kind, str):
            points.faults.append(Fault(path, None, f"{what}: result #{number} has no 'type'"))
            continue
        plain = kind.removesuffix("labels")
        if plain not in _DRAWN:
            continue  # choices, texts, ratings: about the image, not in it
        try:
            xy, box = _shape(plain, r)
        except ValueError as e:
            points.faults.append(Fault(path, None, f"{what}: result #{number}: {e}"))
            continue
        known = labels.get(r["id"]) if isinstance(r.get("id"), str) else None
        points.add(xy, _label(r) or known, None, box)


def _label(result: Mapping[str, Any]) -> str | None:
    value = result.get("value")
    for key, given in value.items() if isinstance(value, dict) else ():
        if str(key).endswith("labels") and isinstance(given, list) and given and isinstance(given[0], str):
            return given[0]
    return None


def _shape(kind: str, result: Mapping[str, Any]) -> shapes.Shape:
    value = result.get("value")
    if not isinstance(value, dict):
        raise ValueError("has no 'value'")

    def part(key: str, default: float | None = None) -> float:
        return coordinate(value.get(key, default), key)

    if kind == "keypoint":
        return (part("x") / 100, part("y") / 100), None
    turn = part("rotation", 0.0)
    if kind == "rectangle" and not turn:
        x, y, w, h = (part(k) / 100 for k in ("x", "y", "width", "height"))
        return shapes.box(x, y, x + w, y + h)
    if kind == "polygon":
        corners = value.get("points")
        if not isinstance(corners, list) or not all(isinstance(c, list) and len(c) == 2 for c in corners):
            raise ValueError("'points' should be a list of [x, y]")
        return shapes.polygon([(coordinate(x, "x") / 100, coordinate(y, "y") / 100) for x, y in corners])
    if kind == "ellipse" and not turn:
        x, y, rx, ry = (part(k) / 100 for k in ("x", "y", "radiusX", "radiusY"))
        return shapes.ellipse(x, y, rx, ry)
    if kind not in _SHAPES:
        raise ValueError(f"a shape of the type '{kind[:40]}' cannot be read as a point; use keypoints or boxes")
    width, height = (coordinate(result.get(k), k) for k in ("original_width", "original_height"))
    if width <= 0 or height <= 0:
        raise ValueError("a turned shape needs 'original_width' and 'original_height'")
    if kind == "ellipse":
        (x, y), _ = shapes.ellipse(part("x") / 100, part("y") / 100, 0, 0)
        rx, ry = part("radiusX") * width / 100, part("radiusY") * height / 100
        _, around = shapes.ellipse(x * width, y * height, rx, ry, turn * 0.017453292519943295)
    else:  # turned about its first corner, in pixels
        x, y, w, h = (part(k) / 100 * side for k, side in zip(("x", "y", "width", "height"), (width, height) * 2))
        (x, y), around = shapes.polygon(shapes.rotated(x, y, w, h, turn))
        x, y = x / width, y / height
    box = None if around is None else (around[0] / width, around[1] / height, around[2] / width, around[3] / height)
    return (x, y), box
