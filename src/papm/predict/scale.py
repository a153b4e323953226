"""The size at which a model sees an image, and what to say where that makes objects smaller than any it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

from papm.data.resize import Resize, bounds
from papm.errors import ConfigError, DataError
from papm.images import max_pixels

# A tiny network that was trained at one scale misses a third of the objects at 1/1.5 of their size, more than half at 1/2
# (synthetic cells and crowds, 500 steps of hd-papm).
SMALLER = 1.5  # times that an image may be shrunk more than the most shrunken one of the training
UNKNOWN = 4.0  # times, where a checkpoint does not say how its training images were resized
LARGEST = 16.0  # times that an image may be enlarged


def check_scale(scale: float | None) -> float | None:
    """A factor for the sides of images, or None for the rule of the model."""
    if scale is not None and not 0 < scale <= LARGEST:
        raise ConfigError(f"scale is a factor for the sides of an image, above 0 and at most {LARGEST:g}, not {scale}")
    return scale


def seen_size(size: tuple[int, int], rule: Resize, scale: float | None = None, name: str = "image") -> tuple[int, int]:
    """(H, W) at which an image of `size` is counted: by the rule of the training, or by a factor given instead.

    >>> seen_size((8000, 10000), Resize(max_side=640)), seen_size((8000, 10000), Resize(max_side=640), 0.25)
    ((512, 640), (2000, 2500))
    """
    if scale is None:
        return rule.size(*size, name)
    height, width = (max(1, round(side * scale)) for side in size)
    if height * width > max(max_pixels(), size[0] * size[1]):
        raise DataError(
            f"an image of {size[1]}×{size[0]} at a scale of {scale:g} is {height * width / 1e6:.4g} megapixels, more than"
            f" the limit of {max_pixels() / 1e6:g}; use a smaller scale"
        )
    return height, width


def factor(size: tuple[int, int], seen: tuple[int, int]) -> float:
    """How much longer the long side is as seen: below 1 the image was shrunk."""
    return max(seen) / max(size)


def shrunk_too_much(size: tuple[int, int], rule: Resize, scales: Sequence[float]) -> str:
    """A sentence where the rule shrinks an image of `size` much more than those of the training, else nothing.

    `scales`: the least, the median and the largest factor of the training images; empty where nobody knows.

    >>> shrunk_too_much((800, 1000), Resize(max_side=640), (1.0, 1.0, 1.0))
    'shrunk 1.56 times before counting, from 1000×800 to 640×512, ...; its training images were not shrunk. Unless ...'
    >>> shrunk_too_much((800, 1000), Resize(max_side=640), (0.3, 0.5, 1.0))
    ''
    """
    seen = seen_size(size, rule)
    now = factor(size, seen)
    if now >= (min(1.0, scales[0] / SMALLER) if scales else 1 / UNKNOWN):
        return ""
    known = "how its training images were resized is not known"
    if scales:
        most = f"{1 / scales[0]:.3g}"
        known = f"its training images were {f'shrunk {most} times at most' if scales[0] < 1 and most != '1' else 'not shrunk'}"
    how = ", ".join(f"{k}={v}" for k, v in bounds(rule).items())
    return (
        f"shrunk {1 / now:.3g} times before counting, from {size[1]}×{size[0]} to {seen[1]}×{seen[0]}, because the model was"
        f" trained with {how}; {known}. Unless it shows the same scene at a higher resolution, its objects are now smaller"
        " than any the model knows, and many will be missed"
    )


def advice(scales: Sequence[float]) -> str:
    """What to do about it."""
    usual = f"{scales[1]:.3g}" if scales else "1"
    return f"to count at the scale of the training, in tiles: --scale {usual}, in Python Counter.load(…, scale={usual})"
