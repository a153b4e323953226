"""YOLO text files: `class cx cy w h` a line, fractions of the image; the point is the centre of the box.

    DATA/images/a.jpg, labels/a.txt, data.yaml (`names:`), classes.txt or obj.names

- `class x1 y1 x2 y2 x3 y3 …`, a polygon or a turned box, is its centroid. A sixth number after a box is its confidence.
- With `kpt_shape` in data.yaml the keypoints that follow a box are passed over.
- An image without a text file shows no objects: that is the format's own rule.

Told from `x y [label]` text by its five or more numbers per line, all but the first between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from papm.data.formats import shapes
from papm.data.formats.base import NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.items import Item, all_classes, put_text
from papm.data.formats.txt import head_lines, listed_names
from papm.data.fractions import MOST
from papm.data.readers.faults import AnnotationError, Fault, coordinate, read_text
from papm.errors import DataError

_NAME_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
_MAX_YAML_BYTES = 1_000_000
_MOST_NAMES = 100_000  # classes that are worth naming


@register
class Yolo(PerImage):
    """YOLO text, 'class cx cy w h' a line in fractions: the centres of boxes"""

    name = "yolo"
    layout = "images/NAME.jpg, labels/NAME.txt, data.yaml or classes.txt"
    endings = (".txt",)
    missing_is_empty = True
    boxes = "always"
    inside_only = True

    def detect(self, path: Path) -> int:
        rows = [line.split() for line in head_lines(path)[:20]]
        if not rows:
            return NO
        for row in rows:
            try:
                _class(row[0])
                values = [float(v) for v in row[1:]]
            except ValueError:
                return NO
            if len(row) < 5 or not all(0 <= v <= 1 for v in values[:4]):
                return NO
        return SURELY

    def prepare(self, context: Context) -> Context:
        there = [path for name in _NAME_FILES if (path := context.root / name).is_file()]
        known = (_yaml_names(p) if p.suffix in (".yaml", ".yml") else listed_names(p) for p in there)
        pose = any("kpt_shape" in _yaml(p) for p in there if p.suffix in (".yaml", ".yml"))
        return replace(context, names=next((names for names in known if names), ()), pose=pose)

    def read(self, path: Path, image: Path, context: Context) -> Points:
        if not path.exists():
            return Points(relative=True, meta={"missing": True})
        points = Points(relative=True)
        for number, raw in enumerate(read_text(path).split("\n"), start=1):
            cells = raw.split("#", 1)[0].split()
            if not cells:
                continue
            try:
                label = _label(_class(cells[0]), context.names)
                xy, box = _shape(cells[1:5] if context.pose else cells[1:])
                points.add(xy, label, number, box)
            except ValueError as e:
                points.faults.append(Fault(path, number, str(e)))
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        (folder / "labels").mkdir(parents=True, exist_ok=True)
        for item in items:
            assert item.boxes is not None
            h, w = item.size
            lines = []
            for i, (x1, y1, x2, y2) in zip(item.numbers("YOLO"), item.boxes):
                # A fraction has ten digits: 1e-5 px in an image of 100,000.
                cx, cy = min(max((x1 + x2) / 2 / w, 0), 1), min(max((y1 + y2) / 2 / h, 0), 1)
                lines.append(
                    f"{i} {cx:.10f} {cy:.10f} {min(abs(x2 - x1) / w, 1):.10f} {min(abs(y2 - y1) / h, 1):.10f}\n"
                )
            put_text(folder / "labels" / f"{item.name}.txt", "".join(lines))

    def finish(self, out: Path, splits: Iterable[str], classes: Mapping[int, str]) -> None:
        folders = {s: "images" if s == "all" else f"{s}/images" for s in splits}
        content: dict[str, object] = {"path": "."}
        content["train"] = folders.get("train") or folders.get("all") or next(iter(folders.values()), "images")
        content["val"] = folders.get("val") or folders.get("test") or content["train"]
        if "test" in folders:
            content["test"] = folders["test"]
        if classes and max(classes) < _MOST_NAMES:
            content["names"] = all_classes(classes)
        put_text(out / "data.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _class(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(\.0*)?", text, flags=re.A):  # some tools write 0.0
        raise ValueError(f"the class is {text[:40]!r}, not a whole number from 0")
    return int(float(text))


def _label(index: int, names: tuple[str, ...]) -> str:
    if names and index >= len(names):
        raise ValueError(f"the class is {index}, and only {len(names)} are named (0 to {len(names) - 1})")
    return names[index] if names else str(index)


def _shape(cells: list[str]) -> shapes.Shape:
    values = [coordinate(v, f"value {k}") for k, v in enumerate(cells, start=2)]
    if any(abs(v) > MOST for v in values[:4]):
        raise ValueError("the numbers are not fractions of the image, between 0 and 1")
    if len(values) in (4, 5):
        cx, cy, w, h = values[:4]
        if w < 0 or h < 0:
            raise ValueError(f"the box has a negative size, {w:g} × {h:g}")
        return (cx, cy), shapes.box(cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)[1]
    if len(values) >= 6 and len(values) % 2 == 0:
        return shapes.polygon(list(zip(values[::2], values[1::2])))
    raise ValueError(
        f"expected 'class cx cy w h', or a polygon of three or more corners, found {len(values) + 1} numbers"
    )


# --- names of classes --------------------------------------------------------------------------------------------------


def _yaml(path: Path) -> Mapping[object, object]:
    if path.stat().st_size > _MAX_YAML_BYTES:
        raise DataError(f"{path}: too large to be a list of classes")
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        problem = getattr(e, "problem", None) or "it does not parse"
        raise AnnotationError.of(path, f"not valid YAML ({problem})", mark.line + 1 if mark else None) from e
    except (RecursionError, ValueError, TypeError, OverflowError) as e:
        raise DataError(f"{path}: not usable YAML ({str(e).partition(chr(10))[0]})") from e
    return content if isinstance(content, dict) else {}


def _yaml_names(path: Path) -> tuple[str, ...]:
    names = _yaml(path).get("names")
    if names is None:
        return ()
    listed = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(listed, dict) or not all(
        isinstance(i, int) and 0 <= i < _MOST_NAMES and isinstance(n, str | int | float) for i, n in listed.items()
    ):
        raise DataError(f"{path}: 'names' should be a list of class names, or a mapping from index to name")
    return tuple(str(listed.get(i, i)) for i in range(max(listed, default=-1) + 1))
