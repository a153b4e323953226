"""Starting the web application: the place it listens at, and the loop that answers."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from papm.errors import ConfigError
from papm.extras import require

if TYPE_CHECKING:
    import uvicorn

    from papm.serve.guard import Guard


def require_serve() -> None:
    """Refuse with what to install when a package is missing."""
    require("serve", "papm serve needs")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken, or a host that is not this machine, is one sentence."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is a number from 0 (any that is free) to 65535, not {port}")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(place[0]), port), family=family)
    except (OSError, UnicodeError) as error:
        code = error.errno if isinstance(error, OSError) else None
        if code == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is taken by another program; choose another with --port") from None
        if code == errno.EACCES:
            raise ConfigError(
                f"port {port} needs rights of an administrator; choose one above 1023 with --port"
            ) from None
        raise ConfigError(f"--host {host}: not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all") from None


def address(sock: socket.socket) -> str:
    """Where a browser on this machine finds a socket, as http://…"""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(sock: socket.socket) -> bool:
    """Whether only this machine reaches a socket."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def names(host: str) -> set[str]:
    """Names by which browsers may ask for this server: the one it was started with, and those of the machine."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return set()
    own = socket.gethostname()
    return {host, own, f"{own}.local"}  # .local is how phones and other machines of a network call it


def run(app: Guard, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until interrupted; `ready` is called once it does."""
    server(app, ready).run(sockets=[sock])


def server(app: Guard, ready: Callable[[], None]) -> uvicorn.Server:
    """What answers: `run` it with a socket, and set `should_exit` to end it."""
    import uvicorn

    from papm.serve.connections import Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,  # the command line has set up logging
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=128,
        timeout_graceful_shutdown=4,  # more than papm.serve.desk.LAST
    )
    return Server(config)
