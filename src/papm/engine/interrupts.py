"""Being asked to stop: by Ctrl-C, by a scheduler, by a terminal that was closed."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from papm.engine.module import CountingModule

log = logging.getLogger(__name__)

TOGETHER = 20  # steps between the moments at which several processes agree to stop


@contextmanager
def interruptible() -> Iterator[None]:
    """A request to end, or a closed terminal, is taken like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {kind: signal.signal(kind, interrupt) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class StopOnInterrupt(Callback):
    """The first Ctrl-C (or SIGTERM, as schedulers send, or a closed terminal) ends the run after the current step, or the
    current image of an evaluation, with a checkpoint; the second ends it at once.

    An evaluation that was not made, or not to its end, is made when the run goes on (`Keeper`).
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._before: dict[int, Any] = {}
        self._own: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listen(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listen(pl_module)  # one that came after the last step has no training before it

    def _listen(self, module: pl.LightningModule) -> None:
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        assert isinstance(module, CountingModule)
        hangup = getattr(signal, "SIGHUP", None)

        def handle(number: int, frame: Any) -> None:
            if self.interrupted:
                if number == hangup:  # a shell and the kernel may both tell
                    return
                raise KeyboardInterrupt
            self.interrupted = module.stopping = True
            log.warning("stopping after this step, or this image of an evaluation; a second time stops at once")

        self._own = handle
        kinds = [signal.SIGINT, signal.SIGTERM]
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # as it is under nohup
            kinds.append(hangup)
        self._before = {s: signal.signal(s, handle) for s in kinds}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.world_size == 1 or trainer.global_step % TOGETHER == 0 or trainer.global_step == trainer.max_steps:
            self._agree(trainer)
        if trainer.should_stop:
            trainer.limit_val_batches = 0

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._agree(trainer)

    def _agree(self, trainer: pl.Trainer) -> None:
        """All processes stop at the same step, or they wait for each other for ever."""
        if trainer.strategy.reduce_boolean_decision(self.interrupted, all=False):
            trainer.should_stop = True

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        for number, handler in self._before.items():
            # Lightning has put back what it found; what we found may be its own handler, which holds the trainer.
            if signal.getsignal(number) is self._own:
                signal.signal(number, handler)
        self._before, self._own = {}, None
