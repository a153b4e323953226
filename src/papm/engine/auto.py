"""What `auto` means: crop, batch and steps of a run, from the sizes of its images and the spacing of its objects.

A recipe (`papm.methods`) says what a network was found to learn well with. What is not set keeps to it where the data allow:

    crop    the recipe's; larger where fewer than four objects would stand side by side in it, at most twice; no larger than
            the images
    batch   as many crops as make the pixels of the recipe's step
    select  the last weights where fewer than ten images would be held out to choose by
    steps   until every pixel of the training images was seen so many times (`methods.length`), within bounds
    turn    crops in all eight orientations where the images have no up and down (`papm.data.orientation`)

What a run on a CPU starts from is in `papm.engine.head_start`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from papm import methods
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.orientation import has_up_and_down
from papm.neighbours import spacing
from papm.predict.predictor import pick_device

CHOSEN = ("crop", "batch", "steps", "select", "turn")  # what `auto` chooses
LOOKED_AT = 200  # images
ABREAST = 4  # objects side by side in a crop
ENOUGH = 10  # images to choose weights by
SMALLEST = 64  # side of what the loss sees of a crop


@dataclass(frozen=True)
class Seen:
    """What a choice depends on: pixels of all training images, a typical image's sides, the distance of neighbours."""

    pixels: int
    short: int
    long: int
    spacing: float | None = None
    oriented: bool = True  # whether the images have an up and a down


def look(dataset: Dataset, pixels: bool = True) -> Seen:
    """Sizes and distances of up to 200 images, evenly spread; with `pixels` also whether they have an up and a down."""
    few = [dataset[k] for k in range(0, len(dataset), max(1, len(dataset) // LOOKED_AT))]
    sizes = [s.size for s in few]
    apart = [float(spacing(p, 1).median()) for s in few if len(p := s.points_inside) > 1]
    return Seen(
        pixels=round(len(dataset) * statistics.fmean(h * w for h, w in sizes)),
        short=round(statistics.median(min(size) for size in sizes)),
        long=round(statistics.median(max(size) for size in sizes)),
        spacing=statistics.median(apart) if apart else None,
        oriented=not pixels or has_up_and_down(dataset),
    )


def select(
    config: TrainConfig, given: Collection[str], available: Mapping[str, Dataset]
) -> tuple[TrainConfig, list[str]]:
    """`select=last` where there are too few images to choose weights by: chance would choose, and training needs them all.

    >>> select(TrainConfig(), (), {"train": Dataset([], "mine", "train", None)})[0].select
    'last'
    """
    whole = available.get("train") or available.get("all")
    enough = "val" in available or (whole and len(whole) * config.val_fraction >= ENOUGH)
    if "select" in given or config.select != "val" or enough:
        return config, []
    return dataclasses.replace(config, select="last"), ["select=last: too few images to choose weights by"]


def choose(config: TrainConfig, given: Collection[str], seen: Seen) -> tuple[TrainConfig, list[str]]:
    """The configuration with crop, batch, steps and turn that fit the data where they are not `given`; a reason for each.

    >>> config, why = choose(TrainConfig(), {"batch"}, Seen(pixels=4_000_000, short=200, long=240, spacing=12.0))
    >>> config.crop, config.batch, config.steps
    (240, 8, 2000)
    >>> why[0]
    'crop=240: the images are 240 px long'
    """
    why: list[str] = []
    if "crop" not in given:
        config = _crop(config, seen, why)
    if "batch" not in given:
        asked = methods.recipe(config.method, config.backbone, config.network)
        usual = asked.get("crop", TrainConfig.crop) ** 2 * asked.get("batch", TrainConfig.batch)
        batch = max(2, round(usual / config.crop**2))
        if batch != config.batch:
            why.append(f"batch={batch}: as many pixels per step as usual")
            config = dataclasses.replace(config, batch=batch)
    if "steps" not in given:
        trained = config.weights is not None or config.init is not None
        further = trained and pick_device(config.device).type == "cpu"
        views, least, most = methods.length(config.backbone, config.network, further)
        a_step = config.batch * config.devices * (config.crop - 2 * config.margin) ** 2
        steps = math.ceil(views * seen.pixels / a_step / 500) * 500
        steps = min(max(steps, least), most)
        seen_times = steps * a_step / max(1, seen.pixels)
        seen_so = f"every pixel of the training images is seen about {seen_times:.0f} times"
        short = further and config.backbone in methods.ON_CPU
        why.append(f"steps={steps:,}: {'minutes on a CPU, in which ' if short else ''}{seen_so}")
        config = dataclasses.replace(config, steps=steps)
    if "turn" not in given and not seen.oriented:
        why.append("turn=true: the images have no up and down")
        config = dataclasses.replace(config, turn=True)
    return config, why


def _crop(config: TrainConfig, seen: Seen, why: list[str]) -> TrainConfig:
    margins = 2 * config.margin
    inner, reason = config.crop - margins, ""
    if seen.spacing and seen.spacing * ABREAST > inner:
        inner = min(2 * inner, _multiple(ABREAST * seen.spacing))
        reason = f"objects are {seen.spacing:.0f} px apart"
    if seen.long < inner:
        inner = max(SMALLEST, _multiple(seen.long))
        reason = f"the images are {seen.long} px long"
    if inner + margins == config.crop:
        return config
    why.append(f"crop={inner + margins}: {reason}")
    return dataclasses.replace(config, crop=inner + margins)


def _multiple(length: float) -> int:
    return math.ceil(length / 16) * 16
