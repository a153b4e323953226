"""Trained networks that a figure compares, and the images it compares them on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from papm.config import SHARES, TrainConfig
from papm.data.base import Dataset, require_annotated
from papm.data.spec import open_spec, open_split
from papm.engine import run_folder, used_images
from papm.errors import ConfigError, DataError
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.report.examples import spread
from papm.structures import Sample
from papm.study.figures.base import Asked

RESAMPLES = 2000
NAMES = {
    "gaussian": "Gaussian", "hd-papm": "HD-PAPM", "dm-count": "DM-Count", "al-papm": "AL-PAPM", "p2pnet": "P2PNet",
    "p2p-papm": "P2P-PAPM", "bl": "BL", "gl": "GL", "gl-papm": "GL-PAPM", "noisecc": "NoiseCC", "kdmg": "KDMG",
}  # fmt: skip
PAIRS = (("gaussian", "hd-papm"), ("dm-count", "al-papm"), ("p2pnet", "p2p-papm"))  # base, and the same with PAPM


@dataclass(frozen=True)
class Trained:
    """A run: its settings, and its network, loaded when it is first used."""

    folder: Path
    config: TrainConfig
    device: str

    @cached_property
    def counter(self) -> Counter:
        """The trained network."""
        return Counter.load(self.folder, self.device)

    @property
    def name(self) -> str:
        """The method as papers write it."""
        return NAMES.get(self.config.method, self.config.method)

    def predict(self, samples: Iterable[Sample]) -> list[Prediction]:
        """What it finds in each image, in its region where it has one."""
        return [self.counter.predict(s.image, name=s.name, roi=s.roi) for s in samples]


def read_runs(asked: Asked) -> list[Trained]:
    """The run folders by method, then by the distance that dots were moved by, then by seed."""
    found = [Trained(folder, run_folder.stored_config(folder), asked.device) for folder in asked.runs]
    for run in found:
        if not (run.folder / "best.ckpt").exists():
            raise ConfigError(f"{run.folder}: this run has not finished; go on with papm train --resume")
    order = list(NAMES)
    return sorted(
        found,
        key=lambda r: (
            order.index(r.config.method) if r.config.method in order else len(order),
            r.config.method,
            r.config.noise,
            r.config.seed,
        ),
    )


def read_moved(asked: Asked) -> list[Trained]:
    """`read_runs` for a figure over distances: what is not moved alike is not one distance."""
    found = read_runs(asked)
    kinds = sorted({r.config.noise_kind for r in found if r.config.noise})
    if len(kinds) > 1 or set(kinds) & set(SHARES):
        raise ConfigError(
            f"the training dots of these runs are {' and '.join(kinds)}; this figure needs runs of one of ring, disc, gaussian"
        )
    _require_same_dots(found)
    return found


def _require_same_dots(runs: Sequence[Trained]) -> None:
    """Refuse runs whose dots differ before any is moved: `noise` does not say how far those are off."""
    first: dict[tuple[str, str, str], tuple[str, Path]] = {}
    for run in runs:
        data = run.config.data, repr(sorted(run.config.options.items()))
        for row in used_images.read(run.folder):
            dots, folder = first.setdefault((*data, row.image), (row.dots, run.folder))
            if dots != row.dots:
                raise ConfigError(
                    f"{folder} and {run.folder} have other dots on {row.image}; this figure moves the same dots:"
                    " leave one of them out"
                )


def images(asked: Asked, runs: Sequence[Trained]) -> Dataset:
    """The images asked for, or the test images of the runs, which must be the same for all."""
    if asked.data is not None:
        return require_annotated(open_split(asked.data, asked.split))
    if not runs:
        raise ConfigError("there is nothing to draw from: give run folders")
    named = {(r.config.data, repr(sorted(r.config.options.items()))) for r in runs}
    if len(named) > 1:
        raise ConfigError(
            f"the runs were trained on {len(named)} different data; say with --data which images to compare on"
        )
    config = runs[0].config
    found = open_spec(config.data, **config.options)
    if asked.split not in found:
        raise DataError(f"{config.data} has no split '{asked.split}', only {', '.join(found)}; give --data and --split")
    return require_annotated(found[asked.split])


def some(dataset: Dataset, count: int) -> list[Sample]:
    """So many images from the emptiest to the fullest, those without objects left out."""
    full = [s for s in dataset if s.count]
    if not full:
        raise DataError(f"{dataset.name}: no image of '{dataset.split}' has objects to show")
    return [full[k] for k in spread([s.count for s in full], count)]


def interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def resamples(n: int, seed: int = 0) -> NDArray[np.int64]:
    """Indices [RESAMPLES, n] of images drawn with replacement: the same for all networks, so that differences are paired."""
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
