"""What the training images of a model were like, in a few numbers, and how unlike them another image is.

An image is described by its `appearance`: ten numbers of three groups,

    sharpness   5   energy of detail of 1, 2, 4, … 32 pixels: logarithms of the ratios of neighbours, free of contrast
    light       2   contrast, brightness
    colour      3   red and blue against green, saturation

and by the `features` of the network itself, its deepest map averaged over the image. Each group is a Gaussian over the training
images with a limit: a Mahalanobis distance that few of them exceed when the others say what is usual (`engine/profile.py`).
Last, by whether the count is `steady`: what a network knows it counts alike at half the size, as far as it learned sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from papm.errors import ConfigError
from papm.untrusted import are_numbers, brief

Vector = NDArray[np.float64]
PATCH, APART = 64, 128  # side of the patches that are looked at; pixels from one to the next
GRID = (3, 6)  # patches abreast, at least and at most
OCTAVES = 6  # details of 1 to 32 pixels: PATCH is halved so many times
QUIET = 1e-6  # least energy of detail: what rounding to 256 levels leaves
GROUPS = {"sharpness": slice(0, 5), "light": slice(5, 7), "colour": slice(7, 10)}
KINDS = ("scale", "blur", "noise")  # changes of the training images that a stored profile knows
MOST_CHANGES, MOST_CHANNELS, MOST_AXES = 32, 4096, 16


def appearance(image: Tensor) -> Vector:
    """The ten numbers of an image, uint8 [3, H, W], from patches spread over it; scaled so that 0.2 is hardly seen.

    >>> import torch
    >>> appearance(torch.full((3, 80, 100), 128, dtype=torch.uint8)).round(2).tolist()[5:]
    [-13.82, 2.01, 0.0, 0.0, -3.91]
    """
    patches = _patches(image.cpu().numpy()).astype(np.float32)
    grey = patches.sum(1)
    grey -= grey.mean()
    half = _halved(patches)
    red, green, blue = half.mean((0, 2, 3)).tolist()
    saturation = float((half.max(1) - half.min(1)).mean())
    power = [float(np.vdot(grey, grey)) / grey.size]
    for _ in range(OCTAVES):  # halving loses the energy of the finest detail
        grey = _halved(grey)
        power.append(float(np.vdot(grey, grey)) / grey.size)
    energy = np.log(np.maximum(-np.diff(power) / (3 * 255) ** 2, QUIET))
    rest = (energy.max(), 4 * (red + green + blue) / 765, (red - green) / 25.5, (blue - green) / 25.5)
    return np.array([*-np.diff(energy), *rest, math.log(saturation / 255 + 0.02)])


def _patches(image: Any) -> Any:
    """uint8 [P, 3, 64, 64] of [3, H, W]; a side that is shorter is mirrored."""
    more = [max(0, PATCH - n) for n in image.shape[1:]]
    if any(more):
        image = np.pad(image, ((0, 0), (0, more[0]), (0, more[1])), "symmetric")

    def starts(length: int) -> list[int]:
        number = min(max(length // APART, GRID[0]), GRID[1])
        return sorted({k * (length - PATCH) // (number - 1) for k in range(number)})

    corners = [(y, x) for y in starts(image.shape[1]) for x in starts(image.shape[2])]
    return np.stack([image[:, y : y + PATCH, x : x + PATCH] for y, x in corners])


def _halved(values: Any) -> Any:
    """Means of two by two."""
    rows = values[..., ::2, :] + values[..., 1::2, :]
    return (rows[..., ::2] + rows[..., 1::2]) * np.float32(0.25)


@dataclass(frozen=True)
class Usual:
    """A Gaussian over training images and how far from its mean is still usual.

    >>> usual = Usual((0.0, 1.0), (1.0, 0.0, 0.0, 4.0), 2.0)
    >>> usual.distance(np.array([1.0, 1.5])), usual.excess(np.array([1.0, 1.5]))
    (1.0, 0.5)
    """

    mean: tuple[float, ...]
    precision: tuple[float, ...]  # row by row
    limit: float

    def __post_init__(self) -> None:
        n = len(self.mean) if isinstance(self.mean, tuple) else 0
        if not 0 < n <= MOST_CHANNELS or not are_numbers(self.mean, n) or not are_numbers(self.precision, n * n):
            raise ConfigError(f"what is usual is a mean and a matrix of its length, not {brief(self.mean)}")
        if not are_numbers((self.limit,), 1) or self.limit <= 0:
            raise ConfigError(f"the limit of what is usual is a number above 0, not {brief(self.limit)}")

    @cached_property
    def arrays(self) -> tuple[Vector, Vector]:
        """The mean [d] and the precision [d, d]."""
        return np.array(self.mean), np.array(self.precision).reshape(len(self.mean), -1)

    def distance(self, values: Vector) -> float:
        """Mahalanobis distance, as a root mean square over the numbers; 0 where a damaged matrix makes it imaginary."""
        mean, matrix = self.arrays
        away = values - mean
        squared = away @ matrix @ away / len(away)
        return math.sqrt(max(float(squared), 0.0))

    def excess(self, values: Vector) -> float:
        """The distance in units of the limit: above 1 is unusual."""
        return self.distance(values) / self.limit


@dataclass(frozen=True)
class Change:
    """What enlarging (`scale` by a factor), `blur` or `noise` (of so many pixels, grey levels) adds to the detail of training
    images, and how much in that direction is still usual: a Gaussian that must hold every image at once is blind to what is
    unusual on one side only.
    """

    kind: str
    amount: float
    offset: tuple[float, ...]
    limit: float

    def __post_init__(self) -> None:
        good = self.kind in KINDS and are_numbers(self.offset, 5) and are_numbers((self.amount, self.limit), 2)
        if not good or min(self.amount, self.limit) <= 0:
            raise ConfigError(
                f"a change is a kind, an amount, five numbers and a limit, not {brief((self.kind, self.amount))}"
            )

    def along(self, values: Vector, usual: Usual) -> float:
        """How far detail lies in this direction, in standard deviations of the training images."""
        (mean, matrix), offset = usual.arrays, np.array(self.offset)
        weights = offset @ matrix
        length = float(weights @ offset)
        return float(weights @ (values - mean)) / math.sqrt(length) if length > 0 else 0.0


@dataclass(frozen=True)
class Features:
    """The averaged features of a network: standardised, along a few axes, and how much is left beside these axes."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    axes: tuple[float, ...]  # row by row, each as long as the mean
    usual: Usual

    def __post_init__(self) -> None:
        n = len(self.mean) if isinstance(self.mean, tuple) else 0
        good = (
            0 < n <= MOST_CHANNELS
            and are_numbers(self.mean, n)
            and are_numbers(self.spread, n)
            and min(self.spread) > 0
        )
        axes = len(self.usual.mean) - 1 if isinstance(self.usual, Usual) else 0
        if not good or not 0 < axes <= MOST_AXES or not are_numbers(self.axes, axes * n):
            raise ConfigError(f"features are a mean, a spread and axes of one length, not {brief(self.mean)}")

    @cached_property
    def arrays(self) -> tuple[Vector, Vector, Vector]:
        """The mean [C], the spread [C] and the axes, row by row."""
        return np.array(self.mean), np.array(self.spread), np.array(self.axes)

    def along(self, features: Vector) -> Vector:
        """Pooled features [C] along the axes, and the logarithm of what is left."""
        mean, spread, axes = self.arrays
        away = (features - mean) / spread
        along = axes.reshape(-1, len(away)) @ away
        left = math.sqrt(max(float(away @ away - along @ along), 0.0) / len(away))
        return np.array([*along, 2 * math.log(left + 0.1)])


@dataclass(frozen=True)
class Profile:
    """What the training images were like.

    `usual`: a Gaussian for each group of `appearance`. `changes`: what would change their sharpness, and how. `features`:
    of the network, where it has such. `packing`: objects in a square of 64 pixels where they are dense, the most of any
    training image; 0: not known. `images`: how many were looked at. `steady`: the lowest and highest usual logarithm of how
    the count changes when the sides of an image are halved (`predict/unlike.py`).
    """

    usual: Mapping[str, Usual]
    changes: tuple[Change, ...] = ()
    features: Features | None = None
    packing: float = 0.0
    images: int = 0
    steady: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.usual, Mapping) or not set(self.usual) <= set(GROUPS):
            raise ConfigError(f"a profile has {', '.join(GROUPS)}, not {brief(self.usual)}")
        for name, usual in self.usual.items():
            if not isinstance(usual, Usual) or len(usual.mean) != GROUPS[name].stop - GROUPS[name].start:
                raise ConfigError(f"the {name} of a profile is no Gaussian of its length: {brief(usual)}")
        if not isinstance(self.changes, tuple) or len(self.changes) > MOST_CHANGES:
            raise ConfigError(f"the changes of a profile are at most {MOST_CHANGES}, not {brief(self.changes)}")
        if not all(isinstance(c, Change) for c in self.changes) or (self.changes and "sharpness" not in self.usual):
            raise ConfigError(f"the changes of a profile are of its sharpness, not {brief(self.changes)}")
        if not isinstance(self.features, Features | None):
            raise ConfigError(f"the features of a profile are numbers, not {brief(self.features)}")
        if not are_numbers((self.packing, self.images), 2) or min(self.packing, self.images) < 0:
            raise ConfigError(f"the packing of a profile is a number of objects, not {brief(self.packing)}")
        if self.steady is not None and (not are_numbers(self.steady, 2) or self.steady[0] > self.steady[1]):
            raise ConfigError(f"what is steady lies between two numbers, not {brief(self.steady)}")

    def to_mapping(self) -> dict[str, Any]:
        """Plain types, as stored."""
        plain: dict[str, Any] = _plain({**asdict(self), "usual": {k: asdict(v) for k, v in self.usual.items()}})
        return plain

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> Profile:
        """What `to_mapping` stored."""
        try:
            known: dict[str, Any] = {k: _frozen(v) for k, v in values.items()}
            known["usual"] = {k: Usual(**v) for k, v in known["usual"].items()}
            known["changes"] = tuple(Change(**c) for c in known.get("changes", ()))
            if known.get("features") is not None:
                known["features"] = Features(**{**known["features"], "usual": Usual(**known["features"]["usual"])})
            return Profile(**known)
        except (TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"its profile has entries that this papm does not know, or lacks some: {brief(values)}"
            ) from None


def _plain(value: Any) -> Any:
    """Lists for tuples, numbers with five digits."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _frozen(v) for k, v in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
