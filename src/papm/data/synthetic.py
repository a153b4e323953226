"""Synthetic scenes whose truth is known exactly: crowds, vehicles from above, cells.

    papm.data.open("synthetic", look="cells", train=100)          papm train synthetic:look=cells,train=100

Scene i of a split depends on (seed, split, i) and the options alone: a larger dataset begins with the smaller one, and
points are the same on every platform (pixels to one grey level). Points, sizes and boxes are computed when the dataset is
opened; pixels are painted when `sample.image` is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from papm.config import parse_overrides
from papm.data import resize
from papm.data.base import Dataset, Reader, register
from papm.data.scenes import LOOKS, Key, Layout, Style
from papm.data.scenes.canvas import to_bytes
from papm.errors import ConfigError, unknown
from papm.registry import NonNegative, Range, Whole, check_fields
from papm.structures import Sample

ROOM = 12.0  # pixels an object must have on average: below, the smallest would no longer be seen
TOP = 0.75  # the crowd's ground is at least this part of the picture
COUNTS = "a range like 20-80 of whole numbers ≥ 0"
UpToHalf = Annotated[float, Range("must be between 0 and 0.5", 0, 0.5)]
UpToOne = Annotated[float, Range("must be between 0 and 1", 0, 1)]
UpToTwo = Annotated[float, Range("must be between 0 and 2", 0, 2)]


@dataclass(frozen=True)
class SceneOptions:
    """What can be asked of synthetic scenes.

    >>> SceneOptions.parse("look=cells,size=96x128,count=5-30").size
    (96, 128)
    """

    look: str = "crowd"  # crowd | vehicles | cells
    train: Whole = 64  # number of images
    test: Whole = 32
    size: tuple[int, int] = (256, 256)  # (H, W); written 256 or 256x320
    count: tuple[int, int] = (20, 80)  # fewest and most objects of an image; written 50 or 20-80
    seed: Whole = 0
    extent: NonNegative = (
        0.0  # typical object size in pixels; 0 takes the look's own; shrinks where objects would not fit
    )
    variation: UpToHalf = 0.25  # spread of sizes: ± this fraction
    clutter: UpToTwo = 0.5  # how much there is that resembles an object and is none
    occlusion: UpToOne = 0.3  # 0 keeps objects apart, 1 lets them hide each other up to their centres
    noise: UpToHalf = 0.02  # standard deviation of the pixel noise, on a scale of 0…1
    empty: UpToOne = 0.0  # fraction of images without any object

    def __post_init__(self) -> None:
        """Read size and count as they may be written, and check all; every fault is one sentence."""
        if self.look not in LOOKS:
            raise unknown("look of synthetic", str(self.look), LOOKS)
        object.__setattr__(self, "size", _pair("size", self.size, "x", "a height and a width, such as 256x320"))
        object.__setattr__(self, "count", _pair("count", self.count, "-", COUNTS))
        check_fields("synthetic", self)
        (h, w), (low, high) = self.size, self.count
        if min(h, w) < 8:
            raise _wrong("size", "at least 8 pixels per side", f"{h}x{w}")
        if not 0 <= low <= high:
            raise _wrong("count", COUNTS, f"{low}-{high}")
        if high * ROOM > TOP * h * w:
            most = int(TOP * h * w / ROOM)
            raise ConfigError(f"synthetic: count {high} does not fit in {h}x{w} pixels; ask for at most {most}")
        if self.extent and not 2 <= self.extent <= min(h, w):
            raise _wrong("extent", "0, or from 2 pixels to the image's shorter side", self.extent)

    @classmethod
    def parse(cls, text: str, **more: Any) -> SceneOptions:
        """Options from 'key=value,key=value'; keyword arguments win over the text."""
        parts = [p.strip() for p in text.split(",") if p.strip()]
        values = parse_overrides(parts)
        if len(values) < len(parts):
            raise ConfigError(f"synthetic: an option is given twice in '{text}'; give it once")
        known = [f.name for f in fields(cls)]
        for key in values | more:
            if key not in known:
                raise unknown("option of synthetic", key, [*known, *(resize.OPTIONS if key in more else ())])
        return cls(**(values | more))

    @property
    def style(self) -> Style:
        """The options that the looks draw by."""
        extent = self.extent or min(LOOKS[self.look].extent, min(self.size) / 2)
        return Style(self.size, extent, self.variation, self.clutter, self.occlusion, self.noise)


def _wrong(name: str, want: str, value: object) -> ConfigError:
    return ConfigError(f"{name} of synthetic must be {want}, not '{value}'")


def _pair(name: str, value: Any, separator: str, want: str) -> tuple[int, int]:
    """Two whole numbers: as they are, or written with a separator; one stands for both."""
    parts = list(value) if isinstance(value, (tuple, list)) else str(value).lower().split(separator)
    try:
        first, second = (int(str(part)) for part in (parts * 2 if len(parts) == 1 else parts))
    except ValueError:
        raise _wrong(name, want, value) from None
    return first, second


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
