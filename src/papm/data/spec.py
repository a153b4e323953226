"""What a user writes to name data, opened: `NAME:FOLDER`, a name or a folder, several joined by +, options, one split."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.config import parse_overrides
from papm.data import base, resize
from papm.data.base import Dataset
from papm.data.formats import FORMATS
from papm.data.fractions import complaint
from papm.data.several import join, parts_of
from papm.errors import ConfigError, DataError, unknown
from papm.images import KINDS, find_images, is_image_name, is_unread_name, passed_over

log = logging.getLogger(__name__)
IMAGES = ("images", "train", "test", "train/images", "test/images")  # where the images of folder data lie


def parse_spec(spec: str) -> tuple[str, Path | None]:
    """Split `NAME:ROOT`, a bare dataset name, or a path whose format is recognised.

    A folder of images is `folder` data even when nothing in it can be read as points: the reader then names the file and
    the line that are wrong.

    >>> parse_spec("shanghaitech-a:data/ShanghaiTech")
    ('shanghaitech-a', PosixPath('data/ShanghaiTech'))
    """
    if len(parts_of(spec)) > 1:
        raise DataError(f"{spec}: several datasets; one is needed here (papm train and papm eval take several)")
    head, sep, tail = spec.partition(":")
    if sep and head in base.READERS:
        return head, Path(tail)
    if not sep and spec in base.READERS and not Path(spec).exists():
        return spec, None
    path = Path(spec).expanduser()
    if not path.exists():
        if sep and head in FORMATS and not any(name.startswith(head) for name in base.READERS):
            raise DataError(
                f"{spec}: '{head}' is a format, not a dataset; write folder:{tail} format={head}"
                f" (papm train and papm robustness: data.format={head})"
            )
        near = difflib.get_close_matches(spec, base.READERS, cutoff=0.7)
        if near or (sep and not head.startswith((".", "/", "~")) and len(head) > 1):
            raise unknown("dataset", head, base.READERS)
        raise DataError(
            f"{spec}: no such file or folder, and no dataset of that name; write NAME:PATH, or give a folder"
        )
    found = [r.name for r in base.readers().values() if r.recognise(path)]
    if len(found) > 1:
        raise DataError(f"{path}: holds several datasets; name the one you mean, such as {found[0]}:{path}")
    if not found and path.is_file():
        raise DataError(f"{path}: is a file; give the folder that holds it and the images")
    if not found and not any(p.is_dir() and find_images(p) for p in (path, *(path / d for d in IMAGES))):
        raise DataError(f"{path}: {_what_is_missing(path)}")
    return (found or ["folder"])[0], path


parse = parse_spec  # as the commands call it


def _what_is_missing(path: Path) -> str:
    """Why a folder without images in their usual places is no data."""
    for inner in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if find_images(inner):
            return f"no images in it or in {path / 'images'}, where they belong; {inner} has some"
    below = [Path(name) for _, _, names in os.walk(path) for name in names]
    if not any(is_image_name(p.name) for p in below):
        other = passed_over(p for p in below if is_unread_name(p.name))
        return f"there are no images in this folder, nor in those below it ({', '.join(KINDS)}){other and f'; {other}'}"
    return f"cannot tell what format this is; name it (NAME:{path}) or put a .txt of 'x y' lines beside each image"


def open_spec(spec: str, **options: Any) -> dict[str, Dataset]:
    """Open what a user wrote on the command line: `NAME:ROOT`, a name, a path, or several of them joined by +."""
    return _open(spec, options)


def names_of(spec: str) -> list[str]:
    """The names of the datasets that a user wrote; several where they are joined by +."""
    return [parse_spec(part)[0] for part in parts_of(spec)]


def _open(
    spec: str, options: Mapping[str, Any], on_item: Callable[[int, int], None] | None = None
) -> dict[str, Dataset]:
    found = [parse_spec(part) for part in parts_of(spec)]
    shares = share_options([name for name, _ in found], options)
    opened = [(name, base.open(name, root, on_item=on_item, **own)) for (name, root), own in zip(found, shares)]
    return join(opened) if len(opened) > 1 else opened[0][1]


def share_options(names: Sequence[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options that each of several datasets takes; one that none of them has is an error."""
    if len(names) == 1:
        return [dict(options)]
    if options.get("resize") not in (None, False, "none"):
        raise ConfigError("resize=usual is the rule of one dataset; give bounds, such as max_side=1920, for several")
    every = (*resize.OPTIONS, base.HOLDOUT)
    known = {name: (*base.option_names(base.reader(name)), *every) for name in names}
    for key in options:
        if not any(key in own for own in known.values()):
            raise unknown(f"option of the datasets {', '.join(names)}", key, {o for own in known.values() for o in own})
    return [{k: v for k, v in options.items() if k in known[name]} for name in names]


def reader_options(data: str, given: Sequence[str] | None) -> dict[str, Any]:
    """key=value pairs as options of the reader, or readers, of what a user wrote; checked."""
    chosen = parse_overrides(given or [])
    chosen |= chosen.pop("options", {})  # written data.key=value, as for papm train
    names = names_of(data)
    for name, own in zip(names, share_options(names, chosen)):
        base.check_options(base.reader(name), resize.take(name, own)[1])
    return chosen


def open_splits(
    data: str,
    options: Sequence[str] | None = None,
    split: str | None = None,
    on_item: Callable[[int, int], None] | None = None,
) -> dict[str, Dataset]:
    """Open a dataset, one split of it if asked; `on_item` hears (done, all) of its images."""
    found = _open(data, reader_options(data, options), on_item)
    if not found:
        raise DataError(f"{data}: there are no images in this dataset")
    if split is None:
        return found
    if split not in found:
        raise unknown("split", split, found)
    return {split: found[split]}


def open_split(data: str, split: str = "test", options: Mapping[str, Any] | None = None) -> Dataset:
    """The split asked for; data without splits is evaluated whole."""
    splits = open_spec(data, **(options or {}))
    if split not in splits and (set(splits) != {"all"} or split != "test"):
        raise unknown("split", split, splits)
    if split not in splits:
        log.warning(
            "this data has no split 'test': all images are counted, also those a model was trained on (papm data split)"
        )
    chosen = splits[split if split in splits else "all"]
    if said := complaint(chosen):
        log.warning("%s", said)
    return chosen
