"""Label Studio JSON (export "JSON"): a list of tasks, coordinates in percent of the image.

    [{"id": 1, "file_upload": "1f2e3d4c-a.jpg", "data": {"image": "/data/upload/1/1f2e3d4c-a.jpg"}, "annotations": [{"result": [
      {"type": "keypointlabels", "value": {"x": 12.5, "y": 40, "width": 0.5, "keypointlabels": ["head"]}},
      {"type": "rectanglelabels", "value": {"x": 10, "y": 10, "width": 5, "height": 8, "rectanglelabels": ["car"]}}]}]}]

Of several annotations of a task the one marked as ground truth is read, else the last; cancelled ones are not. A task without
any has not been looked at: its image is left out. Images are found by the last part of their address, also without the eight
digits that an upload puts before a name. Percent are taken of the upright image. Images are written as files of a local storage
whose folder is the dataset's.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from papm.data.formats import shapes
from papm.data.formats.base import MAYBE, NO, SURELY, Context, Points, Sheet, Table, register
from papm.data.formats.items import Item, put_json
from papm.data.formats.jsonfile import has_keys, load_json, need, peek
from papm.data.readers.faults import AnnotationError, coordinate, safe_relative
from papm.images import is_image_name

logger = logging.getLogger(__name__)

_SHAPES = ("keypoint", "rectangle", "polygon", "ellipse")
_DRAWN = (*_SHAPES, "brush", "bitmask", "vector")


@register
class LabelStudio(Sheet):
    """Label Studio JSON: keypoints, the centres of boxes and ellipses, the centroids of polygons"""

    name = "labelstudio"
    layout = "images/NAME.jpg, project.json"
    suffixes = (".json",)
    boxes = "instead"

    def detect(self, path: Path) -> int:
        content = peek(path)
        if not content.lstrip(b" \t\r\n").startswith(b"["):
            return NO
        if has_keys(content, "data") and has_keys(content, "annotations", "completions"):
            return SURELY
        return MAYBE if has_keys(content, "keypointlabels", "rectanglelabels") else NO

    def read(self, path: Path, context: Context) -> Table:
        tasks = load_json(path)
        if not isinstance(tasks, list):
            raise AnnotationError.of(path, "not a Label Studio export: a list of tasks is expected")
        table = Table(path)
        several = 0
        for number, task in enumerate(tasks, start=1):
            id = task.get("id") if isinstance(task, dict) else None
            what = f"task {id}" if isinstance(id, int) else f"task #{number}"
            with table.faults.noting(path, None, f"{what}: "):
                found = _annotations(need(task, dict, "is not an object"))
                several += len(found) > 1
                if found:
                    name = _image(task)
                    points = table.new(name, relative=True, also=_without_prefix(name.name))
                    chosen = next((a for a in found if a.get("ground_truth") is True), found[-1])
                    with points.faults.noting(path, None, f"{what}: "):
                        _add(points, chosen, path, what)
        if several:
            logger.warning(
                "%s: %d tasks have several annotations; the ground truth, or the last, is read", path, several
            )
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        tasks: list[dict[str, Any]] = []
        for item in items:
            results = [_result(item, i, label) for i, label in enumerate(item.labels)]
            address = f"/data/local-files/?d={quote(item.file.as_posix())}"
            tasks.append({"id": len(tasks) + 1, "data": {"image": address}, "annotations": [{"result": results}]})
        put_json(folder / "labelstudio.json", tasks)


def _annotations(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = task.get("annotations", task.get("completions"))
    if not isinstance(found, list) or not all(isinstance(a, dict) for a in found):
        raise ValueError("has no list 'annotations'; export as 'JSON', not 'JSON-MIN'")
    return [a for a in found if not a.get("was_cancelled") and not a.get("skipped")]


def _image(task: Mapping[str, Any]) -> PurePosixPath:
    """The image of a task as a relative name."""
    data = task.get("data")
    texts = [v for v in data.values() if isinstance(v, str)] if isinstance(data, dict) else []
    address = next((v for v in texts if is_image_name(_last(v).rpartition("/")[2])), None) or task.get("file_upload")
    return safe_relative(_last(need(address, str, "names no image in 'data'")))


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
    match = re.fullmatch(r"[0-9a-f]{8}-(.+)", name)
    return match[1] if match else None


def _add(points: Points, annotation: Mapping[str, Any], path: Path, what: str) -> None:
    results = need(annotation.get("result"), list, "has no list 'result'")
    labels: dict[str, str] = {}  # a label may stand in a result of its own, with the id of its shape
    for r in results:
        if isinstance(r, dict) and isinstance(r.get("id"), str) and (label := _label(r)):
            labels.setdefault(r["id"], label)
    for number, r in enumerate(results, start=1):
        with points.faults.noting(path, None, f"{what}: result #{number}: "):
            kind = need(need(r, dict, "has no 'type'").get("type"), str, "has no 'type'").removesuffix("labels")
            if kind in _DRAWN:  # choices, texts, ratings are about the image, not in it
                xy, box = _shape(kind, r)
                known = labels.get(r["id"]) if isinstance(r.get("id"), str) else None
                points.add(xy, _label(r) or known, None, box)


def _label(result: Mapping[str, Any]) -> str | None:
    value = result.get("value")
    for key, given in value.items() if isinstance(value, dict) else ():
        if str(key).endswith("labels") and isinstance(given, list) and given and isinstance(given[0], str):
            return given[0]
    return None


def _shape(kind: str, result: Mapping[str, Any]) -> shapes.Shape:
    value = need(result.get("value"), dict, "has no 'value'")

    def part(key: str, default: float | None = None) -> float:
        return coordinate(value.get(key, default), key)

    if kind not in _SHAPES:
        raise ValueError(f"a shape of the type '{kind[:40]}' cannot be read as a point; use keypoints or boxes")
    if kind == "keypoint":
        return (part("x") / 100, part("y") / 100), None
    if kind == "polygon":
        return shapes.polygon([(x / 100, y / 100) for x, y in shapes.pairs(value.get("points"))])
    turn = part("rotation", 0.0)
    width, height = _size(result) if turn else (1.0, 1.0)  # a shape is turned in pixels
    x, y = part("x") / 100 * width, part("y") / 100 * height
    if kind == "ellipse":
        rx, ry = part("radiusX") / 100 * width, part("radiusY") / 100 * height
        (x, y), around = shapes.ellipse(x, y, rx, ry, math.radians(turn))
    else:
        w, h = part("width") / 100 * width, part("height") / 100 * height
        box = shapes.polygon(shapes.rotated(x, y, w, h, turn)) if turn else shapes.box(x, y, x + w, y + h)
        (x, y), around = box
    fractions = around and (around[0] / width, around[1] / height, around[2] / width, around[3] / height)
    return (x / width, y / height), fractions


def _size(result: Mapping[str, Any]) -> tuple[float, float]:
    width, height = (coordinate(result.get(k), k) for k in ("original_width", "original_height"))
    if width <= 0 or height <= 0:
        raise ValueError("a turned shape needs 'original_width' and 'original_height'")
    return width, height


def _result(item: Item, i: int, label: str) -> dict[str, Any]:
    h, w = item.size
    value: dict[str, Any]
    if item.boxes:
        x1, y1, x2, y2 = item.boxes[i]
        kind = "rectanglelabels"
        value = {"x": x1 / w, "y": y1 / h, "width": (x2 - x1) / w, "height": (y2 - y1) / h, "rotation": 0}
    else:
        x, y = item.points[i]
        kind = "keypointlabels"
        value = {"x": x / w, "y": y / h, "width": 0.005}
    value = {k: round(100 * v, 10) for k, v in value.items()}
    return {
        "id": f"p{i + 1}",
        "type": kind,
        "from_name": "label",
        "to_name": "image",
        "original_width": w,
        "original_height": h,
        "image_rotation": 0,
        "value": value | {kind: [label]},
    }
