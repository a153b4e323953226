"""Charts side by side as one SVG file that stands alone: a title over each, a remark below it, on white."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from papm.report import svg
from papm.report.charts import Card, Series, line_chart
from papm.report.svg import WIDTH, Key

GAP, TOP, LINE = 24.0, 30.0, 16.0
SMALL = 11.5  # px of the remarks
_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_HIT = re.compile(r'<circle class="hit".*?</circle>')  # what answers to the mouse on a page
_VARIABLE = re.compile(r"var\(--[\w-]+,([^()]*)\)")


def sheet(cards: Sequence[Card], title: str, columns: int = 3) -> Markup:
    """The charts in rows of at most `columns`.

    Colours that a page could restyle are fixed, for not every program that shows SVG knows CSS variables.
    """
    parts: list[str] = []
    y = 6.0
    widest = 0.0
    for start in range(0, len(cards), columns):
        x, tallest = 0.0, 0.0
        for card in cards[start : start + columns]:
            width, height = _size(card)
            below = _wrapped(card.remark, int((width - 16) / (svg.LETTER * 0.86)))
            parts.append(svg.text(x + 8, y + 18, card.title, muted=False, size=15.0))
            parts.append(
                str(card.svg).replace(
                    "<svg ", f'<svg x="{x:g}" y="{y + TOP:g}" width="{width:g}" height="{height:g}" ', 1
                )
            )
            for k, line in enumerate(below):
                parts.append(svg.text(x + 8, y + TOP + height + LINE * (k + 1), line, size=SMALL))
            x, tallest = x + width + GAP, max(tallest, TOP + height + LINE * len(below) + 8)
        y, widest = y + tallest + 12, max(widest, x - GAP)
    white = svg.rect(0, 0, widest, y, "fill:#fff")
    whole = svg.document([white, *parts], title, widest, y)
    sized = str(whole).replace("<svg ", f'<svg width="{widest:g}" height="{y:g}" ', 1)
    return Markup(_VARIABLE.sub(r"\1", _HIT.sub("", sized)))


def curves(series: Sequence[Series], title: str, remark: str, x_label: str, y_label: str) -> Card:
    """Lines that no marks are on, on linear axes."""
    keys = [Key(s.label, s.colour, s.dash, kind="curve") for s in series]
    return line_chart(series, title=title, remark=remark, x_label=x_label, y_label=y_label, log=False, keys=keys)


def _size(card: Card) -> tuple[float, float]:
    found = _BOX.search(card.svg)
    return (float(found[1]), float(found[2])) if found else (WIDTH, svg.HEIGHT)


def _wrapped(words: str, room: int) -> list[str]:
    """The words in lines of at most `room` letters.

    >>> _wrapped("one two three", 8)
    ['one two', 'three']
    """
    lines: list[str] = []
    for word in words.split():
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
