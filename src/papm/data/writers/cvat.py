"""CVAT for images 1.1, `annotations.xml`: a point an object, or its box where the point is its centre."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papm.data.writers.base import Item, Writer, put_text, written
from papm.data.writers.xmltext import attributes, content


def _write(items: Iterable[Item], folder: Path) -> None:
    images: list[str] = []
    labels: dict[str, None] = {}
    for number, item in enumerate(items):
        size = attributes(width=item.size[1], height=item.size[0])
        lines = [f"  <image{attributes(id=number, name=item.reference)}{size}>"]
        for i, label in enumerate(item.labels):
            labels[label] = None
            about = attributes(label=label, source="manual", occluded=0)
            if item.boxes:
                corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), (written(v) for v in item.boxes[i])))
                lines.append(f"    <box{about}{attributes(**corners, z_order=0)}></box>")
            else:
                xy = ",".join(written(v) for v in item.points[i])
                lines.append(f"    <points{about}{attributes(points=xy, z_order=0)}></points>")
        images += [*lines, "  </image>"]
    known = "".join(f"<label><name>{content(k)}</name><attributes></attributes></label>" for k in labels)
    meta = f"  <meta><task><size>{sum(k.startswith('  <image') for k in images)}</size><labels>{known}</labels></task></meta>"
    head = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations>", "  <version>1.1</version>", meta]
    put_text(folder / "annotations.xml", "\n".join([*head, *images, "</annotations>"]) + "\n")


CVAT = Writer(_write, boxes="instead")
