"""JHU-CROWD++: crowds with a box for every head, and labels of scene, weather and distractors for every image.

    jhu_crowd_v2.0/{train,val,test}/{images/0001.jpg, gt/0001.txt, image_labels.txt}

A line of gt is `x y w h occlusion blur`: the head's position, its approximate size, 1 visible / 2 partly / 3 fully occluded,
1 blurred. A line of image_labels.txt is `name,count,scene,weather,distractor`. Pixel origin: 0, assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.faults import Fault, Faults, read_text
from papm.data.readers.layout import SPLIT_NAMES
from papm.data.readers.numbers import boxed, number_rows, parse_lines, whole
from papm.data.readers.published import Home, children, entry, files, finish, named, named_folder, subfolder
from papm.errors import DataError
from papm.images import find_images

ORIGIN = 0.0
SPLITS = ("train", "val", "test")
WEATHER = ("clear", "fog", "rain", "snow")  # 0 … 3 of the files
_COLUMNS = ("x", "y", "w", "h", "occlusion", "blur")


def read_heads(path: Path, labels: Mapping[str, Any] | None = None, origin: float = ORIGIN) -> Annotation:
    """Heads of one gt file: the point, its box, √(w·h) as extent; how many are occluded or blurred goes to `meta`."""
    rows, lines = number_rows(path, _COLUMNS, least=4)
    wrong = np.flatnonzero((rows[:, 2:4] < 0).any(1))
    if len(wrong):
        w, h = rows[wrong[0], 2:4]
        raise DataError(f"{path}:{lines[wrong[0]]}: a head of the size {w:g} × {h:g}")
    boxes = np.hstack([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2])
    meta = {"occluded": int((rows[:, 4] >= 2).sum()), "blurred": int((rows[:, 5] > 0).sum())}
    return boxed(rows[:, :2], boxes, origin, lines=lines, meta=meta | dict(labels or {}))


def read_labels(path: Path, faults: list[Fault]) -> dict[str, dict[str, Any]]:
    """Labels by image: `scene`, `weather` (clear, fog, rain, snow), `distractor`, and the count the file declares."""
    return dict(labels for _, labels in parse_lines(path, _labels, faults))


def _labels(text: str) -> tuple[str, dict[str, Any]]:
    name, *cells = (c.strip() for c in text.split(","))
    if len(cells) < 4:
        raise ValueError(f"expected 'name,count,scene,weather,distractor', found {len(cells) + 1} fields")
    count, weather, distractor = (_whole(c) for c in (cells[0], *cells[-2:]))
    if weather >= len(WEATHER) or distractor > 1:
        raise ValueError(f"weather is 0 to {len(WEATHER) - 1} and distractor 0 or 1, found {weather}, {distractor}")
    return Path(name).stem if name.lower().endswith((".jpg", ".jpeg", ".png")) else name, {
        "scene": ",".join(cells[1:-2]),
        "weather": WEATHER[weather],
        "distractor": bool(distractor),
        "declared_count": count,
    }


def _whole(text: str) -> int:
    if (number := whole(text)) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return number


def _folders(folder: Path) -> dict[str, Path]:
    """Split folders that hold `images` and `gt`."""
    out: dict[str, Path] = {}
    for d in children(folder):
        split = SPLIT_NAMES.get(d.name.lower())
        if split and named_folder(d, "images") and named_folder(d, "gt"):
            out.setdefault(split, d)
    return out


def _surely(folder: Path) -> bool:
    """With the label file, or gt lines of six numbers: `images` and `gt` alone could be anybody's."""
    places = list(_folders(folder).values())
    if any(named(d, "image_labels.txt") for d in places):
        return True
    some = [path for d in places for path in list(files(subfolder(d, "gt"), ".txt").values())[:5]]
    return any(len(_first_line(path)) == len(_COLUMNS) for path in some)


def _first_line(path: Path) -> list[str]:
    try:
        return read_text(path).split("\n", 1)[0].split()
    except DataError:
        return []


HOME = Home("JHU-CROWD++", lambda d: bool(_folders(d)), "{train,val,test}/{images,gt,image_labels.txt}", surely=_surely)


def entries(root: Path, *, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of train, val and test."""
    found: dict[str, list[Entry]] = {}
    faults: list[Fault] = Faults()
    places = _folders(HOME.find(root))
    for split in (s for s in SPLITS if s in places):
        base = places[split]
        images, truth = subfolder(base, "images"), files(subfolder(base, "gt"), ".txt")
        label_file = named(base, "image_labels.txt")
        labels = read_labels(label_file, faults) if label_file is not None else {}
        found[split] = []
        for image in find_images(images):
            meta = labels.get(image.stem) or labels.get(image.stem.lstrip("0"), {})
            found[split].append(entry(image, truth.of(image.stem), read_heads, meta, origin))
        if not found[split]:
            raise DataError(f"{images}: no images here; expected 0001.jpg, …")
    return finish(found, faults)


register(
    Reader(
        name="jhu-crowd",
        summary="JHU-CROWD++: crowds in all weathers, 2272 train / 500 val / 1600 test",
        entries=entries,
        recognise=HOME.recognise,
        origin=ORIGIN,
        layout="{train,val,test}/{images/0001.jpg, gt/0001.txt, image_labels.txt}",
        expected={"train": (2272, None), "val": (500, None), "test": (1600, None), "*": (4372, 1_515_005)},
        blank_is_empty=True,
    )
)
