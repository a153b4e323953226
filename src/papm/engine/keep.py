"""The checkpoints of a run: last.ckpt to go on from, best.ckpt as its result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papm import checkpoint as checkpoints
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, PapmError
from papm.files import write_atomic

log = logging.getLogger(__name__)


class Keeper:
    """Writes both checkpoints, in the first process.

    On a full disk a run without any last.ckpt ends: there is nothing to go on from. Later the one before is kept, and training
    goes on. Best weights that found no room wait in memory, and last.ckpt waits for them: it knows which step was the best.
    """

    def __init__(self, folder: Path, spec: ModelSpec, weights: Callable[[], dict[str, Tensor]]) -> None:
        self.folder, self.spec, self.weights = folder, spec, weights
        self._saved = -1
        self._behind = False  # whether the latest write of last.ckpt failed
        self._waiting: tuple[int, dict[str, Tensor]] | None = None

    @property
    def last(self) -> Path:
        """Where a run goes on from."""
        return self.folder / "last.ckpt"

    def save(self, step: int, training: dict[str, Any], end: bool) -> None:
        """Write last.ckpt: the model as it is now, and `training`, what else is needed to go on.

        When that fails (a full disk) the previous one is kept, and training goes on, unless it is about to `end`.
        """
        if step == self._saved:
            return
        state = {checkpoints.PREFIX + k: v for k, v in self.weights().items()}
        values = {"papm": replace(self.spec, step=step).to_mapping(), "state_dict": state, "training": training}
        try:
            self._write_waiting()
            check_finite(values, self.last, step)
            write_last(self.last, values)
            self._saved, self._behind = step, False
        except PapmError as error:
            self._behind = True
            self._failed(error, end)

    def write_best(self, step: int) -> None:
        """The present (averaged) weights become the run's result."""
        self._waiting = step, self.weights()
        try:
            self._write_waiting()
        except PapmError as error:
            self._waiting = step, {k: v.detach().cpu().clone() for k, v in self.weights().items()}  # these will change
            self._failed(error)

    def settle(self, step: int) -> None:
        """At the end of a run: the best weights must be on disk; last.ckpt may be of an earlier step."""
        self._write_waiting()
        if self._behind:
            log.warning("%s: is of an earlier step; make room, and --resume brings it to step %d", self.last, step)

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            step, state = self._waiting
            check_finite(state, self.folder / "best.ckpt", step)
            checkpoints.save(self.folder / "best.ckpt", replace(self.spec, step=step), state)
            self._waiting = None

    def _failed(self, error: PapmError, end: bool = False) -> None:
        """Go on without a checkpoint where there is an earlier one, and the weights are good."""
        if end or isinstance(error, CheckpointError) or not self.last.exists():
            raise error
        log.warning("%s", error)


def write_last(path: Path, values: dict[str, Any]) -> None:
    """Beside its place, flushed to disk, renamed."""
    write_atomic(path, lambda stream: checkpoints.write(values, stream))


def check_finite(values: Any, path: Path, step: int) -> None:
    """Refuse what no training could go on from. Asked only where a checkpoint is written, which waits for the device anyway."""
    if all(bool(torch.isfinite(t).all()) for t in _tensors(values)):
        return
    before = path.with_name("last.ckpt").exists()
    advice = "start again"
    if before:
        advice = "--resume goes on from the last.ckpt before that; if it happens again, start a new run"
    raise CheckpointError(
        f"{path}: not written, for the weights, the optimiser's state or the loss are not finite at step {step}; {advice} "
        "with a smaller lr, or clip=1"
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested dictionaries and lists."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _tensors(value)
