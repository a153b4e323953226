"""Points as text: `images/NAME.txt` beside each image, or one `points.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from papm.data.writers.base import Item, Writer, put_text, written
from papm.files import guarded


def _txt(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        lines = ["# x y" if item.ids is None else "# x y label"]
        for i, (x, y) in enumerate(item.points):
            label = "" if item.ids is None else f" {item.ids[i]}"
            lines.append(f"{written(x)} {written(y)}{label}")
        put_text(folder / item.file.with_name(f"{item.name}.txt"), "\n".join(lines) + "\n")


def _csv(items: Iterable[Item], folder: Path) -> None:
    rows: list[list[str]] = []
    labelled = False
    for item in items:
        labelled = labelled or item.ids is not None
        labels = [guarded(k) for k in item.labels] if item.ids is not None else [""] * len(item.points)
        reference = guarded(item.reference)
        rows += [[reference, written(x), written(y), k] for (x, y), k in zip(item.points, labels)]
        if not item.points:
            rows.append([reference, "", "", ""])  # looked at, nothing there
    text = io.StringIO()
    width = 4 if labelled else 3
    csv.writer(text, lineterminator="\n").writerows(r[:width] for r in [["image", "x", "y", "label"], *rows])
    put_text(folder / "points.csv", text.getvalue())


TXT = Writer(_txt)
CSV = Writer(_csv)
