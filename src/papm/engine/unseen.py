"""Images that a model neither learned from, nor was chosen by, nor was tested on: those that may calibrate it."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papm import config as configuration
from papm.data.base import Dataset
from papm.data.spec import open_spec
from papm.data.splits import choose
from papm.engine import used_images
from papm.engine.image_key import key
from papm.errors import ConfigError, DataError, PapmError
from papm.files import unguarded
from papm.structures import Sample
from papm.text import n_of

log = logging.getLogger(__name__)

STORED = {"train": "was trained on", "val": "was chosen by", "test": "was tested on"}


class Fingerprint(NamedTuple):
    """What tells the file of an image from others."""

    name: str
    bytes: int  # -1 where there is no file: a drawn scene
    key: str
    truth: float  # objects annotated


def require_unseen(
    dataset: Dataset, config: Mapping[str, Any], folder: Path | None = None, calibrated_on: Sequence[str] = ()
) -> None:
    """Refuse images that a model with these settings and this run folder has seen, and name one of them."""
    if dataset.split == "test":
        raise ConfigError(
            "the split 'test' is for the final figure, which a calibration on it would flatter; use other images"
        )
    images = [Fingerprint(s.name, _bytes(s.published), key(s), s.published.count) for s in dataset]
    if doubt := require_new(images, config, folder, calibrated_on):
        log.warning("%s", doubt)


def require_new(
    images: Sequence[Fingerprint],
    config: Mapping[str, Any],
    folder: Path | None = None,
    calibrated_on: Sequence[str] = (),
) -> str:
    """The same of images that are known by their fingerprints; gives what the user must see to, or nothing.

    They are known by content, from used_images.csv and the data of its settings, opened again; where there is neither, from
    the names and counts in predictions.csv, which are those tested on.
    """
    stored = [] if folder is None else used_images.read(folder)
    for split, how in STORED.items():
        keys = {row.key for row in stored if row.split == split}
        _refuse(how, [i.name for i in images if i.key in keys], images)
    _refuse("was calibrated on", [i.name for i in images if i.key in calibrated_on], images)
    used = _used(config)
    if used is not None:
        for how, samples in used.items():
            _refuse(how, _shared(images, samples), images)
    if stored or used is not None:
        return ""
    tested = {} if folder is None else _tested(folder / "predictions.csv")
    both = [i.name for i in images if i.truth in (tested.get(i.name), tested.get(Path(i.name).stem))]
    _refuse("was tested on (predictions.csv)", both, images)
    data = config.get("data") or "that it was trained on"
    return f"the data {data} cannot be opened here: see to it that the model was not trained on these images"


def _refuse(how: str, names: list[str], images: Sequence[Fingerprint]) -> None:
    if names:
        of = f"{len(names)} of {n_of(len(images), 'image')}, such as {names[0]}"
        raise DataError(f"{of}, are among those that the model {how}; calibrate on others, with checked dots")


def _used(config: Mapping[str, Any]) -> dict[str, list[Sample]] | None:
    """What the images of a run were used for; None where its data cannot be opened."""
    try:
        run = configuration.from_mapping({k: v for k, v in config.items() if k not in configuration.GONE})
        opened = open_spec(run.data, **run.options)
        if run.select != "val" and "test" in opened:
            opened.pop("val", None)  # not used then, and `choose` would say so
        splits = choose(opened, run.select, run.val_fraction, run.seed)
    except (PapmError, OSError):
        return None
    parts = {"was trained on": splits.train, "was chosen by": splits.monitor, "was tested on": splits.test}
    if splits.monitor is splits.test:
        del parts["was chosen by"]
    return {how: [s.published for s in part] for how, part in parts.items() if part is not None}


def _shared(images: Sequence[Fingerprint], used: Iterable[Sample]) -> list[str]:
    """Names of the images that are among those used; only files of one size are compared."""
    alike: dict[int, list[Sample]] = {}
    for sample in used:
        alike.setdefault(_bytes(sample), []).append(sample)
    return [i.name for i in images if any(key(other) == i.key for other in alike.get(i.bytes, []))]


def _bytes(sample: Sample) -> int:
    return -1 if sample.file is None else sample.file.stat().st_size


def _tested(path: Path) -> dict[str, float]:
    """Images of predictions.csv and their true counts; none where it cannot be read."""

    def rows() -> Iterator[tuple[str, float]]:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                yield unguarded(row["image"]), float(row["truth"])

    try:
        return dict(rows())
    except (OSError, KeyError, ValueError, TypeError, csv.Error):
        return {}
