"""Tables as of ImageJ's multi-point tool, `images/NAME.csv`: number, X, Y, and Counter where there are classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papm.data.writers.base import Item, Writer, number_of, put_text, written


def _write(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        lines = [" ,X,Y" if item.ids is None else " ,X,Y,Counter"]
        kinds = [""] * len(item.points) if item.ids is None else [f",{i}" for i in number_of(item, "ImageJ")]
        for number, ((x, y), kind) in enumerate(zip(item.points, kinds), start=1):
            lines.append(f"{number},{written(x)},{written(y)}{kind}")
        put_text(folder / item.file.with_name(f"{item.name}.csv"), "\n".join(lines) + "\n")


IMAGEJ = Writer(_write)
