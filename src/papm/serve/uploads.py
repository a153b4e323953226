"""Bodies on their way: how many at a time, how much memory they share, and how slow each may be.

An upload takes no place in the line of `papm.serve.desk` before it is whole. It brings STEP bytes every PATIENCE seconds and
ends within WHOLE. Where there is no room for another one, the slowest of the client that holds the most gives up its place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from papm.errors import PapmError
from papm.serve.desk import Busy, Closing

UPLOADS = 32  # at a time
STEP, PATIENCE = 65_536, 10.0  # bytes of an upload, and seconds in which they come: 6.5 kB/s
WHOLE = 300.0  # seconds of an upload
SLOW = 2.0  # seconds without STEP bytes, after which others come first


class TooLarge(PapmError):
    """An upload of more bytes than are taken."""


class TooSlow(PapmError):
    """An upload that is not waited for any longer."""


class Place:
    """One upload: who sends it, what has come, and when STEP bytes last had."""

    def __init__(self, address: str, now: float) -> None:
        self.address, self.begun, self.stepped = address, now, now
        self.size = self._stepped_at = 0
        self.whole = False  # all of it is here, and waits to be counted
        self.refusal: PapmError | None = None  # why it must end
        self.timer: asyncio.Timeout | None = None

    def grow(self, size: int, now: float) -> None:
        """More bytes have come."""
        self.size += size
        if self.size - self._stepped_at >= STEP:
            self._stepped_at, self.stepped = self.size, now

    def end(self, why: PapmError) -> None:
        """Wait for no more of it."""
        self.refusal = why
        if self.timer is not None:
            self.timer.reschedule(0.0)


class Uploads:
    """The uploads that are held in memory: those on their way, and those that wait or are counted."""

    def __init__(self, largest: int, room: int, most: int = UPLOADS) -> None:
        self.largest, self.room, self.most = largest, room, most  # bytes of one, bytes of all, number on their way
        self._held: list[Place] = []

    @contextmanager
    def place(self, address: str) -> Iterator[Place]:
        """Hold an upload of a client, until its answer is made."""
        now = asyncio.get_running_loop().time()
        place = Place(address, now)
        if len(self._arriving()) >= self.most:
            self._make_room(place, lambda p: 1)
        self._held.append(place)
        try:
            yield place
        finally:
            self._held.remove(place)

    def nowhere(self) -> Place:
        """The place of an upload that is read to its end and not kept."""
        return Place("", asyncio.get_running_loop().time())

    async def receive(self, place: Place, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The bytes of an upload, bounded in number and in time."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(min(place.stepped + PATIENCE, place.begun + WHOLE)) as place.timer:
                    chunk = None if place.refusal else await anext(chunks, None)
            except TimeoutError:
                place.refusal = place.refusal or TooSlow("the upload is too slow, and is not waited for")
            finally:
                place.timer = None
            if place.refusal:
                raise place.refusal
            if chunk is None:
                place.whole = True
                return
            place.grow(len(chunk), loop.time())
            if place.size > self.largest:
                raise TooLarge(f"the upload is larger than {self.largest / 1e6:.0f} MB, the most that is taken")
            if place in self._held and sum(p.size for p in self._held) > self.room:
                self._make_room(place, lambda p: p.size)
            yield chunk

    def close(self) -> None:
        """End those on their way: the server does."""
        for place in self._arriving():
            place.end(Closing())

    def _arriving(self) -> list[Place]:
        return [p for p in self._held if not (p.whole or p.refusal)]

    def _make_room(self, place: Place, weight: Callable[[Place], int]) -> None:
        """End an upload of the client that holds the most, if it is slow or one too many; otherwise raise Busy."""
        now = asyncio.get_running_loop().time()
        others = [p for p in self._arriving() if p is not place]
        held = Counter[str]()
        for p in others:
            held[p.address] += weight(p)

        def slow(p: Place) -> bool:
            return now - p.stepped > SLOW

        one = max(others, key=lambda p: (held[p.address], slow(p), weight(p), now - p.stepped), default=None)
        if one is None or not (slow(one) or held[one.address] > held[place.address] + weight(place)):
            raise Busy("busy: too many images are on their way; try again in a moment")
        one.end(TooSlow("others are waiting, and this upload is slow or one of many"))
