"""COCO JSON as points: one object is a box's centre, or a keypoint.

    {"images": [{"id", "file_name", …}], "annotations": [{"image_id", "bbox": [x, y, w, h] | "keypoints": [x, y, v, …],
     "category_id", "iscrowd"}], "categories": [{"id", "name", "keypoints": [names]}]}

- A category without a skeleton (at most one keypoint name): every labelled keypoint (v > 0) is a point of its own.
- A category with a skeleton of several keypoints: one object an annotation, at the centre of its box, or, when it has none,
  at the mean of its labelled keypoints; with `keypoint=NAME`, at that keypoint where it is labelled.
- `iscrowd` regions stand for many objects that nobody counted: they are left out, and their number is kept in `meta`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from papm.data.formats.base import NO, Context, Points, Sheet, Table, register
from papm.data.formats.items import UNNAMED, XY, Box, Item, all_classes, put_json
from papm.data.formats.jsonfile import has_keys, load_keys, need, peek_object
from papm.data.readers.faults import Fault, coordinate
from papm.errors import unknown

Json = Mapping[str, Any]
Id = int | str | None  # None: it has none
_NO_PLACES = ("captions_", "panoptic_")  # names of COCO's own files whose annotations have neither boxes nor keypoints


@register
class Coco(Sheet):
    """COCO JSON: keypoints, or the centres of boxes"""

    name = "coco"
    layout = "images/NAME.jpg, annotations.json; or train2017/, val2017/ with annotations/instances_*.json"
    suffixes = (".json",)
    boxes = "beside"
    filters = True

    def detect(self, path: Path) -> int:
        if path.name.startswith(_NO_PLACES):
            return NO
        return has_keys(peek_object(path), "images", "annotations")

    def read(self, path: Path, context: Context) -> Table:
        content = load_keys(path, "COCO", list, "images", "annotations")
        table = Table(path)
        known = _categories(content, table)
        table.classes = tuple(str(c.get("name", i)) for i, c in sorted(known.items(), key=_order))
        wanted = _wanted(known, context.wanted)
        skeletons = [k for c in known.values() for k in _skeleton(c)]
        if context.keypoint is not None and context.keypoint not in skeletons:
            raise unknown("keypoint", context.keypoint, skeletons)
        images = _images(content, table)
        for number, a in enumerate(content["annotations"], start=1):
            owned = isinstance(a, dict)
            what = f"annotation {a['id']}" if owned and isinstance(a.get("id"), int) else f"annotation #{number}"
            points = images.get(_key(a.get("image_id"))) if owned else None
            if points is None:
                table.faults.append(Fault(path, None, f"{what} belongs to no image of 'images'"))
                continue
            try:
                category = _category(a.get("category_id"), known)
                if wanted is None or _key(category.get("id")) in wanted:
                    _add(points, a, category, context.keypoint)
            except ValueError as e:
                points.faults.append(Fault(path, None, f"{what}: {e}"))
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        used: dict[int, str] = {}
        for item in items:
            image = len(images) + 1
            images.append({"id": image, "file_name": item.reference, "width": item.size[1], "height": item.size[0]})
            ids = item.numbers("COCO")
            used |= item.classes
            used |= dict(zip(ids, item.labels))
            for i, (x, y) in enumerate(item.points):
                x1, y1, x2, y2 = item.boxes[i] if item.boxes else (x, y, x, y)
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": image,
                        "category_id": ids[i] + 1,
                        "keypoints": [x, y, 2],
                        "num_keypoints": 1,
                        "bbox": [x1, y1, round(x2 - x1, 6), round(y2 - y1, 6)],
                        "area": round((x2 - x1) * (y2 - y1), 6),
                        "iscrowd": 0,
                    }
                )
        names = all_classes(used or {0: UNNAMED})
        categories = [{"id": i + 1, "name": n, "keypoints": ["point"], "skeleton": []} for i, n in names.items()]
        put_json(folder / "annotations.json", {"images": images, "annotations": annotations, "categories": categories})


def _categories(content: Json, table: Table) -> dict[Id, Json]:
    out: dict[Id, Json] = {}
    listed = content.get("categories") or []
    for c in listed if isinstance(listed, list) else []:
        key = _key(c.get("id")) if isinstance(c, dict) else None
        if key is None or key in out:
            table.faults.append(Fault(table.path, None, f"a category without an id of its own: {str(c)[:60]}"))
        else:
            out[key] = c
    return out


def _category(id: Any, known: Mapping[Id, Json]) -> Json:
    found = known.get(_key(id))
    if known and found is None:
        raise ValueError(f"has the category {id!r:.60}, which 'categories' lacks")
    return found or {}


def _skeleton(category: Json) -> list[str]:
    names = category.get("keypoints")
    return [str(n) for n in names] if isinstance(names, list) else []


def _wanted(known: Mapping[Id, Json], categories: Collection[str] | None) -> set[Id] | None:
    """The ids of the categories that are asked for by name or id; None: all."""
    if categories is None:
        return None
    ids = {str(c.get("name")): i for i, c in known.items()} | {str(i): i for i in known}
    for name in categories:
        if name not in ids:
            raise unknown("category", name, [str(c.get("name", i)) for i, c in known.items()])
    return {ids[name] for name in categories}


def _images(content: Json, table: Table) -> dict[Id, Points]:
    out: dict[Id, Points] = {}
    for number, image in enumerate(content["images"], start=1):
        with table.faults.noting(table.path, None, f"image #{number} of 'images': "):
            name = need(need(image, dict, "has no file_name").get("file_name"), str, "has no file_name")
            key = _key(image.get("id"))
            if key is None or key in out:
                raise ValueError("has no id of its own")
            points = out[key] = table.new(name)
            points.declare(image.get("height"), image.get("width"))
    return out


def _key(id: Any) -> Id:
    """An id in one form: some tools write ids as texts in one list and as numbers in the other."""
    if isinstance(id, bool) or not isinstance(id, int | str):
        return None
    digits = str(id).removeprefix("-")
    return int(id) if digits.isascii() and digits.isdigit() and len(digits) < 19 else id


def _order(category: tuple[Id, Json]) -> tuple[bool, int, str]:
    """Categories by their number; those without one follow by their text."""
    id = category[0]
    return not isinstance(id, int), id if isinstance(id, int) else 0, str(id)


def _add(points: Points, a: Json, category: Json, keypoint: str | None) -> None:
    """Append what one annotation stands for; ValueError says what is wrong with it."""
    if a.get("iscrowd"):
        points.meta["crowd_regions"] = points.meta.get("crowd_regions", 0) + 1
        return
    label = str(category["name"]) if "name" in category else (str(category["id"]) if "id" in category else None)
    box = _box(a.get("bbox"))
    where = _places(_skeleton(category), _keypoints(a.get("keypoints")), box, keypoint)
    for xy in where:
        sized = len(where) == 1 and box is not None and box[2] > box[0] and box[3] > box[1]
        points.add(xy, label, None, box if sized else None)


def _places(
    names: list[str], keys: list[tuple[float, float, float]], box: Box | None, keypoint: str | None
) -> list[XY]:
    """The points that keypoints and a box stand for."""
    labelled = [(x, y) for x, y, v in keys if v > 0]
    if len(names) <= 1 and labelled:
        return labelled
    if keypoint in names and names.index(keypoint) < len(keys) and keys[names.index(keypoint)][2] > 0:
        return [keys[names.index(keypoint)][:2]]
    if box is not None:
        return [((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)]
    if not labelled:
        raise ValueError("has neither a bbox nor a labelled keypoint")
    return [(sum(x for x, _ in labelled) / len(labelled), sum(y for _, y in labelled) / len(labelled))]


def _box(value: Any) -> Box | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"bbox should be [x, y, width, height], found {str(value)[:60]}")
    x, y, w, h = (coordinate(v, f"bbox {n}") for v, n in zip(value, ("x", "y", "width", "height")))
    if w < 0 or h < 0:
        raise ValueError(f"bbox has a negative size, {w:g} × {h:g}")
    return x, y, x + w, y + h


def _keypoints(value: Any) -> list[tuple[float, float, float]]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) % 3:
        raise ValueError("keypoints should be a list of x, y, visibility")
    v = [coordinate(k, "keypoint") for k in value]
    return list(zip(v[::3], v[1::3], v[2::3]))
