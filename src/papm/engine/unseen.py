"""Images that a model neither learned from, nor was chosen by, nor was tested on: those that may calibrate it."""

from __future__ import annotations

import csv
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from papm import config as configuration
from papm.data.base import Dataset
from papm.data.spec import open_spec
from papm.data.splits import choose
from papm.errors import ConfigError, DataError, PapmError
from papm.files import unguarded
from papm.structures import Sample
from papm.text import n_of

log = logging.getLogger(__name__)


def require_unseen(dataset: Dataset, config: Mapping[str, Any], folder: Path | None = None) -> None:
    """Refuse images that a model with these settings and this run folder has seen, and name one of them.

    They are known from the data of its settings, opened again, by file or content; where these are not here, from the names
    and counts in predictions.csv, which are those tested on.
    """
    if dataset.split == "test":
        raise ConfigError(
            "the split 'test' is for the final figure, which a calibration on it would flatter; use other images"
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
        splits = choose(open_spec(run.data, **run.options), run.select, run.val_fraction, run.seed)
    except (PapmError, OSError):
        return None
    parts = {"was trained on": splits.train, "was chosen by": splits.monitor, "was tested on": splits.test}
    if splits.monitor is splits.test:
        del parts["was chosen by"]
    return {how: [s.published for s in part] for how, part in parts.items() if part is not None}


def _shared(dataset: Dataset, used: Iterable[Sample]) -> list[str]:
    """Names of the images of a split that are among those used: the same file or bytes, or the same drawn scene."""
    files: dict[int, list[Path]] = {}
    drawn: dict[str, Sample] = {}
    for sample in used:
        if sample.path is None:
            drawn[sample.name] = sample
        else:
            files.setdefault(sample.path.stat().st_size, []).append(sample.path)
    return [s.name for s in dataset if _among(s.published, files, drawn)]


def _among(sample: Sample, files: Mapping[int, list[Path]], drawn: Mapping[str, Sample]) -> bool:
    if sample.path is None:
        other = drawn.get(sample.name)
        return other is not None and other.size == sample.size and torch.equal(other.points, sample.points)
    alike = files.get(sample.path.stat().st_size, [])
    return bool(alike) and _digest(sample.path) in map(_digest, alike)


def _digest(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


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
