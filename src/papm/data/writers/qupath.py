"""GeoJSON for QuPath, `images/NAME.geojson`: the points of each class as one annotation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from papm.data.writers.base import Item, Writer, put_json


def _write(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        groups: dict[str | None, list[list[float]]] = {}
        for (x, y), name in zip(item.points, item.labels):
            groups.setdefault(None if item.ids is None else name, []).append([x, y])
        features: list[dict[str, Any]] = []
        for label, places in groups.items():
            about: dict[str, Any] = {"objectType": "annotation"}
            if label is not None:
                about["classification"] = {"name": label}
            geometry = {"type": "MultiPoint", "coordinates": places}
            features.append({"type": "Feature", "geometry": geometry, "properties": about})
        content = {"type": "FeatureCollection", "features": features}
        put_json(folder / item.file.with_name(f"{item.name}.geojson"), content)


QUPATH = Writer(_write)
