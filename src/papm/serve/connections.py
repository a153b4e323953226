"""Connections that nobody uses, or that somebody holds: each has its time, and there is always room for another one.

uvicorn waits for ever for the head of a request and for a client that does not read its answer, and past its limit of
connections it refuses everyone. Here a head has PATIENCE seconds, an answer moves on in each of them, and of too many
connections the one goes that the client with the most of them has left idle for longest.

Bodies are bounded in `papm.serve.uploads`. Imports uvicorn: only `papm.serve.server.run` imports this.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from papm.serve.guard import HEADERS
from papm.serve.uploads import PATIENCE, STEP

CONNECTIONS = 256  # at a time; a process may often have 1024 files open


class Connection(H11Protocol):
    """One client's HTTP/1.1, with a bound on its time."""

    _timer: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes of answers, when the timer was set
    since = 0.0  # when it was opened, or last answered

    @property
    def idle(self) -> bool:
        """Whether it waits for a request, or for the rest of its head."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def working(self) -> bool:
        """Whether a whole request waits for its answer."""
        return not (self.idle or self.cycle.more_body or self.cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_alone()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.idle
        super().data_received(data)
        if before and not self.idle:  # the head is whole
            self._leave_alone()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        if self.idle:
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, with the headers of every answer."""
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close"), *HEADERS.items()]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=msg.encode("ascii")),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way
            pass
        self.transport.close()

    def _watch(self) -> None:
        """Look again in PATIENCE seconds."""
        self._leave_alone()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(PATIENCE, self._look)

    def _leave_alone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent <= self._unsent - STEP or not (unsent or self.idle):  # an answer that moves on
            self._watch()
        elif unsent:
            self.transport.abort()
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Where there are too many connections, drop one that holds no whole request."""
        there = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
        if len(there) <= CONNECTIONS:
            return
        spare = [c for c in there if c is not self and not c.working] or [self]
        held = Counter(c.client and c.client[0] for c in spare)

        def spared(c: Connection) -> tuple[int, bool, float]:
            unused = c.idle and not c.transport.get_write_buffer_size()
            return held[c.client and c.client[0]], unused, -c.since

        max(spare, key=spared).transport.abort()
