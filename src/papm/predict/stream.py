"""The newest frame of a camera or a network stream, whenever one is asked for. OpenCV reads: `pip install "papm[video]"`.

A thread takes every frame as it comes and keeps none: what was not asked for is old. Where the connection breaks, it is made
again, later each time it fails. What may be in an address beside the place (user, password, query) is told to nobody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.images import max_pixels
from papm.predict.video import opencv, rgb
from papm.text import duration

log = logging.getLogger(__name__)

# What FFmpeg may speak for each scheme, and what it may make of it: no lists (HLS, …) that name other addresses or files.
PROTOCOLS = {
    "rtsp": "rtsp,rtp,udp,tcp",
    "rtsps": "rtsp,rtsps,rtp,tcp,tls",
    "http": "http,tcp",
    "https": "https,tls,tcp",
}
FORMATS = "rtsp,mpjpeg,mjpeg,jpeg_pipe,mpegts,mov,matroska,flv,asf"
OPTIONS = f"rtsp_transport;tcp|fflags;nobuffer|flags;low_delay|format_whitelist;{FORMATS}"
TIMEOUT = 10.0  # seconds without an answer or a frame, after which a connection is taken for broken
TRIES = 3  # to connect for the first time
PAUSES = (1.0, 60.0)  # seconds before the first try to connect again, and the most before a later one
SILENT = 0  # OpenCV's log level
_ENVIRONMENT = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_opening = threading.Lock()  # the environment is the process's


@dataclass(frozen=True, repr=False)
class Address:
    """Where a stream comes from: a URL, or the number of a camera."""

    secret: str  # as given: it may hold a password
    shown: str  # what may be said of it

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def camera(self) -> int | None:
        """The number of a camera of this machine."""
        return int(self.secret) if self.secret.isdigit() else None

    @property
    def name(self) -> str:
        """For people and folders: `camera-0`, or host and path."""
        return self.shown.partition("://")[2].rstrip("/") or self.shown


def address_of(text: str) -> Address | None:
    """The address that a word names; None for a word that names a file.

    >>> address_of("rtsp://admin:secret@gate.local:554/ch1?token=5").shown
    'rtsp://gate.local:554/ch1'
    >>> address_of("0"), address_of("gate.mp4")
    (Address('camera-0'), None)
    """
    if re.fullmatch(r"\d{1,2}", text, re.ASCII) and not Path(text).exists():
        return Address(text, f"camera-{int(text)}")
    if "://" not in text:
        return None
    try:
        found = urlsplit(text)
        host, port = found.hostname, found.port
    except ValueError:  # its message quotes what it was given
        raise ConfigError(
            "an address that cannot be read: write rtsp://HOST:PORT/PATH or http://HOST:PORT/PATH"
        ) from None
    if found.scheme.lower() not in PROTOCOLS or not host:
        raise ConfigError(f"an address begins with {', '.join(f'{p}://' for p in PROTOCOLS)}, and has a host")
    if re.search(r"[\x00-\x20]", text):
        raise ConfigError("an address has no blanks")
    host = f"[{host}]" if ":" in host else host
    return Address(text, f"{found.scheme.lower()}://{host}{f':{port}' if port else ''}{found.path}")


class Stream:
    """A stream to take the newest frame from, in a `with`; `close` ends its thread."""

    def __init__(self, address: Address, pauses: tuple[float, float] = PAUSES) -> None:
        opencv()
        self.address, self.pauses = address, pauses
        self.connected = False  # ever
        self._frame: Tensor | None = None
        self._fault = ""
        self._asked, self._stop, self._news = threading.Event(), threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._keep, name="stream", daemon=True)

    def newest(self, until: float) -> Tensor | None:
        """A frame uint8 [3, H, W] that came after this call, or None where `until` (time.monotonic) comes first."""
        with self._news:
            self._frame = None
            self._asked.set()
            while self._frame is None and not self._fault and time.monotonic() < until:
                self._news.wait(min(0.2, max(0.0, until - time.monotonic())))  # short: Ctrl-C is heard in between
            if self._fault:
                raise DataError(self._fault)
            return self._frame

    def _keep(self) -> None:
        """Connect, and connect again; the thread."""
        failed, lost = 0, False
        while not self._stop.is_set():
            why = self._once(lost)
            if self._stop.is_set() or self._fault:
                return
            failed, lost = (failed + 1 if why else 0), True
            if not self.connected and failed >= TRIES:
                self._end(
                    f"{self.address.shown}: cannot be opened as a stream ({failed} tries); is the address right, the"
                    " camera on, and nobody else using it?"
                )
                return
            pause = min(self.pauses[1], self.pauses[0] * 2 ** min(max(0, failed - 1), 20))
            said = why or "the connection is lost"
            log.warning("%s: %s; trying again in %s", self.address.shown, said, duration(pause))
            self._stop.wait(pause)

    def _once(self, again: bool) -> str:
        """One connection, for as long as it lasts; why it gave no frame, or nothing."""
        try:
            capture = _open(self.address)
            try:
                frames = 0
                while not self._stop.is_set() and capture.grab():
                    frames += 1
                    if frames == 1:
                        self.connected = True
                        if again:
                            log.warning("%s: connected again", self.address.shown)
                    if self._asked.is_set():
                        self._give(*capture.retrieve())
            finally:
                capture.release()
        except Exception:  # cv2.error quotes the address
            return "OpenCV failed"
        return "" if frames else "no connection"

    def _give(self, done: bool, picture: Any) -> None:
        """Hand over the frame that was asked for."""
        if not done:
            return
        if picture.ndim != 3 or picture.shape[0] * picture.shape[1] > max_pixels():
            self._end(
                f"{self.address.shown}: frames of {picture.shape[1]}×{picture.shape[0]} pixels; see PAPM_MAX_PIXELS"
            )
            self._stop.set()
            return
        with self._news:
            self._asked.clear()
            self._frame = rgb(picture)
            self._news.notify_all()

    def _end(self, fault: str) -> None:
        with self._news:
            self._fault = fault
            self._news.notify_all()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2.0)  # a call of OpenCV may last longer; the thread ends after it

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(address: Address) -> Any:
    """OpenCV's reader of an address; it may not have opened anything."""
    cv2 = opencv()
    with _opening, _settings(cv2, address):
        if address.camera is not None:
            return cv2.VideoCapture(address.camera)
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, cv2.CAP_PROP_READ_TIMEOUT_MSEC]
        return cv2.VideoCapture(address.secret, cv2.CAP_FFMPEG, [v for k in limits for v in (k, int(1000 * TIMEOUT))])


@contextlib.contextmanager
def _settings(cv2: Any, address: Address) -> Iterator[None]:
    """What OpenCV may do for a stream, and that it says nothing, while one is opened; then again what holds for files."""
    scheme = address.shown.partition("://")[0]
    logging_of = getattr(cv2.utils, "logging", cv2)  # OpenCV 4 has its log level in cv2 itself
    before, level = os.environ[_ENVIRONMENT], logging_of.getLogLevel()
    os.environ[_ENVIRONMENT] = f"{OPTIONS}|protocol_whitelist;{PROTOCOLS.get(scheme, 'file')}"
    logging_of.setLogLevel(SILENT)
    try:
        yield
    finally:
        os.environ[_ENVIRONMENT] = before
        logging_of.setLogLevel(level)
