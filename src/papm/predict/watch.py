"""Counting in a camera or a network stream: a count every so many seconds, written as it comes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from papm.data.readers.regions import open_regions
from papm.draw import from_pil, save_png
from papm.errors import ConfigError, DataError, WriteError
from papm.predict.ensemble import Ensemble
from papm.predict.folder import dimmed
from papm.predict.job import Wanted
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.results import COUNTS, POINTS, csv_bytes, file_names, point_table, summary
from papm.predict.stream import Address, Stream, address_of
from papm.text import n_of

STREAMS = "streams"  # a folder a stream in it
LATEST = "latest.png"  # the picture of the last count


def stream_among(given: Sequence[str]) -> Address | None:
    """The stream that is to be counted; None where files are. It is counted alone: it does not end."""
    found = [a for a in map(address_of, given) if a is not None]
    if found and len(given) > 1:
        raise ConfigError(f"{found[0].shown}: a stream is counted by itself; start papm predict once for each")
    return found[0] if found else None


@dataclass(frozen=True)
class Moment:
    """One count of a stream."""

    stream: str
    time: str  # UTC, ISO 8601
    seconds: float  # since the beginning
    prediction: Prediction

    def value(self) -> dict[str, Any]:
        """As JSON types."""
        return {"stream": self.stream, "time": self.time, "seconds": self.seconds, **summary(self.prediction)}

    def line(self) -> str:
        """To read."""
        return f"{self.prediction.count:9.1f}  {self.time}  {self.stream}"


class Watch:
    """Counts in a stream and writes `streams/NAME/`: counts.csv and points.csv, which grow, and latest.png."""

    def __init__(
        self,
        address: Address,
        wanted: Wanted,
        open: Callable[[], Counter | Ensemble],
        pauses: tuple[float, float] | None = None,
    ) -> None:
        if wanted.resume or wanted.save_as:
            raise ConfigError("--resume and --save-as are for files; the tables of a stream go on by themselves")
        self.address, self.wanted = address, wanted
        self.folder = wanted.out / STREAMS / file_names([address.name])[0]
        self.regions = None if wanted.roi is None else open_regions(wanted.roi, lambda _: self._size)
        self.stream = Stream(address, *([] if pauses is None else [pauses]))
        self.number, self._size = 0, (0, 0)
        self._region: Tensor | None = None
        self.counter = open()

    def counts(self) -> Iterator[Moment]:
        """Each count, as soon as it is written. Ends after `wanted.seconds`, or never."""
        begin = time.monotonic()
        end, due, columns = begin + self.wanted.seconds, begin, self.counter.columns
        with self.stream, Table(self.folder / COUNTS) as counts, Table(self.folder / POINTS) as points:
            while due < end and (image := self.stream.newest(end)) is not None:
                seconds = time.monotonic() - begin
                made = self._one(image, seconds)
                if self.wanted.points:
                    points.add(*point_table([made.prediction]))
                row = [made.time, made.seconds, *columns.row(made.prediction)]
                counts.add(["time", "seconds", *columns.names], [row])
                self.number += 1
                yield made
                due = max(due + self.wanted.every, time.monotonic())  # what could not be counted in time is left out
                time.sleep(max(0.0, min(due, end) - time.monotonic()))
        if not self.number:
            raise DataError(f"{self.address.shown}: not one frame came in {self.wanted.seconds:g} s")

    def _one(self, image: Tensor, seconds: float) -> Moment:
        when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        size = (int(image.shape[1]), int(image.shape[2]))
        if self.regions is not None and size != self._size:
            self._size = size
            self._region = self.regions(Path(self.folder.name))
        found = self.counter.predict(image, points=self.wanted.points, name=when, roi=self._region)
        if self.wanted.overlays:
            save_png(from_pil(found.draw(dimmed(image, self._region))), self.folder / LATEST)
        return Moment(self.address.name, when, round(seconds, 3), found)

    def stopped(self) -> str:
        """What is said at the end."""
        return f"{n_of(self.number, 'count')} of {self.address.name}; results in {self.folder}"


class Table:
    """A CSV file that grows: whole lines, on the disk when `add` returns; one that is there already goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[bytes] | None = None

    def add(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Append rows; the header is that of every row."""
        try:
            if self._stream is None:
                self._stream = self._open(header)
            self._write(b"".join(map(csv_bytes, rows)))
        except OSError as error:
            raise WriteError(f"{self.path}: cannot be written ({error.strerror or error})") from None

    def _open(self, header: Sequence[str]) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        stream = self.path.open("a+b", buffering=0)
        head = csv_bytes(header)
        stream.seek(0)
        first = stream.read(len(head))
        if not head.startswith(first):
            stream.close()
            raise ConfigError(f"{self.path}: has other columns than this result; choose another --out")
        if first == head:
            _drop_half_a_line(stream)
        else:  # nothing, or what a kill has left
            stream.truncate(0)
            stream.write(head)
        return stream

    def _write(self, lines: bytes) -> None:
        """All of the lines, or none: a full disk takes a part."""
        assert self._stream is not None
        good = self._stream.seek(0, os.SEEK_END)
        try:
            if self._stream.write(lines) != len(lines):
                raise OSError("the disk is full")
            os.fsync(self._stream.fileno())
        except OSError:
            self._stream.truncate(good)
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


def _drop_half_a_line(stream: IO[bytes], block: int = 1 << 16) -> None:
    """Cut what a kill has left behind the last whole line."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - block))
    tail = stream.read(block)
    stream.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
