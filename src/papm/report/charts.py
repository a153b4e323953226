"""Charts as SVG text, drawn from numbers alone: lines, scatter, bars with whiskers, histogram.

Every function takes plain sequences and returns one well-formed SVG element. NaN, infinity and (on a log axis) values that
are not positive are skipped; with nothing left the chart is a short note. Details show when the mouse rests on a mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from papm.report import axes
from papm.report.svg import (
    DASHES,
    HEIGHT,
    LETTER,
    WIDTH,
    Key,
    colour,
    document,
    frame,
    legend,
    line,
    mark,
    note,
    paint,
    place,
    safe,
    target,
    text,
    told_apart,
)

LONGEST = 500  # points of a line that are drawn: more than the chart has pixels
TARGETS = 60  # points of a line that answer to the mouse
FEW = 12  # values that are shown one by one: a histogram of fewer hides more than it tells
NOTHING = "nothing to show yet"


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
    x_label: str,
    y_label: str,
    log: bool | None = None,
    keys: Sequence[Key] | None = None,
) -> str:
    """Lines over a common x axis; the y axis is logarithmic when asked, or by itself when the values span decades.

    `keys` replaces the legend made from the series (none is drawn for a single line).
    """
    if log is None:
        log = axes.spans_decades([y for s in series for y in s.y])
    drawn = [(s, _kept(s, log)) for s in series]
    xs = [x for _, points in drawn for x, _ in points]
    if not xs:
        return note(NOTHING, title)
    # Steps and seconds are counted from the start of a run.
    x_ticks = axes.fit([0.0, *xs] if min(xs) >= 0 else xs, want=6)
    y_ticks = axes.fit((y for _, points in drawn for _, y in points), log=log)
    if keys is None:
        named = [s for s in series if not s.faint]
        keys = [Key(s.label, s.colour, s.dash) for s in named] if len(named) > 1 else []
    height = HEIGHT + _extra(keys)
    plot = frame(x_ticks, y_ticks, x_label=x_label, y_label=y_label, keys=keys, log_y=log, height=height)
    above: list[str] = []
    for s, points in drawn:
        if not points:
            continue
        shown = [(plot.x(x), plot.y(y)) for x, y in _thin(points, LONGEST)]
        path = "M" + "L".join(f"{place(x)} {place(y)}" for x, y in shown)
        dash = f";stroke-dasharray:{DASHES[s.dash % len(DASHES)]}" if s.dash else ""
        look = "stroke-width:1;opacity:.3" if s.faint else "stroke-width:2"
        style = f"fill:none;stroke:{colour(s.colour)};stroke-linejoin:round;{look}{dash}"
        plot.parts.append(f'<path d="{path}" style="{style}"/>')
        if s.faint:
            continue
        for x, y in _thin(points, TARGETS):
            tip = f"{s.label}: {_figure(y)} at {x_label} {_figure(x)}"
            if s.marks or len(points) == 1:
                above.append(mark(plot.x(x), plot.y(y), s.colour, 2.6))
            above.append(target(plot.x(x), plot.y(y), tip))
        if s.best:
            x, y = min(points, key=lambda p: p[1])
            tip = f"{s.label}, lowest: {_figure(y)} at {x_label} {_figure(x)}"
            above.append(mark(plot.x(x), plot.y(y), s.colour, 4.5))
            above.append(_ring(plot.x(x), plot.y(y), s.colour, tip))
    return document(plot.parts + above, title, height=height)


def scatter_chart(
    x: Sequence[float],
    y: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    tips: Sequence[str] | None = None,
    diagonal: bool = False,
    level: float | None = None,
) -> str:
    """Dots, with the line y = x (and equal axes) or a horizontal line at `level` to read them against."""
    names = tips if tips is not None else [f"{_figure(a)}, {_figure(b)}" for a, b in zip(x, y)]
    dots = [(a, b, t) for a, b, t in zip(x, y, names) if axes.usable(a) and axes.usable(b)]
    if not dots:
        return note(NOTHING, title)
    xs, ys = [a for a, _, _ in dots], [b for _, b, _ in dots]
    if diagonal:
        xs = ys = [0.0, *xs, *ys]
    elif level is not None:
        ys = [level, *ys]
    keys = [Key("perfect", 0, 1, neutral=True), Key("an image", 0, kind="mark")] if diagonal else []
    plot = frame(axes.fit([0.0, *xs], want=6), axes.fit(ys), x_label=x_label, y_label=y_label, keys=keys)
    guide = f"stroke:var(--muted,#5c6470);stroke-width:1.5;stroke-dasharray:{DASHES[1]}"
    if diagonal:
        low, high = plot.x.ticks[0], plot.x.ticks[-1]
        plot.parts.append(line(plot.x(low), plot.y(low), plot.x(high), plot.y(high), guide))
    elif level is not None:
        plot.parts.append(line(plot.x.start, plot.y(level), plot.x.end, plot.y(level), guide))
    style = f"fill:{colour(0)};fill-opacity:.55;stroke:{colour(0)};stroke-opacity:.9;stroke-width:.7"
    plot.parts.extend(mark(plot.x(a), plot.y(b), 0, 3.4, tip, style) for a, b, tip in dots)
    return document(plot.parts, title)


def bar_chart(
    groups: Sequence[str], bars: Sequence[Bars], *, title: str, y_label: str, x_label: str = "", width: float = WIDTH
) -> str:
    """Bars side by side within each group, from zero, with whiskers from `low` to `high` where both are known."""
    known = [v for b in bars for v in (*b.values, *b.low, *b.high) if v is not None and axes.usable(v)]
    if not any(v is not None and axes.usable(v) for b in bars for v in b.values) or not groups:
        return note(NOTHING, title)
    keys = [Key(b.label, k, kind="box") for k, b in enumerate(bars)] if len(bars) > 1 else []
    height = HEIGHT + _extra(keys, width)
    plot = frame((0, len(groups)), axes.fit([0.0, *known]), x_label=x_label, y_label=y_label, keys=keys, names=False,
                 width=width, height=height)  # fmt: skip
    slot = plot.x(1) - plot.x(0)
    each = min(64.0, slot * 0.78 / max(1, len(bars)))
    names = told_apart(groups, int((slot - 4) / LETTER))
    for g, group in enumerate(groups):
        middle = plot.x(g + 0.5)
        plot.parts.append(
            f"<g><title>{safe(group)}</title>{text(middle, plot.y.start + 17, names[g], anchor='middle', muted=False)}</g>"
        )
        for k, b in enumerate(bars):
            value = b.values[g] if g < len(b.values) else None
            if value is None or not axes.usable(value):
                continue
            left = middle + (k - len(bars) / 2) * each + each * 0.06
            low = b.low[g] if g < len(b.low) else None
            high = b.high[g] if g < len(b.high) else None
            plot.parts.append(_bar(plot.y, left, each * 0.88, value, low, high, k, f"{b.label}, {group}"))
    return document(plot.parts, title, width, height)


def histogram(values: Sequence[float], *, title: str, x_label: str, y_label: str) -> str:
    """How often which value: bins of one round width, about as many as the spread of the middle half asks for."""
    kept = sorted(v for v in values if axes.usable(v))
    if not kept:
        return note(NOTHING, title)
    edges = bin_edges(kept)
    width = edges[1] - edges[0]
    counts = [0] * (len(edges) - 1)
    for v in kept:
        counts[min(len(counts) - 1, max(0, math.floor((v - edges[0]) / width + 1e-9)))] += 1
    # The axis takes its ends from the bins, so that the outermost are whole.
    x_ticks = axes.fit(edges, want=6)
    most = max(counts)
    y_ticks = axes.fit([0, most], want=min(5, most))  # ticks at whole numbers: these are counts
    plot = frame(x_ticks, y_ticks, x_label=x_label, y_label=y_label)
    for (low, high), n in zip(pairwise(edges), counts):
        if n:
            left, right, top = plot.x(low), plot.x(high), plot.y(n)
            tip = f"{_figure(low)} to {_figure(high)}: {n}"
            plot.parts.append(
                f'<rect x="{place(left + 0.5)}" y="{place(top)}" width="{place(max(0.5, right - left - 1))}" '
                f'height="{place(plot.y.start - top)}" style="fill:{colour(0)};fill-opacity:.8">'
                f"<title>{safe(tip)}</title></rect>"
            )
    if x_ticks[0] < 0 < x_ticks[-1]:
        guide = f"stroke:var(--muted,#5c6470);stroke-width:1.5;stroke-dasharray:{DASHES[1]}"
        plot.parts.append(line(plot.x(0), plot.y.start, plot.x(0), plot.y.end, guide))
    return document(plot.parts, title)


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


def _ring(x: float, y: float, series: int, tip: str) -> str:
    return (
        f'<circle cx="{place(x)}" cy="{place(y)}" r="8" style="fill:transparent;stroke:{colour(series)};stroke-width:1.5">'
        f"<title>{safe(tip)}</title></circle>"
    )


def _bar(
    y: axes.Axis, left: float, wide: float, value: float, low: float | None, high: float | None, series: int, name: str
) -> str:
    top, zero = y(value), y(0)
    tip, whisker, reach = f"{name}: {_figure(value)}", "", min(top, zero)
    if low is not None and high is not None and axes.usable(low) and axes.usable(high):
        tip += f" ({_figure(low)} to {_figure(high)})"
        middle, cap = left + wide / 2, min(5.0, wide * 0.3)
        style = "stroke:var(--ink,#1b2430);stroke-width:1.4"
        whisker = (
            line(middle, y(low), middle, y(high), style)
            + line(middle - cap, y(low), middle + cap, y(low), style)
            + line(middle - cap, y(high), middle + cap, y(high), style)
        )
        reach = min(reach, y(high))
    words = f"{value:.2f}" if 1 <= abs(value) < 100 else _figure(value)  # as in the table beside the bars
    if isinstance(value, int):  # counts are whole
        words = f"{value:,}"
    label = (
        text(left + wide / 2, reach - 4, words, anchor="middle", size=11) if wide > len(words) * LETTER * 0.85 else ""
    )
    return (
        f'<g><title>{safe(tip)}</title><rect x="{place(left)}" y="{place(min(top, zero))}" width="{place(wide)}" '
        f'height="{place(abs(zero - top))}" rx="2" style="{paint(series)}"/>{whisker}{label}</g>'
    )


def _extra(keys: Sequence[Key], width: float = WIDTH) -> float:
    """Pixels by which a chart grows for the rows of its legend beyond the first."""
    return max(0.0, legend(keys, 8, 4, width - 16)[1] - 17)


def _figure(value: float) -> str:
    """A number in a hover text: four significant digits, whole thousands kept.

    >>> _figure(1234.5), _figure(0.000123456), _figure(57.123)
    ('1,234', '0.0001235', '57.12')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−") if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.4g}".replace("-", "−") if abs(value) >= 1e-4 or value == 0 else f"{value:.4g}"
