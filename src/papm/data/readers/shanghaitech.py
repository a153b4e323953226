"""ShanghaiTech A and B: JPEG images with MATLAB files of head positions.

    ROOT/part_A_final/{train,test}_data/{images/IMG_k.jpg, ground_truth/GT_IMG_k.mat}

`part_A` and `ground-truth` (as in a widely used copy) do as well, and ROOT may be the part's folder itself. Points outside
their image are kept: they count in published figures.

Pixel origin: −0.5. The files come from MATLAB, where the centre of the first pixel is 1 and an image spans [0.5, W + 0.5];
docs/datasets.md has how that was measured on part A. Part B was not examined; the same origin is assumed.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from papm.data.base import Annotation, Entry, Reader, register
from papm.data.readers.matfile import load_mat
from papm.data.readers.numbers import table, tensor
from papm.data.readers.published import Home, entry, subfolder
from papm.errors import DataError
from papm.images import find_images

ORIGIN = -0.5
# Images and points of the release; of part B the total that its paper gives (Zhang et al. 2016, Table 1).
EXPECTED: dict[str, dict[str, tuple[int, int | None]]] = {
    "A": {"train": (300, 162_707), "test": (182, 78_970)},
    "B": {"train": (400, None), "test": (316, None), "*": (716, 88_488)},
}
SPLITS = ("train", "test")


def read_points(path: Path, origin: float = ORIGIN) -> Annotation:
    """Head positions of one GT_IMG_k.mat: `image_info{1}.location`, n × 2, as (x, y)."""
    expected = "a MATLAB 5 file with image_info{1}.location of n × 2 numbers"
    info = _unwrap(load_mat(path, "image_info", expected=expected)["image_info"])
    if not isinstance(info, np.ndarray | np.void) or "location" not in (info.dtype.names or ()):
        raise DataError(f"{path}: 'image_info' has no field 'location'; expected {expected}")
    return Annotation(tensor(table(path, _unwrap(info["location"]), "'location'", 2), origin))


def _unwrap(value: Any) -> Any:
    """MATLAB cells and structs of one element, down to what they hold."""
    while isinstance(value, np.ndarray) and value.dtype == object and value.size == 1:
        value = value.reshape(-1)[0]
    return value


# --- the folder --------------------------------------------------------------------------------------------------------


def _part_named(folder: Path) -> str | None:
    """'A' or 'B' when a folder's name says which part it is."""
    for name in (folder.absolute().name, folder.resolve().name):
        if match := re.fullmatch(r"part[_-]?([ab])(_final)?", name.lower()):
            return match[1].upper()
    return None


def _home(part: str) -> Home:
    return Home(
        f"ShanghaiTech part {part}",
        lambda d: any((d / f"{s}_data" / "images").is_dir() for s in SPLITS) and _part_named(d) in (part, None),
        f"part_{part}_final/{{train,test}}_data/{{images,ground_truth}}, or part_{part}_final itself",
        surely=lambda d: _part_named(d) == part,
    )


HOMES = {part: _home(part) for part in "AB"}


def entries(root: Path, *, part: str, origin: float = ORIGIN) -> dict[str, list[Entry]]:
    """Images of each split with the .mat file that should belong to each. `origin=0` keeps the files' coordinates."""
    folder = HOMES[part].find(root)
    found: dict[str, list[Entry]] = {}
    for split in (s for s in SPLITS if (folder / f"{s}_data").is_dir()):
        base = folder / f"{split}_data"
        images = find_images(base / "images") if (base / "images").is_dir() else []
        if not images:
            raise DataError(f"{base / 'images'}: no images here; expected IMG_1.jpg, IMG_2.jpg, …")
        truth = subfolder(base, "ground_truth", "ground-truth")
        found[split] = [entry(image, truth / f"GT_{image.stem}.mat", read_points, origin) for image in images]
    return found


for _part, _what in (
    ("A", "crowds from the web, 300 train / 182 test"),
    ("B", "streets of Shanghai, 400 train / 316 test"),
):
    register(
        Reader(
            name=f"shanghaitech-{_part.lower()}",
            summary=f"ShanghaiTech part {_part}: {_what}",
            entries=partial(entries, part=_part),
            recognise=HOMES[_part].recognise,
            origin=ORIGIN,
            expected=EXPECTED[_part],
            layout=f"part_{_part}_final/{{train,test}}_data/{{images/IMG_k.jpg, ground_truth/GT_IMG_k.mat}}",
        )
    )
