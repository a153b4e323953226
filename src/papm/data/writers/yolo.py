"""YOLO text, `labels/NAME.txt` with `class cx cy w h` in fractions of the image, and `data.yaml` at the top.

Points outside the image are left out: YOLO does not take them. The box of an object goes with it; points without boxes get a
small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from papm.data.writers.base import Item, Writer, all_classes, number_of, put_text

_MOST = 100_000  # classes that are worth naming


def _write(items: Iterable[Item], folder: Path) -> None:
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    for item in items:
        assert item.boxes is not None
        h, w = item.size
        lines = []
        for i, (x1, y1, x2, y2) in zip(number_of(item, "YOLO"), item.boxes):
            # A fraction has ten digits: 1e-5 px in an image of 100,000.
            cx, cy = min(max((x1 + x2) / 2 / w, 0), 1), min(max((y1 + y2) / 2 / h, 0), 1)
            lines.append(f"{i} {cx:.10f} {cy:.10f} {min(abs(x2 - x1) / w, 1):.10f} {min(abs(y2 - y1) / h, 1):.10f}\n")
        put_text(folder / "labels" / f"{item.name}.txt", "".join(lines))


def _finish(out: Path, splits: Iterable[str], classes: Mapping[int, str]) -> None:
    """The file that training with YOLO begins with."""
    folders = {s: "images" if s == "all" else f"{s}/images" for s in splits}
    whole = folders.get("all")
    content: dict[str, object] = {"path": "."}
    content["train"] = folders.get("train") or whole or next(iter(folders.values()), "images")
    content["val"] = folders.get("val") or folders.get("test") or content["train"]
    if "test" in folders:
        content["test"] = folders["test"]
    if classes and max(classes) < _MOST:
        content["names"] = all_classes(classes)
    put_text(out / "data.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


YOLO = Writer(_write, boxes="always", inside_only=True, finish=_finish)
