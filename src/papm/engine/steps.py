"""A function that hears of the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

OnStep = Callable[[int, int, Mapping[str, float]], None]  # step, of how many, loss or evaluation


@dataclass
class Steps:
    """A `Watcher` that passes on what one function hears."""

    tell: OnStep
    total: int

    def on_start(self, sizes: dict[str, int]) -> None: ...

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
        """A step whose loss was logged."""
        self.tell(step, total, values)

    def on_evaluation(self, step: int, values: dict[str, float]) -> None:
        """An evaluation."""
        self.tell(step, self.total, values)
