"""What is tried: a valid input, a way to change it, and the calls that the command line makes with it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch

import papm
from fuzzing.mutate import mutate
from fuzzing.png import damaged
from papm import checkpoint, data, models
from papm.data.agreement import agreement
from papm.data.check import check
from papm.data.summary import summary
from papm.points import spacing


class Subject(Protocol):
    """One valid input in a folder of its own. `apply` changes it, `use` reads it as a command would, `restore` undoes."""

    def apply(self, rng: Random) -> str:
        """Change it; gives words for the change."""

    def use(self) -> Any:
        """What a command makes of it, to be compared with what it makes of the valid one; `PapmError` where it refuses."""

    def wrong(self, found: Any) -> bool:
        """Whether it ought to have been refused."""

    def restore(self) -> None:
        """As it was."""


@dataclass
class Files:
    """Files of a dataset, an image, a model: one of them is changed at a time."""

    files: Sequence[Path]
    read: Callable[
        [float], Any
    ]  # is given a number between 0 and 1, by which it may choose one of several ways to read
    also: Callable[[Any], bool] = lambda found: False  # other reasons why what was read is wrong

    def __post_init__(self) -> None:
        self.valid = {f: f.read_bytes() for f in self.files}
        self.changed, self.chance = self.files[0], 1.0

    def apply(self, rng: Random) -> str:
        self.changed, self.chance = rng.choice(self.files), rng.random()
        what, made = mutate(rng, self.valid[self.changed], self.changed.suffix.lower())
        self.changed.write_bytes(made)
        return f"{self.changed.name}: {what}"

    def use(self) -> Any:
        return self.read(self.chance)

    def wrong(self, found: Any) -> bool:
        return damaged(self.changed.read_bytes()) or self.also(found)

    def restore(self) -> None:
        self.changed.write_bytes(self.valid[self.changed])


def pixels(image: torch.Tensor) -> str:
    """A name for the pixels."""
    return hashlib.sha256(image.contiguous().numpy().tobytes()).hexdigest()[:16]


def read_dataset(name: str, root: Path, **options: Any) -> Any:
    """`papm data check`, `info` and `stats` and what a training reads, of a dataset; a failed check is no refusal."""
    check(name, root, **options)
    opened = data.open(name, root, **options)
    summary(opened)
    found = []
    for split, dataset in opened.items():
        if not dataset.hidden:
            agreement(dataset)
        for s in dataset:
            spacing(s.points_inside)
            roi = None if (region := s.roi) is None else int(region.sum())
            parts = [None if t is None else t.tolist() for t in (s.points, s.labels, s.boxes)]
            found.append((split, s.name, s.size, parts, roi, pixels(s.image)))
    return found


def recognised(root: Path) -> Any:
    """The same of a folder whose format is to be found out."""
    name, folder = data.parse_spec(str(root))
    return read_dataset(name, folder or root)


class Small:
    """A small network that is made once in a process: what `papm predict` does with an image."""

    counter: papm.Counter | None = None

    @classmethod
    def count(cls, path: Path) -> Any:
        if cls.counter is None:
            torch.manual_seed(0)
            cls.counter = papm.Counter(models.create("tiny", stride=8), checkpoint.ModelSpec("tiny"), "cpu")
        found = cls.counter.predict(path)
        return (found.count, found.size, None if found.points is None else len(found.points))


def not_finite(found: Any) -> bool:
    """Whether a count is no number."""
    return not math.isfinite(found[0])
