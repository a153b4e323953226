"""Frames of a video, and a video of what was counted in them. OpenCV reads and writes: `pip install 'papm[video]'`."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.errors import DataError, WriteError
from papm.extras import require
from papm.images import max_pixels
from papm.text import Brief

SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".mts", ".m2ts", ".3gp")
# What FFmpeg may make of a file, whatever its name: containers, and none of the lists that name other files (ffconcat, HLS, …).
OPTIONS = "protocol_whitelist;file|format_whitelist;mov,avi,matroska,mpeg,mpegts,mpegvideo,m4v,asf"
SLOWEST = 4.0  # frames a second at which what was counted is shown at least
ASSUMED = 25.0  # frames a second of a file that does not say


def is_video_name(name: str) -> bool:
    """Whether a file of this name is taken for a video.

    >>> is_video_name("Gate 3.MP4"), is_video_name("gate.jpg")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


@dataclass(frozen=True, eq=False, repr=False)
class Frame(Brief):
    """One picture of a video."""

    number: int  # from 0, as they follow in the file
    seconds: float  # from the beginning
    image: Tensor  # uint8 [3, H, W], RGB, turned upright as the camera says


class Video:
    """A video file to read frames from, once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        cv2 = opencv()
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such video")
        # FFmpeg and a full path: other readers of OpenCV take a name for a pattern, an address or a command.
        with _silent():
            self._capture = cv2.VideoCapture(_address(self.path), cv2.CAP_FFMPEG)
        asked = (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FPS, cv2.CAP_PROP_FRAME_COUNT)
        width, height, rate, frames = map(self._get, asked)
        if not self._capture.isOpened() or width < 1 or height < 1:
            self.close()
            raise DataError(f"{self.path}: cannot be read as a video; is it whole?")
        if width * height > max_pixels():
            self.close()
            raise DataError(f"{self.path}: frames of {width:.0f}×{height:.0f} pixels; the limit is {max_pixels():,}")
        self.size = (int(height), int(width))
        self.rate = rate if 0 < rate <= 1000 else ASSUMED
        self.frames = int(frames) if 0 < frames < 1e9 else 0  # as the file says; 0 where it does not

    def read(self, every: float = 0.0) -> Iterator[Frame]:
        """The first frame, and then one whenever `every` seconds have passed; all of them with 0."""
        cv2 = opencv()
        number, due, slack = 0, 0.0, 0.5 / self.rate
        last = -1.0
        while self._capture.grab():
            stamp = self._get(cv2.CAP_PROP_POS_MSEC) / 1000
            # Some files have no time stamps, or ones that jump back.
            last = seconds = stamp if stamp > last or number == 0 else number / self.rate
            if seconds + slack >= due:
                done, picture = self._capture.retrieve()
                if done:
                    yield Frame(number, max(0.0, seconds), rgb(picture))
                    due = seconds + slack - math.fmod(seconds + slack, every) + every if every > 0 else 0.0
            number += 1
        self.frames_read = number

    def expected(self, every: float = 0.0) -> int:
        """How many frames `read` will give, as far as the file says; 0 where it does not."""
        if not self.frames or every <= 0:
            return self.frames
        return math.floor(min(self.frames - 1, (self.frames - 1) / self.rate / every + 1e-6)) + 1

    def _get(self, key: int) -> float:
        value = float(self._capture.get(key))
        return value if math.isfinite(value) else 0.0

    def close(self) -> None:
        self._capture.release()

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VideoWriter:
    """Writes frames uint8 [3, H, W] to a WebM file, which takes its place when it is closed.

    The first gives the size; a larger one is cut, a smaller one filled up with black.
    """

    def __init__(self, path: str | Path, rate: float) -> None:
        self.path, self.rate = Path(path), rate
        self._part = self.path.with_name(f".{self.path.stem}.tmp{self.path.suffix}")
        self._writer: Any = None
        self._size = (0, 0)

    def write(self, image: Tensor) -> None:
        if self._writer is None:
            self._size = (image.shape[2] // 2 * 2, image.shape[1] // 2 * 2)  # the codec wants even sides
            self._writer = self._open()
        width, height = self._size
        shown = image[:, :height, :width].permute(1, 2, 0).numpy()[..., ::-1]
        picture = np.zeros((height, width, 3), dtype=np.uint8)
        picture[: shown.shape[0], : shown.shape[1]] = shown
        self._writer.write(picture)

    def _open(self) -> Any:
        cv2 = opencv()
        if min(self._size) < 2:
            raise WriteError(f"{self.path}: frames are too small for a video; leave it out with --no-overlays")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _silent():
            made = cv2.VideoWriter(
                _address(self._part), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*"VP80"), self.rate, self._size
            )
        if not made.isOpened():
            raise WriteError(f"{self.path}: OpenCV cannot write a video here; leave it out with --no-overlays")
        return made

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()
            self._writer = None
            try:
                self._part.replace(self.path)
            except OSError as error:
                self._part.unlink(missing_ok=True)
                raise WriteError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def playing_rate(video: Video, every: float) -> float:
    """Frames a second at which the frames that were counted are shown: as fast as they passed, or faster."""
    return min(60.0, max(SLOWEST, video.rate if every <= 0 else min(video.rate, 1 / every)))


def _address(path: Path) -> str:
    """The full path as text; OpenCV crashes on a name that is none."""
    text = str(path.resolve())
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: OpenCV takes names in UTF-8 alone; rename the file or its folder") from None
    return text


def rgb(picture: Any) -> Tensor:
    """A picture of OpenCV, [H, W, 3] in BGR, as uint8 [3, H, W] in RGB."""
    return torch.from_numpy(np.ascontiguousarray(picture[..., ::-1].transpose(2, 0, 1)))


def opencv() -> ModuleType:
    """OpenCV, told to be quiet and to open one file only."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    given = os.environ.get("OPENCV_FFMPEG_CAPTURE_OPTIONS", "")
    if OPTIONS not in given:  # the last one counts
        os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"{given}|{OPTIONS}" if given else OPTIONS
    require("video", "videos need")
    import cv2

    found: ModuleType = cv2
    return found


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what OpenCV says on standard error: of a file that is no video, of a tag that WebM does not need."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
