"""Charts drawn from numbers alone: lines, scatter, bars with whiskers, histogram.

Every function takes plain sequences and returns a card of a page with one well-formed SVG element. NaN, infinity and (on a log
axis) values that are not positive are skipped; with nothing left the chart is a short note. Details show when the mouse rests
on a mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from papm.report import axes, svg
from papm.report.svg import DIGIT, GUIDE, LETTER, WIDTH, Key, colour

if TYPE_CHECKING:
    from markupsafe import Markup

LONGEST = 500  # points of a line that are drawn: more than the chart has pixels
TARGETS = 60  # points of a line that answer to the mouse
FEW = 12  # values that are shown one by one: a histogram of fewer hides more than it tells
NOTHING = "nothing to show yet"


class Card(NamedTuple):
    """A chart of a page, under its title and a remark."""

    title: str
    remark: str
    svg: Markup


@dataclass(frozen=True)
class Series:
    """One line of a chart. `colour` and `dash` are places in the palette and in the list of dashes."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int = 0
    faint: bool = False  # drawn pale and left out of the legend: the noise under a smooth line
    marks: bool = False  # a mark at every point
    best: bool = False  # a ring around the lowest point


@dataclass(frozen=True)
class Bars:
    """The bars of one colour, one a group; `low` and `high` are the ends of the whiskers."""

    label: str
    values: Sequence[float | None]
    low: Sequence[float | None] = field(default_factory=tuple)
    high: Sequence[float | None] = field(default_factory=tuple)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    remark: str = "",
    x_label: str,
    y_label: str,
    log: bool | None = None,
    keys: Sequence[Key] | None = None,
) -> Card:
    """Lines over a common x axis; the y axis is logarithmic when asked, or by itself when the values span decades.

    `keys` replaces the legend made from the series (none is drawn for a single line).
    """
    if log is None:
        log = axes.spans_decades([y for s in series for y in s.y])
    drawn = [(s, points) for s in series if (points := _kept(s, log))]
    xs = [x for _, points in drawn for x, _ in points]
    if not xs:
        return Card(title, remark, svg.note(NOTHING, title))
    # Steps and seconds are counted from the start of a run.
    x_ticks = axes.fit([0.0, *xs] if min(xs) >= 0 else xs, want=6)
    y_ticks = axes.fit((y for _, points in drawn for _, y in points), log=log)
    if keys is None:
        named = [s for s in series if not s.faint]
        keys = [Key(s.label, s.colour, s.dash) for s in named] if len(named) > 1 else []
    made = svg.plot(x_ticks, y_ticks, x_label=x_label, y_label=y_label, keys=keys, log_y=log)
    for s, points in drawn:
        path = "M" + "L".join(f"{svg.place(made.x(x))} {svg.place(made.y(y))}" for x, y in _thin(points, LONGEST))
        look = "stroke-width:1;opacity:.3" if s.faint else "stroke-width:2"
        style = f"fill:none;stroke:{colour(s.colour)};stroke-linejoin:round;{look}{svg.dashed(s.dash)}"
        made.parts.append(svg.element("path", d=path, style=style))
    for s, points in drawn:
        if not s.faint:
            made.parts.extend(_marks(made, s, points, x_label))
    return Card(title, remark, made.svg(title))


def _marks(made: svg.Plot, s: Series, points: Sequence[tuple[float, float]], x_label: str) -> Iterator[str]:
    """What lies above the lines: marks, and what answers to the mouse."""
    for x, y in _thin(points, TARGETS):
        if s.marks or len(points) == 1:
            yield svg.mark(made.x(x), made.y(y), s.colour, 2.6)
        yield svg.target(made.x(x), made.y(y), f"{s.label}: {_figure(y)} at {x_label} {_figure(x)}")
    if s.best:
        x, y = min(points, key=lambda p: p[1])
        tip = f"{s.label}, lowest: {_figure(y)} at {x_label} {_figure(x)}"
        yield svg.mark(made.x(x), made.y(y), s.colour, 4.5)
        yield svg.circle(made.x(x), made.y(y), 8.0, f"fill:transparent;stroke:{colour(s.colour)};stroke-width:1.5", tip)


def scatter_chart(
    x: Sequence[float],
    y: Sequence[float],
    *,
    title: str,
    remark: str = "",
    x_label: str,
    y_label: str,
    tips: Sequence[str] | None = None,
    diagonal: bool = False,
    level: float | None = None,
) -> Card:
    """Dots, with the line y = x (and equal axes) or a horizontal line at `level` to read them against."""
    names = tips if tips is not None else [f"{_figure(a)}, {_figure(b)}" for a, b in zip(x, y)]
    dots = [(a, b, t) for a, b, t in zip(x, y, names) if axes.usable(a) and axes.usable(b)]
    if not dots:
        return Card(title, remark, svg.note(NOTHING, title))
    xs, ys = [a for a, _, _ in dots], [b for _, b, _ in dots]
    if diagonal:
        xs = ys = [0.0, *xs, *ys]
    elif level is not None:
        ys = [level, *ys]
    keys = [Key("perfect", 0, 1, neutral=True), Key("one image", 0, kind="mark")] if diagonal else []
    made = svg.plot(axes.fit([0.0, *xs], want=6), axes.fit(ys), x_label=x_label, y_label=y_label, keys=keys)
    low, high = made.x.ticks[0], made.x.ticks[-1]
    if diagonal or level is not None:
        ends = (low, high) if level is None else (level, level)
        made.parts.append(svg.line(made.x(low), made.y(ends[0]), made.x(high), made.y(ends[1]), GUIDE))
    style = f"fill:{colour(0)};fill-opacity:.55;stroke:{colour(0)};stroke-opacity:.9;stroke-width:.7"
    made.parts.extend(svg.mark(made.x(a), made.y(b), 0, 3.4, tip, style) for a, b, tip in dots)
    return Card(title, remark, made.svg(title))


def bar_chart(
    groups: Sequence[str],
    bars: Sequence[Bars],
    *,
    title: str,
    remark: str = "",
    y_label: str,
    width: float = WIDTH,
) -> Card:
    """Bars side by side within each group, from zero, with whiskers from `low` to `high` where both are known."""
    known = [v for b in bars for v in (*b.values, *b.low, *b.high) if axes.usable(v)]
    if not any(axes.usable(v) for b in bars for v in b.values) or not groups:
        return Card(title, remark, svg.note(NOTHING, title))
    keys = [Key(b.label, k, kind="box") for k, b in enumerate(bars)] if len(bars) > 1 else []
    y_ticks = axes.fit([0.0, *known])
    made = svg.plot((0, len(groups)), y_ticks, x_label="", y_label=y_label, keys=keys, names=False, width=width)
    slot = made.x(1) - made.x(0)
    each = min(64.0, slot * 0.78 / max(1, len(bars)))
    names = svg.told_apart(groups, int((slot - 8) / DIGIT))
    for g, group in enumerate(groups):
        middle = made.x(g + 0.5)
        name = svg.text(middle, made.y.start + 17, names[g], anchor="middle", muted=False)
        made.parts.append(svg.element("g", name, tip=group))
        for k, b in enumerate(bars):
            value, low, high = (some[g] if g < len(some) else None for some in (b.values, b.low, b.high))
            if axes.usable(value):
                left = middle + (k - len(bars) / 2) * each + each * 0.06
                between = (low, high) if axes.usable(low) and axes.usable(high) else None
                room = slot if len(bars) == 1 else each
                made.parts.append(_bar(made.y, left, each * 0.88, room, value, between, k, f"{b.label}, {group}"))
    return Card(title, remark, made.svg(title))


def _bar(
    y: axes.Axis,
    left: float,
    wide: float,
    room: float,
    value: float,
    between: tuple[float, float] | None,
    series: int,
    name: str,
) -> str:
    """A bar, its whiskers and its figure where it fits into `room`, the width up to the figures beside it."""
    top, zero, middle = y(value), y(0), left + wide / 2
    tip, reach = f"{name}: {_figure(value)}", min(top, zero)
    parts = [svg.rect(left, min(top, zero), wide, abs(zero - top), svg.paint(series))]
    if between is not None:
        low, high = between
        tip += f" ({_figure(low)} to {_figure(high)})"
        cap, style = min(5.0, wide * 0.3), "stroke:var(--ink,#1b2430);stroke-width:1.4"
        parts.append(svg.line(middle, y(low), middle, y(high), style))
        parts += [svg.line(middle - cap, y(end), middle + cap, y(end), style) for end in between]
        reach = min(reach, y(high))
    if isinstance(value, int):  # counts are whole
        words = f"{value:,}"
    elif 0.001 <= abs(value) < 100:  # as in the table beside the bars
        words = (f"{value:#.3g}" if abs(value) < 1 else f"{value:.2f}").replace("-", "−")
    else:
        words = _figure(value)
    if room * 0.88 > len(words) * LETTER * 0.85:
        parts.append(svg.text(middle, reach - 4, words, anchor="middle", size=11.0))
    return svg.element("g", "".join(parts), tip=tip)


def histogram(values: Sequence[float], *, title: str, remark: str = "", x_label: str, y_label: str) -> Card:
    """How often which value: bins of one round width, about as many as the spread of the middle half asks for."""
    kept = sorted(v for v in values if axes.usable(v))
    if not kept:
        return Card(title, remark, svg.note(NOTHING, title))
    edges = bin_edges(kept)
    width = edges[1] - edges[0]
    counts = [0] * (len(edges) - 1)
    for v in kept:
        counts[min(len(counts) - 1, max(0, math.floor((v - edges[0]) / width + 1e-9)))] += 1
    # The axis takes its ends from the bins, so that the outermost are whole.
    x_ticks = axes.fit(edges, want=6)
    y_ticks = axes.fit([0, max(counts)], want=min(5, max(counts)))  # ticks at whole numbers: these are counts
    made = svg.plot(x_ticks, y_ticks, x_label=x_label, y_label=y_label)
    for (low, high), n in zip(pairwise(edges), counts):
        if n:
            left, wide, top = made.x(low) + 0.5, made.x(high) - made.x(low) - 1, made.y(n)
            tip, style = f"{_figure(low)} to {_figure(high)}: {n}", f"fill:{colour(0)};fill-opacity:.8"
            made.parts.append(svg.rect(left, top, max(0.5, wide), made.y.start - top, style, tip))
    if x_ticks[0] < 0 < x_ticks[-1]:
        made.parts.append(svg.line(made.x(0), made.y.start, made.x(0), made.y.end, GUIDE))
    return Card(title, remark, made.svg(title))


def bin_edges(ordered: Sequence[float], most: int = 40) -> list[float]:
    """Edges of histogram bins around sorted values, at multiples of a round width.

    As many as Freedman and Diaconis' rule wants, or Sturges', which wants more of few values.

    >>> bin_edges([0, 1, 2, 3, 4, 5, 6, 7])
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    n = len(ordered)
    spread = ordered[(3 * n) // 4] - ordered[n // 4]
    whole = ordered[-1] - ordered[0]
    width = 2 * spread / n ** (1 / 3)
    want = 10 if width <= 0 else min(most, max(math.ceil(math.log2(n)) + 1, round(whole / width)))
    return axes.linear_ticks(ordered[0], ordered[-1], want)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Centred moving mean over `window` values (fewer at the ends), those that are not finite left out.

    >>> smoothed([1.0, 2.0, 6.0, 7.0], 3)
    [1.5, 3.0, 5.0, 6.5]
    """
    half = window // 2
    out = []
    for k in range(len(values)):
        near = [v for v in values[max(0, k - half) : k + half + 1] if math.isfinite(v)]
        out.append(sum(near) / len(near) if near else math.nan)
    return out


def _kept(series: Series, log: bool) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(series.x, series.y) if axes.usable(x) and axes.usable(y, log)]


def _thin(points: Sequence[tuple[float, float]], most: int) -> Iterator[tuple[float, float]]:
    """At most about `most` of the points, evenly, the first and the last among them."""
    every = max(1, math.ceil(len(points) / most))
    yield from points[::every]
    if (len(points) - 1) % every:
        yield points[-1]


def _figure(value: float) -> str:
    """A number in a hover text: four significant digits, whole thousands kept.

    >>> _figure(1234.5), _figure(0.000123456), _figure(57.123)
    ('1,234', '0.0001235', '57.12')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−") if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.4g}".replace("-", "−") if abs(value) >= 1e-4 or value == 0 else f"{value:.4g}"
