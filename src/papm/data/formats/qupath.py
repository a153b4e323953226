"""QuPath: one GeoJSON file per image, beside it or in a folder of annotations.

    {"type": "FeatureCollection", "features": [{"type": "Feature",
      "geometry": {"type": "MultiPoint", "coordinates": [[x, y], …]},
      "properties": {"objectType": "annotation", "classification": {"name": "Tumor"}}}]}

A list of features, or one alone, is read too. Of an area of several parts the point is the centroid of the largest. An area
that was drawn by hand and has no class, or one that QuPath ignores (its name ends in *, as Region*), says where somebody
looked or where cells were searched for: it is passed over, with a warning. Cells and detections count with and without a
class. Java's image reader passes over EXIF: coordinates are those of the pixels as they are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from papm.data.formats import shapes
from papm.data.formats.base import MAYBE, NO, SURELY, Context, PerImage, Points, register
from papm.data.formats.imagej import named_after
from papm.data.formats.items import XY, Box, Item, put_json
from papm.data.formats.jsonfile import has_keys, load_json, need, peek
from papm.data.readers.faults import AnnotationError, coordinate

logger = logging.getLogger(__name__)

# Without an object type, as in files of older versions, the id says what an object is.
_KINDS = {"PathCellObject": "cell", "PathDetectionObject": "detection"}
# Areas in which objects lie, unless they have a class.
_SEARCHED = ("annotation", "root", "tmaCore", "tma_core", "tile")


@register
class QuPath(PerImage):
    """GeoJSON of QuPath: points, the centroids of cells, detections and classified areas"""

    name = "qupath"
    layout = "NAME.jpg with NAME.geojson beside it or in annotations/"
    endings = named_after(".geojson", ".json")
    named_labels = True
    stored = True

    def detect(self, path: Path) -> int:
        content = peek(path)
        if b'"FeatureCollection"' in content or (b'"Feature"' in content and has_keys(content, "geometry")):
            return SURELY
        return MAYBE if path.suffix.lower() == ".geojson" else NO

    def read(self, path: Path, image: Path, context: Context) -> Points:
        content = load_json(path)
        listed = content.get("features", [content]) if isinstance(content, dict) else content
        if not isinstance(listed, list) or (isinstance(content, dict) and not {"features", "geometry"} & set(content)):
            raise AnnotationError.of(path, "not GeoJSON: the list 'features' is missing")
        points, searched = Points(), 0
        for number, feature in enumerate(listed, start=1):
            with points.faults.noting(path, None, f"feature #{number}: "):
                about = need(feature, dict, "is not an object").get("properties")
                about = about if isinstance(about, dict) else {}
                label = _class(about)
                kind = about.get(
                    "objectType", about.get("object_type", _KINDS.get(str(feature.get("id")), "annotation"))
                )
                for xy, box, area in _shapes(feature.get("geometry")):
                    if area and ((label is None and kind in _SEARCHED) or (label or "").endswith("*")):
                        searched += 1
                    else:
                        points.add(xy, label, None, box)
        if searched and not points.faults:
            what = "1 area is" if searched == 1 else f"{searched} areas are"
            logger.warning("%s: %s passed over; an area counts as an object when it has a class", path, what)
        return points

    def write(self, items: Iterable[Item], folder: Path) -> None:
        for item in items:
            groups: dict[str | None, list[XY]] = {}
            for xy, name in zip(item.points, item.labels):
                groups.setdefault(None if item.ids is None else name, []).append(xy)
            features: list[dict[str, Any]] = []
            for label, places in groups.items():
                about = {"objectType": "annotation"} | ({} if label is None else {"classification": {"name": label}})
                geometry = {"type": "MultiPoint", "coordinates": places}
                features.append({"type": "Feature", "geometry": geometry, "properties": about})
            put_json(folder / item.beside(".geojson"), {"type": "FeatureCollection", "features": features})


def _class(about: Mapping[str, Any]) -> str | None:
    """The name of an object's class; of a class with parts, as QuPath shows it."""
    given = about.get("classification")
    if not isinstance(given, dict):
        return None
    names = given.get("names", given.get("name"))
    if isinstance(names, list):
        names = ": ".join(str(n) for n in names)
    return names if isinstance(names, str) and names else None


def _shapes(geometry: Any) -> Iterator[tuple[XY, Box | None, bool]]:
    """Points, boxes around them, and whether each is an area."""
    kind, given = (need(geometry, dict, "has no 'geometry'").get(k) for k in ("type", "coordinates"))
    if kind not in ("Point", "MultiPoint", "Polygon", "MultiPolygon"):
        raise ValueError(f"a {str(kind)[:40]!r} cannot be read as a point; use points or areas")
    given = need(given, list, "'coordinates' should be a list")
    if kind in ("Point", "MultiPoint"):
        yield from ((_xy(p), None, False) for p in ([given] if kind == "Point" else given))
        return
    outlines = [_outline(part) for part in ([given] if kind == "Polygon" else given)]
    if not outlines:
        raise ValueError("an area has no corners")
    xy, box = shapes.polygon(max(outlines, key=_area))
    yield xy, box, True


def _xy(place: Any) -> XY:
    if not isinstance(place, list) or len(place) < 2:
        raise ValueError("a place should be [x, y]")
    return coordinate(place[0], "x"), coordinate(place[1], "y")


def _outline(rings: Any) -> list[XY]:
    """The outer ring of a polygon, without its first corner again at the end."""
    if not isinstance(rings, list) or not rings or not isinstance(rings[0], list):
        raise ValueError("the rings of an area should be lists of [x, y]")
    corners = [_xy(p) for p in rings[0]]
    return corners[:-1] if len(corners) > 1 and corners[0] == corners[-1] else corners


def _area(corners: Sequence[XY]) -> float:
    return abs(sum(xa * yb - xb * ya for (xa, ya), (xb, yb) in zip(corners, [*corners[1:], *corners[:1]])))
