"""Synthetic scenes whose truth is known exactly: crowds, vehicles from above, cells.

    papm.data.open("synthetic", look="cells", train=100)          papm train synthetic:look=cells,train=100

Scene i of a split depends on (seed, split, i) and the options alone: a larger dataset begins with the smaller one, and
points are the same on every platform (pixels to one grey level). Points, sizes and boxes are computed when the dataset is
opened; pixels are painted when `sample.image` is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.data import resize
from papm.data.base import Dataset, Reader, register
from papm.data.scenes import LOOKS, Key, Layout, Style
from papm.data.scenes.canvas import to_bytes
from papm.errors import ConfigError, unknown
from papm.structures import Sample

ROOM = 12.0  # pixels an object must have on average: below, the smallest would no longer be seen
TOP = 0.75  # the crowd's ground is at least this part of the picture


@dataclass(frozen=True)
class SceneOptions:
    """What can be asked of synthetic scenes.

    >>> SceneOptions.parse("look=cells,size=96x128,count=5-30").size
    (96, 128)
    """

    look: str = "crowd"  # crowd | vehicles | cells
    train: int = 64  # number of images
    test: int = 32
    size: tuple[int, int] = (256, 256)  # (H, W); written 256 or 256x320
    count: tuple[int, int] = (20, 80)  # fewest and most objects of an image; written 50 or 20-80
    seed: int = 0
    extent: float = 0.0  # typical object size in pixels; 0 takes the look's own; shrinks where objects would not fit
    variation: float = 0.25  # spread of sizes: ± this fraction
    clutter: float = 0.5  # how much there is that resembles an object and is none: 0…2
    occlusion: float = 0.3  # 0 keeps objects apart, 1 lets them hide each other up to their centres
    noise: float = 0.02  # standard deviation of the pixel noise, on a scale of 0…1
    empty: float = 0.0  # fraction of images without any object

    def __post_init__(self) -> None:
        """Bring the values to their types and check them; every fault is one sentence."""
        convert = {"size": _size, "count": _range, "look": _look}
        for f in fields(self):
            kind = type(f.default)
            value = convert.get(f.name, _integer if kind is int else _number)(f.name, getattr(self, f.name))
            object.__setattr__(self, f.name, value)
        h, w = self.size
        low, high = self.count
        for name in ("train", "test", "seed"):
            if getattr(self, name) < 0:
                raise _wrong(name, "a whole number ≥ 0", getattr(self, name))
        if min(h, w) < 8:
            raise _wrong("size", "at least 8 pixels a side", f"{h}x{w}")
        if not 0 <= low <= high:
            raise _wrong("count", "a range like 20-80 of whole numbers ≥ 0", f"{low}-{high}")
        if high * ROOM > TOP * h * w:
            most = int(TOP * h * w / ROOM)
            raise ConfigError(f"synthetic: count {high} does not fit in {h}x{w} pixels; ask for at most {most}")
        for name, top in (("variation", 0.5), ("clutter", 2.0), ("occlusion", 1.0), ("noise", 0.5), ("empty", 1.0)):
            if not 0 <= getattr(self, name) <= top:
                raise _wrong(name, f"between 0 and {top:g}", getattr(self, name))
        if self.extent and not 2 <= self.extent <= min(h, w):
            raise _wrong("extent", "0, or from 2 pixels to the image's shorter side", self.extent)

    @classmethod
    def parse(cls, text: str, **more: Any) -> SceneOptions:
        """Options from 'key=value,key=value'; keyword arguments win over the text."""
        values: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            key, equals, value = (s.strip() for s in part.partition("="))
            if not equals or not value:
                raise ConfigError(
                    f"synthetic: '{part}' is not an option; write key=value, such as look=cells,train=100"
                )
            if key in values:
                raise ConfigError(f"synthetic: option '{key}' is given twice; give it once")
            values[key] = value
        values.update(more)
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("option of synthetic", key, [*known, *(resize.OPTIONS if key in more else ())])
        return cls(**values)

    @property
    def style(self) -> Style:
        """The options that the looks draw by."""
        extent = self.extent or min(LOOKS[self.look].extent, min(self.size) / 2)
        return Style(self.size, extent, self.variation, self.clutter, self.occlusion, self.noise)


def _wrong(name: str, want: str, value: object) -> ConfigError:
    return ConfigError(f"synthetic: option '{name}' must be {want}, not '{value}'")


def _integer(name: str, value: Any) -> int:
    try:
        number = int(value)
        if isinstance(value, bool) or float(value) != number:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, "a whole number", value) from None
    return number


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _wrong(name, "a number", value) from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise _wrong(name, "a finite number", value)
    return number


def _pair(name: str, value: Any, separator: str, want: str) -> tuple[int, int]:
    parts = value.lower().split(separator) if isinstance(value, str) else value
    if isinstance(parts, (int, float)) or (isinstance(parts, list) and len(parts) == 1):
        one = parts[0] if isinstance(parts, list) else parts
        parts = (one, one)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2:
        raise _wrong(name, want, value)
    try:
        return _integer(name, parts[0]), _integer(name, parts[1])
    except ConfigError:
        raise _wrong(name, want, value) from None


def _size(name: str, value: Any) -> tuple[int, int]:
    return _pair(name, value, "x", "a height and a width, such as 256x320")


def _range(name: str, value: Any) -> tuple[int, int]:
    return _pair(name, value, "-", "a range like 20-80 of whole numbers ≥ 0")


def _look(name: str, value: Any) -> str:
    if value not in LOOKS:
        raise unknown("look of synthetic", str(value), LOOKS)
    return str(value)


@dataclass(frozen=True, eq=False)
class Scene:
    """One scene: calling it paints it. Small and picklable, so that workers can paint.

    `render(objects=False)` paints the same scene without its objects.
    """

    look: str
    style: Style
    key: Key
    layout: Layout

    def __call__(self) -> Tensor:
        """Pixels, uint8 [3, H, W]."""
        return self.render()

    def render(self, objects: bool = True) -> Tensor:
        """Pixels, uint8 [3, H, W], with or without the objects."""
        canvas = LOOKS[self.look].paint(self.style, self.layout, self.key, objects)
        if self.style.noise:
            canvas = canvas + self.style.noise * self.key.rng("noise").standard_normal(canvas.shape, np.float32)
        return torch.from_numpy(to_bytes(canvas))


def scene_sample(options: SceneOptions, split: str, index: int) -> Sample:
    """Scene `index` of a split as a sample: its truth is laid out here, its pixels wait."""
    key = Key(options.seed, split, index)
    rng = key.rng("layout")
    low, high = options.count
    lucky = float(rng.random()) >= options.empty
    n = int(rng.integers(low, high + 1)) if lucky else 0
    style = options.style
    layout = LOOKS[options.look].layout(style, n, rng)
    return Sample(
        name=f"{options.look}-{split}-{index:05d}",
        source=Scene(options.look, style, key, layout),
        points=torch.from_numpy(layout.centres).to(torch.float32),
        size=options.size,
        boxes=torch.from_numpy(layout.boxes).to(torch.float32),
        extents=torch.from_numpy(layout.extents).to(torch.float32),
        meta={"look": options.look, "seed": options.seed},
    )


def make(root: str | Path | None = None, **options: Any) -> Mapping[str, Dataset]:
    """The synthetic dataset {"train", "test"}; `root` may hold options as 'key=value,key=value'."""
    text = "" if root is None or str(root) == "." else str(root)
    chosen = SceneOptions.parse(text, **options)
    sizes = {"train": chosen.train, "test": chosen.test}
    return {s: Dataset([scene_sample(chosen, s, i) for i in range(n)], "synthetic", s) for s, n in sizes.items() if n}


READER = register(
    Reader(
        name="synthetic",
        summary="scenes drawn on the spot with exactly known points: crowd, vehicles or cells",
        make=make,
        layout="no files: synthetic:look=crowd|vehicles|cells,train=64,test=32,size=256x256,count=20-80,seed=0",
    )
)
