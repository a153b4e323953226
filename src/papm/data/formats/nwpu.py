"""JSON as of NWPU-Crowd, `{"points": [[x, y], …], "boxes": [[x1, y1, x2, y2], …]}` per image, in a folder of one's own.

Pixel origin: 0, as `readers/nwpu.py` says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.base import Annotation
from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, register
from papm.data.formats.items import Item, put_json
from papm.data.formats.jsonfile import has_keys, peek_object


@register
class Nwpu(PerImage):
    """JSON as of NWPU-Crowd: points and boxes"""

    name = "nwpu"
    layout = "images/NAME.jpg, jsons/NAME.json"
    endings = (".json",)
    boxes = "beside"
    labels = False

    def detect(self, path: Path) -> int:
        content = peek_object(path)
        if not has_keys(content, "points") or has_keys(content, "shapes", "images", "classes"):
            return NO
        return SURELY if has_keys(content, "human_num", "boxes", "img_id") else MAYBE

    def read(self, path: Path, image: Path, context: Context) -> Annotation:
        from papm.data.readers.nwpu import read_json  # which registers a dataset: not before its turn

        return read_json(path, origin=context.origin)

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            content: dict[str, Any] = {"img_id": item.file.name, "human_num": len(item.points)}
            content["points"] = [list(p) for p in item.points]
            content["boxes"] = [list(b) for b in item.boxes or ()]
            put_json(folder / "jsons" / f"{item.name}.json", content)
