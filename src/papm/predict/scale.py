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


def seen_size(
    size: tuple[int, int], rule: Resize, scale: float | None = None, name: str = "image", scales: Sequence[float] = ()
) -> tuple[int, int]:
    """(H, W) at which an image of `size` is counted: by the rule of the training, or by a factor given instead.

    `scales`: the least, the median and the largest factor of the training images; empty where nobody knows. Where the rule
    would make objects smaller than any that the model knows, the least of these factors is taken in its place: the image is
    larger then, and is counted in tiles.

    >>> seen_size((8000, 10000), Resize(max_side=640)), seen_size((8000, 10000), Resize(max_side=640), 0.25)
    ((512, 640), (2000, 2500))
    >>> seen_size((8000, 10000), Resize(max_side=640), scales=(0.2, 0.5, 1.0))
    (1600, 2000)
    """
    if scale is None:
        ruled = rule.size(*size, name)
        if not scales or not _too_small(size, ruled, scales):
            return ruled
        scale = min(1.0, scales[0])
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


def _too_small(size: tuple[int, int], ruled: tuple[int, int], scales: Sequence[float]) -> bool:
    """Whether the rule shrinks an image much more than those of the training."""
    return factor(size, ruled) < (min(1.0, scales[0] / SMALLER) if scales else 1 / UNKNOWN)


def shrunk_too_much(size: tuple[int, int], rule: Resize, scales: Sequence[float]) -> str:
    """A sentence where the rule would shrink an image of `size` much more than those of the training, else nothing: what was
    done, and what to do where that was wrong.

    >>> shrunk_too_much((800, 1000), Resize(max_side=640), (1.0, 1.0, 1.0))
    'counted at 1000×800, in tiles where that is large: max_side=640 of the training would shrink it 1.56 times, and ...'
    >>> shrunk_too_much((800, 1000), Resize(max_side=640), (0.3, 0.5, 1.0))
    ''
    """
    ruled = rule.size(*size)
    if not _too_small(size, ruled, scales):
        return ""
    how = ", ".join(f"{k}={v}" for k, v in bounds(rule).items())
    times = f"{1 / factor(size, ruled):.3g} times"
    if not scales:
        return (
            f"shrunk {times} before counting, from {size[1]}×{size[0]} to {ruled[1]}×{ruled[0]}, because the model was trained"
            f" with {how}; how its training images were resized is not known: where objects are now smaller than in training,"
            " many will be missed; try --scale 1"
        )
    seen, most = seen_size(size, rule, scales=scales), f"{1 / scales[0]:.3g}"
    known = f"shrunk {most} times at most" if scales[0] < 1 and most != "1" else "not shrunk"
    return (
        f"counted at {seen[1]}×{seen[0]}, in tiles where that is large: {how} of the training would shrink it {times}, and its"
        f" training images were {known}; if it shows the same scene at a higher resolution,"
        f" try --scale {factor(size, ruled):.2g}"
    )
