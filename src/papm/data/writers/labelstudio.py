"""Label Studio JSON, `labelstudio.json`: keypoints, or boxes where the point is the centre, in percent of the image.

Images are named as files of a local storage whose folder is the dataset's (`/data/local-files/?d=images/NAME.jpg`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from papm.data.writers.base import Item, Writer, put_json


def _write(items: Iterable[Item], folder: Path) -> None:
    tasks: list[dict[str, Any]] = []
    for item in items:
        results = [_result(item, i, label) for i, label in enumerate(item.labels)]
        address = f"/data/local-files/?d={quote(item.file.as_posix())}"
        tasks.append({"id": len(tasks) + 1, "data": {"image": address}, "annotations": [{"result": results}]})
    put_json(folder / "labelstudio.json", tasks)


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
    value = {k: round(100 * v, 10) if k != "rotation" else v for k, v in value.items()}
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


LABEL_STUDIO = Writer(_write, boxes="instead")
