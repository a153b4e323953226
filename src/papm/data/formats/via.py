"""VGG Image Annotator 2: a project or an export, JSON or CSV, for many images.

    {"a.jpg102400": {"filename": "a.jpg", "size": 102400, "regions": [{"shape_attributes": {"name": "point", "cx": 5, "cy": 7},
                                                                        "region_attributes": {"class": "head"}}]}}
    filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes

A project has the same under `_via_img_metadata`. The label is the one attribute that regions have; of several, the one called
class, label, category, type or name, else there is none.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from papm.data.formats import shapes
from papm.data.formats.base import MAYBE, NO, SURELY, Context, Points, Sheet, Table, register, text_label
from papm.data.formats.items import Item, put_json
from papm.data.formats.jsonfile import has_keys, load_json, need, peek, peek_object
from papm.data.readers.faults import AnnotationError, coordinate, read_text, safe_relative

_LABELS = ("class", "label", "category", "type", "name")


@register
class Via(Sheet):
    """VIA 2 JSON or CSV: points, the centres of rectangles and circles, the centroids of polygons"""

    name = "via"
    layout = "images/NAME.jpg, via_project.json or via_export.csv"
    suffixes = (".json", ".csv")
    boxes = "instead"

    def detect(self, path: Path) -> int:
        if path.suffix.lower() == ".csv":
            first = peek(path).partition(b"\n")[0]
            return SURELY if b"region_shape_attributes" in first and b"filename" in first else NO
        content = peek_object(path)
        if has_keys(content, "_via_img_metadata") or has_keys(content, "filename", "regions") == 2:
            return SURELY
        return MAYBE if content.strip() == b"{}" else NO

    def read(self, path: Path, context: Context) -> Table:
        table = Table(path)
        images = _csv(path, table) if path.suffix.lower() == ".csv" else _json(path, table)
        key = _label_key(r for regions in images.values() for _, r in regions)
        for name, regions in images.items():
            points = table.images[name] = Points(line=regions[0][0] if regions else None)
            for number, (line, region) in enumerate(regions, start=1):
                with points.faults.noting(path, line, f"region #{number} of {name[:80]!r}: "):
                    xy, box = _shape(region.get("shape_attributes"))
                    points.add(xy, text_label(region["region_attributes"].get(key) if key else None), line, box)
        return table

    def write(self, items: Iterable[Item], folder: Path) -> None:
        images: dict[str, Any] = {}
        names: dict[str, str] = {}
        for item in items:
            regions = []
            for i, label in enumerate(item.labels):
                x, y = item.points[i]
                shape: dict[str, Any] = {"name": "point", "cx": x, "cy": y}
                if item.boxes:
                    x1, y1, x2, y2 = item.boxes[i]
                    shape = {"name": "rect", "x": x1, "y": y1, "width": round(x2 - x1, 6), "height": round(y2 - y1, 6)}
                names[label] = ""
                regions.append({"shape_attributes": shape, "region_attributes": {"class": label}})
            size = (folder / item.file).stat().st_size
            about = {"filename": item.reference, "size": size, "regions": regions, "file_attributes": {}}
            images[f"{item.reference}{size}"] = about
        kind = {"type": "dropdown", "description": "", "options": names, "default_options": {}}
        project = {
            "_via_settings": {
                "ui": {},
                "core": {"buffer_size": 18, "filepath": {}, "default_filepath": "images/"},
                "project": {"name": "papm"},
            },
            "_via_img_metadata": images,
            "_via_attributes": {"region": {"class": kind}, "file": {}},
            "_via_data_format_version": "2.0.10",
            "_via_image_id_list": list(images),
        }
        put_json(folder / "via_project.json", project)


Regions = list[tuple[int | None, Mapping[str, Any]]]  # each with its line


def _json(path: Path, table: Table) -> dict[str, Regions]:
    content = load_json(path)
    listed = content.get("_via_img_metadata", content) if isinstance(content, dict) else None
    if not isinstance(listed, dict):
        raise AnnotationError.of(path, "not a VIA file: an object of images is expected")
    out: dict[str, Regions] = {}
    for key, image in listed.items():
        with table.faults.noting(path, None, f"the image {key[:80]!r}: "):
            name = need(need(image, dict, "has no filename").get("filename"), str, "has no filename")
            name = str(safe_relative(name))
            if name in out:
                raise ValueError("names its image a second time")
            regions = image.get("regions", [])
            regions = list(regions.values()) if isinstance(regions, dict) else regions  # an object in release 1
            if not isinstance(regions, list) or not all(isinstance(r, dict) for r in regions):
                raise ValueError("'regions' should be a list")
            if not all(isinstance(r.setdefault("region_attributes", {}), dict) for r in regions):
                raise ValueError("'region_attributes' should be an object")
            out[name] = [(None, r) for r in regions]
    return out


def _csv(path: Path, table: Table) -> dict[str, Regions]:
    out: dict[str, Regions] = {}
    reader = csv.DictReader(io.StringIO(read_text(path)), strict=True)
    try:
        for row in reader:
            with table.faults.noting(path, reader.line_num):
                regions = out.setdefault(str(safe_relative(row.get("filename") or "")), [])
                shape, about = (_cell(row.get(k) or "{}") for k in ("region_shape_attributes", "region_attributes"))
                if shape or row.get("region_count") not in ("0", "", None):
                    about = need(about, dict, "region_attributes should be an object")
                    regions.append((reader.line_num, {"shape_attributes": shape, "region_attributes": about}))
    except csv.Error as e:
        raise AnnotationError.of(path, f"not a row of a table ({e})", reader.line_num) from e
    return out


def _cell(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"the attributes of a region are not valid JSON ({e.msg})") from None
    except RecursionError as e:
        raise ValueError(str(e)) from None


def _label_key(regions: Iterable[Mapping[str, Any]]) -> str | None:
    keys = list(dict.fromkeys(k for r in regions for k in r["region_attributes"]))
    if len(keys) == 1:
        return str(keys[0])
    return next((k for name in _LABELS for k in keys if k.lower() == name), None)


def _shape(value: Any) -> shapes.Shape:
    a = need(value, dict, "has no 'shape_attributes'")

    def numbers(*keys: str) -> list[float]:
        return [coordinate(a.get(key), key) for key in keys]

    kind = a.get("name")
    if kind == "point":
        x, y = numbers("cx", "cy")
        return (x, y), None
    if kind == "rect":
        x, y, w, h = numbers("x", "y", "width", "height")
        return shapes.box(x, y, x + w, y + h)
    if kind == "circle":
        return shapes.ellipse(*numbers("cx", "cy", "r", "r"))
    if kind == "ellipse":
        x, y, rx, ry = numbers("cx", "cy", "rx", "ry")
        return shapes.ellipse(x, y, rx, ry, coordinate(a.get("theta", 0), "theta"))
    if kind == "polygon":
        xs, ys = a.get("all_points_x"), a.get("all_points_y")
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise ValueError("'all_points_x' and 'all_points_y' should be lists of the same length")
        return shapes.polygon([(coordinate(x, "x"), coordinate(y, "y")) for x, y in zip(xs, ys)])
    raise ValueError(f"a {str(kind)[:40]!r} cannot be read as a point; use points, rectangles, circles or polygons")
