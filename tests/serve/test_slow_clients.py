"""Clients that are slow, idle or many, before a real server: each has its time, and none of them holds up another."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import papm
from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.serve import uploads
from papm.serve.app import application
from papm.serve.blank import Blank
from papm.serve.desk import Busy, Closing, Desk
from papm.serve.guard import HEADERS
from papm.serve.server import listen, server
from papm.serve.uploads import STEP, TooSlow, Uploads

pytest.importorskip("python_multipart")
pytest.importorskip("uvicorn")
connections = pytest.importorskip("papm.serve.connections")

Answer = tuple[int, dict[str, str], Any]


def png(h: int = 20, w: int = 30) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (w, h)).save(stream, "PNG")
    return stream.getvalue()


def form(image: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    return head + image + b"\r\n--x--\r\n"


def head_of(length: int) -> bytes:
    lines = ("POST /api/count HTTP/1.1", "Host: 127.0.0.1", "Content-Type: multipart/form-data; boundary=x")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


def post(port: int, image: bytes, timeout: float = 20) -> Answer:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        made.request("POST", "/api/count", form(image), {"Content-Type": "multipart/form-data; boundary=x"})
        response = made.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, json.load(response)
    finally:
        made.close()


def ended(sock: socket.socket, seconds: float = 10) -> bytes:
    """What comes until the server closes a connection."""
    sock.settimeout(seconds)
    said = b""
    try:
        while more := sock.recv(65536):
            said += more
    except ConnectionResetError:
        pass
    return said


class Slow(Blank):
    """A model that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def predict(self, image: Any, **options: Any) -> Any:
        time.sleep(self.seconds)
        return super().predict(image, **options)


@pytest.fixture
def serving() -> Iterator[Callable[..., Any]]:
    """Start a server in a thread: its port, and what ends it."""
    with ExitStack() as stack:

        def start(counter: Blank | None = None, desk: Desk | None = None) -> tuple[int, Any]:
            sock, ready = stack.enter_context(listen("127.0.0.1", 0)), threading.Event()
            made = server(application(counter or Blank(), {}, desk=desk), ready.set)
            thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]}, daemon=True)
            thread.start()
            stack.callback(thread.join, 20)
            stack.callback(setattr, made, "should_exit", True)
            assert ready.wait(20)
            return sock.getsockname()[1], made

        yield start


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    for module in (uploads, connections):
        monkeypatch.setattr(module, "PATIENCE", 0.4)
    return 0.4


# --- bodies ------------------------------------------------------------------------------------------------------------


def test_an_upload_that_never_pauses_and_never_ends_is_ended(serving: Any, impatient: float) -> None:
    port, _ = serving()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(head_of(1_000_000) + form(b"")[:60])
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began + 10:
                sock.sendall(b"a")
                time.sleep(0.02)
        assert b" 408 " in ended(sock)[:20] and time.monotonic() < began + 5


def test_slow_uploads_take_no_place_in_the_line(serving: Any) -> None:
    port, _ = serving(desk=Desk(waiting=0))
    with ExitStack() as stack:
        for _ in range(5):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(head_of(1_000_000) + form(b"")[:60])
        time.sleep(0.1)
        assert [post(port, png())[0] for _ in range(5)] == [200] * 5


class Sender:
    """A client that sends when told to."""

    def __init__(self, all_of_them: Uploads, address: str) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._run(all_of_them, address))

    async def _run(self, all_of_them: Uploads, address: str) -> int:
        async def chunks() -> Any:
            while (chunk := await self.queue.get()) is not None:
                yield chunk

        with all_of_them.place(address) as place:
            async for _ in all_of_them.receive(place, chunks()):
                pass
            return place.size

    async def send(self, *chunks: bytes | None) -> None:
        for chunk in chunks:
            self.queue.put_nowait(chunk)
        await asyncio.sleep(0.01)

    async def raised(self) -> BaseException | None:
        await asyncio.sleep(0.01)
        return self.task.exception() if self.task.done() else None


def test_the_slowest_makes_room_and_the_quick_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SLOW", 0.05)

    async def run() -> None:
        them = Uploads(10 * STEP, 100 * STEP, most=2)
        slow, quick = Sender(them, "a"), Sender(them, "a")
        await asyncio.sleep(0.1)
        await quick.send(bytes(STEP))
        third = Sender(them, "a")
        assert isinstance(await slow.raised(), TooSlow)
        fourth = Sender(them, "a")  # nobody is slow now
        assert isinstance(await fourth.raised(), Busy)
        await quick.send(b"", None)
        await third.send(b"abc", None)
        assert (await quick.task, await third.task) == (STEP, 3)

    asyncio.run(run())


def test_one_client_does_not_take_all_places() -> None:
    async def run() -> None:
        them = Uploads(10 * STEP, 100 * STEP, most=4)
        many = [Sender(them, "a") for _ in range(4)]
        other = Sender(them, "b")
        await asyncio.sleep(0.01)
        assert [isinstance(await m.raised(), TooSlow) for m in many].count(True) == 1 and await other.raised() is None
        another = Sender(them, "b")
        await asyncio.sleep(0.01)
        assert [isinstance(await m.raised(), TooSlow) for m in many].count(True) == 2 and await another.raised() is None
        last = Sender(them, "b")  # half of them are its own
        assert isinstance(await last.raised(), Busy)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(run())


def test_uploads_share_their_memory() -> None:
    async def run() -> None:
        them = Uploads(10 * STEP, 12 * STEP)
        large, small, other = Sender(them, "a"), Sender(them, "a"), Sender(them, "b")
        await large.send(*[bytes(STEP)] * 9)
        await small.send(bytes(STEP))
        await other.send(bytes(3 * STEP))
        assert isinstance(await large.raised(), TooSlow)  # of the client that holds the most
        assert await small.raised() is None and await other.raised() is None
        await small.send(*[bytes(STEP)] * 9)
        assert isinstance(await small.raised(), Busy)  # now it holds the most itself
        await other.send(None)
        assert await other.task == 3 * STEP

    asyncio.run(run())


def test_an_upload_has_a_rate_and_a_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PATIENCE", 0.15)
    monkeypatch.setattr(uploads, "WHOLE", 0.6)

    async def run(size: int) -> float:
        them, loop = Uploads(1000 * STEP, 1000 * STEP), asyncio.get_running_loop()
        sender, began = Sender(them, "a"), loop.time()
        while not sender.task.done() and loop.time() < began + 5:
            await sender.send(bytes(size))
        assert isinstance(await sender.raised(), TooSlow)
        return loop.time() - began

    assert asyncio.run(run(1)) < 0.5  # bytes come all the time, and too few
    assert 0.55 < asyncio.run(run(STEP)) < 3  # enough of them, and no end


# --- connections -------------------------------------------------------------------------------------------------------


def test_a_head_has_its_time_and_idle_connections_are_closed(serving: Any, impatient: float) -> None:
    port, _ = serving()
    began = time.monotonic()
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
        socks[1].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        socks[2].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET ")  # and the next one never comes
        assert [ended(s) for s in socks[:2]] == [b"", b""]
        assert b"200 OK" in ended(socks[2])
    assert time.monotonic() - began < 5


def test_idle_connections_leave_room(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 4)
    port, _ = serving()
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(12)]
        assert [post(port, png())[0] for _ in range(3)] == [200] * 3
        assert ended(idle[0]) == b""  # the oldest went first
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in ended(idle[-1])  # the newest is still served


def test_a_request_that_is_worked_on_keeps_its_connection(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 2)
    port, _ = serving(Slow(0.5))
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        waiting = pool.submit(post, port, png())
        time.sleep(0.2)
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert waiting.result(20)[0] == 200


def test_an_answer_that_nobody_reads_is_given_up(serving: Any, impatient: float) -> None:
    port, made = serving()
    asked = b"GET /papm.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.settimeout(0.2)
        with pytest.raises(OSError):  # asks until the server no longer listens
            while True:
                sock.sendall(asked * 100)
        end = time.monotonic() + 5
        while made.server_state.connections and time.monotonic() < end:
            time.sleep(0.02)
        assert not made.server_state.connections


def test_what_is_no_http_is_answered_with_the_same_headers(serving: Any) -> None:
    port, _ = serving()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        head = ended(sock).decode().split("\r\n\r\n")[0].lower()
    assert head.startswith("http/1.1 400 ")
    assert {k: v for k, v in (line.split(": ", 1) for line in head.split("\r\n")[1:]) if k in HEADERS} == {
        k: v.lower() for k, v in HEADERS.items()
    }


# --- the end -----------------------------------------------------------------------------------------------------------


def test_those_who_wait_hear_that_it_ends(serving: Any) -> None:
    port, made = serving(Slow(0.8))
    with ThreadPoolExecutor(4) as pool, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(head_of(1_000_000) + form(b"")[:60])
        counts = [pool.submit(post, port, png()) for _ in range(4)]
        time.sleep(0.4)
        made.should_exit = True
        answers = [c.result(20) for c in counts]
        assert b" 503 " in ended(sock)[:20]
    assert sorted(status for status, _, _ in answers) == [200, 503, 503, 503]
    for status, headers, said in answers:
        if status == 503:
            assert headers["retry-after"] and "is ending" in said["error"] and headers["x-frame-options"] == "DENY"


def test_a_count_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papm.serve.desk.LAST", 0.05)

    async def run() -> None:
        desk, stopped = Desk(), threading.Event()

        def job(stop: threading.Event) -> None:
            stop.wait(10)
            stopped.set()

        work = asyncio.ensure_future(desk.work(job, asyncio.sleep(60)))
        await asyncio.sleep(0.05)
        desk.close()
        with pytest.raises(Closing):
            await work
        assert await asyncio.to_thread(stopped.wait, 5)
        with pytest.raises(Closing):
            async with desk.seat():
                pass

    asyncio.run(run())


# --- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_slow_uploads_and_seventy_idle_connections(tmp_path: Path) -> None:
    path = tmp_path / "run" / "best.ckpt"
    path.parent.mkdir()
    torch.manual_seed(0)
    checkpoint.save(path, ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "papm", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)", process.stdout.readline().removeprefix("http:"))
        assert found
        port = int(found[1])
        with ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(75)]
            for sock in held[:5]:
                sock.sendall(head_of(1_000_000) + form(b"")[:60])
            time.sleep(0.2)
            assert [post(port, png(256, 256))[0] for _ in range(5)] == [200] * 5
            # a strip that is small to hold and large to count
            began = time.monotonic()
            status, _, said = post(port, png(1, 9_900_000))
            assert status == 400 and "316.8 megapixels, more than the limit of 100" in said["error"]
            assert time.monotonic() - began < 10
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert "Traceback" not in err
    finally:
        process.kill()
        process.wait()
