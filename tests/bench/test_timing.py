"""Timing by an artificial clock: the arithmetic is exact, and no test depends on the machine's speed."""

from __future__ import annotations

import pytest

from papm.bench.timing import compare, machine
from papm.errors import ConfigError


class Clock:
    """A clock that only work moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_median_minimum_and_ratio() -> None:
    clock = Clock()
    calls: list[str] = []

    def work(name: str, *seconds: float) -> object:
        durations = iter(seconds)

        def run() -> None:
            calls.append(name)
            clock.now += next(durations)

        return run

    functions = {"ours": work("ours", 9.0, 2.0, 4.0, 3.0), "theirs": work("theirs", 9.0, 30.0, 6.0, 12.0)}
    ours, theirs = compare(functions, repeat=3, warmup=1, clock=clock)  # type: ignore[arg-type]
    assert (ours.median_ms, ours.min_ms, ours.ratio) == (3000.0, 2000.0, 1.0)
    assert (theirs.median_ms, theirs.min_ms, theirs.ratio) == (12000.0, 6000.0, 4.0)
    assert calls == ["ours", "theirs"] * 4  # in turn, the warm-up included and not timed


def test_no_ratio_is_infinite() -> None:
    timings = compare({"a": lambda: None, "b": lambda: None}, repeat=1, clock=lambda: 0.0)
    assert [t.ratio for t in timings] == [0.0, 0.0]


def test_real_clock_is_positive() -> None:
    timings = compare({"a": lambda: sum(range(1000)), "b": lambda: sum(range(2000))}, repeat=3)
    assert all(0 < t.min_ms <= t.median_ms for t in timings) and timings[0].ratio == 1.0


@pytest.mark.parametrize(("repeat", "warmup"), [(0, 0), (1, -1)])
def test_refuses(repeat: int, warmup: int) -> None:
    with pytest.raises(ConfigError):
        compare({"a": lambda: None}, repeat, warmup)


def test_machine_names_threads_and_torch() -> None:
    assert "thread" in machine() and "torch" in machine()
