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
_ROW = 1.7  # height of a line of the strip, in sizes of its font


@dataclass(frozen=True)
class Entry:
    """A word and its figure, behind the mark they belong to."""

    word: str
    figure: str = ""
    mark: Callable[..., None] | None = None
    colour: Colour = INK


def text_size(picture: Picture) -> int:
    """The size of letters that are read beside a picture of this size."""
    return int(np.clip(max(picture.shape[:2]) * 0.022, 15, 34))


def with_strip(picture: Picture, entries: Sequence[Entry], text: int | None = None) -> Picture:
    """The picture under a strip with the entries, in as many lines as they need; wider where one would not fit."""
    text = text or text_size(picture)
    font, pad = ImageFont.load_default(text), round(text * 0.6)
    longest = max(picture.shape[1] - 2 * pad, 24 * text)
    entries = [Entry(fitted(e.word, font, longest), e.figure, e.mark, e.colour) for e in entries]
    widths = [_width(e, font, text) for e in entries]
    width = max(picture.shape[1], round(max(widths, default=0)) + 2 * pad)
    lines: list[list[tuple[float, Entry]]] = [[]]
    x = float(pad)
    for entry, wide in zip(entries, widths):
        if lines[-1] and x + wide > width - pad:
            lines.append([])
            x = float(pad)
        lines[-1].append((x, entry))
        x += wide + 1.4 * text
    row = round(text * _ROW)
    sheet = _sheet(picture.shape[0] + row * len(lines), width)
    sheet[row * len(lines) :, : picture.shape[1]] = picture
    for k, line in enumerate(lines):
        for x, entry in line:
            sheet = _written(sheet, x, (k + 0.5) * row, entry, font, text)
    return sheet


def _width(entry: Entry, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: int) -> float:
    words = font.getlength(entry.word) + (font.getlength(entry.figure) + 0.4 * text if entry.figure else 0)
    return float(words + (text if entry.mark else 0))


def _written(
    sheet: Picture, x: float, y: float, entry: Entry, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: int
) -> Picture:
    """The sheet with an entry that begins at x, its middle at y."""
    if entry.mark is not None:
        entry.mark(sheet, torch.tensor([[x + text * 0.35, y]]), 1.0, entry.colour, radius=text * 0.3)
        x += text
    picture = Image.fromarray(sheet.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    pen.text((x, y), entry.word, fill=PALE, font=font, anchor="lm")
    if entry.figure:
        pen.text((x + font.getlength(entry.word) + 0.4 * text, y), entry.figure, fill=INK, font=font, anchor="lm")
    return np.asarray(picture).astype(np.float32)


def with_bar(picture: Picture, column: Picture, full: float, above: bool, text: int | None = None) -> Picture:
    """The picture beside a bar of the colours `column` [n, 1, 3], from zero up to `full` objects per square of SQUARE px;
    it ends in a tip where there are values `above` that."""
    text = text or text_size(picture)
    font = ImageFont.load_default(text)
    at = ticks(full)
    names = [f"{v:,g}" for v in at]
    thick, gap, unit = round(text * 1.1), round(text * 0.6), ImageFont.load_default(round(text * 0.95))
    length = round(unit.getlength(UNIT))
    height = max(picture.shape[0], length + 2 * text)
    side = 2 * gap + thick + round(max(map(font.getlength, names))) + gap + round(text * 1.6)
    sheet = _sheet(height, picture.shape[1] + side)
    sheet[: picture.shape[0], : picture.shape[1]] = picture
    tip = round(thick * 0.8) if above else 0
    top, bottom, left = text + tip, height - text, picture.shape[1] + gap
    rows = ((bottom - 0.5 - np.arange(top, bottom)) / (bottom - top) * len(column)).astype(int).clip(0, len(column) - 1)
    sheet[top:bottom, left : left + thick] = column[rows]
    made = Image.fromarray(sheet.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(made)
    if above:
        fill = tuple(int(v) for v in column[-1, 0])
        pen.polygon([(left, top - 1), (left + thick - 1, top - 1), (left + thick / 2, top - tip)], fill=fill)
    for value, name in zip(at, names):
        y = bottom - value / full * (bottom - top)
        pen.line([(left + thick, y), (left + thick + gap // 2, y)], fill=INK, width=max(1, text // 12))
        pen.text((left + thick + gap, y), name, fill=INK, font=font, anchor="lm")
    turned = Image.new("RGB", (length + 4, round(text * 1.4)), PAPER)
    ImageDraw.Draw(turned).text((2, turned.height / 2), UNIT, fill=PALE, font=unit, anchor="lm")
    turned = turned.rotate(90, expand=True)
    made.paste(turned, (made.width - turned.width - 2, (height - turned.height) // 2))
    return np.asarray(made).astype(np.float32)


def ticks(full: float, most: int = 6) -> list[float]:
    """Round numbers from zero up to `full`, at most so many.

    >>> ticks(63), ticks(0.9), ticks(1200)
    ([0.0, 20.0, 40.0, 60.0], [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 500.0, 1000.0])
    """
    power = 10.0 ** math.floor(math.log10(full))
    step = next(s * power for s in (0.1, 0.2, 0.5, 1, 2, 5) if full / (s * power) < most)
    return [float(f"{k * step:.3g}") for k in range(int(full / step * (1 + 1e-9)) + 1)]


def fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if font.getlength(text) <= width:
        return text
    kept = text
    while kept and font.getlength(kept + "…") > width:
        kept = kept[:-1]
    return kept + "…"


def _sheet(height: int, width: int) -> Picture:
    return np.full((height, width, 3), PAPER, dtype=np.float32)
