"""Axes of a chart: round ticks that enclose the data, their labels, and where a value lies in pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

STEPS = (1, 2, 5, 10)  # the ticks people read without effort
LARGEST, SMALLEST = 1e100, 1e-100  # what lies beyond is no measurement, and differences of it overflow
DECADES = 1.5  # data that spans more decades than this is drawn on a log axis


def usable(value: float | None, log: bool = False) -> TypeGuard[float]:
    """Whether a value has a place on an axis: a finite number, positive where the axis is logarithmic."""
    if value is None or not math.isfinite(value) or abs(value) > LARGEST:
        return False
    return value >= SMALLEST if log else True


def spans_decades(values: Iterable[float]) -> bool:
    """Whether a log axis suits the values: all positive, and the largest far above the smallest.

    >>> spans_decades([1, 10]), spans_decades([1, 100]), spans_decades([0, 100])
    (False, True, False)
    """
    kept = [v for v in values if usable(v)]
    return bool(kept) and min(kept) >= SMALLEST and max(kept) / min(kept) > 10**DECADES


def linear_ticks(low: float, high: float, want: int = 5) -> list[float]:
    """About `want` multiples of 1, 2 or 5 times a power of ten, the first ≤ low and the last ≥ high.

    >>> linear_ticks(3, 97), linear_ticks(0.02, 0.31), linear_ticks(5, 5)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 0.1, 0.2, 0.3, 0.4], [4.5, 5.0, 5.5])
    """
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, 1e-90):  # one value only: an axis around it
        reach = 0.1 * largest if largest > 1e-80 else 1.0
        low, high, want = low - reach, high + reach, 2
    raw = (high - low) / want
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in STEPS if m * power >= raw * (1 - 1e-9))
    # The tolerance keeps 0.3 = 3 × 0.1 from asking for a fourth tick because of its last bit.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 1 - math.floor(math.log10(step))
    return [round(k * step, digits) + 0.0 for k in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or powers alone over many decades; the first ≤ low, the last ≥ high.

    >>> log_ticks(3, 90), log_ticks(0.002, 30)
    ([2.0, 5.0, 10.0, 20.0, 50.0, 100.0], [0.001, 0.01, 0.1, 1.0, 10.0, 100.0])
    """
    decades = math.log10(high) - math.log10(low)
    least, most = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    if decades <= 2:
        candidates = [float(f"{m}e{e}") for e in range(least, most + 1) for m in (1, 2, 5)]
    else:
        jump = max(1, math.ceil(decades / 7))
        candidates = [float(f"1e{e}") for e in range(least - least % jump - jump, most + jump + 1, jump)]
    first = max(c for c in candidates if c <= low)
    last = min(c for c in candidates if c >= high and c > first)
    return [c for c in candidates if first <= c <= last]


@dataclass(frozen=True)
class Axis:
    """A line of pixels from `start` to `end` on which the first and the last tick are the ends."""

    ticks: tuple[float, ...]
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        first, last = self.ticks[0], self.ticks[-1]
        if self.log:
            value, first, last = math.log10(value), math.log10(first), math.log10(last)
        return self.start + (value - first) / (last - first) * (self.end - self.start)


def fit(values: Iterable[float], *, log: bool = False, want: int = 5) -> tuple[float, ...]:
    """Ticks for the usable ones among `values`; empty when there are none."""
    kept = [v for v in values if usable(v, log)]
    if not kept:
        return ()
    return tuple(log_ticks(min(kept), max(kept)) if log else linear_ticks(min(kept), max(kept), want))


def tick_labels(ticks: Sequence[float], log: bool = False) -> list[str]:
    """Short labels in one unit: 0, 5k, 10k; 0, 2e−5, 4e−5; −0.5, 0.0, 0.5.

    >>> tick_labels([0, 10000, 20000]), tick_labels([-0.5, 0, 0.5]), tick_labels([0.1, 1, 1000], log=True)
    (['0', '10k', '20k'], ['−0.5', '0.0', '0.5'], ['0.1', '1', '1,000'])
    """
    if log:
        return [_alone(t) for t in ticks]
    largest = max(abs(t) for t in ticks)
    step = ticks[1] - ticks[0]
    if largest >= 1e9 or largest < 1e-2:
        return [_alone(t) for t in ticks]
    unit, letter = (1e6, "M") if largest >= 1e6 else (1e3, "k") if largest >= 1e4 else (1.0, "")
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return [_minus(f"{t / unit:,.{digits}f}{letter}") if t or not letter else "0" for t in ticks]


def _alone(value: float) -> str:
    """A label that needs no neighbours."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return _minus(f"{value:,.6g}" if abs(value) < 1 else f"{value:,.10g}")
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return _minus(f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}")


def _minus(text: str) -> str:
    return text.replace("-", "−")
