"""How a model counts: what is stored with its weights, and all that prediction, evaluation and export ask about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from papm import imagenet
from papm.config import BACKGROUND_WEIGHT
from papm.data.resize import Resize, bounds
from papm.errors import ConfigError
from papm.untrusted import brief

LARGEST_FRAME = 1024  # px around an image: a file must not make us fill the memory
LARGEST_WINDOW = 16_384
MOST_CLASSES = 2000
DECODINGS = ("sum", "threshold", "expected")

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Inference:
    """The inference contract of a model.

    An image is resized (`resize`), normalised, (pixel/255 − `mean`)/`std`, and framed with `frame` pixels of the mean colour.
    Its count is the `sum` of a density map, or of proposals the number above the `threshold` ½ or the `expected` count, which
    undoes what `background` weighed in the loss. `scales`: the least, median and largest factor of resizing in training.
    `window`: the image is counted in windows of so many pixels, those that the network was trained with; 0: as a whole.

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

    def __post_init__(self) -> None:
        for name, most in (("frame", LARGEST_FRAME), ("window", LARGEST_WINDOW)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise ConfigError(f"{name} is a number of pixels from 0 to {most}, not {brief(value)}")
        if self.decode not in DECODINGS:
            raise ConfigError(f"decode is one of {', '.join(DECODINGS)}, not {brief(self.decode)}")
        if not _numbers((self.background,), 1) or self.background < 0:
            raise ConfigError(f"background is a weight of at least 0, not {brief(self.background)}")
        if not _numbers(self.mean, 3):
            raise ConfigError(f"mean is three numbers, not {brief(self.mean)}")
        if not _numbers(self.std, 3) or min(self.std) <= 0:
            raise ConfigError(f"std is three positive numbers, not {brief(self.std)}")
        named = isinstance(self.classes, tuple) and all(isinstance(c, str) for c in self.classes)
        if not named or len(self.classes) > MOST_CLASSES:
            raise ConfigError(f"classes are at most {MOST_CLASSES} names, not {brief(self.classes)}")
        if self.scales != () and (not _numbers(self.scales, 3) or min(self.scales) <= 0):
            raise ConfigError(f"scales are three factors, not {brief(self.scales)}")

    def to_mapping(self) -> dict[str, Any]:
        """Plain types, as stored."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {**plain, "resize": bounds(self.resize)}

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
        return Inference(**{**given, "resize": Resize(**rule)})


def _numbers(values: Any, length: int) -> bool:
    """Whether these are so many finite numbers."""
    return (
        isinstance(values, tuple)
        and len(values) == length
        and all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    )
