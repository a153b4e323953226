"""Ratios that hold on a noisy machine: every candidate is timed in turn, round after round, in one process."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from papm.errors import ConfigError
from papm.text import n_of


@dataclass(frozen=True)
class Timing:
    """How long one candidate takes. `ratio` is its median over the first candidate's: how many times as long."""

    name: str
    median_ms: float
    min_ms: float
    ratio: float


def compare(
    functions: Mapping[str, Callable[[], object]],
    repeat: int = 5,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time the functions against the first of them, our own.

    One round runs each function once, so that whatever slows the machine for a while slows them all. On a GPU a run
    lasts until the device has finished.

    >>> [t.name for t in compare({"ours": lambda: None, "theirs": lambda: None}, repeat=2)]
    ['ours', 'theirs']
    """
    if repeat < 1 or warmup < 0:
        raise ConfigError(
            f"a timing takes at least one run and no fewer than zero before it, not {repeat} and {warmup}"
        )
    for _ in range(warmup):
        for run in functions.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, run in functions.items():
            _finish()
            start = clock()
            run()
            _finish()
            seconds[name].append(clock() - start)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    own = next(iter(medians.values()), 1.0)
    return [
        # A clock that did not tick says nothing about a ratio of zero.
        Timing(name, 1e3 * medians[name], 1e3 * min(s), medians[name] / max(own, 1e-9))
        for name, s in seconds.items()
    ]


def _finish() -> None:
    """Wait for the device, if one is in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def machine(device: str = "cpu") -> str:
    """What a figure was measured on, in words."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu()}, {n_of(threads, 'thread')}, torch {torch.__version__}"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()
