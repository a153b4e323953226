"""Counting one shard: the model is opened once, every image becomes a row, the rows one file."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from papm.errors import ConfigError, DataError, PapmError
from papm.images import image_size
from papm.predict.columns import Columns
from papm.predict.ensemble import Ensemble
from papm.predict.journal import asked_of, light
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.scaleout.manifest import ABOUT, Listing, Manifest, arrow, load, part_name
from papm.predict.scaleout.place import Place, is_url, read_pixels
from papm.predict.source import Asked

FAR_READERS = 16  # threads that wait for an object store
TOGETHER = 4_000_000  # pixels: larger images gain nothing from each other, and take memory
WARNING, FAULT = "warning", "fault"  # columns beside those of counts.csv


@dataclass(frozen=True)
class Job:
    """What a worker must know to count any shard, in plain types: it may run on another machine."""

    models: tuple[str, ...]
    out: str
    device: str = "auto"
    tile: str = "auto"
    count: str | None = None
    precision: str = "32"
    scale: float | None = None
    batch: int = 16

    def open_model(self, device: str | None = None) -> Counter | Ensemble:
        """The model, or all of them together."""
        how = (device or self.device, self.tile, self.count, self.precision)
        if len(self.models) == 1:
            return Counter.load(self.models[0], *how, self.scale)
        if self.scale is not None:
            raise ConfigError("scale is for one model: each of several knows objects of its own size")
        return Ensemble.load(self.models, *how)

    def asked(self, counter: Counter | Ensemble) -> dict[str, Any]:
        """What the counts depend on."""
        return json.loads(json.dumps(asked_of(counter, points=False)))  # type: ignore[no-any-return]


class ShardCounter:
    """Counts shards of the manifest in `job.out`."""

    def __init__(self, job: Job) -> None:
        self.job, self.place = job, Place(job.out)
        self.manifest: Manifest = load(self.place)
        self.listing = Listing(self.place)
        self.counter = job.open_model()
        if job.asked(self.counter) != self.manifest.asked:
            raise ConfigError(
                f"{job.models[0]}: another model than the one of {self.place} stands here on this machine"
            )

    def __call__(self, number: int) -> dict[str, Any]:
        """Count a shard, write its part, and give what the part says of itself."""
        names, addresses = self.listing.shard(number)
        batch = min(self.job.batch, _together(addresses[0]))
        readers = FAR_READERS if any(map(is_url, addresses)) else 4 if self._on_gpu else 1
        asked = Asked(points=False)
        each = self.counter.predict_each(addresses, read_pixels, asked=asked, batch=batch, threads=readers)
        made = [light(m) if isinstance(m, Prediction) else m for m in each]  # the maps of a shard would fill the memory
        unexpected = [m for m in made if isinstance(m, Exception) and not isinstance(m, PapmError)]
        if len(unexpected) == len(made) > 1:  # not the images are at fault
            raise unexpected[0]
        for error in unexpected:
            logging.getLogger(__name__).warning("an image could not be counted", exc_info=error)
        about = {"key": self.manifest.key, "shard": number, **_facts(made)}
        self.place.write(part_name(number), part_table(names, made, self.manifest.columns, about))
        return about

    @property
    def _on_gpu(self) -> bool:
        members = self.counter.members if isinstance(self.counter, Ensemble) else (self.counter,)
        return members[0].device.type == "cuda"


def _together(address: str) -> int:
    """How many images like that one at an address may be held decoded and counted at once."""
    if is_url(address):
        return FAR_READERS
    try:
        height, width = image_size(address)
    except DataError:  # it says so where it is read
        return FAR_READERS
    return max(1, TOGETHER // max(1, height * width))


def _facts(made: Sequence[Prediction | Exception]) -> dict[str, Any]:
    counts = [m.count for m in made if isinstance(m, Prediction)]
    return {"images": len(made), "failed": len(made) - len(counts), "total": math.fsum(counts)}


def part_table(names: Sequence[str], made: Sequence[Prediction | Exception], columns: Columns, about: Any) -> bytes:
    """A Parquet file: the columns of counts.csv, what makes a count doubtful, and why there is none."""
    pyarrow, parquet = arrow()
    nothing: list[float | None] = [None] * len(columns.names)
    rows = [columns.row(m) if isinstance(m, Prediction) else nothing for m in made]
    cells: list[Any] = [
        list(names),
        *(list(column) for column in zip(*rows)),
        [m.warning or None if isinstance(m, Prediction) else None for m in made],
        [_reason(m) if isinstance(m, Exception) else None for m in made],
    ]
    text = pyarrow.string()
    kinds = [("image", text), *((n, pyarrow.float64()) for n in columns.names), (WARNING, text), (FAULT, text)]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(cells, schema=pyarrow.schema(kinds, {ABOUT: json.dumps(about)})), stream)
    return stream.getvalue()


def _reason(error: Exception) -> str:
    """In one sentence.

    >>> _reason(ConfigError("no")), _reason(RuntimeError("shape\\nof it"))
    ('no', 'RuntimeError: shape')
    """
    if isinstance(error, PapmError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
