"""COCO JSON, `annotations.json`: each object a keypoint, with its box where there is one.

Category ids are the class numbers plus one. Without a box `bbox` is the point, of no size.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.writers.base import UNNAMED, Item, Writer, all_classes, number_of, put_json


def _write(items: Iterable[Item], folder: Path) -> None:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    used: dict[int, str] = {}
    for item in items:
        image = len(images) + 1
        images.append({"id": image, "file_name": item.reference, "width": item.size[1], "height": item.size[0]})
        ids = number_of(item, "COCO")
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


COCO = Writer(_write, boxes="beside")
