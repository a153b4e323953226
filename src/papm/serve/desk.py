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
LAST = 2.0  # seconds that a count under way has left when the server ends


class Busy(PapmError):
    """The line is full."""


class Closing(PapmError):
    """The server ends."""

    def __init__(self) -> None:
        super().__init__("papm serve is ending; try again when it is back")


class Desk:
    """A thread that works, and seats for those who wait for it."""

    def __init__(self, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self._seats = threading.BoundedSemaphore(1 + waiting)
        self._thread = ThreadPoolExecutor(1, "papm-count")
        self._closing = asyncio.Event()

    @contextmanager
    def seat(self) -> Iterator[None]:
        """A place in the line, or Busy."""
        if self._closing.is_set():
            raise Closing
        if not self._seats.acquire(blocking=False):
            raise Busy(f"busy: {self.waiting} images are waiting already; try again in a moment")
        try:
            yield
        finally:
            self._seats.release()

    def close(self) -> None:
        """Answer those who wait with Closing, at once; the count under way is given LAST seconds."""
        self._closing.set()

    async def work(self, job: Callable[[threading.Event], T], gone: Awaitable[Any]) -> T:
        """The result of `job`, done in the thread; its event is set when `gone` comes first, or when we are cancelled."""
        stop = threading.Event()
        begun = self._thread.submit(job, stop)
        done: asyncio.Future[T] = asyncio.wrap_future(begun)
        watch, closing = asyncio.ensure_future(gone), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([done, watch, closing], return_when=asyncio.FIRST_COMPLETED)
            if closing.done() and not done.done():
                if not begun.cancel():
                    await asyncio.wait([done], timeout=LAST)
                if begun.cancelled() or not done.done():
                    raise Closing
            if not done.done():
                stop.set()
            return await done
        finally:
            stop.set()
            watch.cancel()
            closing.cancel()
