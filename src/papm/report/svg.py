"""The parts that charts are drawn from: text that is safe in XML, colours, marks, a legend, a frame with its grid.

Colours are CSS variables with a fallback, so that a page may restyle a chart (dark mode) and a chart alone still shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from papm.extras import require
from papm.report.axes import Axis, tick_labels

if TYPE_CHECKING:
    from markupsafe import Markup

# Okabe and Ito's palette, which stays apart for every kind of colour blindness; its yellow and black left out.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("", "7 4", "2 3.5", "10 3 2 3", "1 2")
# Corners of the marks, a circle first; four shapes and seven colours: 28 series before one repeats.
SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    ((0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)),
)
MUTED, GRID = "var(--muted,#5c6470)", "stroke:var(--grid,#e4e8ee);stroke-width:1"
GUIDE = f"stroke:{MUTED};stroke-width:1.5;stroke-dasharray:{DASHES[1]}"  # of a line to read the data against
WIDTH, HEIGHT = 460.0, 290.0  # small enough that the text stays readable when a phone shrinks it
TEXT = 12.5  # px
ROW = 17.0  # px of a row of the legend
LETTER = 7.1  # mean width of a letter at that size in the widest of the usual fonts, px
DIGIT = 8.0  # of a digit, as names of images end in: 7.6 px, and an ellipsis of 12 px among six of them

# What XML 1.0 cannot hold: control characters, halves of surrogate pairs, two that are no characters.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def safe(text: object) -> str:
    """Text for an element or a quoted attribute.

    >>> safe('<a href="x">&\\x00')
    '&lt;a href=&quot;x&quot;&gt;&amp;�'
    """
    return escape(_FORBIDDEN.sub("�", str(text)), {'"': "&quot;"})


def colour(index: int) -> str:
    """The colour of a series, as CSS."""
    k = index % len(PALETTE)
    return f"var(--c{k + 1},{PALETTE[k]})"


def paint(index: int) -> str:
    """The style of a bar; every second round through the palette is paler, with a rim."""
    pale = (index // len(PALETTE)) % 2
    return f"fill:{colour(index)}" + (f";fill-opacity:.35;stroke:{colour(index)};stroke-width:1.5" if pale else "")


def place(value: float) -> str:
    """A coordinate: two decimals are finer than a screen, and keep the file small."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(tag: str, inside: str = "", *, tip: str = "", **attributes: object) -> str:
    """An element: `inside` is markup, `tip` its hover text; `font_size=2.0` is written font-size="2".

    >>> element("circle", tip="a & b", cx=1.005, class_="hit")
    '<circle cx="1" class="hit"><title>a &amp; b</title></circle>'
    """
    words = [f'{k.rstrip("_").replace("_", "-")}="{_value(v)}"' for k, v in attributes.items()]
    inside = f"<title>{safe(tip)}</title>{inside}" if tip else inside
    start = " ".join([tag, *words])
    return f"<{start}>{inside}</{tag}>" if inside else f"<{start}/>"


def _value(value: object) -> str:
    return place(value) if isinstance(value, float) else safe(value)


def text(x: float, y: float, words: object, *, anchor: str = "start", muted: bool = True, size: float = TEXT) -> str:
    """A line of text."""
    fill = f"fill:{MUTED}" if muted else "fill:var(--ink,#1b2430)"
    return element("text", safe(words), x=x, y=y, text_anchor=anchor, font_size=size, style=fill)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, style=style)


def rect(left: float, top: float, width: float, height: float, style: str, tip: str = "") -> str:
    """A box."""
    return element("rect", tip=tip, x=left, y=top, width=width, height=height, rx=2, style=style)


def circle(x: float, y: float, radius: float, style: str, tip: str = "") -> str:
    """A disc or a ring."""
    return element("circle", tip=tip, cx=x, cy=y, r=radius, style=style)


def mark(x: float, y: float, series: int, radius: float = 3.2, tip: str = "", style: str = "") -> str:
    """A small shape; its hover text is `tip`."""
    style = style or f"fill:{colour(series)};stroke:var(--card,#fff);stroke-width:1"
    corners = SHAPES[series % len(SHAPES)]
    if not corners:
        return circle(x, y, radius, style, tip)
    where = " ".join(f"{place(x + dx * radius)},{place(y + dy * radius)}" for dx, dy in corners)
    return element("polygon", tip=tip, points=where, style=style)


def target(x: float, y: float, tip: str) -> str:
    """An invisible disc that answers to the mouse, for lines too thin to hit."""
    return element("circle", tip=tip, class_="hit", cx=x, cy=y, r=7, style="fill:transparent;stroke:none")


def dashed(dash: int) -> str:
    """The style of a dashed line, nothing for a whole one."""
    return f";stroke-dasharray:{DASHES[dash % len(DASHES)]}" if dash else ""


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a line with a mark on it or without (a curve), a box, or a mark alone."""

    label: str
    series: int = 0
    dash: int = 0
    kind: str = "line"  # line, curve, box, mark
    neutral: bool = False  # grey: the entry explains a dash and no colour


def legend(keys: Sequence[Key], left: float, top: float, width: float) -> tuple[list[str], float]:
    """Entries in rows no wider than `width`; the parts and the height they take."""
    parts: list[str] = []
    x, y = left, top
    for key in keys:
        shown = _cut(key.label, max(1, int((width - 34) / LETTER)), 0)
        wide = 26 + len(shown) * LETTER + 14
        if x > left and x + wide - 14 > left + width:
            x, y = left, y + ROW
        if key.kind == "box":
            parts.append(rect(x + 4, y + 3, 12.0, 11.0, paint(key.series)))
        if key.kind in ("line", "curve"):
            ink = MUTED if key.neutral else colour(key.series)
            parts.append(line(x, y + 8.5, x + 20, y + 8.5, f"stroke:{ink};stroke-width:2{dashed(key.dash)}"))
        if key.kind in ("line", "mark") and not key.neutral:
            parts.append(mark(x + 10, y + 8.5, key.series))
        parts.append(text(x + 25, y + 12.8, shown, muted=False))
        x += wide
    return parts, (y + ROW - top) if keys else 0.0


def told_apart(names: Sequence[str], room: int) -> list[str]:
    """Names of at most `room` letters that differ where the names do, if they can.

    Whole, without the words that all begin with, only their ends, with the middle left out, or the ends without the
    words that all end with: the first of these that tells them apart.

    >>> told_apart(["plant_01.jpg", "plant_02.jpg"], 7), told_apart(["a", "ab"], 7), told_apart(["IMG01.jpg", "IMG02.jpg"], 4)
    (['…01.jpg', '…02.jpg'], ['a', 'ab'], ['…G01', '…G02'])
    >>> told_apart(["data/tiny-sc-steps=90-s0", "data/tiny-sc-steps=90-s1", "data/tiny-bl-steps=90-s0"], 12)
    ['…sc-st…90-s0', '…sc-st…90-s1', '…bl-st…90-s0']
    """
    room = max(2, room)
    if all(len(name) <= room for name in names):
        return list(names)
    begin, end = _common_words(names), _common_words([name[::-1] for name in names])
    short = ["…" + name[begin:] if begin else name for name in names]
    tries = (
        [_cut(s, room, 0) for s in short],
        *([[_cut(s, room, room - 1) for s in short]] if begin else []),
        [_cut(s, room, (room - 1) // 2) for s in short],
        [_cut(name[: len(name) - end], room, room - 1) for name in names],
    )
    return next((t for t in tries if len(set(t)) == len(set(names))), tries[0])


def _cut(words: str, room: int, tail: int) -> str:
    """At most `room` letters, the last `tail` of them the end of the words."""
    return words if len(words) <= room else words[: room - 1 - tail] + "…" + words[len(words) - tail :]


def _common_words(names: Sequence[str]) -> int:
    """Letters of the words that all begin with."""
    common = os.path.commonprefix(names) if len(set(names)) > 1 else ""  # noqa: RUF071 -- letters, not paths
    return len(re.sub(r"[^\W_]+$", "", common))


@dataclass(frozen=True)
class Plot:
    """A chart in the making: its axes, and the parts drawn so far."""

    x: Axis
    y: Axis
    parts: list[str]
    width: float
    height: float

    def svg(self, title: str) -> Markup:
        """The chart; `title` is what a screen reader says."""
        return document(self.parts, title, self.width, self.height)


def plot(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    keys: Sequence[Key] = (),
    log_y: bool = False,
    names: bool = True,
    width: float = WIDTH,
) -> Plot:
    """Grid, ticks, names of the axes (y above its axis, where it reads without turning the head) and a legend on top.

    The chart grows for the rows of its legend beyond the first. With `names` false the x axis has neither ticks nor grid:
    the caller writes categories there.
    """
    parts, tall = legend(keys, 8.0, 4.0, width - 16)
    height = HEIGHT + max(0.0, tall - ROW)
    top = 4 + tall + (34 if keys else 28)
    y_words = tick_labels(y_ticks, log_y)
    left = 14 + max(map(len, y_words)) * LETTER * 0.92
    right, bottom = width - 18, height - 42
    x, y = Axis(tuple(x_ticks), left, right), Axis(tuple(y_ticks), bottom, top, log_y)
    parts.append(text(8.0, top - 16, y_label))
    for tick, words in zip(y.ticks, y_words):
        parts.append(line(left, y(tick), right, y(tick), GRID))
        parts.append(text(left - 6, y(tick) + 4.2, words, anchor="end"))
    if names:
        labels = tick_labels(x_ticks)
        # Leave labels out evenly where they would touch.
        room = (right - left) / max(1, len(labels) - 1)
        every = max(1, int((max(map(len, labels)) + 1.5) * LETTER / room) + (1 if room < LETTER else 0))
        for k, (tick, words) in enumerate(zip(x.ticks, labels)):
            parts.append(line(x(tick), top, x(tick), bottom, GRID))
            if k % every == 0:
                parts.append(text(x(tick), bottom + 17, words, anchor="middle"))
    parts.append(line(left, bottom, right, bottom, "stroke:var(--axis,#9aa4b2);stroke-width:1"))
    parts.append(text((left + right) / 2, height - 7, x_label, anchor="middle"))
    return Plot(x, y, parts, width, height)


def document(parts: Sequence[str], title: str, width: float = WIDTH, height: float = HEIGHT) -> Markup:
    """The whole chart, which a template need not escape: everything here is."""
    require("report", "a page needs")
    from markupsafe import Markup

    font = "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif"
    box = f"0 0 {place(width)} {place(height)}"
    return Markup(
        element("svg", "".join(parts), tip=title, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img",
                aria_label=title, font_family=font)
    )  # fmt: skip


def note(words: str, title: str) -> Markup:
    """What stands in for a chart that has nothing to show."""
    return document([text(WIDTH / 2, 40.0, words, anchor="middle")], title, height=72.0)
