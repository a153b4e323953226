"""YOLO text files: `class cx cy w h` a line, fractions of the image; the point is the centre of the box.

    DATA/images/a.jpg, labels/a.txt, data.yaml (`names:`), classes.txt or obj.names

- `class x1 y1 x2 y2 x3 y3 …`, a polygon or a turned box, is its centroid. A sixth number after a box is its confidence.
- With `kpt_shape` in data.yaml the keypoints that follow a box are passed over.
- An image without a text file shows no objects: that is the format's own rule.

Told from `x y [label]` text by its five or more numbers a line, all but the first between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from papm.data.readers import shapes
from papm.data.readers.faults import AnnotationError, Fault, coordinate, read_text
from papm.data.readers.formats import head_lines
from papm.data.readers.kinds import NO, SURELY, Context
from papm.data.readers.records import Points
from papm.errors import DataError

NAME_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
_MAX_YAML_BYTES = 1_000_000
_MOST = 2.0  # a fraction of the image; a box that leaves it may pass 1 a little, pixels pass it by far


def looks_like_yolo(path: Path) -> int:
    """Whether the first lines of a file are boxes or polygons in fractions."""
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


def read_yolo(path: Path, image: Path, context: Context) -> Points:
    """The objects of one text file, in fractions; raises AnnotationError with every bad line."""
    if not path.exists():
        return Points(relative=True, meta={"missing": True})
    points = Points(relative=True)
    for number, raw in enumerate(read_text(path).split("\n"), start=1):
        cells = raw.split("#", 1)[0].split()
        if not cells:
            continue
        try:
            label = _label(_class(cells[0]), context.names)
            (x, y), box = _shape(cells[1:5] if context.pose else cells[1:])
        except ValueError as e:
            points.faults.append(Fault(path, number, str(e)))
        else:
            points.add((x, y), label, number, box)
    if points.faults:
        raise AnnotationError(points.faults)
    return points


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
    if any(abs(v) > _MOST for v in values[:4]):
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


def class_names(root: Path) -> tuple[str, ...]:
    """Names by index from data.yaml, classes.txt or obj.names, whichever is there first; none where none is."""
    for name in NAME_FILES:
        path = root / name
        if not path.is_file():
            continue
        if path.suffix in (".yaml", ".yml"):
            if names := _yaml_names(path):
                return names
        else:
            return tuple(n for line in read_text(path).split("\n") if (n := line.split("#")[0].strip()))
    return ()


def is_pose(root: Path) -> bool:
    """Whether data.yaml says that lines go on with keypoints after the box."""
    return any("kpt_shape" in _yaml(root / n) for n in NAME_FILES[:3] if (root / n).is_file())


def _yaml(path: Path) -> Mapping[object, object]:
    if path.is_file() and path.stat().st_size > _MAX_YAML_BYTES:
        raise DataError(f"{path}: too large to be a list of classes")
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        problem = getattr(e, "problem", None) or "it does not parse"
        raise AnnotationError([Fault(path, mark.line + 1 if mark else None, f"not valid YAML ({problem})")]) from e
    except (RecursionError, ValueError, TypeError, OverflowError) as e:
        raise DataError(f"{path}: not usable YAML ({str(e).partition(chr(10))[0]})") from e
    return content if isinstance(content, dict) else {}


def _yaml_names(path: Path) -> tuple[str, ...]:
    names = _yaml(path).get("names")
    if names is None:
        return ()
    listed = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(listed, dict) or not all(
        isinstance(i, int) and 0 <= i < 100_000 and isinstance(n, str | int | float) for i, n in listed.items()
    ):
        raise DataError(f"{path}: 'names' should be a list of class names, or a mapping from index to name")
    return tuple(str(listed.get(i, i)) for i in range(max(listed, default=-1) + 1))
