"""Images at another size than their files: a rule for the size, and samples seen through it.

Published figures on large photographs are made at reduced size, each dataset's in its own way. A rule bounds the sides,

    max_side         the long side is at most this          min_side         the short side is at least this
    max_short_side   the short side is at most this         min_long_side    the long side is at least this

keeps the proportions, and where bounds contradict each other `max_side` wins. `resize=usual` takes the rule of `USUAL` for the
dataset, and numbers given beside it replace its own; by default nothing is resized. Points, boxes, sizes and regions of
interest go along; `Sample.original` is the sample of the files, which truth is taken from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.images import max_pixels, read_image, resize_image
from papm.structures import ImageSource, Sample
from papm.untrusted import brief

SMALLEST, LARGEST = 16, 100_000  # what a side may be bounded by, in pixels
ENLARGED = 4096  # what a side may be required to be: a small image must not be blown up until it fills the memory


@dataclass(frozen=True)
class Resize:
    """Bounds of the sides of an image, in pixels; 0 is no bound.

    >>> Resize(max_side=1920, min_long_side=1920).size(1000, 4000)
    (480, 1920)
    >>> Resize(min_side=512, max_short_side=2048).size(400, 500)
    (512, 640)
    """

    min_side: int = 0
    max_side: int = 0
    max_short_side: int = 0
    min_long_side: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            most = ENLARGED if name.startswith("min") else LARGEST
            if not whole or (value != 0 and not SMALLEST <= value <= most):
                raise ConfigError(f"{name} is a whole number of pixels from {SMALLEST} to {most}, not {brief(value)}")
        for low, high in (("min_side", "max_side"), ("min_side", "max_short_side"), ("min_long_side", "max_side")):
            if getattr(self, high) and getattr(self, low) > getattr(self, high):
                raise ConfigError(f"{low}={getattr(self, low)} is more than {high}={getattr(self, high)}")

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    def size(self, height: int, width: int, name: str = "image") -> tuple[int, int]:
        """(H, W) of an image of `height` × `width` under this rule; applying it again changes nothing.

        DataError where `max_pixels()` does not let a long and narrow image be enlarged so far.
        """
        short, long = sorted((height, width))
        scale = 1.0
        if self.max_short_side and short > self.max_short_side:
            scale = self.max_short_side / short
        if short * scale < self.min_side:
            scale = self.min_side / short
        if long * scale < self.min_long_side:
            scale = self.min_long_side / long
        if self.max_side and long * scale > self.max_side:
            scale = self.max_side / long
        size = max(1, round(height * scale)), max(1, round(width * scale))
        if scale > 1 and size[0] * size[1] > (limit := max_pixels()):
            raise DataError(
                f"{name}: {width}×{height} pixels would be enlarged to {size[1]}×{size[0]} (min_side, min_long_side),"
                f" more than the limit of {limit / 1e6:g} megapixels"
            )
        return size

    def apply(self, sample: Sample) -> Sample:
        """The sample at the size of this rule; itself when that is the size it has."""
        size = self.size(*sample.size, sample.name)
        return sample if size == sample.size else resized(sample, size)


OPTIONS = ("resize", *(f.name for f in fields(Resize)))

#: What published figures were made with; the source beside each. Other datasets: their own size.
USUAL: Mapping[str, Resize] = {
    "ucf-qnrf": Resize(min_side=512, max_short_side=2048),  # Bayesian loss, DM-Count
    "jhu-crowd": Resize(min_side=512, max_short_side=2048),  # MAN
    "nwpu": Resize(max_side=1920, min_long_side=1920),  # DM-Count, which also rounds sides to multiples of 16
    "dota": Resize(max_side=1024),  # nothing is published; keeps images of up to 20,000 pixels per side usable
}


def take(dataset: str, options: Mapping[str, Any]) -> tuple[Resize, dict[str, Any]]:
    """The rule that options ask for, and the options that are left for the reader."""
    kind = options.get("resize", "none")
    if kind not in ("none", "usual", None, False):
        raise ConfigError(f"resize is none or usual, not '{kind}'; bounds are max_side=…, min_side=…")
    bounds = asdict(USUAL.get(dataset, Resize()) if kind == "usual" else Resize())
    bounds |= {k: 0 if options[k] is None else options[k] for k in bounds if k in options}
    return Resize(**bounds), {k: v for k, v in options.items() if k not in OPTIONS}


def resolved(dataset: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `usual` spelt out, so that a model remembers its rule without its dataset.

    >>> resolved("ucf-qnrf", {"resize": "usual", "val": 0.1})
    {'val': 0.1, 'min_side': 512, 'max_short_side': 2048}
    """
    rule, rest = take(dataset, options)
    return {**rest, **bounds(rule)}


def bounds(rule: Resize) -> dict[str, int]:
    """A rule as options: the bounds it has."""
    return {k: v for k, v in asdict(rule).items() if v}


def scales(samples: Iterable[Sample]) -> tuple[float, float, float]:
    """The least, the median and the largest factor between the long sides of samples and those of their files."""
    each = [max(s.size) / max(s.published.size) for s in samples]
    return min(each), median(each), max(each)


def resized(sample: Sample, size: tuple[int, int]) -> Sample:
    """A sample at another size, decoded and resized when its image is asked for."""
    (height, width), (h, w) = sample.size, size
    factor = sample.points.new_tensor([w / width, h / height])
    inside = sample.inside
    points = sample.points * factor
    # Rounding must not carry a point across the far border.
    last = torch.nextafter(points.new_tensor([w, h]), points.new_zeros(2))
    points[inside] = points[inside].minimum(last)
    mean = math.sqrt(float(factor.prod()))
    return replace(
        sample,
        source=ResizedImage(sample.source, size),
        size=size,
        points=points,
        boxes=None if sample.boxes is None else sample.boxes * factor.repeat(2),
        extents=None if sample.extents is None else sample.extents * mean,
        roi_source=None if sample.roi_source is None else partial(resized_region, sample.roi_source, size),
        annotations={name: p * factor for name, p in sample.annotations.items()},
        original=sample.original or sample,
    )


@dataclass(frozen=True)
class ResizedImage:
    """An image source seen at another size."""

    source: ImageSource
    size: tuple[int, int]

    def __call__(self) -> Tensor:
        """uint8 [3, H, W]."""
        pixels = read_image(self.source) if isinstance(self.source, Path) else self.source()
        return resize_image(pixels, self.size)


def resized_region(source: Callable[[], Tensor] | Tensor, size: tuple[int, int]) -> Tensor:
    """A region of interest, or where it is read from, at another size: each pixel is what the region has at its centre."""
    region = source if isinstance(source, Tensor) else source()
    (height, width), (h, w) = region.shape, size
    row, column = (
        ((torch.arange(n, dtype=torch.float64) + 0.5) * (whole / n)).long().clamp(max=whole - 1)
        for n, whole in ((h, height), (w, width))
    )
    return region[row][:, column]
