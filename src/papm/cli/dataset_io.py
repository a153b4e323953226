"""What the `papm data` commands share: opening what a user names, and writing it anew as a `folder` dataset.

A dataset is written under another name beside its place and renamed at the end, so that a command that fails or is
interrupted leaves nothing behind.
"""

from __future__ import annotations

import difflib
import inspect
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from papm.cli import ui
from papm.config import parse_overrides
from papm.data import Dataset, base, parse_spec, resize
from papm.data.writers import write_splits
from papm.data.writers.folder import BOX, file_format
from papm.errors import ConfigError, DataError, PapmError, unknown
from papm.files import write_json
from papm.images import find_images
from papm.structures import Sample
from papm.text import n_of

# The splits a folder dataset can hold; `all` is a folder without sub-folders.
WRITABLE = ("train", "val", "test", "all")


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
    """key=value pairs as options of a reader; an unknown key names the nearest, a number must be one."""
    chosen = parse_overrides(given or [])
    chosen |= chosen.pop("options", {})  # written data.key=value, as for papm train
    r = base.reader(name)
    parameters = inspect.signature(r.entries or r.make or dict).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return chosen
    known = {k: p for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    for key, value in chosen.items():
        if key in resize.OPTIONS:
            continue
        if key not in known:
            raise unknown(f"option of {name}", key, [*known, *resize.OPTIONS])
        if isinstance(known[key].default, float) and not isinstance(value, (int, float)):
            raise ConfigError(f"{key} is a number, not '{value}'")
    return chosen


def open_dataset(data: str, options: Sequence[str] | None = None, split: str | None = None) -> dict[str, Dataset]:
    """Open a dataset, one split of it if asked, and show how far it is."""
    with ui.items("reading annotations", 0) as advance:
        name, root = parse(data)
        found = base.open(name, root, on_item=advance.at, **reader_options(name, options))
    if not found:
        raise DataError(f"{data}: there are no images in this dataset")
    if split is None:
        return found
    if split not in found:
        raise unknown("split", split, found)
    return {split: found[split]}


def writable(found: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """The splits that sub-folders can hold: train, val and test, else the whole; folds overlap and are left out."""
    kept = {s: found[s] for s in WRITABLE[:3] if s in found} or {s: found[s] for s in ("all",) if s in found}
    if not kept:
        raise DataError(f"a folder dataset has the splits train, val and test, and this one has {', '.join(found)}")
    if left := [s for s in found if s not in kept]:
        ui.note(f"Left out, for a folder dataset cannot hold them: {', '.join(left)}")
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
) -> dict[str, dict[str, int]]:
    """Write splits as sub-folders of `out` in the format `to`; gives the images, points and outside points of each.

    `made`, how the points came about, is kept beside them as displaced.json. `box` is the side of the box around a point,
    where the format knows only boxes.
    """
    writer = file_format(to).writer
    left_out = inside_only or writer.inside_only
    lost: set[str] = set()
    done: dict[str, dict[str, int]] = {}
    with _staged(out) as draft, ui.items("writing", sum(map(len, datasets.values()))) as advance:

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
                advance()

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
        ui.note(
            f"Folder data{'' if to in ('txt', 'folder') else f' as {to}'} cannot hold {', '.join(sorted(lost))}: left out."
        )
    if outside := sum(n["outside"] for n in done.values()):
        ui.note(f"{n_of(outside, 'point')} outside the image, an error in folder data; --inside-only leaves them out.")
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
