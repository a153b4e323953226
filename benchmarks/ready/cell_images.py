"""The images that the ready model `cells` learns from: drawn cells of many sizes, and BBBC039 as cameras and people show it.

Specimens are thick: cells above and below the focus are blurred, and their light adds up where they overlap.
A camera's picture is nearly black, a picture in a talk is stretched to white, a negative is dark on bright, and a dye may have
any colour, pure blue too: a model that is used by strangers must know all of them. Each image is shown as it is and, in further
copies, at a contrast and in a colour of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from papm import data
from papm.data.base import Dataset
from papm.structures import Sample

# Typical size in pixels, fewest and most cells of a scene of 256 × 256, and how much there is besides: specks beside large
# cells look as small cells do, so that large ones have few.
DRAWN = ((9, 20, 250, 0.4), (14, 10, 160, 0.4), (20, 5, 90, 0.2), (30, 2, 40, 0.06), (42, 1, 20, 0.03))
# Cultures that have grown together: as many as fit, overlapping far more than the others do.
CROWDED = ((9, 150, 450, 0.2), (14, 80, 320, 0.2), (20, 50, 180, 0.1))
LITTLE, MUCH = 0.3, 0.7  # overlap of the two


@dataclass(frozen=True)
class Shown:
    """The pixels of a sample, their 0.5th and 99.8th percentile moved to two grey levels, the first above the second in a
    negative; with a `tint`, as light of that colour."""

    sample: Sample
    dark: float = 0.0
    light: float = 255.0
    tint: tuple[float, float, float] | None = None

    def __call__(self) -> Tensor:
        """Pixels, uint8 [3, H, W]."""
        image = self.sample.image.float()
        if self.tint is not None:
            image = image.amax(0, keepdim=True).expand(3, -1, -1)
        low, high = np.percentile(image.numpy(), (0.5, 99.8))
        share = (image - float(low)) / max(float(high - low), 1.0)
        shown = self.dark + share * (self.light - self.dark)
        if self.tint is not None:
            shown = shown * torch.tensor(self.tint)[:, None, None]
        return shown.clamp(0, 255).round().to(torch.uint8)


def at_contrast(sample: Sample, rng: np.random.Generator, negatives: float) -> Sample:
    """The sample at a contrast that is drawn: from nearly black to all grey levels, a share of them as negatives; of what glows
    on black half is in a colour that is drawn, some of them pure."""
    dark = rng.uniform(0, 60)
    light = min(255.0, dark + np.exp(rng.uniform(np.log(35), np.log(255))))
    glows = sample.image.float().median() < 80
    tint = None
    if rng.random() < negatives:
        dark, light = 255 - dark, 255 - light
    elif glows and rng.random() < 0.5:
        colour = np.clip(rng.uniform(-0.6, 1.0, 3), 0, 1)
        colour[rng.integers(3)] = 1.0
        red, green, blue = colour.tolist()
        tint = (red, green, blue)
    return dataclasses.replace(sample, name=f"{sample.name}~", source=Shown(sample, dark, light, tint))


@dataclass(frozen=True)
class Layers:
    """Scenes of cells that glow, one above the other, each out of focus by a blur of its own: their light adds up."""

    layers: tuple[Sample, ...]
    blurs: tuple[float, ...]  # standard deviation in pixels

    def __call__(self) -> Tensor:
        """Pixels, uint8 [3, H, W]."""
        light = 0.0
        for sample, blur in zip(self.layers, self.blurs):
            image = sample.image.float().numpy()
            background = np.median(image, axis=(1, 2), keepdims=True)
            light = light + gaussian_filter(image - background, (0, blur, blur))
        return torch.from_numpy(np.asarray(light + background)).clamp(0, 255).round().to(torch.uint8)


def thick(scenes: Sequence[Sample], rng: np.random.Generator, extent: float) -> list[Sample]:
    """Specimens of two or three layers, one of them in focus or nearly so, of scenes that glow; each scene is in one."""
    made, glowing = [], [s for s in scenes if s.image.float().median() < 80]
    while len(glowing) > 1:
        layers = tuple(glowing.pop() for _ in range(min(len(glowing), int(rng.integers(2, 4)))))
        blurs = (extent * rng.uniform(0, 0.08), *(extent * rng.uniform(0.06, 0.2) for _ in layers[1:]))
        made.append(_seen_through("thick", layers, blurs))
    return made


def out_of_focus(scenes: Sequence[Sample], rng: np.random.Generator, extent: float) -> list[Sample]:
    """The scenes that glow, each blurred as a whole."""
    glowing = [s for s in scenes if s.image.float().median() < 80]
    return [_seen_through("blurred", (s,), (extent * rng.uniform(0.04, 0.2),)) for s in glowing]


def _seen_through(how: str, layers: tuple[Sample, ...], blurs: tuple[float, ...]) -> Sample:
    points = torch.cat([s.points for s in layers])
    # Boxes and sizes of cells would have to be joined too; a density map does without.
    return Sample(f"{how}-{layers[0].name}", Layers(layers, blurs), points, layers[0].size)


def training(root: str, each: int, seed: int = 0) -> Dataset:
    """Drawn cells, `each` scenes of every size at two contrasts, thick and crowded specimens of as many again, and the training
    images of BBBC039 in `root`, half of them as they are."""
    rng = np.random.default_rng([seed, 11])
    samples = list(drawn("train", each, seed))
    samples += [at_contrast(s, rng, negatives=0.2) for s in samples]
    for extent, *_ in DRAWN:
        layers = thick(list(drawn("train", 3 * each, seed + 1000, extent)), rng, extent)
        samples += layers + [at_contrast(s, rng, negatives=0.0) for s in layers]
    for extent, *_ in CROWDED:
        scenes = list(drawn("train", each, seed + 2000, extent, CROWDED, MUCH))
        scenes += out_of_focus(scenes, rng, extent)
        samples += scenes + [at_contrast(s, rng, negatives=0.1) for s in scenes]
    real = list(data.open("bbbc039", root)["train"])
    # Six times each, or photographs would be a small share beside all that is drawn.
    samples += 3 * real + [at_contrast(s, rng, negatives=n) for n in (0.0, 0.0, 0.3) for s in real]
    return Dataset(samples, "drawn cells and bbbc039", "train")


def drawn(
    split: str,
    each: int,
    seed: int = 0,
    only: float | None = None,
    sizes: Sequence[tuple[float, int, int, float]] = DRAWN,
    overlap: float = LITTLE,
) -> Iterator[Sample]:
    """Scenes of every size, or `only` of one."""
    for extent, fewest, most, clutter in sizes:
        if only not in (None, extent):
            continue
        options = {"look": "cells", "extent": extent, "count": f"{fewest}-{most}", "empty": 0.04, "seed": seed + extent}
        more = {"variation": 0.4, "clutter": clutter, "noise": 0.03, "occlusion": overlap}
        found = data.open("synthetic", **options, **more, train=each, test=each)[split]
        for sample in found:
            yield dataclasses.replace(sample, name=f"{extent}px-{sample.name}")
