"""One count at a time, a short line before it, and nobody else let in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from papm.errors import PapmError

T = TypeVar("T")
WAITING = 4  # each holds its upload in memory


class Busy(PapmError):
    """The line is full."""


class Desk:
    """A thread that works, and seats for those who wait for it.

    A seat is taken before an upload is read, so that uploads in memory are as many as there are seats.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self._seats = threading.BoundedSemaphore(1 + waiting)
        self._thread = ThreadPoolExecutor(1, "papm-count")

    @contextmanager
    def seat(self) -> Iterator[None]:
        """A place in the line, or Busy."""
        if not self._seats.acquire(blocking=False):
            raise Busy(f"busy: {self.waiting} images are waiting already; try again in a moment")
        try:
            yield
        finally:
            self._seats.release()

    async def work(self, job: Callable[[threading.Event], T], gone: Awaitable[Any]) -> T:
        """The result of `job`, done in the thread; its event is set when `gone` comes first, or when we are cancelled."""
        stop = threading.Event()
        done: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(self._thread, job, stop)
        watch: asyncio.Future[Any] = asyncio.ensure_future(gone)
        try:
            await asyncio.wait([done, watch], return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                stop.set()
            return await done
        finally:
            stop.set()
            watch.cancel()
