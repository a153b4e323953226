"""Ticks: round, increasing, few, and around all of the data."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.report import axes

finite = st.floats(-1e12, 1e12, allow_nan=False)
positive = st.floats(1e-12, 1e12)


def mantissa(value: float) -> float:
    return round(abs(value) / 10 ** math.floor(math.log10(abs(value)) + 1e-9), 6)


@given(finite, finite, st.integers(2, 10))
@settings(max_examples=150)
def test_linear_ticks_enclose_the_data_in_round_steps(a: float, b: float, want: int) -> None:
    low, high = min(a, b), max(a, b)
    ticks = axes.linear_ticks(low, high, want)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-8 * step and ticks[-1] >= high - 1e-8 * step
    assert 2 <= len(ticks) <= want + 3
    assert all(math.isclose(y - x, step, rel_tol=1e-6) for x, y in pairwise(ticks))
    # A step far below its ticks is only known to their last bit.
    if step > 1e-6 * max(abs(low), abs(high)):
        assert min(abs(mantissa(step) - m) for m in (1, 2, 5, 10)) < 1e-4


@given(positive, positive)
@settings(max_examples=150)
def test_log_ticks_enclose_the_data(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = axes.log_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high
    assert 2 <= len(ticks) <= 11
    assert ticks == sorted(set(ticks))
    assert all(min(abs(mantissa(t) - m) for m in (1, 2, 5, 10)) < 1e-6 for t in ticks)


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0, 1e-7, 1e9])
def test_a_single_value_gets_an_axis_around_it(value: float) -> None:
    ticks = axes.linear_ticks(value, value)
    assert ticks[0] < value < ticks[-1]


def test_axis_maps_its_ends_to_its_pixels() -> None:
    plain = axes.Axis((0.0, 50.0, 100.0), 30.0, 430.0)
    assert (plain(0), plain(25), plain(100)) == (30.0, 130.0, 430.0)
    log = axes.Axis((1.0, 10.0, 100.0), 200.0, 0.0, log=True)  # upwards, as a y axis runs
    assert (log(1), log(10), log(100)) == pytest.approx((200.0, 100.0, 0.0))


@given(st.lists(finite, min_size=1, max_size=5))
@settings(max_examples=80)
def test_labels_of_neighbouring_ticks_differ(values: list[float]) -> None:
    ticks = axes.fit(values)
    if ticks[1] - ticks[0] < 1e-3 * max(abs(t) for t in ticks):
        return  # a label has about four digits
    labels = axes.tick_labels(ticks)
    assert len(set(labels)) == len(labels) == len(ticks)


def test_fit_leaves_out_what_has_no_place() -> None:
    assert axes.fit([math.nan, math.inf, 3.0, 97.0]) == (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    assert axes.fit([-5.0, 0.0, 3.0, 90.0], log=True)[0] == 2.0
    assert axes.fit([math.nan]) == () == axes.fit([])


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1, 40], True),
        ([1, 30], False),
        ([-1, 1000], False),
        ([0, 1000], False),
        ([], False),
        ([math.nan, 1, 99], True),
    ],
)
def test_a_log_axis_is_for_positive_values_over_decades(values: list[float], log: bool) -> None:
    assert axes.spans_decades(values) is log
