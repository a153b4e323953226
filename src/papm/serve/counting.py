"""From the bytes of an upload to the answer: decode, count, and what the page draws, as plain JSON types."""

from __future__ import annotations

import io
import json
import math
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from papm.data.base import readers
from papm.data.readers.faults import coordinate
from papm.data.readers.regions import Polygons, inside
from papm.data.several import parts_of
from papm.engine.image_key import content_key
from papm.errors import ConfigError, DataError, PapmError
from papm.images import decode_image
from papm.predict.ensemble import Ensemble
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter, Source
from papm.serve.pictures import density_layer, preview, ramp
from papm.version import __version__

MOST_POLYGONS, MOST_CORNERS = 100, 10_000  # of a region, in all: what a hand draws, with room; its cost grows with them
MOST_MEGAPIXELS = 10_000
# What is added up: a density, points above 0.5, or the expected number, the sum of their probabilities.
COUNTED = {"sum": "density", "threshold": "points", "expected": "expected"}


class Abandoned(Exception):
    """Nobody waits for this count any more."""


@dataclass(frozen=True)
class Limits:
    """What an upload may be."""

    megapixels: float = 100.0  # 1.7 GB with vgg19 in tiles on a CPU (docs/speed.md)

    def __post_init__(self) -> None:
        if not 0 < self.megapixels <= MOST_MEGAPIXELS:
            raise ConfigError(f"--max-megapixels is a number above 0, at most {MOST_MEGAPIXELS}, not {self.megapixels}")

    @property
    def pixels(self) -> int:
        """Pixels of the largest image."""
        return max(1, int(self.megapixels * 1e6))

    @property
    def bytes(self) -> int:
        """Bytes of the largest upload: an uncompressed 8-bit RGB image of that size, and what a form adds."""
        return 3 * self.pixels + 1_000_000

    def describe(self) -> dict[str, Any]:
        """What the page says of them, and whose they are."""
        return {"max_megapixels": self.megapixels, "max_bytes": self.bytes, "version": __version__}


@dataclass(frozen=True)
class Upload:
    """One image that was sent, and what is asked about it."""

    content: bytes
    name: str = "image"
    roi: str = ""  # JSON: a polygon [[x, y], …], or several
    density: str = "png"  # how the map is given: png, values or none

    def __post_init__(self) -> None:
        if self.density not in ("png", "values", "none"):
            raise DataError(f"density is png, values or none, not '{plain_name(self.density)}'")


def count(counter: Source, upload: Upload, stop: threading.Event | None = None, *, limits: Limits) -> dict[str, Any]:
    """Count in an upload; `stop` ends it at the next tile."""

    def look(done: int = 0, tiles: int = 0) -> None:
        if stop is not None and stop.is_set():
            raise Abandoned

    look()
    polygons = read_polygons(upload.roi) if upload.roi.strip() else None
    image = decode(upload, limits)
    size = (int(image.shape[1]), int(image.shape[2]))
    region = None if polygons is None else inside(polygons, size)
    look()
    made = counter.predict(image, name=upload.name, roi=region, on_tile=look, limit=limits.pixels)
    file = {"bytes": len(upload.content), "key": content_key(upload.content)}  # asked for when it calibrates
    return {**answer(made, upload.density), "file": file}


def small_picture(upload: Upload, limits: Limits) -> bytes:
    """A JPEG of an upload, for browsers that cannot show its format."""
    return preview(decode(upload, limits))


def decode(upload: Upload, limits: Limits) -> Tensor:
    """Pixels of an upload, uint8 [3, H, W]; refused from its header when there are too many."""
    return decode_image(io.BytesIO(upload.content), upload.name, limit=limits.pixels)


def answer(prediction: Prediction, density: str = "png") -> dict[str, Any]:
    """What was counted, as JSON types: the names of `results.json`, and the density map."""
    if not math.isfinite(prediction.count):
        raise PapmError(f"{prediction.name}: the model's count is not a number; its training may have failed")
    height, width = prediction.size
    made: dict[str, Any] = {
        "image": prediction.name,
        "count": prediction.count,
        "width": width,
        "height": height,
        "points": _points(prediction),
    }
    if prediction.raw_count is not None:
        made["raw_count"] = prediction.raw_count
    if prediction.interval is not None:
        made["interval"] = list(prediction.interval)
    if prediction.unlike:
        made["unlike"] = list(prediction.unlike)
    if prediction.warning:
        made["warning"] = prediction.warning
    apart = prediction.class_counts
    if apart:
        names = prediction.classes or tuple(map(str, range(len(apart))))
        made["classes"] = [{"name": name, "count": value} for name, value in zip(names, apart)]
    if prediction.models:
        each = zip(prediction.models, prediction.by_model, strict=True)
        made["models"] = [{"name": name, "count": value} for name, value in each]
    if prediction.density is not None and density != "none":
        rows, columns = prediction.density.shape[-2:]
        made["density"] = {"stride": prediction.stride, "rows": rows, "columns": columns}
        if density == "values":
            made["density"]["values"] = prediction.density.tolist()
        else:
            made["density"] |= density_layer(prediction.density, prediction.stride)
    return made


def _points(prediction: Prediction) -> list[dict[str, float]]:
    if prediction.points is None:
        return []
    columns = {"x": prediction.points[:, 0], "y": prediction.points[:, 1]}
    columns |= {k: v for k, v in (("score", prediction.scores), ("label", prediction.labels)) if v is not None}
    return [dict(zip(columns, row)) for row in zip(*(c.tolist() for c in columns.values()))]


def read_polygons(text: str) -> Polygons:
    """The region of a request: `[[x, y], …]`, or a list of such polygons.

    >>> read_polygons("[[0, 0], [4, 0], [4, 3]]")
    [array([[0., 0.],
           [4., 0.],
           [4., 3.]])]
    """
    try:
        found = json.loads(text)
        if not isinstance(found, list) or not found:
            raise ValueError("expected corners [[x, y], …]")
        several = found if isinstance(found[0], list) and found[0] and isinstance(found[0][0], list) else [found]
        if len(several) > MOST_POLYGONS:
            raise ValueError(f"{len(several)} polygons, more than {MOST_POLYGONS}")
        if sum(len(polygon) for polygon in several if isinstance(polygon, list)) > MOST_CORNERS:
            raise ValueError(f"more than {MOST_CORNERS:,} corners")
        return [np.array(_corners(polygon), dtype=np.float64) for polygon in several]
    except (RecursionError, json.JSONDecodeError):
        raise DataError("roi: not a list of corners [[x, y], …]") from None
    except ValueError as error:
        raise DataError(f"roi: not a polygon ({plain_name(str(error))})") from None


def _corners(polygon: Any) -> list[list[float]]:
    if not isinstance(polygon, list) or len(polygon) < 3:
        raise ValueError("a polygon has three corners or more")
    for corner in polygon:
        if not isinstance(corner, list) or len(corner) != 2:
            raise ValueError(f"a corner is {str(corner)[:40]}, expected [x, y]")
    return [[coordinate(x, "x"), coordinate(y, "y")] for x, y in polygon]


def plain_name(name: str | None) -> str:
    """The last part of a file's name as a browser sent it, printable and not too long; it is only ever shown.

    >>> plain_name("C:\\\\photos\\\\a.jpg"), plain_name("../../etc/passwd"), plain_name("a\\n.jpg"), plain_name("")
    ('a.jpg', 'passwd', 'a_.jpg', 'image')
    """
    last = re.split(r"[/\\]", name or "")[-1]
    shown = "".join(c if c.isprintable() else "_" for c in last).strip()[:120]
    return shown if shown.strip(".") else "image"


def describe(counter: Counter | Ensemble, path: str | Path, limits: Limits) -> dict[str, Any]:
    """What the page says about the model: its name, what it is, what it was trained on, and what it takes.

    Of several models the first is described, with the names of all.
    """
    place = Path(path)
    spec = counter.spec
    first, names = (counter.members[0], counter.names) if isinstance(counter, Ensemble) else (counter, ())
    stem = place.stem if place.suffix in (".ckpt", ".safetensors") else place.name
    named = place.resolve().parent.name if stem in ("best", "last") else stem
    return {
        "name": " + ".join(names) or named or place.resolve().name,
        "models": list(names),
        "method": spec.method,
        "backbone": spec.backbone,
        "counts": COUNTED[first.inference.decode],
        "classes": list(spec.classes),
        "trained_on": _trained_on(str(spec.config.get("data", ""))),
        "steps": spec.step,
        "device": str(first.device),
        **({"ramp": ramp()} if first.inference.decode == "sum" else {}),
        **limits.describe(),
    }


def _trained_on(spec: str) -> str:
    """The data of a run without the folders above it, which are nobody's business.

    >>> _trained_on("folder:/home/anna/photos"), _trained_on("synthetic:look=cells"), _trained_on("")
    ('photos', 'synthetic:look=cells', '')
    """
    if len(parts := parts_of(spec)) > 1:
        return " + ".join(map(_trained_on, parts))
    name, colon, place = spec.partition(":")
    if name not in readers():
        return Path(spec).name
    if name == "synthetic" or not colon:
        return spec
    return Path(place).name if name == "folder" else name
