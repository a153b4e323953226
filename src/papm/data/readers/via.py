"""VGG Image Annotator 2: a project or an export, JSON or CSV, for many images.

    {"a.jpg102400": {"filename": "a.jpg", "size": 102400, "regions": [{"shape_attributes": {"name": "point", "cx": 5, "cy": 7},
                                                                        "region_attributes": {"class": "head"}}]}}
    filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes

A project has the same under `_via_img_metadata`. Points are points; rectangles, circles and ellipses their centres, polygons
their centroids. Polylines are refused. An image without regions has no objects. The label is the one attribute that regions
have; of several, the one called class, label, category, type or name, else there is none. Pixel origin: 0.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate, read_text, safe_relative
from papm.data.readers.jsonfile import has_keys, is_object, load_json, peek
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context
from papm.data.readers.records import Points, Table

_LABELS = ("class", "label", "category", "type", "name")


def looks_like_via(path: Path) -> int:
    """Whether a file is a project or an export of VIA."""
    content = peek(path)
    if path.suffix.lower() == ".csv":
        first = content.partition(b"\n")[0]
        return SURELY if b"region_shape_attributes" in first and b"filename" in first else NO
    if not is_object(content):
        return NO
    if has_keys(content, "_via_img_metadata"):
        return SURELY
    return SURELY if has_keys(content, "filename", "regions") == 2 else NO if content.strip() != b"{}" else MAYBE


def read_via(path: Path, context: Context) -> Table:
    """The points of every image of a file."""
    table = Table(path)
    images = _csv(path, table) if path.suffix.lower() == ".csv" else _json(path, table)
    key = _label_key(r for regions in images.values() for _, r in regions)
    for name, regions in images.items():
        points = table.images[name] = Points(line=regions[0][0] if regions else None)
        for number, (line, region) in enumerate(regions, start=1):
            try:
                xy, box = _shape(region.get("shape_attributes"))
                label = region["region_attributes"].get(key) if key else None
                points.add(xy, str(label) if isinstance(label, str | int) and label != "" else None, line, box)
            except ValueError as e:
                points.faults.append(Fault(path, line, f"region #{number} of {name[:80]!r}: {e}"))
    return table


Regions = list[tuple[int | None, Mapping[str, Any]]]


def _json(path: Path, table: Table) -> dict[str, Regions]:
    content = load_json(path)
    listed = content.get("_via_img_metadata", content) if isinstance(content, dict) else None
    if not isinstance(listed, dict):
        raise AnnotationError([Fault(path, None, "not a VIA file: an object of images is expected")])
    out: dict[str, Regions] = {}
    for key, image in listed.items():
        try:
            if not isinstance(image, dict) or not isinstance(image.get("filename"), str):
                raise ValueError("has no filename")
            name = str(safe_relative(image["filename"]))
            if name in out:
                raise ValueError("names its image a second time")
            regions = image.get("regions", [])
            regions = list(regions.values()) if isinstance(regions, dict) else regions  # an object in release 1
            if not isinstance(regions, list) or not all(isinstance(r, dict) for r in regions):
                raise ValueError("'regions' should be a list")
            for r in regions:
                if not isinstance(r.setdefault("region_attributes", {}), dict):
                    raise ValueError("'region_attributes' should be an object")
        except ValueError as e:
            table.faults.append(Fault(path, None, f"the image {key[:80]!r}: {e}"))
            continue
        out[name] = [(None, r) for r in regions]
    return out


def _csv(path: Path, table: Table) -> dict[str, Regions]:
    out: dict[str, Regions] = {}
    reader = csv.DictReader(io.StringIO(read_text(path)), strict=True)
    try:
        for row in reader:
            line = reader.line_num
            try:
                regions = out.setdefault(str(safe_relative(row.get("filename") or "")), [])
                shape = json.loads(row.get("region_shape_attributes") or "{}")
                about = json.loads(row.get("region_attributes") or "{}")
                if shape or row.get("region_count") not in ("0", "", None):
                    if not isinstance(about, dict):
                        raise ValueError("region_attributes should be an object")
                    regions.append((line, {"shape_attributes": shape, "region_attributes": about}))
            except json.JSONDecodeError as e:
                table.faults.append(Fault(path, line, f"the attributes of a region are not valid JSON ({e.msg})"))
            except (ValueError, RecursionError) as e:
                table.faults.append(Fault(path, line, str(e)))
    except csv.Error as e:
        raise AnnotationError([Fault(path, reader.line_num, f"not a row of a table ({e})")]) from e
    return out


def _label_key(regions: Iterable[Mapping[str, Any]]) -> str | None:
    keys = list(dict.fromkeys(k for r in regions for k in r["region_attributes"]))
    if len(keys) == 1:
        return str(keys[0])
    return next((k for name in _LABELS for k in keys if k.lower() == name), None)


def _shape(a: Any) -> shapes.Shape:
    if not isinstance(a, dict):
        raise ValueError("has no 'shape_attributes'")

    def number(key: str) -> float:
        return coordinate(a.get(key), key)

    kind = a.get("name")
    if kind == "point":
        return (number("cx"), number("cy")), None
    if kind == "rect":
        x, y = number("x"), number("y")
        return shapes.box(x, y, x + number("width"), y + number("height"))
    if kind == "circle":
        return shapes.ellipse(number("cx"), number("cy"), number("r"), number("r"))
    if kind == "ellipse":
        turn = coordinate(a.get("theta", 0), "theta")
        return shapes.ellipse(number("cx"), number("cy"), number("rx"), number("ry"), turn)
    if kind == "polygon":
        xs, ys = a.get("all_points_x"), a.get("all_points_y")
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise ValueError("'all_points_x' and 'all_points_y' should be lists of the same length")
        return shapes.polygon([(coordinate(x, "x"), coordinate(y, "y")) for x, y in zip(xs, ys)])
    raise ValueError(f"a {str(kind)[:40]!r} cannot be read as a point; use points, rectangles, circles or polygons")
