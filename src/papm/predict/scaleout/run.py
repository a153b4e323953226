"""Many images, top to bottom: list them, divide them into shards, count those that are missing, sum up."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from papm import checkpoint
from papm.errors import ConfigError, unknown
from papm.predict.scaleout import on_ray
from papm.predict.scaleout.manifest import SUMMARY, Manifest, arrow, begin, part_name, parts_done, plan
from papm.predict.scaleout.place import Place, list_images
from papm.predict.scaleout.shard import FAULT, Job, ShardCounter
from papm.version import __version__

ENGINES = ("ray", "local")  # local: this process counts, shard by shard
NAMED = 20  # images without a count whose reasons a summary gives


@dataclass(frozen=True)
class Far:
    """How far it is: shards and images that are done, of how many, and how many were so before."""

    shards: int
    of_shards: int
    images: int
    of_images: int
    before: int
    seconds: float
    rate: float  # images a second, without the start of the workers once there is something to measure


@dataclass(frozen=True)
class Summary:
    """What was counted; `summary.json` holds the same."""

    out: str
    images: int
    counted: int
    failed: int
    total: float  # objects in all images that could be counted
    shards: int
    counted_now: int
    seconds: float
    faults: tuple[str, ...] = ()  # why images have no count, of the first of them


OnShard = Callable[[Far], None]
Address = str | os.PathLike[str]


def predict_many(
    model: Address | Sequence[Address],
    images: Address | Sequence[Address],
    out: Address,
    *,
    engine: str = "ray",
    workers: int | None = None,
    ray_address: str | None = None,
    resume: bool = False,
    shard: int | None = None,
    batch: int = 16,
    device: str = "auto",
    tile: str = "auto",
    count: str | None = None,
    precision: str = "32",
    scale: float | None = None,
    on_shard: OnShard | None = None,
) -> Summary:
    """Count in files, folders and patterns of images, and write partitioned Parquet into `out`: exactly one row for each image.

    `engine`: "ray", or "local" without it. `workers`: processes; by default one a core, or one a GPU. `ray_address`: "auto" or
    the address of a cluster. `shard`: images in a file. `batch`: images of one size that go through the network together.
    The others are those of `Counter.load`. With `resume`, what `out` holds of the same prediction is not counted again.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if batch < 1 or (workers is not None and workers < 1):
        raise ConfigError(f"batch and workers are 1 or more, not {batch} and {workers}")
    arrow()
    if engine == "ray":
        on_ray.ray_module()
    models = [model] if isinstance(model, str | os.PathLike) else list(model)
    place = Place(out)
    job = Job(tuple(_visible(m) for m in models), str(place), device, tile, count, precision, scale, batch)
    counter = job.open_model("cpu" if engine == "ray" else device)
    listed = list_images([os.fspath(p) for p in ([images] if isinstance(images, str | os.PathLike) else images)])
    manifest = begin(place, plan(job.asked(counter), listed, counter.columns, shard), listed, resume)
    done = parts_done(place, manifest) if resume else {}
    left = [k for k in range(manifest.shards) if k not in done]
    pace = _Pace(manifest, done, on_shard)
    for facts in _counted(engine, job, left, workers, ray_address):
        pace.add(facts)
    return _sum_up(place, manifest, done, pace.before, time.monotonic() - pace.began)


def _visible(model: Address) -> str:
    """The file of a model, by a path that every process understands."""
    return str(checkpoint.resolve(model).absolute())


def _counted(
    engine: str, job: Job, left: Sequence[int], workers: int | None, address: str | None
) -> Iterator[dict[str, Any]]:
    if not left:
        return
    if engine == "local":
        yield from map(ShardCounter(job), left)
        return
    with on_ray.connected(address, workers, job.device) as ray:
        yield from on_ray.counted(ray, job, left, workers)


class _Pace:
    """Keeps what parts say of themselves, and tells how far it is."""

    def __init__(self, manifest: Manifest, done: dict[int, dict[str, Any]], tell: OnShard | None) -> None:
        self.manifest, self.done, self.tell = manifest, done, tell
        self.images = self.before = sum(f["images"] for f in done.values())
        self.began = time.monotonic()
        self.from_then = (self.began, self.before)  # when the first shard was done, and how many images were
        self._say(self.began)

    def add(self, facts: dict[str, Any]) -> None:
        """A shard is done."""
        now, first = time.monotonic(), self.images == self.before
        self.done[int(facts["shard"])] = facts
        self.images += int(facts["images"])
        self._say(now)
        if first:
            self.from_then = (now, self.images)

    def _say(self, now: float) -> None:
        if self.tell is None:
            return
        (since, images), m = self.from_then, self.manifest
        rate = (self.images - images) / (now - since) if now > since else 0.0
        self.tell(Far(len(self.done), m.shards, self.images, m.images, self.before, now - self.began, rate))


def _sum_up(place: Place, manifest: Manifest, done: dict[int, dict[str, Any]], before: int, seconds: float) -> Summary:
    ordered = [done[k] for k in range(manifest.shards)]  # a KeyError here would be a lost shard: never in silence
    failed = sum(f["failed"] for f in ordered)
    made = Summary(
        out=str(place),
        images=sum(f["images"] for f in ordered),
        counted=manifest.images - failed,
        failed=failed,
        total=round(math.fsum(f["total"] for f in ordered), 4),
        shards=manifest.shards,
        counted_now=manifest.images - before,
        seconds=round(seconds, 3),
        faults=tuple(_faults(place, [k for k, f in enumerate(ordered) if f["failed"]])),
    )
    told = {**asdict(made), "papm": __version__, "torch": torch.__version__, **manifest.asked}
    place.write(SUMMARY, (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))
    return made


def _faults(place: Place, shards: Sequence[int]) -> Iterator[str]:
    """The first reasons, of these shards."""
    _, parquet = arrow()
    left = NAMED
    for k in shards:
        found = parquet.read_table(place.path(part_name(k)), columns=[FAULT], filesystem=place.fs)
        for reason in found.column(FAULT).drop_null().to_pylist()[:left]:
            left -= 1
            yield reason
        if not left:
            return
