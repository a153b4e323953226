"""What stands before every request: who may ask, how much may be sent, and the headers of every answer.

A page of another site can make a browser send requests here. It cannot read the answers, unless its name is made to point to
this machine (DNS rebinding): then the request carries that name as `Host`, which is why only known ones are answered.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # photographs, and pages of a papm that may be another tomorrow
}


class Guard:
    """An ASGI application before another one."""

    def __init__(
        self,
        app: Application,
        names: Collection[str] = (),
        max_bytes: int = 1 << 62,
        closing: Collection[Callable[[], None]] = (),
    ) -> None:
        self.app, self.max_bytes, self.closing = app, max_bytes, closing
        self.names = frozenset(n.lower().rstrip(".") for n in ("localhost", *names))

    def close(self) -> None:
        """The server ends: those who wait hear of it."""
        for end in self.closing:
            end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse, or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        status, why = self._refusal(scope)
        if not status:
            await self.app(scope, receive, guarded)
            return
        body = json.dumps({"error": why}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await guarded(
            {"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]}
        )
        await guarded({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str]:
        """The status and sentence a request is refused with; 0 when it is not."""
        found: dict[str, list[str]] = {}
        for key, value in scope["headers"]:
            found.setdefault(key.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = found.get("host", [])
        if len(hosts) != 1 or not self.knows(hosts[0]):
            return 403, "this name is not one of this server's; open it by its address, or start it with --host NAME"
        origin = found.get("origin", [])
        if origin and origin[0].partition("://")[2].lower() != hosts[0].lower():
            return 403, "requests from other sites are not answered"
        length = found.get("content-length", ["0"])[0]
        if not (length.isascii() and length.isdigit()) or int(length) > self.max_bytes:
            return 413, f"the upload is larger than {self.max_bytes / 1e6:.0f} MB, the most that is taken"
        return 0, ""

    def knows(self, host: str) -> bool:
        """Whether a `Host` header names this server: by an address, which no one can point elsewhere, or by a known name.

        >>> guard = Guard(None, ["lab-pc"])
        >>> [guard.knows(h) for h in ("127.0.0.1:8000", "[::1]:8000", "LAB-PC:80", "evil.example:8000", "")]
        [True, True, True, False, False]
        """
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@]+)(:\d{1,5})?", host)
        if not match:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True
