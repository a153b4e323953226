"""One count at a time, a short line before it, and nobody else let in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from papm.errors import PapmError

T = TypeVar("T")
WAITING = 4  # images in the line
HOLD = 2.0  # seconds that others stand before it, first come first served: who asks again at once has no advantage
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
        self._seats = asyncio.Semaphore(1 + waiting)
        self._thread = ThreadPoolExecutor(1, "papm-count")
        self._closing = asyncio.Event()

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """A place in the line, within HOLD seconds, or Busy."""
        try:
            async with asyncio.timeout(HOLD):
                await self._seats.acquire()
        except TimeoutError:
            raise Busy(f"busy: {self.waiting} images are waiting already; try again in a moment") from None
        try:
            if self._closing.is_set():
                raise Closing
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
