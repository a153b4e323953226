"""What stands around a picture: a strip above it that names and counts, and a bar beside it that says what colours mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from papm.marks import Colour, Picture

SQUARE = 100  # px of the image: densities are told as objects in a square of this side
UNIT = f"objects per {SQUARE} x {SQUARE} px"  # the font has no multiplication sign
PAPER: Colour = (255, 255, 255)
INK: Colour = (24, 24, 28)
PALE: Colour = (96, 96, 104)
_LONGEST = 500  # letters that are looked at
_ROW = 1.7  # height of a line of the strip, in sizes of its font


@dataclass(frozen=True)
class Entry:
    """A word and its figure, behind the mark they belong to."""

    word: str
    figure: str = ""
    mark: Callable[..., None] | None = None
    colour: Colour = INK


def text_size(side: int) -> int:
    """The size of letters that are read beside a picture whose longer side has so many pixels."""
    return int(np.clip(side * 0.022, 15, 34))


def headline(width: int, entries: Sequence[Entry], text: int) -> Image.Image:
    """A strip of this width with the entries, in as many lines as they need; wider where one would not fit."""
    font, pad = ImageFont.load_default(text), round(text * 0.6)
    longest = max(width - 2 * pad, 24 * text)
    entries = [Entry(fitted(e.word, font, longest), e.figure, e.mark, e.colour) for e in entries]
    widths = [_width(e, font, text) for e in entries]
    width = max(width, round(max(widths, default=0)) + 2 * pad)
    places, x, line = [], float(pad), 0
    for wide in widths:
        if x > pad and x + wide > width - pad:
            x, line = float(pad), line + 1
        places.append((x, line))
        x += wide + 1.4 * text
    row = round(text * _ROW)
    sheet = np.full((row * (line + 1), width, 3), PAPER, dtype=np.float32)
    for entry, (x, line) in zip(entries, places):
        if entry.mark is not None:
            at = torch.tensor([[x + text * 0.35, (line + 0.5) * row]])
            entry.mark(sheet, at, 1.0, entry.colour, radius=text * 0.3)
    made = Image.fromarray(sheet.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(made)
    for entry, (x, line) in zip(entries, places):
        x, y = x + (text if entry.mark else 0), (line + 0.5) * row
        pen.text((x, y), entry.word, fill=PALE, font=font, anchor="lm")
        pen.text((x + font.getlength(entry.word) + 0.4 * text, y), entry.figure, fill=INK, font=font, anchor="lm")
    return made


def _width(entry: Entry, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: int) -> float:
    words = font.getlength(entry.word) + (font.getlength(entry.figure) + 0.4 * text if entry.figure else 0)
    return float(words + (text if entry.mark else 0))


def bar(height: int, column: Picture, full: float, above: bool, text: int) -> Image.Image:
    """A bar of the colours `column` [n, 1, 3], from zero up to `full` objects per square of SQUARE px, at least as high as its
    words are long; it ends in a tip where there are values `above` that."""
    font, unit = ImageFont.load_default(text), ImageFont.load_default(round(text * 0.95))
    named = {value: f"{value:,g}" for value in ticks(full)}
    thick, gap, length = round(text * 1.1), round(text * 0.6), round(unit.getlength(UNIT))
    height = max(height, length + 2 * text)
    made = Image.new("RGB", (4 * gap + thick + round(max(map(font.getlength, named.values())) + text), height), PAPER)
    tip = round(thick * 0.8) if above else 0
    top, bottom = text + tip, height - text
    colours = Image.fromarray(column[::-1].clip(0, 255).astype(np.uint8))
    made.paste(colours.resize((thick, bottom - top), Image.Resampling.BILINEAR), (gap, top))
    pen = ImageDraw.Draw(made)
    if above:
        fill = tuple(int(v) for v in column[-1, 0])
        pen.polygon([(gap, top - 1), (gap + thick - 1, top - 1), (gap + thick / 2, top - tip)], fill=fill)
    for value, name in named.items():
        y = bottom - value / full * (bottom - top)
        pen.line([(gap + thick, y), (gap + thick + gap // 2, y)], fill=INK, width=max(1, text // 12))
        pen.text((2 * gap + thick, y), name, fill=INK, font=font, anchor="lm")
    turned = Image.new("RGB", (length + 4, round(text * 1.4)), PAPER)
    ImageDraw.Draw(turned).text((2, turned.height / 2), UNIT, fill=PALE, font=unit, anchor="lm")
    turned = turned.rotate(90, expand=True)
    made.paste(turned, (made.width - turned.width - 2, (height - turned.height) // 2))
    return made


def ticks(full: float, most: int = 6) -> list[float]:
    """Round numbers from zero up to `full`, at most so many.

    >>> ticks(63), ticks(0.9), ticks(1200)
    ([0.0, 20.0, 40.0, 60.0], [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 500.0, 1000.0])
    """
    power = 10.0 ** math.floor(math.log10(full))
    step = next(s * power for s in (0.1, 0.2, 0.5, 1, 2, 5) if full / (s * power) < most - 0.01)
    return [float(f"{k * step:.3g}") for k in range(int(full / step * (1 + 1e-9)) + 1)]


def fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float) -> str:
    """The text in one line, cut with an ellipsis where it is wider than `width`."""
    text = "".join(c if c.isprintable() else "?" for c in text[:_LONGEST])  # a file name may hold anything
    if font.getlength(text) <= width:
        return text
    kept = text
    while kept and font.getlength(kept + "…") > width:
        kept = kept[:-1]
    return kept + "…"
