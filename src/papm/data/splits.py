"""Which images are trained on, which are watched during training, which give the final figure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from papm.data.base import Dataset
from papm.errors import ConfigError, DataError
from papm.text import n_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Splits:
    """`monitor` is evaluated during training: the validation images, or the test images when none are held out.

    `spare` are validation images that neither teach nor choose anything: they may say how far counts are off.
    """

    train: Dataset
    monitor: Dataset | None
    test: Dataset | None
    spare: Dataset | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images trained on, held out to choose the weights by, and tested on, where there are such."""
        held = None if self.monitor is self.test else self.monitor
        parts = {"train": self.train, "val": held, "test": self.test}
        return {name: len(part) for name, part in parts.items() if part is not None}


def draw(count: int, fraction: float, seed: int) -> tuple[NDArray[np.int64], int]:
    """A seeded order of `count` ≥ 2 things, and how many of the first of them are the share: at least one, never all."""
    order = np.random.default_rng([seed, 3]).permutation(count)
    return order, min(max(1, round(fraction * count)), count - 1)


def hold_out(dataset: Dataset, fraction: float, seed: int, tested: int = 0) -> tuple[Dataset, Dataset]:
    """A seeded split: (the rest, the held-out share), each with at least one image; `tested` are held out already.

    A share without an object would choose the weights that count nothing: one of its images gives way to the next that has
    some, where another such image is left to learn from.
    """
    if len(dataset) < 2:
        where, split = dataset.root or dataset.name or "the data", "training " if dataset.split == "train" else ""
        if tested:
            have = f"{n_of(len(dataset) + tested, 'image')}, {tested} for testing"
            raise DataError(f"{where}: has {have}; at least {tested + 2} are needed to hold one out for validation too")
        raise DataError(f"{where}: has {n_of(len(dataset), f'{split}image')}; at least two are needed to hold one out")
    order, k = draw(len(dataset), fraction, seed)
    has_objects = (j for j, index in enumerate(order.tolist()) if len(dataset[index].points))
    first, second = next(has_objects, 0), next(has_objects, None)
    if first >= k and second is not None:
        order[[k - 1, first]] = order[[first, k - 1]]
    return dataset.subset(sorted(order[k:].tolist()), "train"), dataset.subset(sorted(order[:k].tolist()), "val")


def training_only(available: Mapping[str, Dataset], share: object, name: str) -> dict[str, Dataset]:
    """The training images alone, a share of them as `test`: always the same share, whatever a run's seed."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share < 1:
        raise ConfigError(f"holdout is the share of the training images to test on, between 0 and 1, not '{share}'")
    if "train" not in available:
        raise DataError(f"{name}: has no training images to hold some out of, only {', '.join(available)}")
    rest, held = hold_out(available["train"], float(share), seed=0)
    return {"train": rest, "test": held.subset(range(len(held)), "test")}


def choose(available: Mapping[str, Dataset], select: str, fraction: float, seed: int) -> Splits:
    """Splits for a run. `select=val` never looks at the test images before the end; `last` watches them without choosing.

    Data without splits is cut by seed: a share for testing first, then, with `select=val`, one for validation.
    """
    if not available:
        raise DataError("the dataset is empty")
    parts = dict(available)
    if "train" not in parts:
        # Never from images that are meant for validation or testing.
        whole = parts.get("all") or next((d for name, d in parts.items() if name not in ("val", "test")), None)
        if whole is None:
            raise DataError(f"the data has no images to train on, only: {', '.join(parts)}")
        train, held = hold_out(whole, max(fraction, 0.2), seed)
        parts = {"train": train, "test": held.subset(range(len(held)), "test")}
    train, test = parts["train"], parts.get("test")
    tested = 0 if test is None or "train" in available else len(test)
    if not sum(len(s.points) for s in train.samples):
        raise DataError(f"{train.name}: none of the {n_of(len(train), 'training image')} has a point")
    if select == "val":
        val = parts.get("val")
        if val is None:
            train, val = hold_out(train, fraction, seed, tested)
        return Splits(train, val, test)
    spare = None if test is None else parts.get("val")
    if test is None:
        test = parts.get("val")
    elif spare is not None:
        how = "; data.trainval=true trains on them too" if "trainval" in parts else ""
        log.warning(
            "the %d images of 'val' teach and choose nothing: select=val would choose by them%s", len(spare), how
        )
    if test is None and select == "test":
        raise DataError("select=test needs a test split, and the data has none; use select=val")
    return Splits(train, test, test, spare)
