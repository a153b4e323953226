"""The images that dots are moved on, and the folder that keeps results to them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papm import data
from papm.data import base
from papm.data.splits import Splits, choose
from papm.errors import ConfigError, DataError
from papm.files import read_object, write_json
from papm.points import spacing

MARK = "asked.json"  # what the results in a folder belong to
# Settings that change a result and are not among those by which a study tells results apart.
SILENT = ("noise_edge", "val_fraction", "init")


@dataclass(frozen=True)
class Data:
    """The images, as a study names them, and what their dots are like."""

    spec: str
    name: str
    folder: str | None  # or what follows `synthetic:`
    splits: Splits
    spacing: float | None  # px from a training dot to its nearest neighbour, the median
    fingerprint: str  # changes with any image's size or dot


def open_data(spec: str, options: Mapping[str, Any], select: str, seed: int, val_fraction: float = 0.1) -> Data:
    """The images of `NAME:FOLDER`, a name or a path; refused where nothing could be measured on them."""
    splits = data.open_spec(spec, **options)
    chosen = choose(splits, select, val_fraction, seed)
    if chosen.test is None:
        raise DataError(f"{spec}: has no test images to measure on; divide it with 'papm data split'")
    data.require_annotated(chosen.test)
    name, root = data.parse_spec(spec)
    drawn = str(root) if base.reader(name).make is not None else ""  # what is drawn has options in place of a folder
    near = [spacing(s.points_inside, 1) for s in chosen.train if len(s.points_inside) > 1]
    median = float(torch.cat(near).median()) if near else None
    folder = None if root is None else str(root)
    return Data(spec, name, folder, chosen, median or None, _fingerprint(splits, drawn))


def _fingerprint(splits: Mapping[str, data.Dataset], drawn: str) -> str:
    made = hashlib.sha256(drawn.encode())
    for split, dataset in sorted(splits.items()):
        for sample in dataset:
            made.update(f"{split}/{sample.name} {sample.size} {sample.count}\n".encode("utf-8", "replace"))
            made.update(np.ascontiguousarray(sample.points.numpy()).tobytes())
    return made.hexdigest()[:16]


def check_folder(out: Path, images: Data, settings: Mapping[str, Any]) -> None:
    """Refuse a folder that holds something else, or results on other images."""
    mark = out / MARK
    if not mark.exists():
        if out.exists() and (not out.is_dir() or (out / "results").exists() or (out / "runs").exists()):
            raise ConfigError(f"{out}: holds something else than a robustness study; choose another --out")
        return
    theirs = read_object(mark, "choose another --out")
    if {**theirs, "data": images.spec} != _belongs_to(images, settings):
        was, silent = theirs.get("data"), ", ".join(SILENT)
        raise ConfigError(f"{out}: holds results on {was} with other images, dots or {silent}; choose another --out")


def claim_folder(out: Path, images: Data, settings: Mapping[str, Any]) -> None:
    """Say in the folder what its results belong to."""
    write_json(out / MARK, _belongs_to(images, settings))


def _belongs_to(images: Data, settings: Mapping[str, Any]) -> dict[str, str]:
    silent = {k: str(settings[k]) for k in SILENT if k in settings}
    return {"data": images.spec, "images_and_dots": images.fingerprint, **silent}
