"""What a run says while it trains: metrics.csv, TensorBoard's events, and whoever watches; and the best it has seen."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Protocol

from papm.engine.run_folder import MetricsFile
from papm.extras import has, sentence

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Who wants to hear how training goes (the command line draws a progress bar from it)."""

    def on_start(self, sizes: dict[str, int]) -> None: ...

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


class Clock:
    """`now()`: seconds of a run so far, over all its parts; loading and attempts that were given up are in it."""

    def __init__(self) -> None:
        self.earlier = 0.0  # seconds of the parts before this one
        self._started = time.monotonic()

    def now(self) -> float:
        return self.earlier + time.monotonic() - self._started


class Log:
    """Rows of steps and of evaluations. Every process keeps one, and knows the best evaluation; the first writes."""

    def __init__(self, folder: Path, steps: int, watcher: Watcher | None, clock: Clock, writes: bool = True) -> None:
        self.file, self.events = MetricsFile(folder / "metrics.csv"), Events(folder / "tensorboard")
        self.steps, self.watcher, self.clock, self.writes = steps, watcher, clock, writes
        self.best: dict[str, float] = {}
        self.latest: dict[str, float] = {}

    def start(self, step: int) -> None:
        """Training begins, or goes on, after `step`: rows beyond it are of a part that was lost."""
        if self.writes:
            self.file.truncate_after(step)

    def step(self, step: int, values: dict[str, float]) -> None:
        """A row of the means of the terms."""
        self._write(step, values)
        if self.watcher is not None and self.writes:
            self.watcher.on_step(step, self.steps, values)

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """A row of the errors on the watched images."""
        self.latest = {"step": step, **values}
        if not self.best or values["mae"] < self.best["mae"]:
            self.best = dict(self.latest)
        self._write(step, values)
        if self.watcher is not None and self.writes:
            self.watcher.on_evaluation(step, values)

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self.writes:
            self.file.append({"step": step, "seconds": self.clock.now(), **values})
            self.events.append(step, values)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {"best": self.best, "latest": self.latest, "seconds": self.clock.now()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave."""
        self.best, self.latest, self.clock.earlier = dict(state["best"]), dict(state["latest"]), float(state["seconds"])


class Events:
    """A file of TensorBoard's, to which rows are added; a disk that is full ends it, not the run."""

    def __init__(self, folder: Path) -> None:
        self.path, self._ended = folder / f"events.out.tfevents.{time.time():.6f}.papm", False

    def append(self, step: int, values: dict[str, float]) -> None:
        """One event with a scalar for each value."""
        if not self._ended and not has("tensorboard"):
            self._ended = True
            log.warning("%s", sentence("metrics.csv is written; TensorBoard's events need", "train", "tensorboard"))
        if self._ended:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        scalars = [Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        events = [Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))]
        if not self.path.exists():
            events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as stream:
                for event in events:
                    RecordWriter(stream).write(event.SerializeToString())
        except OSError:
            self._ended = True
            log.warning("%s: cannot be written; TensorBoard's events end here", self.path)
