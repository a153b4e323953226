"""The queue: order, number at a time, outcomes, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from papm.errors import ConfigError
from papm.study.queue import Command, Job, Outcome, work_off


def job(folder: Path, name: str, *programs: str) -> Job:
    commands = tuple(lambda p=p: Command((sys.executable, "-c", p)) for p in programs)  # type: ignore[misc]
    return Job(name, folder / f"{name}.log", commands)


class Notes:
    """Everything the queue says."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.most = 0

    def started(self, job: Job) -> None:
        self.events.append(("started", job.name))

    def ended(self, job: Job, outcome: Outcome, seconds: float) -> None:
        self.events.append((outcome, job.name))

    def tick(self, running: Sequence[Job]) -> None:
        self.most = max(self.most, len(running))


SLEEP = "import time; time.sleep(0.4)"


def test_in_order_and_never_more_at_once(tmp_path: Path) -> None:
    notes = Notes()
    outcomes = work_off([job(tmp_path, n, SLEEP) for n in "abcd"], 2, notes)
    assert outcomes == dict.fromkeys("abcd", "done") and notes.most == 2
    assert [n for what, n in notes.events if what == "started"] == list("abcd")


@pytest.mark.slow
def test_the_first_runs_alone_for_a_while(tmp_path: Path) -> None:
    notes = Notes()
    work_off([job(tmp_path, n, "pass") for n in "abc"], 3, notes, lead=60)  # each ends long before that
    assert notes.most == 1
    notes = Notes()
    slow = job(tmp_path, "slow", "import time; time.sleep(3)")
    work_off([slow, *(job(tmp_path, n, SLEEP) for n in "ab")], 3, notes, lead=0.5)
    assert notes.most > 1 and notes.events[-1] == ("done", "slow")


def test_a_failure_ends_its_job_and_not_the_others(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    bad = job(tmp_path, "bad", "import sys; print('oh'); sys.exit('no')", f"open({str(reached)!r}, 'w')")
    outcomes = work_off([bad, job(tmp_path, "good", "print(1)")])
    assert outcomes == {"bad": "failed", "good": "done"} and not reached.exists()
    assert sorted((tmp_path / "bad.log").read_text().split()) == ["no", "oh"]


def test_commands_are_asked_for_when_their_turn_comes(tmp_path: Path) -> None:
    file = tmp_path / "made"

    def second() -> Command | None:
        assert file.exists()
        return Command((sys.executable, "-c", "print(42)"), tmp_path / "printed")

    first = Command((sys.executable, "-c", f"open({str(file)!r}, 'w')"))
    outcomes = work_off([Job("two", tmp_path / "log", (lambda: first, second, lambda: None))])
    assert outcomes == {"two": "done"} and (tmp_path / "printed").read_text().strip() == "42"


def test_time_is_kept(tmp_path: Path) -> None:
    began = time.monotonic()
    long = "import time; time.sleep(60)"
    outcomes = work_off([job(tmp_path, "long", long), job(tmp_path, "late", SLEEP)], minutes=1 / 60, least=0.5)
    assert outcomes == {"long": "stopped", "late": "not started"} and time.monotonic() - began < 20


STUBBORN = """
import signal, time, sys, pathlib
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else {here!r}).write_text(str(__import__('os').getpid()))
time.sleep(60)
"""
POLITE = """
import signal, sys, time, pathlib
def stop(n, f):
    pathlib.Path({saved!r}).write_text('saved')
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({here!r}).write_text(str(__import__('os').getpid()))
time.sleep(60)
"""


@pytest.fixture
def hears_interruptions() -> Iterator[None]:
    """As in a terminal: a shell's background jobs start deaf to SIGINT, and so does what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_lets_jobs_save_and_leaves_none_behind(tmp_path: Path, hears_interruptions: None) -> None:
    files = {n: tmp_path / n for n in ("polite", "stubborn", "saved")}
    jobs = [
        job(tmp_path, "p", POLITE.format(saved=str(files["saved"]), here=str(files["polite"]))),
        job(tmp_path, "s", STUBBORN.format(here=str(files["stubborn"]))),
        job(tmp_path, "waiting", SLEEP),
    ]

    def interrupt() -> None:
        for _ in range(200):
            if files["polite"].exists() and files["stubborn"].exists() and files["stubborn"].read_text():
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    notes, thread = Notes(), threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work_off(jobs, 2, notes, grace=1.0)
    thread.join()
    assert files["saved"].read_text() == "saved"
    assert [e for e in notes.events if e[0] != "started"] == [("stopped", "p"), ("stopped", "s")]
    for name in ("polite", "stubborn"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(files[name].read_text()), 0)


def test_at_least_one_at_a_time() -> None:
    with pytest.raises(ConfigError, match="at least one job"):
        work_off([], 0)


QUEUE = """
import sys
from contextlib import suppress
from pathlib import Path
from papm.study.queue import Command, Job, work_off
command = Command((sys.executable, "-c", sys.argv[2]))
work_off([Job("one", Path(sys.argv[1]) / "log", (lambda: command,))])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent was killed")
def test_a_killed_queue_asks_its_jobs_to_stop(tmp_path: Path) -> None:
    """SIGKILL leaves the queue no time for anything; a training must not run on, and hold its folder's lock."""
    saved, here = tmp_path / "saved", tmp_path / "here"
    words = [sys.executable, "-c", QUEUE, str(tmp_path), POLITE.format(saved=str(saved), here=str(here))]
    queue = subprocess.Popen(words)
    try:
        for _ in range(400):
            if here.exists() and here.read_text():
                break
            time.sleep(0.05)
        child = int(here.read_text())
    finally:
        queue.kill()
        queue.wait()
    try:
        for _ in range(100):
            if saved.exists():
                break
            time.sleep(0.05)
        assert saved.exists() and saved.read_text() == "saved", "the job was not asked to stop"
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
