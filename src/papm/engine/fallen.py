"""A run whose density maps have collapsed to zero, noticed while it trains: it may stay so for most or all of its steps.

Transport losses do that to trunks without norms where objects are few (docs/notebook/dying-trunk.md). Such a run restarts
with a lower learning rate for the trunk; others say what to try.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any, TypeVar

from torch import nn

from papm import methods, models
from papm.config import TrainConfig
from papm.engine.data import CountingData
from papm.engine.oom import release

log = logging.getLogger(__name__)

STEPS = 1000  # so many in a row
TRUNK = 1e-5  # a rate at which no trunk was seen to die (docs/notebook/dying-trunk.md)
SLOWER = 0.3  # of the rate, for a trunk that died: none was seen to die again
SHARE = 0.8  # an empty map is off by all objects of a crop; what has learned anything, by half of them or less
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)

T = TypeVar("T")


class EmptyMaps(Exception):
    """The density maps have collapsed; `slower` is the configuration to restart with."""

    def __init__(self, message: str, slower: TrainConfig) -> None:
        super().__init__(message)
        self.slower = slower


def with_live_maps(config: TrainConfig, attempt: Callable[[TrainConfig], T]) -> T:
    """A run with the configured rate of the trunk, or with a slower one where that leaves empty maps."""
    try:
        return attempt(config)
    except EmptyMaps as error:
        slower, said = error.slower, str(error)
    log.warning("%s; restarting with trunk_lr=%g", said, slower.trunk_lr)
    release()
    return attempt(slower)


def slower(config: TrainConfig) -> TrainConfig | None:
    """The configuration with a slower trunk where nobody chose its rate and that may help, else None.

    >>> slower(TrainConfig(method="al-papm", backbone="vgg19", lr=1e-4)).trunk_lr
    3e-05
    >>> slower(TrainConfig(method="al-papm", backbone="vgg19", trunk_lr=1e-4)), slower(TrainConfig(backbone="tiny"))
    (None, None)
    """
    if config.trunk_lr is not None or config.method not in methods.MASS or models.info(config.backbone).trunk is None:
        return None
    return dataclasses.replace(config, trunk_lr=float(f"{SLOWER * config.lr:.3g}"))


class Fallen:
    """`look(step, error)`: notices once that the counts of crops have long been off by nearly all that is in them.

    Raises `EmptyMaps` where a slower trunk may help, and warns where not: a trunk with norms does not die, processes that train
    together would have to agree, and what has learned for half of its steps is not thrown away.
    """

    def __init__(self, objects: float, config: TrainConfig, network: nn.Module | None = None) -> None:
        self.objects, self.first, self.half = objects, config.warmup, config.steps // 2
        norms = network is None or any(isinstance(m, NORMS) for m in network.modules())
        self.slower = None if norms or config.devices > 1 else slower(config)
        self.errors: deque[float] = deque(maxlen=max(2, STEPS // config.log_every))
        slow = models.info(config.backbone).trunk is None or config.rate_of_trunk <= TRUNK
        self.advice = f"lr={config.lr / 10:g}" if slow else f"trunk_lr={TRUNK:g}"
        self.said = not objects

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of metrics.csv: what was seen before the run was stopped."""
        self.errors.extend(row["count_error"] for row in rows if "count_error" in row and row["step"] > self.first)

    def look(self, step: int, error: float) -> None:
        """`error`: mean error of the counts of crops since the last look."""
        if self.said or step <= self.first:
            return
        self.errors.append(error)
        if len(self.errors) == self.errors.maxlen and nearly_all(list(self.errors), self.objects):
            self.said = True
            message = (
                f"step {step}: the maps are almost empty (for {STEPS} steps counts of crops have been off by "
                f"{fmean(self.errors):.1f}, and crops hold {self.objects:.1f} on average)"
            )
            if self.slower is not None and step <= self.half:
                raise EmptyMaps(message, self.slower)
            log.warning("%s; if that goes on, train again with %s", message, self.advice)


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
