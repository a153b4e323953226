"""COCO JSON as points: one object is a box's centre, or a keypoint.

    {"images": [{"id", "file_name", …}], "annotations": [{"image_id", "bbox": [x, y, w, h] | "keypoints": [x, y, v, …],
     "category_id", "iscrowd"}], "categories": [{"id", "name", "keypoints": [names]}]}

- A category without a skeleton (at most one keypoint name): every labelled keypoint (v > 0) is a point of its own.
- A category with a skeleton of several keypoints: one object an annotation, at the centre of its box, or, when it has none,
  at the mean of its labelled keypoints; with `keypoint=NAME`, at that keypoint where it is labelled.
- `iscrowd` regions stand for many objects that nobody counted: they are left out, and their number is kept in `meta`.
- An image without annotations has zero points.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from papm.data.readers.faults import AnnotationError, Fault, coordinate, safe_relative
from papm.data.readers.jsonfile import has_keys, is_object, load_json, peek
from papm.data.readers.records import Points, Table
from papm.errors import unknown

Json = Mapping[str, Any]


def read_coco(path: Path, categories: Collection[str] | None = None, keypoint: str | None = None) -> Table:
    """The points of every image of a COCO file; `categories` keeps those names or ids."""
    content = _load(path)
    table = Table(path)
    known = _categories(content, table)
    table.classes = tuple(str(c.get("name", i)) for i, c in sorted(known.items()))
    wanted = _wanted(known, categories)
    if keypoint is not None and not any(keypoint in _skeleton(c) for c in known.values()):
        raise unknown("keypoint", keypoint, [k for c in known.values() for k in _skeleton(c)])
    images = _images(content, table)
    for number, a in enumerate(content["annotations"], start=1):
        what = (
            f"annotation {a['id']}" if isinstance(a, dict) and isinstance(a.get("id"), int) else f"annotation #{number}"
        )
        if not isinstance(a, dict) or not isinstance(a.get("image_id"), int | str) or a["image_id"] not in images:
            table.faults.append(Fault(path, None, f"{what} belongs to no image of 'images'"))
            continue
        points = images[a["image_id"]]
        category = a.get("category_id")
        if known and (not isinstance(category, int) or category not in known):
            points.faults.append(Fault(path, None, f"{what} has the category {category!r}, which 'categories' lacks"))
        elif wanted is not None and category not in wanted:
            continue
        elif a.get("iscrowd"):
            points.meta["crowd_regions"] = points.meta.get("crowd_regions", 0) + 1
        else:
            try:
                _add(points, a, known.get(category, {}) if isinstance(category, int) else {}, keypoint)
            except ValueError as e:
                points.faults.append(Fault(path, None, f"{what}: {e}"))
    return table


def looks_like_coco(path: Path) -> int:
    """How surely a JSON file has COCO's lists near its beginning or end; cheap, whatever its size."""
    content = peek(path)
    return has_keys(content, "images", "annotations") if is_object(content) else 0


def _load(path: Path) -> dict[str, Any]:
    content = load_json(path)
    for key in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise AnnotationError([Fault(path, None, f"not a COCO file: the list '{key}' is missing")])
    assert isinstance(content, dict)
    return content


def _categories(content: Json, table: Table) -> dict[int, Json]:
    out: dict[int, Json] = {}
    listed = content.get("categories") or []
    for c in listed if isinstance(listed, list) else []:
        if not isinstance(c, dict) or not isinstance(c.get("id"), int) or c["id"] in out:
            table.faults.append(Fault(table.path, None, f"a category without an id of its own: {str(c)[:60]}"))
        else:
            out[c["id"]] = c
    return out


def _skeleton(category: Json) -> list[str]:
    names = category.get("keypoints")
    return [str(n) for n in names] if isinstance(names, list) else []


def _wanted(known: Mapping[int, Json], categories: Collection[str] | None) -> set[int] | None:
    if categories is None:
        return None
    ids = {str(c.get("name")): i for i, c in known.items()} | {str(i): i for i in known}
    for name in categories:
        if name not in ids:
            raise unknown("category", name, [str(c.get("name", i)) for i, c in known.items()])
    return {ids[name] for name in categories}


def _images(content: Json, table: Table) -> dict[int | str, Points]:
    out: dict[int | str, Points] = {}
    for number, image in enumerate(content["images"], start=1):
        try:
            if not isinstance(image, dict) or not isinstance(image.get("file_name"), str):
                raise ValueError("has no file_name")
            if not isinstance(image.get("id"), int | str) or image["id"] in out:
                raise ValueError("has no id of its own")
            name = str(safe_relative(image["file_name"]))
            if name in table.images:
                raise ValueError(f"names {name!r} a second time")
        except ValueError as e:
            table.faults.append(Fault(table.path, None, f"image #{number} of 'images': {e}"))
            continue
        out[image["id"]] = table.images[name] = points = Points()
        if isinstance(image.get("height"), int) and isinstance(image.get("width"), int):
            points.meta["declared_size"] = (image["height"], image["width"])
    return out


def _add(points: Points, a: Json, category: Json, keypoint: str | None) -> None:
    """Append what one annotation stands for; ValueError says what is wrong with it."""
    label = str(category["name"]) if "name" in category else (str(category["id"]) if "id" in category else None)
    box = _box(a.get("bbox"))
    keys = _keypoints(a.get("keypoints"))
    names = _skeleton(category)
    where: list[tuple[float, float]]
    if len(names) <= 1 and any(v > 0 for *_, v in keys):
        where = [(x, y) for x, y, v in keys if v > 0]
    elif keypoint in names and names.index(keypoint) < len(keys) and keys[names.index(keypoint)][2] > 0:
        where = [keys[names.index(keypoint)][:2]]
    elif box is not None:
        where = [((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)]
    elif labelled := [(x, y) for x, y, v in keys if v > 0]:
        where = [(sum(x for x, _ in labelled) / len(labelled), sum(y for _, y in labelled) / len(labelled))]
    else:
        raise ValueError("has neither a bbox nor a labelled keypoint")
    for xy in where:
        sized = len(where) == 1 and box is not None and box[2] > box[0] and box[3] > box[1]
        points.add(xy, label, None, box if sized else None)


def _box(value: Any) -> tuple[float, float, float, float] | None:
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
