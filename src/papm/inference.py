"""How a model counts: what is stored with its weights, and all that prediction, evaluation and export ask about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from papm import imagenet
from papm.config import BACKGROUND_WEIGHT
from papm.data.resize import Resize, bounds
from papm.errors import ConfigError
from papm.likeness import Profile
from papm.untrusted import are_numbers, brief, is_whole

LARGEST_FRAME = 1024  # px around an image: a file must not make us fill the memory
LARGEST_WINDOW = 16_384
MOST_CLASSES = 2000
DECODINGS = ("sum", "threshold", "expected")
MOST_CHECKED = 5000  # images that a calibration is fitted on
LARGEST_FACTOR = 100.0  # a model that is farther off than this counts something else

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Calibration:
    """A factor for the counts of a model, fitted on checked images: its 95 % interval, and the leave-one-out MAE of these
    images without it and with it.

    >>> Calibration(1.25, 1.1, 1.4, 12, 30.0, 18.5)
    Calibration(scale=1.25, low=1.1, high=1.4, images=12, mae_before=30.0, mae_after=18.5)
    """

    scale: float
    low: float
    high: float
    images: int
    mae_before: float
    mae_after: float

    def __post_init__(self) -> None:
        values, least = (self.scale, self.low, self.high), 1 / LARGEST_FACTOR
        if not are_numbers(values, 3) or not least <= self.scale <= LARGEST_FACTOR or not 0 < self.low <= self.high:
            raise ConfigError(f"a calibration is a factor from {least:g} to {LARGEST_FACTOR:g}, not {brief(values)}")
        if not is_whole(self.images):
            raise ConfigError(f"a calibration is made from a number of images, not {brief(self.images)}")
        if not are_numbers((self.mae_before, self.mae_after), 2) or min(self.mae_before, self.mae_after) < 0:
            raise ConfigError(f"the errors of a calibration are two numbers, not {brief(self.mae_after)}")


@dataclass(frozen=True)
class CountInterval:
    """An interval around every count, count ± `width`·√count, which held the truth in a share `level` of checked images.

    >>> CountInterval(0.5, 12).around(100.0), CountInterval(2.0, 12).around(0.25)
    ((95.0, 105.0), (0.0, 2.25))
    """

    width: float
    images: int
    level: float = 0.9

    def __post_init__(self) -> None:
        values = (self.width, self.images, self.level)
        if not are_numbers(values, 3) or self.width < 0 or not 0 < self.level < 1 or not is_whole(self.images):
            raise ConfigError(f"an interval is a width, a number of images and a level, not {brief(values)}")

    def around(self, count: float) -> tuple[float, float]:
        """The two ends; no count lies below 0, and a count below 1 is as uncertain as 1."""
        half = self.width * math.sqrt(max(count, 1.0))
        return max(0.0, count - half), count + half


NESTED: dict[str, type[Calibration | CountInterval]] = {"calibration": Calibration, "interval": CountInterval}
CALIBRATED = (*NESTED, "calibrated_on")  # what `papm calibrate` stores
ADDED = (*CALIBRATED, "profile")  # stored where there is such


@dataclass(frozen=True)
class Inference:
    """The inference contract of a model.

    An image is resized (`resize`), normalised, (pixel/255 − `mean`)/`std`, and framed with `frame` pixels of the mean colour.
    Its count is the `sum` of a density map, or of proposals the number above the `threshold` ½ or the `expected` count, which
    undoes what `background` weighed in the loss. `scales`: the least, median and largest factor of resizing in training.
    `window`: the image is counted in windows of so many pixels, those that the network was trained with; 0: as a whole.
    `calibration`: what counts and maps are multiplied by at the end; None: nothing. `calibrated_on`: what tells the images
    that it was fitted on from others. `interval`: how far a count may be off; None: not known. `profile`: what the training
    images were like; None: not known.

    >>> stored = Inference(frame=32, decode="expected", classes=("car", "bus")).to_mapping()
    >>> stored["frame"], Inference.from_mapping(stored).classes
    (32, ('car', 'bus'))
    """

    frame: int = 0
    resize: Resize = field(default_factory=Resize)
    decode: str = "sum"
    background: float = BACKGROUND_WEIGHT
    mean: Colour = imagenet.MEAN
    std: Colour = imagenet.STD
    classes: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    window: int = 0
    calibration: Calibration | None = None
    calibrated_on: tuple[str, ...] = ()
    interval: CountInterval | None = None
    profile: Profile | None = None

    @property
    def factor(self) -> float:
        """What counts are multiplied by."""
        return 1.0 if self.calibration is None else self.calibration.scale

    def __post_init__(self) -> None:
        for name, most in (("frame", LARGEST_FRAME), ("window", LARGEST_WINDOW)):
            value = getattr(self, name)
            if not is_whole(value, 0, most):
                raise ConfigError(f"{name} is a number of pixels from 0 to {most}, not {brief(value)}")
        if self.decode not in DECODINGS:
            raise ConfigError(f"decode is one of {', '.join(DECODINGS)}, not {brief(self.decode)}")
        if not are_numbers((self.background,), 1) or self.background < 0:
            raise ConfigError(f"background is a weight of at least 0, not {brief(self.background)}")
        if not are_numbers(self.mean, 3):
            raise ConfigError(f"mean is three numbers, not {brief(self.mean)}")
        if not are_numbers(self.std, 3) or min(self.std) <= 0:
            raise ConfigError(f"std is three positive numbers, not {brief(self.std)}")
        named = isinstance(self.classes, tuple) and all(isinstance(c, str) for c in self.classes)
        if not named or len(self.classes) > MOST_CLASSES:
            raise ConfigError(f"classes are at most {MOST_CLASSES} names, not {brief(self.classes)}")
        if self.scales != () and (not are_numbers(self.scales, 3) or min(self.scales) <= 0):
            raise ConfigError(f"scales are three factors, not {brief(self.scales)}")
        if not isinstance(self.calibration, Calibration | None):
            raise ConfigError(f"a calibration is a factor with its figures, not {brief(self.calibration)}")
        if not isinstance(self.interval, CountInterval | None):
            raise ConfigError(f"an interval is a width with its figures, not {brief(self.interval)}")
        if not isinstance(self.profile, Profile | None):
            raise ConfigError(f"a profile is what the training images were like, not {brief(self.profile)}")
        keys = self.calibrated_on
        if not isinstance(keys, tuple) or len(keys) > MOST_CHECKED or not all(isinstance(k, str) for k in keys):
            raise ConfigError(f"calibrated_on is at most {MOST_CHECKED} words, not {brief(keys)}")

    def to_mapping(self) -> dict[str, Any]:
        """Plain types, as stored; what came later only where there is such: earlier versions read a model without."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if k not in ADDED or v}
        nested = {k: asdict(values[k]) for k in NESTED if values[k] is not None}
        if self.profile is not None:
            nested["profile"] = self.profile.to_mapping()
        return {**plain, "resize": bounds(self.resize), **nested}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> Inference:
        """What `to_mapping` stored; an entry that is not known changes the count in a way that is not known: refused."""
        known = {f.name for f in fields(Inference)}
        for key in values:
            if key not in known:
                raise ConfigError(f"it counts with '{brief(key)}', which this papm does not know; upgrade to read it")
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        rule = given.get("resize", {})
        if not isinstance(rule, Mapping) or not set(rule) <= {f.name for f in fields(Resize)}:
            raise ConfigError(f"resize is bounds of the sides of an image, not {brief(rule)}")
        for name, kind in NESTED.items():
            found = given.get(name)
            if isinstance(found, Mapping):
                if set(found) != {f.name for f in fields(kind)}:
                    raise ConfigError(
                        f"its {name} has entries that this papm does not know, or lacks some: {brief(found)}"
                    )
                given[name] = kind(**found)
        if isinstance(given.get("profile"), Mapping):
            given["profile"] = Profile.from_mapping(given["profile"])
        return Inference(**{**given, "resize": Resize(**rule)})
