"""Jobs in processes of their own, some at a time, in order.

A training of small crops leaves most of a large GPU idle: six at a time, with NVIDIA's MPS server running
(`nvidia-cuda-mps-control -d`), take little longer than one. Jobs do not hear Ctrl-C themselves; when the queue is
interrupted, or its time is over, each is asked once to stop (a training then saves a checkpoint), and killed if it does not.
When the queue itself is killed, Linux asks them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from papm.errors import ConfigError

Outcome = Literal["done", "failed", "stopped", "not started"]
PAUSE = 0.2  # seconds between looks at the processes
GRACE = 60.0  # seconds that a job has to stop when asked
# Becomes the program given after the number of the queue's process, and has Linux send SIGTERM when that process ends. By way
# of a program, for `preexec_fn` may hang in a process with threads.
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):  # it has not ended before that
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Command:
    """Words to run; what it prints goes to `stdout`, or with its complaints to the job's log."""

    words: tuple[str, ...]
    stdout: Path | None = None


@dataclass(frozen=True)
class Job:
    """Commands one after another; each is asked for when the one before has succeeded, None: nothing to do."""

    name: str
    log: Path
    commands: tuple[Callable[[], Command | None], ...]
    folder: Path | None = None  # where its progress can be read


class QueueWatcher(Protocol):
    """Told what happens; `tick` is called several times a second."""

    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, outcome: Outcome, seconds: float) -> None: ...
    def tick(self, running: Sequence[Job]) -> None: ...


class _Running:
    """A job whose commands are being worked off."""

    def __init__(self, job: Job, environment: dict[str, str]) -> None:
        self.job, self.environment = job, environment
        self.began, self.place = time.monotonic(), 0
        self.process: subprocess.Popen[bytes] | None = None
        job.log.parent.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def poll(self) -> Outcome | None:
        """Go on to the next command when one has ended; the outcome once all have, or one has failed."""
        while True:
            if self.process is not None:
                code = self.process.poll()
                if code is None:
                    return None
                self.process = None
                if code:
                    return "failed"
            if self.place == len(self.job.commands):
                return "done"
            command = self.job.commands[self.place]()
            self.place += 1
            if command is not None:
                self._start(command)

    def _start(self, command: Command) -> None:
        with ExitStack() as files:
            log: IO[bytes] = files.enter_context(self.job.log.open("ab"))
            out = log if command.stdout is None else files.enter_context(command.stdout.open("wb"))
            words = command.words
            if sys.platform == "linux":
                words = (sys.executable, "-IS", "-c", BOUND, str(os.getpid()), *words)
            # In a session of its own: Ctrl-C reaches the queue, which passes it on once.
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self.environment, start_new_session=True
            )

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()  # a training takes it like Ctrl-C, which a background process may ignore

    def stop(self, until: float) -> None:
        """Wait for the process, then end it."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # and what it has started
            self.process.wait()


class _Queue:
    """The jobs that run, and what became of the others."""

    def __init__(self, at_once: int, watcher: QueueWatcher | None) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // at_once))
        self.environment = {"OMP_NUM_THREADS": threads, **os.environ}
        self.watcher, self.running = watcher, list[_Running]()
        self.outcomes: dict[str, Outcome] = {}

    def start(self, job: Job) -> None:
        if self.watcher is not None:
            self.watcher.started(job)
        self.running.append(_Running(job, self.environment))

    def note(self, job: Job, outcome: Outcome, seconds: float = 0.0) -> None:
        self.outcomes[job.name] = outcome
        if self.watcher is not None:
            self.watcher.ended(job, outcome, seconds)

    def look(self) -> None:
        """Take out the jobs that have ended."""
        for one in list(self.running):
            if (outcome := one.poll()) is not None:
                self.running.remove(one)
                self.note(one.job, outcome, one.seconds)
        if self.watcher is not None:
            self.watcher.tick([one.job for one in self.running])

    def stop(self, grace: float) -> None:
        """Ask every job to stop, and end those that have not after `grace` seconds."""
        for one in self.running:
            one.ask_to_stop()
        until = time.monotonic() + grace
        for one in self.running:
            try:
                one.stop(until)
            except KeyboardInterrupt:  # a second one: no more waiting
                until = 0.0
                one.stop(until)
            self.note(one.job, "stopped", one.seconds)
        self.running.clear()


def work_off(
    jobs: Sequence[Job],
    at_once: int = 1,
    watcher: QueueWatcher | None = None,
    *,
    minutes: float | None = None,
    least: float = 60.0,
    grace: float = GRACE,
    lead: float = 0.0,
) -> dict[str, Outcome]:
    """Run the jobs, `at_once` at a time, and say what became of each by name.

    The first job runs alone for `lead` seconds: trainings of one network on a GPU then find it compiled. With `minutes`, a job
    is not started when fewer than `least` seconds are left, and stopped when the time is over. An interruption stops every job
    and is raised again.
    """
    if at_once < 1:
        raise ConfigError(f"at least one job at a time is needed, not {at_once}")
    began, waiting, queue = time.monotonic(), list(jobs), _Queue(at_once, watcher)
    try:
        while waiting or queue.running:
            passed = time.monotonic() - began
            left = float("inf") if minutes is None else 60 * minutes - passed
            if left <= 0:
                queue.stop(grace)
            while waiting and len(queue.running) < (1 if passed < lead else at_once):
                job = waiting.pop(0)
                queue.note(job, "not started") if left < least else queue.start(job)
            queue.look()
            if queue.running:
                time.sleep(PAUSE)
    finally:  # an interruption, or a fault of ours: no process is left behind
        queue.stop(grace)
    return queue.outcomes


def complaint(log: Path) -> str:
    """The last thing a job said, for a message."""
    try:
        lines = [s.strip() for s in log.read_text(encoding="utf-8", errors="replace").splitlines() if s.strip()]
    except OSError:
        return "it said nothing"
    return lines[-1].removeprefix("papm: ") if lines else "it said nothing"
