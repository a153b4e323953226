"""Pascal VOC, `annotations/NAME.xml`: a box per object, with fractions of pixels so that its centre stays the point."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papm.data.writers.base import Item, Writer, put_text, written
from papm.data.writers.xmltext import content


def _write(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        assert item.boxes is not None
        h, w = item.size
        lines = [
            "<annotation>",
            f"  <folder>images</folder><filename>{content(item.file.name)}</filename>",
            f"  <size><width>{w}</width><height>{h}</height><depth>3</depth></size><segmented>0</segmented>",
        ]
        for label, box in zip(item.labels, item.boxes):
            corners = zip(("xmin", "ymin", "xmax", "ymax"), box)
            lines.append(
                f"  <object><name>{content(label)}</name><pose>Unspecified</pose><truncated>0</truncated>"
                "<difficult>0</difficult><bndbox>"
                + "".join(f"<{k}>{written(round(v, 6))}</{k}>" for k, v in corners)
                + "</bndbox></object>"
            )
        put_text(folder / "annotations" / f"{item.name}.xml", "\n".join([*lines, "</annotation>"]) + "\n")


VOC = Writer(_write, boxes="always")
