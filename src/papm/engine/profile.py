"""What the training images of a run were like, for the model to know: `papm.likeness` says what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.engine.build import middle
from papm.images import resize_image
from papm.likeness import GROUPS, Change, Features, Profile, Usual, Vector, appearance
from papm.predict.tiling import infer
from papm.predict.unlike import listening, packing, steadiness
from papm.text import Brief

Matrix = NDArray[np.float64]
FEWEST, MOST = 8, 100  # training images that are looked at
SIDE = 1024  # pixels: of larger images the middle
CHANGED = 24  # images that are changed
VIEW = 256  # side of what is changed
HARDLY = 0.2  # differences of appearance that are hardly seen
# An image of the training is beyond the limit of each of the groups in a fiftieth of all cases, seen from the others; the
# margin, larger for few images, is for those of tomorrow (docs/notebook/how-sure.md).
SHARE, MARGIN, FEW = 0.98, 1.25, 4.0
LEAST = 2.0  # standard deviations that are usual in the direction of any change
UNSTEADY = math.log(1.5)  # change of a count by halving the sides that is usual beside that of most images
AXES = 6  # of the features
FACTORS = (0.25, 1 / 3, 0.5, 1.5, 2.0, 3.0, 4.0)
BLURS, NOISES = (2.0, 4.0), (20.0, 40.0)


@dataclass(frozen=True, eq=False, repr=False)
class _Seen(Brief):
    """What was measured: a row an image."""

    appearance: Matrix
    features: Matrix | None
    packing: list[float]
    steady: list[float]


def profile_of(network: torch.nn.Module, dataset: Dataset, config: TrainConfig, precision: str) -> Profile | None:
    """The profile of up to 100 training images, evenly spread; None where there are too few to tell what is usual.

    They are seen at the sizes of the training: where that varied them, each at another factor.
    """
    if len(dataset) < FEWEST:
        return None
    chosen = np.linspace(0, len(dataset) - 1, min(len(dataset), MOST)).round().astype(int).tolist()
    was_training = network.training
    network.eval()
    try:
        seen = _look(network, dataset, chosen, config, precision)
    finally:
        network.train(was_training)
    if not np.isfinite(seen.appearance).all() or not np.isfinite(seen.packing).all():
        return None
    usual = {name: _usual(seen.appearance[:, part], HARDLY) for name, part in GROUPS.items()}
    features = None if seen.features is None else _features(seen.features)
    few = [middle(dataset[k].image.cpu(), SIDE) for k in chosen[:: max(1, len(chosen) // CHANGED)]]
    changes = _changes(few, seen.appearance[:, GROUPS["sharpness"]], usual["sharpness"])
    return Profile(usual, changes, features, max(seen.packing), len(chosen), _steady(seen.steady))


def _look(
    network: torch.nn.Module, dataset: Dataset, chosen: Sequence[int], config: TrainConfig, precision: str
) -> _Seen:
    rows, pooled, packed, steady = [], [], [], []
    for number, k in enumerate(chosen):
        image = _varied(middle(dataset[k].image.cpu(), SIDE), number, config)
        rows.append(appearance(image))
        with listening(network) as heard:
            output = infer(network, image, precision=precision)
        packed.append(packing(output))
        if (change := steadiness(network, image, output)) is not None:
            steady.append(change)
        if (mean := heard.mean()) is not None:
            pooled.append(mean)
    whole = len(pooled) == len(rows) and bool(np.isfinite(pooled).all())
    return _Seen(np.stack(rows), np.stack(pooled) if whole else None, packed, steady)


def _steady(changes: list[float]) -> tuple[float, float] | None:
    """From the lowest to the highest usual change of a count by halving the sides; None of a network that gives points."""
    if not changes:
        return None
    low, middle_, high = np.quantile(changes, (1 - SHARE, 0.5, SHARE)).tolist()
    below, above = (max(UNSTEADY, _margin(len(changes)) * far) for far in (middle_ - low, high - middle_))
    return middle_ - below, middle_ + above


def _varied(image: Tensor, number: int, config: TrainConfig) -> Tensor:
    """The image at a size that the training gives it: its own, or by factors spread evenly from the least to the largest."""
    if not config.resizes or (number * math.sqrt(2)) % 1 >= config.scale_share:
        return image
    share = (number * (math.sqrt(5) - 1) / 2) % 1
    factor = config.scale_min * (config.scale_max / config.scale_min) ** share
    return _scaled(image, factor)


def _scaled(image: Tensor, factor: float) -> Tensor:
    return resize_image(image, (max(1, round(image.shape[1] * factor)), max(1, round(image.shape[2] * factor))))


def _fit(rows: Matrix, hardly: float) -> tuple[Vector, Matrix]:
    """Mean and precision of rows [n, d], of which single ones may lie far off; shrunk towards independence where n is small."""
    centre = np.median(rows, 0)
    wide = 4.5 * np.quantile(np.abs(rows - centre), 0.75, axis=0) + 1e-9
    rows = np.clip(rows, centre - wide, centre + wide)
    covariance = np.atleast_2d(np.cov(rows.T))
    shrink = min(1.0, max(0.1, 5 / len(rows)))
    own = np.diag(np.diag(covariance))
    whole = (1 - shrink) * covariance + shrink * own + hardly**2 * np.eye(rows.shape[1])
    return rows.mean(0), np.asarray(np.linalg.inv(whole), np.float64)


def _usual(rows: Matrix, hardly: float) -> Usual:
    """The Gaussian of rows, and the limit that few of them exceed when the others say what is usual."""

    def gaussian(some: Matrix) -> Usual:
        mean, precision = _fit(some, hardly)
        return Usual(tuple(mean.tolist()), tuple(precision.ravel().tolist()), 1.0)

    alone = [gaussian(np.delete(rows, k, 0)).distance(rows[k]) for k in range(len(rows))]
    limit = float(np.quantile(alone, SHARE)) * _margin(len(rows))
    whole = gaussian(rows)
    return Usual(whole.mean, whole.precision, max(limit, 1e-3))


def _margin(images: int) -> float:
    return MARGIN + FEW / images


def _features(rows: Matrix) -> Features | None:
    """Axes of largest variance of standardised features [n, C], and the Gaussian along them."""
    mean, spread = rows.mean(0), rows.std(0)
    spread = spread + 0.05 * spread.max()
    if spread.max() <= 0:  # a network that is blind
        return None
    axes = np.linalg.svd((rows - mean) / spread, full_matrices=False)[2][: min(AXES, len(rows) // 4)]
    plain = (tuple(mean.tolist()), tuple(spread.tolist()), tuple(axes.ravel().tolist()))
    n = len(axes) + 1
    blank = Features(*plain, Usual((0.0,) * n, tuple(np.eye(n).ravel().tolist()), 1.0))
    return Features(*plain, _usual(np.stack([blank.along(row) for row in rows]), 0.1))


def _changes(images: Sequence[Tensor], rows: Matrix, usual: Usual) -> tuple[Change, ...]:
    """What each change adds to the detail of images, on average; how far the training images, [n, 5], go in its direction."""
    part = GROUPS["sharpness"]
    before = [appearance(image)[part] for image in images]

    def added(change: Callable[[Tensor], Tensor], side: float) -> tuple[float, ...]:
        after = [appearance(change(middle(image, max(16, round(side)))))[part] for image in images]
        return tuple(np.mean(np.subtract(after, before), 0).tolist())

    added_by: tuple[tuple[str, float, tuple[float, ...]], ...] = (
        *(("scale", f, added(partial(_scaled, factor=f), VIEW / f)) for f in FACTORS),
        *(("blur", s, added(partial(_blurred, sigma=s), VIEW)) for s in BLURS),
        *(("noise", s, added(partial(_noisy, sigma=s), VIEW)) for s in NOISES),
    )

    def with_limit(change: Change) -> Change:
        far = max(change.along(row, usual) for row in rows)
        return replace(change, limit=_margin(len(rows)) * max(far, LEAST))

    return tuple(with_limit(Change(*change, limit=1.0)) for change in added_by)


def _blurred(image: Tensor, sigma: float) -> Tensor:
    away = torch.arange(-round(3 * sigma), round(3 * sigma) + 1, dtype=torch.float32)
    kernel = torch.exp(-(away**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    padded = torch.nn.functional.pad(image[None].float(), [len(away) // 2] * 4, "replicate")
    rows = torch.nn.functional.conv2d(padded, kernel, groups=3)
    return torch.nn.functional.conv2d(rows, kernel.transpose(2, 3), groups=3)[0].round().clamp(0, 255).byte()


def _noisy(image: Tensor, sigma: float) -> Tensor:
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return (image.float() + sigma * noise).round().clamp(0, 255).byte()
