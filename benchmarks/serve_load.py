"""`papm serve` under load: many clients, and beside them slow uploads and idle connections, all from this machine.

    python benchmarks/serve_load.py [OUT.json] [--seconds 60] [--clients 50] [--slow 5] [--idle 70]

Each client sends an image, comes again after `Retry-After` when it is told to (429), and sends the next one when it has its
answer. Nothing may be lost: every image is counted in the end, all alike, and the memory of the server stays as it is. Prints a
table and JSON; exit code 1 when something was lost, or memory grew.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec

HOST = "127.0.0.1"
KIND = {"Content-Type": "multipart/form-data; boundary=x"}
PATIENCE = 120.0  # seconds for the last answers
GROWTH = 32.0  # MB


def form(side: int) -> bytes:
    """A photograph of noise."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", quality=80)
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + stream.getvalue() + b"\r\n--x--\r\n"


class Load:
    """What the clients did and saw."""

    def __init__(self, port: int, body: bytes) -> None:
        self.port, self.body, self.end = port, body, threading.Event()
        self.lock = threading.Lock()
        self.statuses: Counter[str] = Counter()
        self.waits: list[float] = []  # seconds from the first attempt to the answer
        self.counts: Counter[float] = Counter()
        self.answers: Counter[int] = Counter()  # by client
        self.dropped: Counter[str] = Counter()  # slow and idle connections that the server ended
        self.health = 0.0

    def client(self, number: int) -> None:
        """Images one after the other, each until it is counted."""
        while not self.end.is_set():
            began = time.monotonic()
            while (again := self._ask(number)) is not None and time.monotonic() < began + PATIENCE:
                time.sleep(again)
            with self.lock:
                self.waits.append(time.monotonic() - began)
                self.statuses["never answered"] += again is not None

    def _ask(self, number: int) -> float | None:
        """Seconds to wait before the next attempt; None when there is an answer."""
        made = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
        try:
            made.request("POST", "/api/count", self.body, KIND)
            response = made.getresponse()
            said: dict[str, Any] = json.load(response)
            with self.lock:
                self.statuses[str(response.status)] += 1
                if response.status == 200:
                    self.counts[said["count"]] += 1
                    self.answers[number] += 1
            retry = response.getheader("Retry-After")
            return float(retry) if response.status == 429 and retry else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            with self.lock:
                self.statuses[type(error).__name__] += 1
            return None
        finally:
            made.close()

    def slow(self) -> None:
        """An upload of a byte every half second, again and again."""
        head = f"POST /api/count HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {KIND['Content-Type']}\r\n"
        while not self.end.is_set():
            try:
                with socket.create_connection((HOST, self.port)) as sock:
                    sock.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + self.body[:80])
                    while not self.end.wait(0.5):
                        sock.sendall(b"a")
            except OSError:
                self.dropped["slow uploads"] += 1

    def idle(self, number: int) -> None:
        """Connections that say nothing, opened anew when they are closed."""
        held = [socket.create_connection((HOST, self.port)) for _ in range(number)]
        while not self.end.wait(0.2):
            for k, sock in enumerate(held):
                sock.setblocking(False)
                try:
                    sock.recv(1)
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                self.dropped["idle connections"] += 1
                sock.close()
                held[k] = socket.create_connection((HOST, self.port))
        for sock in held:
            sock.close()

    def probe(self) -> None:
        """How long the slowest answer takes that asks for no work."""
        while not self.end.wait(1.0):
            began = time.monotonic()
            made = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
            try:
                made.request("GET", "/healthz")
                self.statuses[f"healthz {made.getresponse().status}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.statuses[f"healthz {type(error).__name__}"] += 1
            finally:
                made.close()
            self.health = max(self.health, time.monotonic() - began)


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measured(process: subprocess.Popen[str], port: int, given: argparse.Namespace) -> dict[str, Any]:
    """Let them loose for a while."""
    load = Load(port, form(given.side))
    clients = [threading.Thread(target=load.client, args=(k,)) for k in range(given.clients)]
    others = [threading.Thread(target=load.slow) for _ in range(given.slow)]
    others += [threading.Thread(target=load.idle, args=(given.idle,)), threading.Thread(target=load.probe)]
    for thread in (*others, *clients):
        thread.start()
    seen: list[float] = []
    began = time.monotonic()
    while time.monotonic() < began + given.seconds:
        time.sleep(0.25)
        seen.append(memory(process.pid))
    load.end.set()
    for thread in (*clients, *others):
        thread.join()
    half = seen[len(seen) // 2 :]
    waits = np.array(load.waits or [0.0])
    good = {"200", "429", "healthz 200", "never answered"}
    return {
        "clients": given.clients,
        "slow uploads": given.slow,
        "idle connections": given.idle,
        "seconds": given.seconds,
        "answered": load.statuses["200"],
        "told to come again (429)": load.statuses["429"],
        "lost": sum(n for k, n in load.statuses.items() if k not in good) + load.statuses["never answered"],
        "statuses": dict(load.statuses),
        "different counts": len(load.counts),
        "fewest answers of a client": min(load.answers[k] for k in range(given.clients)),
        "wait s, median": round(float(np.median(waits)), 2),
        "wait s, 95 %": round(float(np.quantile(waits, 0.95)), 2),
        "wait s, longest": round(float(waits.max()), 2),
        "healthz s, longest": round(load.health, 2),
        "ended by the server": dict(load.dropped),
        "memory MB, second quarter": round(float(np.median(seen[len(seen) // 4 : len(seen) // 2])), 1),
        "memory MB, last quarter": round(float(np.median(half[len(half) // 2 :])), 1),
        "memory MB, peak": round(max(seen), 1),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }


def main() -> int:
    """Start the server, load it, say what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    for name, value, most in (("seconds", 60, 600), ("clients", 50, 200), ("slow", 5, 50), ("idle", 70, 200)):
        parser.add_argument(f"--{name}", type=int, default=value, choices=range(most + 1), metavar="N")
    parser.add_argument("--side", type=int, default=512, help="pixels of the images")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        torch.manual_seed(0)
        file = Path(place) / "run" / "best.ckpt"
        file.parent.mkdir()
        checkpoint.save(file, ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
        words = [sys.executable, "-m", "papm", "serve", str(file), "--port", "0", "--device", "cpu"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found, "papm serve did not start"
            made = measured(process, int(found[1]), given)
        finally:
            process.terminate()
            process.wait()
    for key, value in made.items():
        print(f"{key:28} {value}")
    text = json.dumps(made, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    grown = made["memory MB, last quarter"] - made["memory MB, second quarter"]
    fair = made["fewest answers of a client"] > 0 and made["different counts"] == 1
    return int(bool(made["lost"]) or not fair or grown > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
