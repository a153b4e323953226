"""Long-lived forked processes that try mutations one by one, and what became of each.

A process keeps the valid input of a family in a folder of its own, changes it, reads it with a clock and a limit of memory,
and puts it back. What takes too long is stopped by an alarm inside, or, in code that hears none, by its parent from outside.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import torch

from fuzzing.subjects import Subject
from papm.errors import PapmError

SECONDS = 10.0  # of processor time for one mutation: more is a hang, also on a machine that others use
MEMORY = 2_000_000_000  # bytes of a process at its peak,
IMPORTS = (
    600_000_000  # of which these at most are what it has imported; a fork of a larger program has more from the start
)
ROOM = 4 * MEMORY  # address space beyond what a process has at first, so that one mutation cannot take the machine
LONGEST = 120.0  # seconds by the clock, after which the parent ends a process that waits, or hears no alarm
SENTENCE = 2000  # characters
OUTCOMES = ("refused", "equal", "different", "traceback", "hang", "memory", "silent")
FINDINGS = OUTCOMES[3:]

Make = Callable[[Path], Subject]
Job = tuple[str, int]  # family, number of the mutation


@dataclass(frozen=True)
class Tried:
    """What became of one mutation. Number k of a family is the same on every machine, by the seed."""

    family: str
    number: int
    what: str
    outcome: str
    detail: str = ""  # of a traceback, its last line and the place in papm
    seconds: float = 0.0
    peak: int = 0  # bytes


class Hang(BaseException):
    """The alarm; not an Exception, which readers may catch."""


_armed = False


def _ring(*_: object) -> None:
    if _armed:
        raise Hang


def _arm(seconds: float) -> None:
    """Set the alarm, or with 0 put it off; one that comes late is not heard."""
    global _armed
    _armed = seconds > 0
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _status(key: str) -> int:
    """Bytes of VmRSS, VmHWM or VmSize of this process; 0 where the system does not say."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as stream:
        return next((int(line.split()[1]) * 1024 for line in stream if line.startswith(key)), 0)
    return 0


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _detail(error: BaseException) -> str:
    """The last line of a traceback, and the last place in papm that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "papm" in Path(f.filename).parts] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}{where}"


def try_one(subject: Subject, reference: Any, job: Job, seed: int, began: Callable[[str], None]) -> Tried:
    """Change the input, read it, put it back."""
    family, number = job
    what = subject.apply(Random(f"{seed}/{family}/{number}"))
    began(what)
    _forget_peak()
    inherited = max(0, _status("VmRSS") - IMPORTS)
    start, outcome, detail = time.process_time(), "equal", ""
    try:
        try:
            _arm(SECONDS)
            found = subject.use()
        finally:
            _arm(0)
        outcome = "silent" if subject.wrong(found) else "equal" if found == reference else "different"
        detail = "read with success" if outcome == "silent" else ""
    except PapmError as error:
        outcome, detail = "refused", str(error)
        if "\n" in detail or len(detail) > SENTENCE:
            outcome, detail = "traceback", f"a message of {len(detail):,} characters, not a sentence"
    except Hang:
        outcome, detail = "hang", f"more than {SECONDS:g} s of processor time"
    except Exception as error:
        lacking = isinstance(error, MemoryError) or "allocate" in str(error)
        told = isinstance(error, OSError) and error.filename is not None  # the command line makes a sentence of it
        outcome, detail = "refused" if told else "memory" if lacking else "traceback", _detail(error)
    seconds, peak = time.process_time() - start, _status("VmHWM") - inherited
    if peak > MEMORY and outcome not in ("hang", "traceback"):
        outcome, detail = "memory", f"{peak / 1e9:.1f} GB"
    subject.restore()
    return Tried(family, number, what, outcome, detail, seconds, peak)


def _work(families: Mapping[str, Make], seed: int, root: Path, link: Connection) -> None:
    """A process: answers each job with ("began", what), then ("done", Tried)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _ring)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # decoders in C complain there
        os.dup2(silence, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()  # what was imported is not garbage: a collection would look at all of it
    subjects: dict[str, tuple[Subject, Any]] = {}
    limited, parent = False, os.getppid()
    while os.getppid() == parent:  # siblings hold the other end of the pipe open too: it does not tell
        if not link.poll(2):
            continue
        job = link.recv()
        family = job[0]
        if family not in subjects:
            folder = root / family.replace("/", "-")
            folder.mkdir(parents=True)
            try:
                subject = families[family](folder)
                subjects[family] = subject, subject.use()
            except Exception as error:
                link.send(("done", Tried(*job, "the valid input", "traceback", _detail(error))))
                shutil.rmtree(folder)
                continue
        if not limited:
            room = _status("VmSize") + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
            limited = True
        link.send(("done", try_one(*subjects[family], job, seed, lambda what: link.send(("began", what)))))


class _Worker:
    """One process and the job that it has."""

    def __init__(self, families: Mapping[str, Make], seed: int, root: Path) -> None:
        self.root = Path(tempfile.mkdtemp(dir=root))
        context = multiprocessing.get_context("fork")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(families, seed, self.root, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.what, self.since = "", 0.0

    def give(self, job: Job) -> None:
        self.job, self.what, self.since = job, "", time.monotonic()
        self.link.send(job)

    def hear(self) -> Tried | None:
        """The result of its job, None while there is none yet; a process that died is a finding."""
        assert self.job is not None
        try:
            if not self.link.poll(0):
                # Making the valid input, once per family, may take longer than reading one.
                limit = LONGEST if self.what else 5 * LONGEST
                if time.monotonic() - self.since < limit:
                    return None
                return self.ended("hang", f"more than {limit:g} s by the clock")
            kind, value = self.link.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return self.ended("traceback", f"the process died ({self.process.exitcode})")
        if kind == "began":
            self.what, self.since = value, time.monotonic()
            return None
        return Tried(**vars(value))

    def ended(self, outcome: str, detail: str) -> Tried:
        assert self.job is not None
        return Tried(*self.job, self.what or "before any change", outcome, detail, time.monotonic() - self.since)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()
        shutil.rmtree(self.root, ignore_errors=True)


def run(families: Mapping[str, Make], jobs: Iterable[Job], seed: int = 0, workers: int = 2) -> Iterator[Tried]:
    """Every job, tried in forked processes, as the results come."""
    left = deque(jobs)
    with tempfile.TemporaryDirectory(prefix="papm-fuzz-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        team = [_Worker(families, seed, Path(folder)) for _ in range(min(workers, len(left)))]
        try:
            while left or any(w.job for w in team):
                for k, w in enumerate(team):
                    if w.job is None and left:
                        w.give(left.popleft())
                    if w.job is None or (found := w.hear()) is None:
                        continue
                    yield found
                    w.job = None
                    if found.outcome in ("hang", "memory") or not w.process.is_alive():  # a fresh one for the next
                        w.stop()
                        team[k] = _Worker(families, seed, Path(folder))
                wait([w.link for w in team if w.job], timeout=0.5)
        finally:
            for w in team:
                w.stop()
