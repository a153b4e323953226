"""The parts that charts are drawn from: text that is safe in XML, colours, marks, a legend, a frame with its grid.

Colours are CSS variables with a fallback, so that a page may restyle a chart (dark mode) and a chart alone still shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from papm.report.axes import Axis

# Okabe and Ito's palette, which stays apart for every kind of colour blindness; its yellow and black left out.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("", "7 4", "2 3.5", "10 3 2 3", "1 2")
SHAPES = ("circle", "square", "triangle", "diamond")  # four shapes and seven colours: 28 series before one repeats
WIDTH, HEIGHT = 460, 290  # small enough that the text stays readable when a phone shrinks it
TEXT = 12.5  # px
LETTER = 7.1  # mean width of a letter at that size in the widest of the usual fonts, px

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


def text(x: float, y: float, words: object, *, anchor: str = "start", muted: bool = True, size: float = TEXT) -> str:
    """A line of text."""
    fill = "var(--muted,#5c6470)" if muted else "var(--ink,#1b2430)"
    return (
        f'<text x="{place(x)}" y="{place(y)}" text-anchor="{anchor}" font-size="{place(size)}" style="fill:{fill}">'
        f"{safe(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line x1="{place(x1)}" y1="{place(y1)}" x2="{place(x2)}" y2="{place(y2)}" style="{style}"/>'


def mark(x: float, y: float, series: int, radius: float = 3.2, tip: str = "", style: str = "") -> str:
    """A small shape; its hover text is `tip`."""
    shape, r = SHAPES[series % len(SHAPES)], radius
    fill = style or f"fill:{colour(series)};stroke:var(--card,#fff);stroke-width:1"
    title = f"<title>{safe(tip)}</title>" if tip else ""
    if shape == "circle":
        return f'<circle cx="{place(x)}" cy="{place(y)}" r="{place(r)}" style="{fill}">{title}</circle>'
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "diamond": ((0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)),
    }[shape]
    where = " ".join(f"{place(x + dx * r)},{place(y + dy * r)}" for dx, dy in corners)
    return f'<polygon points="{where}" style="{fill}">{title}</polygon>'


def target(x: float, y: float, tip: str, radius: float = 7) -> str:
    """An invisible disc that answers to the mouse, for lines too thin to hit."""
    return (
        f'<circle class="hit" cx="{place(x)}" cy="{place(y)}" r="{place(radius)}" '
        f'style="fill:transparent;stroke:none"><title>{safe(tip)}</title></circle>'
    )


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a line with a mark on it, a box, or a mark alone."""

    label: str
    series: int = 0
    dash: int = 0
    kind: str = "line"  # line, box, mark
    neutral: bool = False  # grey: the entry explains a dash and no colour


def legend(keys: Sequence[Key], left: float, top: float, width: float) -> tuple[list[str], float]:
    """Entries in rows no wider than `width`; the parts and the height they take."""
    parts: list[str] = []
    x, y, row = left, top, 17.0
    for key in keys:
        shown = shorten(key.label, width - 34)
        wide = 26 + len(shown) * LETTER + 14
        if x > left and x + wide - 14 > left + width:
            x, y = left, y + row
        ink = "var(--muted,#5c6470)" if key.neutral else colour(key.series)
        if key.kind == "box":
            parts.append(
                f'<rect x="{place(x + 4)}" y="{place(y + 3)}" width="12" height="11" rx="2" style="{paint(key.series)}"/>'
            )
        else:
            if key.kind == "line":
                dash = f";stroke-dasharray:{DASHES[key.dash % len(DASHES)]}" if key.dash else ""
                parts.append(line(x, y + 8.5, x + 20, y + 8.5, f"stroke:{ink};stroke-width:2{dash}"))
            if not key.neutral:
                parts.append(mark(x + 10, y + 8.5, key.series))
        parts.append(text(x + 25, y + 12.8, shown, muted=False))
        x += wide
    return parts, (y + row - top) if keys else 0.0


def shorten(words: str, width: float, letter: float = LETTER) -> str:
    """Words cut with an ellipsis where they would pass `width` pixels.

    >>> shorten("displaced dots", 60)
    'displac…'
    """
    room = max(1, int(width / letter))
    return words if len(words) <= room else words[: max(1, room - 1)] + "…"


def told_apart(names: Sequence[str], room: int) -> list[str]:
    """Names of at most `room` letters that differ where the names do, if they can.

    Whole, without the words that all begin with, with the middle left out, or the ends without the words that all end with:
    the first of these that tells them apart.

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
    kept = [name[: len(name) - end] for name in names]
    tail = (room - 1) // 2
    tries = (
        [s if len(s) <= room else s[: room - 1] + "…" for s in short],
        [s if len(s) <= room else s[: room - 1 - tail] + "…" + s[len(s) - tail :] for s in short],
        [s if len(s) <= room else "…" + s[len(s) - room + 1 :] for s in kept],
    )
    return next((t for t in tries if len(set(t)) == len(set(names))), tries[0])


def _common_words(names: Sequence[str]) -> int:
    """Letters of the words that all begin with."""
    first, last = min(names), max(names)
    if first == last:
        return 0
    common = next((k for k, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))
    while common and first[common - 1].isalnum():
        common -= 1
    return common


@dataclass(frozen=True)
class Frame:
    """The plotting area of a chart: its axes and everything drawn before the data."""

    x: Axis
    y: Axis
    parts: list[str]


def frame(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    keys: Sequence[Key] = (),
    log_x: bool = False,
    log_y: bool = False,
    names: bool = True,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> Frame:
    """Grid, ticks, names of the axes (y above its axis, where it reads without turning the head) and a legend on top.

    With `names` false the x axis has neither ticks nor grid: the caller writes categories there.
    """
    parts, tall = legend(keys, 8, 4, width - 16)
    top = 4 + tall + (34 if keys else 28)
    y_words = Axis(tuple(y_ticks), 0, 1, log_y).labels
    left = 14 + max(len(w) for w in y_words) * LETTER * 0.92
    right, bottom = width - 18, height - 42
    x = Axis(tuple(x_ticks), left, right, log_x)
    y = Axis(tuple(y_ticks), bottom, top, log_y)
    parts.append(text(8, top - 16, y_label))
    for tick, words in zip(y.ticks, y_words):
        parts.append(line(left, y(tick), right, y(tick), "stroke:var(--grid,#e4e8ee);stroke-width:1"))
        parts.append(text(left - 6, y(tick) + 4.2, words, anchor="end"))
    if names:
        labels = x.labels
        # Leave labels out evenly where they would touch.
        room = (right - left) / max(1, len(labels) - 1)
        every = max(1, int((max(map(len, labels)) + 1.5) * LETTER / room) + (1 if room < LETTER else 0))
        for k, (tick, words) in enumerate(zip(x.ticks, labels)):
            parts.append(line(x(tick), top, x(tick), bottom, "stroke:var(--grid,#e4e8ee);stroke-width:1"))
            if k % every == 0:
                parts.append(text(x(tick), bottom + 17, words, anchor="middle"))
    parts.append(line(left, bottom, right, bottom, "stroke:var(--axis,#9aa4b2);stroke-width:1"))
    parts.append(text((left + right) / 2, height - 7, x_label, anchor="middle"))
    return Frame(x, y, parts)


def document(parts: Sequence[str], title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    """The whole chart; `title` is what a screen reader says."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {place(width)} {place(height)}" role="img" '
        f'aria-label="{safe(title)}" font-family="system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif">'
        f"<title>{safe(title)}</title>{''.join(parts)}</svg>"
    )


def note(words: str, title: str, width: float = WIDTH) -> str:
    """What stands in for a chart that has nothing to show."""
    return document([text(width / 2, 40, words, anchor="middle")], title, width, 72)
