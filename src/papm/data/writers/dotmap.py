"""Dot maps, `dots/NAME.png`: a white pixel on black for each point; points of one pixel become one dot."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from papm.data.writers.base import DOT_NOTE, Item, Writer, atomically

logger = logging.getLogger(__name__)


def _write(items: Iterable[Item], folder: Path) -> None:
    merged = 0
    note = PngInfo()
    note.add_text(*DOT_NOTE)
    for item in items:
        lit = np.zeros(item.size, dtype=np.uint8)
        for x, y in item.points:  # pixel indices plus a fraction of ±½
            lit[min(int(y + 0.5), item.size[0] - 1), min(int(x + 0.5), item.size[1] - 1)] = 255
        merged += len(item.points) - int((lit > 0).sum())
        made = Image.fromarray(lit)
        atomically(folder / "dots" / f"{item.name}.png", partial(made.save, format="PNG", pnginfo=note))
    if merged:
        logger.warning("%s: %d points fall on the pixel of another and are lost in a dot map", folder, merged)


DOTMAP = Writer(_write, labels=False, inside_only=True)
