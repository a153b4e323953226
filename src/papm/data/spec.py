"""What a user writes to name data, opened: `NAME:FOLDER`, a name or a folder, options of its reader, one split."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.config import parse_overrides
from papm.data import base, resize
from papm.data.base import Dataset, parse_spec
from papm.errors import DataError, unknown
from papm.images import find_images

log = logging.getLogger(__name__)


def parse(data: str) -> tuple[str, Path | None]:
    """`parse_spec` with more help where that fails.

    A folder of images is `folder` data even when nothing in it can be read as points: the reader then names the file and
    the line that are wrong. A word that is nearly a dataset's name is taken for one misspelt.
    """
    try:
        return parse_spec(data)
    except DataError:
        path = Path(data).expanduser()
        places = [path, *(path / d for d in ("images", "train", "test", "train/images", "test/images"))]
        if any(p.is_dir() and find_images(p) for p in places):
            return "folder", path
        if not path.exists() and difflib.get_close_matches(data, base.readers(), cutoff=0.7):
            raise unknown("dataset", data, base.readers()) from None
        raise


def reader_options(name: str, given: Sequence[str] | None) -> dict[str, Any]:
    """key=value pairs as options of a reader, checked."""
    chosen = parse_overrides(given or [])
    chosen |= chosen.pop("options", {})  # written data.key=value, as for papm train
    base.check_options(base.reader(name), resize.take(name, chosen)[1])
    return chosen


def open_splits(
    data: str,
    options: Sequence[str] | None = None,
    split: str | None = None,
    on_item: Callable[[int, int], None] | None = None,
) -> dict[str, Dataset]:
    """Open a dataset, one split of it if asked; `on_item` hears (done, all) of its images."""
    name, root = parse(data)
    found = base.open(name, root, on_item=on_item, **reader_options(name, options))
    if not found:
        raise DataError(f"{data}: there are no images in this dataset")
    if split is None:
        return found
    if split not in found:
        raise unknown("split", split, found)
    return {split: found[split]}


def open_split(data: str, split: str = "test", options: Mapping[str, Any] | None = None) -> Dataset:
    """The split asked for; data without splits is evaluated whole."""
    splits = base.open_spec(data, **(options or {}))
    if split in splits:
        return splits[split]
    if set(splits) != {"all"} or split != "test":
        raise unknown("split", split, splits)
    log.warning(
        "this data has no split 'test': all images are counted, also those a model was trained on (papm data split)"
    )
    return splits["all"]
