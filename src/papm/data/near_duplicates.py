"""Images of one split that look like images of another: a test image that was trained on flatters the result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from papm.data.base import Dataset
from papm.data.cache import in_threads
from papm.errors import DataError
from papm.structures import Sample

SIDE = 24  # pixels of the thumbnails that are compared
ALIKE = 0.985  # correlation of two thumbnails of one scene; other photographs of one crowd have 0.2 to 0.9


@dataclass(frozen=True)
class Pair:
    """Two images of different splits and how alike they are, 1: the same but for brightness and contrast."""

    first: tuple[str, Sample]  # (split, sample)
    second: tuple[str, Sample]
    likeness: float


def near_duplicates(
    splits: Mapping[str, Dataset], threshold: float = ALIKE, on_item: Callable[[], None] | None = None
) -> list[Pair]:
    """Pairs across splits whose thumbnails correlate above `threshold`, the most alike first; the same file is no pair."""
    items = [(split, sample) for split, dataset in splits.items() for sample in dataset]
    table = np.zeros((len(items), SIDE * SIDE), np.float32)

    def one(k: int) -> None:
        table[k] = thumbnail(items[k][1])

    in_threads(one, range(len(items)), on_item)
    part = np.unique([split for split, _ in items], return_inverse=True)[1]
    return sorted(_pairs(items, table, part, threshold), key=lambda p: -p.likeness)


def _pairs(
    items: Sequence[tuple[str, Sample]], table: NDArray[np.float32], part: NDArray[np.int64], threshold: float
) -> list[Pair]:
    found: list[Pair] = []
    for start in range(0, len(items), 1024):
        likeness = table[start : start + 1024] @ table.T
        rows, columns = np.nonzero((likeness > threshold) & (part[start : start + 1024, None] != part[None, :]))
        for r, c in zip(rows.tolist(), columns.tolist()):
            i = start + r
            if i < c and items[i][1].published.identity != items[c][1].published.identity:
                found.append(Pair(items[i], items[c], min(1.0, float(likeness[r, c]))))
    return found


def thumbnail(sample: Sample) -> NDArray[np.float32]:
    """Grey, SIDE × SIDE, of zero mean and unit length [SIDE²]; zeros for a flat or unreadable image.

    A JPEG is decoded at an eighth of its size where that is enough, which is many times faster.
    """
    path = sample.published.path
    grey = None if path is None else _quick(path)
    if grey is None:
        try:
            grey = _shrunk(Image.fromarray(sample.image.permute(1, 2, 0).contiguous().numpy()))
        except DataError:
            return np.zeros(SIDE * SIDE, np.float32)
    grey = grey - grey.mean()
    length = float(np.linalg.norm(grey))
    return grey / length if length > SIDE else np.zeros_like(grey)  # a contrast of one grey level is none


def _shrunk(picture: Image.Image) -> NDArray[np.float32]:
    small = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32).reshape(-1)


def _quick(path: Path) -> NDArray[np.float32] | None:
    """The same for a plain JPEG; None for anything else."""
    if not path.is_file():
        return None
    with contextlib.suppress(Exception), Image.open(path, formats=("JPEG",)) as picture:
        if picture.getexif().get(274, 1) == 1 and picture.width * picture.height < 10**8:
            picture.draft("L", (4 * SIDE, 4 * SIDE))
            return _shrunk(picture)
    return None
