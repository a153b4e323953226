"""Images that a model neither learned from, nor was chosen by, nor was tested on: those that may calibrate it."""

from __future__ import annotations

import csv
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from papm import config as configuration
from papm.data.base import Dataset
from papm.data.spec import open_spec
from papm.data.splits import choose
from papm.errors import ConfigError, DataError, PapmError
from papm.files import unguarded
from papm.structures import Sample
from papm.text import n_of

log = logging.getLogger(__name__)


def require_unseen(
    dataset: Dataset, config: Mapping[str, Any], folder: Path | None = None, calibrated_on: Sequence[str] = ()
) -> None:
    """Refuse images that a model with these settings and this run folder has seen, and name one of them.

    They are known from the data of its settings, opened again, by file or content; where these are not here, from the names
    and counts in predictions.csv, which are those tested on.
    """
    if dataset.split == "test":
        raise ConfigError(
            "the split 'test' is for the final figure, which a calibration on it would flatter; use other images"
        )
    _refuse(
        "was calibrated on", [s.name for s in dataset if calibrated_on and key(s.published) in calibrated_on], dataset
    )
    used = _used(config)
    if used is not None:
        for how, samples in used.items():
            _refuse(how, _shared(dataset, samples), dataset)
        return
    tested = {} if folder is None else _tested(folder / "predictions.csv")
    both = [s.name for s in dataset if tested.get(s.name) == s.published.count]
    _refuse("was tested on (predictions.csv)", both, dataset)
    data = config.get("data") or "that it was trained on"
    log.warning("the data %s cannot be opened here: see to it that the model was not trained on these images", data)


def _refuse(how: str, names: list[str], dataset: Dataset) -> None:
    if names:
        of = f"{len(names)} of {n_of(len(dataset), 'image')}, such as {names[0]}"
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


def _shared(dataset: Dataset, used: Iterable[Sample]) -> list[str]:
    """Names of the images of a split that are among those used; only files of one size are compared."""
    alike: dict[int, list[Sample]] = {}
    for sample in used:
        alike.setdefault(_bytes(sample), []).append(sample)
    found = ((s.name, s.published, alike.get(_bytes(s.published), [])) for s in dataset)
    return [name for name, sample, others in found if others and key(sample) in map(key, others)]


def _bytes(sample: Sample) -> int:
    return -1 if sample.path is None else sample.path.stat().st_size


def key(sample: Sample) -> str:
    """What tells an image from others: the bytes of its file, or the name and the points of a drawn scene."""
    if sample.path is not None:
        return hashlib.sha256(sample.path.read_bytes()).hexdigest()[:16]
    return hashlib.sha256(f"{sample.name} {sample.size} {sample.points.tolist()}".encode()).hexdigest()[:16]


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
