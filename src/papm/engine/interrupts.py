"""Being asked to stop: by Ctrl-C, by a scheduler, by a terminal that was closed."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from papm.engine.ranks import Ranks

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


class Stop:
    """The first Ctrl-C (or SIGTERM, as schedulers send, or a closed terminal) ends the run after the current step, or the
    current image of an evaluation, with a checkpoint; the second ends it at once.

    An evaluation that was not made, or not to its end, is made when the run goes on.
    """

    def __init__(self, ranks: Ranks, steps: int) -> None:
        self.ranks, self.steps = ranks, steps
        self.heard = False  # by this process
        self._agreed = False

    def now(self) -> bool:
        """Whether all have agreed."""
        return self._agreed

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear signals; afterwards they do what they did before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        hangup = getattr(signal, "SIGHUP", None)
        kinds = [signal.SIGINT, signal.SIGTERM]
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # as it is under nohup
            kinds.append(hangup)

        def handle(number: int, frame: object) -> None:
            if self.heard:
                if number == hangup:  # a shell and the kernel may both tell
                    return
                raise KeyboardInterrupt
            self.heard = True
            log.warning("stopping after this step, or this image of an evaluation; a second time stops at once")

        before = {kind: signal.signal(kind, handle) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def after(self, step: int) -> None:
        """Several processes ask each other only now and then: it waits for all of them."""
        if self.ranks.world == 1 or step % TOGETHER == 0 or step == self.steps:
            self.agree()

    def agree(self) -> None:
        """All processes stop at the same step, or they wait for each other for ever."""
        self._agreed = self.ranks.any(self.heard)
