"""used_images.csv of a run folder: the images of each split, with what tells them from others.

A run goes on with the same images only, and a model is calibrated on images that it has not seen.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from papm.data.base import Dataset
from papm.data.cache import in_threads
from papm.data.splits import Splits
from papm.engine.image_key import file_key, key
from papm.errors import ConfigError
from papm.files import guarded, unguarded, write_text
from papm.structures import Sample
from papm.text import n_of

NAME = "used_images.csv"
KINDS = {"train": "training image", "val": "validation image", "test": "test image", "spare": "unused validation image"}


class Used(NamedTuple):
    """An image of a run: a row of used_images.csv. Files without the column `key` are of an older papm, and are passed over."""

    split: str
    image: str
    key: str  # of its file
    dots: str  # mark of its name, size, points and region of interest


def used(splits: Splits) -> list[Used]:
    """The images of all splits, in their order."""
    parts = [(split, sample) for split, dataset in _parts(splits) for sample in dataset]
    keys = [""] * len(parts)

    def look(k: int) -> None:
        with contextlib.suppress(OSError):  # reading the image says so, in a sentence
            keys[k] = key(parts[k][1])

    in_threads(look, range(len(parts)))
    mask_key = functools.cache(file_key)  # many images may have one mask
    return [Used(split, _readable(s.name), k, dots_mark(s, mask_key)) for (split, s), k in zip(parts, keys)]


def _readable(name: str) -> str:
    """A name as a file in UTF-8 can hold it."""
    return name.encode(errors="surrogateescape").decode(errors="replace").replace("\r", "\ufffd")


def _parts(splits: Splits) -> Iterator[tuple[str, Dataset]]:
    val = None if splits.monitor is splits.test else splits.monitor
    for split, dataset in zip(KINDS, (splits.train, val, splits.test, splits.spare)):
        if dataset is not None:
            yield split, dataset


def dots_mark(sample: Sample, mask_key: Callable[[Path], str] = file_key) -> str:
    """What tells the annotation of an image from others."""
    made = hashlib.sha256()
    for part in _dots(sample.published, mask_key):
        made.update(part)
    return made.hexdigest()[:8]


def _dots(sample: Sample, mask_key: Callable[[Path], str]) -> Iterator[bytes]:
    yield f"{sample.name} {tuple(sample.size)} {sample.count}".encode(errors="surrogateescape")
    for values in (sample.points, sample.labels, sample.extents):
        if values is not None:
            yield np.ascontiguousarray(values.numpy()).tobytes()
    if sample.roi_source is not None:
        yield from _region(sample, sample.roi_source, mask_key)


def _region(sample: Sample, source: Callable[[], Tensor], mask_key: Callable[[Path], str]) -> Iterator[bytes]:
    """What tells a region of interest from others: the mask file or the polygons that it is read from, else its pixels."""
    if not isinstance(source, functools.partial):
        yield np.packbits(source().numpy()).tobytes()
        return
    for value in source.args:
        if isinstance(value, Path) and value != sample.file:  # the image has a key of its own
            with contextlib.suppress(OSError):  # reading the mask says so, in a sentence
                yield mask_key(value).encode()
        elif isinstance(value, list):  # of corners
            yield from (np.ascontiguousarray(polygon).tobytes() for polygon in value)


def write(folder: Path, rows: Iterable[Used]) -> None:
    """Keep the images of a run in its folder."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(Used._fields)
    writer.writerows(row._replace(image=guarded(row.image)) for row in rows)
    write_text(folder / NAME, buffer.getvalue())


def read(folder: Path) -> list[Used]:
    """The images that a run was started with; none where an older papm started it."""
    try:
        with (folder / NAME).open(newline="", encoding="utf-8") as stream:
            rows = [Used(r["split"], unguarded(r["image"]), r["key"], r["dots"]) for r in csv.DictReader(stream)]
            return rows if all(isinstance(cell, str) for row in rows for cell in row) else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error):
        return []


def require_same(folder: Path, splits: Splits) -> None:
    """Refuse to go on with other images than those that a run was started with: its figures would be of neither."""
    before = read(folder)
    if before and (found := difference(before, used(splits))):
        raise ConfigError(f"{folder}: {found}; resume with the same images and dots, or choose another --out")


def difference(before: list[Used], now: list[Used]) -> str:
    """What is other than before, as the end of a sentence; nothing where all is as it was.

    >>> a, b = Used("train", "a", "1", "1"), Used("train", "b", "2", "2")
    >>> difference([a], [a, b]), difference([a, b], [b, a]), difference([a], [a])
    ('was started with 1 training image, there are 2 now', 'its training images are in another order now', '')
    """
    for split, kind in KINDS.items():
        then, there = ([row for row in rows if row.split == split] for rows in (before, now))
        if len(then) != len(there):
            return f"was started with {n_of(len(then), kind)}, there are {len(there)} now"
        known, names = set(then), {row.image: row for row in then}
        for row in there:
            if row in known:
                continue
            own = names.get(row.image)
            if own is None:
                return f"was started without the {kind} {row.image}"
            what = "file of the " if own.dots == row.dots else "annotation of the " if own.key == row.key else ""
            return f"the {what}{kind} {row.image} is not the one that it was started with"
        if then != there:
            return f"its {kind}s are in another order now"
    return ""
