"""Writing a dataset anew as a `folder` dataset, in the format of any annotation tool.

A dataset is written under another name beside its place and renamed at the end, so that what fails or is interrupted leaves
nothing behind.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from papm.data.base import Dataset
from papm.data.splits import hold_out
from papm.data.writers import write_splits
from papm.data.writers.folder import BOX
from papm.data.writers.folder import file_format as file_format
from papm.errors import DataError, PapmError
from papm.files import write_json
from papm.structures import Sample
from papm.text import n_of

log = logging.getLogger(__name__)

# The splits a folder dataset can hold; `all` is a folder without sub-folders.
WRITABLE = ("train", "val", "test", "all")


def writable(found: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """The splits that sub-folders can hold: train, val and test, else the whole; folds overlap and are left out."""
    kept = {s: found[s] for s in WRITABLE[:3] if s in found} or {s: found[s] for s in ("all",) if s in found}
    if not kept:
        raise DataError(f"a folder dataset has the splits train, val and test, and this one has {', '.join(found)}")
    if left := [s for s in found if s not in kept]:
        log.warning("left out, for a folder dataset cannot hold them: %s", ", ".join(left))
    return kept


def check_out(out: Path) -> None:
    """Refuse to write where something is."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    if out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: not empty; choose a new folder")


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or vanishes; messages speak of `out`."""
    check_out(out)
    place = out.expanduser().resolve()
    draft = place.parent / f".{place.name}.{os.getpid()}.tmp"
    try:
        draft.mkdir(parents=True)
        yield draft
        if place.is_dir():  # empty, as checked above
            place.rmdir()
        draft.replace(place)
    except PapmError as error:
        raise DataError(str(error).replace(str(draft), str(out))) from None
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error}); nothing was left there") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write(
    datasets: Mapping[str, Dataset],
    out: Path,
    *,
    link: bool = False,
    inside_only: bool = False,
    made: Mapping[str, Any] | None = None,
    to: str = "txt",
    box: float = BOX,
    on_item: Callable[[], None] | None = None,
) -> dict[str, dict[str, int]]:
    """Write splits as sub-folders of `out` in the format `to`; gives the images, points and outside points of each.

    `made`, how the points came about, is kept beside them as displaced.json. `box` is the side of the box around a point,
    where the format knows only boxes.
    """
    writer = file_format(to).writer
    left_out = inside_only or writer.inside_only
    lost: set[str] = set()
    done: dict[str, dict[str, int]] = {}
    with _staged(out) as draft:

        def passing(dataset: Dataset) -> Iterator[Sample]:
            for sample in dataset:
                plain = _plain(sample, lost)
                if writer.boxes != "never":
                    plain = replace(plain, boxes=sample.boxes)
                if not writer.labels and plain.labels is not None:
                    lost.add("labels")
                    plain = replace(plain, labels=None)
                if writer.inside_only and not inside_only and not bool(plain.inside.all()):
                    lost.add("points outside their image")
                    plain = plain.keep(plain.inside)
                yield plain
                if on_item is not None:
                    on_item()

        splits = {split: passing(dataset) for split, dataset in datasets.items()}
        images = write_splits(
            splits, draft, "link" if link else True, overwrite=True, inside_only=inside_only, format=to, box=box
        )
        for split, dataset in datasets.items():
            inside, points = (sum(n) for n in zip(*((int(s.inside.sum()), s.count) for s in dataset)))
            outside = 0 if left_out else points - inside
            done[split] = {"images": images[split], "points": inside + outside, "outside": outside}
        if made is not None:
            write_json(draft / "displaced.json", made)
    if writer.boxes != "never":
        lost.discard("boxes")
    if lost:
        kind = "" if to in ("txt", "folder") else f" as {to}"
        log.warning("folder data%s cannot hold %s: left out", kind, ", ".join(sorted(lost)))
    if outside := sum(n["outside"] for n in done.values()):
        log.warning(
            "%s outside the image, an error in folder data; --inside-only leaves them out", n_of(outside, "point")
        )
    return done


def _plain(sample: Sample, lost: set[str]) -> Sample:
    """The sample without what the text format cannot hold; `lost` collects what that was."""
    words = {"boxes": "boxes", "extents": "object sizes"}
    lost.update(words[k] for k in words if getattr(sample, k) is not None)
    return replace(sample, boxes=None, extents=None)


def pool(datasets: Mapping[str, Dataset]) -> Dataset:
    """One dataset of all splits, each image once; names that different images share get the split's name in front.

    Splits may overlap: the folds of UCF_CC_50 are parts of its `all`, the `trainval` of TRANCOS is two others together.
    """
    once: dict[object, tuple[str, Sample]] = {}
    for split, dataset in datasets.items():
        for sample in dataset:
            path = sample.published.path
            once.setdefault(sample.published.source if path is None else path.resolve(), (split, sample))
    often = Counter(s.name.casefold() for _, s in once.values())
    samples = [
        replace(s, name=f"{split}_{s.name}") if often[s.name.casefold()] > 1 else s for split, s in once.values()
    ]
    return Dataset(samples, next(iter(datasets.values())).name, "all")


def divide(datasets: Mapping[str, Dataset], val: float, test: float, seed: int) -> dict[str, Dataset]:
    """All images divided at random anew: shares for validation and for testing, the rest for training."""
    parts = {"train": pool(datasets)}
    if test:
        parts["train"], parts["test"] = hold_out(parts["train"], test, seed)
    if val:
        parts["train"], parts["val"] = hold_out(parts["train"], val / (1 - test), seed)
    return {s: parts[s] for s in WRITABLE if s in parts}
