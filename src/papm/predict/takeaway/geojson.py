"""GeoJSON (RFC 7946): a feature for each point, in pixels of its image (y downwards) or in map coordinates."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

from papm.predict.results import points_of
from papm.predict.takeaway.base import OneFile, Taken, register
from papm.text import n_of

log = logging.getLogger(__name__)


@register
class GeoJson(OneFile):
    """GeoJSON: a feature for each point with its image, score and class, in pixels or in map coordinates"""

    name, suffix, file = "geojson", ".geojson", "points.geojson"

    def content(self, taken: Sequence[Taken]) -> bytes:
        features = [feature for t in taken for feature in _features(t)]
        nowhere = sum(f["geometry"] is None for f in features)
        if nowhere:
            said = "has no place" if nowhere == 1 else "have no place"
            log.warning("%s of %d %s on the map: at or beyond its horizon", n_of(nowhere, "point"), len(features), said)
        lines = ",\n".join(json.dumps(f, ensure_ascii=False, allow_nan=False) for f in features)
        text = f'{{"type": "FeatureCollection", "features": [\n{lines}\n]}}\n'
        return text.encode(errors="backslashreplace")  # an undecodable file name as \\udcXX, which JSON reads back


def _features(taken: Taken) -> Iterator[dict[str, Any]]:
    """A point beyond the horizon has no geometry, and keeps its pixels."""
    made, ground = taken.prediction, taken.ground
    found = list(points_of(made))
    places: list[list[float]] = [[x, y] for x, y, _, _ in found]
    if ground is not None and made.points is not None:
        placed = ground.place(made.points.detach().cpu().double().numpy(), made.size, taken.file)
        places = [[float(f"{v:.12g}") for v in xy] for xy in placed.tolist()]
    for (x, y, score, label), place in zip(found, places, strict=True):
        about: dict[str, Any] = {"image": made.name}
        about |= {} if score is None else {"score": score}
        about |= {} if label is None else {"label": label}
        about |= {"class": made.classes[label]} if label is not None and label < len(made.classes) else {}
        about |= {} if ground is None else {"x": x, "y": y}
        geometry = {"type": "Point", "coordinates": place} if all(map(math.isfinite, place)) else None
        yield {"type": "Feature", "geometry": geometry, "properties": about}
