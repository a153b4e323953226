"""VIA 2 project, `via_project.json`: points, or rectangles where the point is the centre; labels are the attribute `class`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.writers.base import Item, Writer, put_json


def _write(items: Iterable[Item], folder: Path) -> None:
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
        file = folder / item.file
        size = file.stat().st_size if file.exists() else -1
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


VIA = Writer(_write, boxes="instead")
