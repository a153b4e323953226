"""A training whose maps have become empty, noticed while it runs: it may stay so for most of its steps, or for all."""

from __future__ import annotations

import logging
from collections import deque
from statistics import fmean

from papm import models
from papm.config import TrainConfig
from papm.engine.data import CountingData

log = logging.getLogger(__name__)

STEPS = 1000  # so many in a row
TRUNK = 1e-5  # a rate at which no trunk was seen to die (docs/notebook/dying-trunk.md)
SHARE = 0.8  # an empty map is off by all objects of a crop; what has learned anything, by half of them or less


class Fallen:
    """`look(step, error)`: says once that the counts of crops have long been off by nearly all that is in them."""

    def __init__(self, objects: float, config: TrainConfig) -> None:
        self.objects, self.first = objects, config.warmup
        self.errors: deque[float] = deque(maxlen=max(2, STEPS // config.log_every))
        slow = models.info(config.backbone).trunk is None or (config.trunk_lr or config.lr) <= TRUNK
        self.advice = f"lr={config.lr / 10:g}" if slow else f"trunk_lr={TRUNK:g}"
        self.said = not objects

    def look(self, step: int, error: float) -> None:
        """`error`: mean error of the counts of crops since the last look."""
        if self.said or step <= self.first:
            return
        self.errors.append(error)
        if len(self.errors) == self.errors.maxlen and nearly_all(list(self.errors), self.objects):
            self.said = True
            log.warning(
                "step %d: the maps are almost empty (for %d steps counts of crops have been off by %.1f, and crops hold %.1f "
                "on average); if that goes on, train again with %s",
                step, STEPS, fmean(self.errors), self.objects, self.advice,
            )  # fmt: skip


def nearly_all(errors: list[float], objects: float) -> bool:
    """Whether errors are those of empty maps, on average and in each fifth of them; single rows are of few crops.

    >>> nearly_all([9.0] * 20, 10.0), nearly_all([9.0, 4.0] * 10, 10.0), nearly_all([9.0] * 12 + [4.0] * 4 + [9.5] * 4, 10.0)
    (True, False, False)
    """
    size = max(1, len(errors) // 5)
    parts = [fmean(errors[i : i + size]) for i in range(0, len(errors), size)]
    return fmean(errors) > SHARE * objects and min(parts) > 0.7 * objects


def objects_of_a_crop(data: CountingData) -> float:
    """How many objects a crop of the training images holds on average, where all places are alike and sizes stay."""
    crop = data.config.crop
    shares = [min(1.0, crop / h) * min(1.0, crop / w) for h, w in data.sizes]
    return fmean(len(points) * share for points, share in zip(data.points, shares))
