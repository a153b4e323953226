"""What a folder of shards is about: `manifest.parquet` lists the images with their shards, the model and the options.

A shard is a run of images in the order of their addresses; `counts/part-00012.parquet` has its rows. Which images it has
follows from the list and the size of a shard alone: whoever counts it, and however often, writes the same file in the same
place. Every part names the manifest that it belongs to: one of another manifest is not taken for done.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from papm.errors import ConfigError, DataError
from papm.predict.columns import Columns
from papm.predict.journal import refuse_other
from papm.predict.results import image_names
from papm.predict.scaleout.place import Place

MANIFEST, SUMMARY = "manifest.parquet", "summary.json"
COUNTS = "counts"  # the folder of the parts: whoever reads a folder of Parquet files reads all of them
PART = re.compile(r"part-(\d{5,})\.parquet")
FEWEST, MOST, SHARDS = 16, 4096, 64  # images in a shard, and shards of a list that is neither short nor very long
ABOUT = b"papm"  # the key of what our Parquet files say of themselves
ADVICE = "choose another --out"


def arrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet module, or a sentence that says what to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("counts of many images are Parquet files; install pyarrow: pip install 'papm[ray]'") from None
    return pyarrow, pyarrow.parquet


def part_name(shard: int) -> str:
    """
    >>> part_name(12)
    'counts/part-00012.parquet'
    """
    return f"{COUNTS}/part-{shard:05d}.parquet"


def shard_size(images: int) -> int:
    """Images of a shard where nobody says: enough to be worth a start, few enough that a kill loses little.

    >>> shard_size(10), shard_size(100_000), shard_size(10_000_000)
    (16, 1563, 4096)
    """
    return max(FEWEST, min(MOST, -(-images // SHARDS)))


@dataclass(frozen=True)
class Manifest:
    """What is counted, and how; the list of images itself stays in its file."""

    asked: dict[str, Any]  # what results depend on (`journal.asked_of`)
    images: int
    listed: str  # hash of their addresses
    shard: int  # images in a shard; the last may have fewer
    columns: Columns

    def __post_init__(self) -> None:
        if self.shard < 1:
            raise ConfigError(f"a shard is a number of images, 1 or more, not {self.shard}")

    @property
    def shards(self) -> int:
        """How many there are."""
        return -(-self.images // self.shard)

    @property
    def key(self) -> str:
        """By which parts know their manifest."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def of_shard(self, number: int) -> int:
        """The number of images in a shard."""
        return min(self.shard, self.images - number * self.shard)


def plan(asked: Mapping[str, Any], images: Sequence[str], columns: Columns, shard: int | None = None) -> Manifest:
    """The manifest of a sorted list of images."""
    listed = hashlib.sha256()
    for address in images:
        try:
            listed.update(address.encode() + b"\0")
        except UnicodeEncodeError:
            raise DataError(f"{address!r}: the name is not UTF-8, which Parquet asks for; rename the file") from None
    plain = json.loads(json.dumps(asked))
    size = shard_size(len(images)) if shard is None else shard
    return Manifest(plain, len(images), listed.hexdigest()[:16], size, columns)


def begin(place: Place, made: Manifest, images: Sequence[str], resume: bool) -> Manifest:
    """Write the manifest into a folder that has none, or go on with the one there if it says the same."""
    if MANIFEST not in place.names():
        if any(PART.fullmatch(name) for name in place.names(COUNTS)):
            raise ConfigError(f"{place}: holds parts and no {MANIFEST}; {ADVICE}")
        place.write(MANIFEST, _table(made, images))
        return made
    if not resume:
        raise ConfigError(f"{place}: holds a prediction; --resume goes on with it, or {ADVICE}")
    found = load(place)
    refuse_other(place, found.asked, made.asked, ADVICE)
    if (found.images, found.listed) != (made.images, made.listed):
        raise ConfigError(
            f"{place}: holds counts of other images ({found.images:,}, not these {made.images:,}); {ADVICE}"
        )
    return found


def load(place: Place) -> Manifest:
    """The manifest in a folder."""
    _, parquet = arrow()
    try:
        about = json.loads(parquet.read_metadata(place.path(MANIFEST), filesystem=place.fs).metadata[ABOUT])
        columns: dict[str, Any] = about.pop("columns")
        columns |= {k: tuple(columns[k]) for k in ("classes", "models")}
        return Manifest(**about, columns=Columns(**columns))
    except Exception:  # whatever may be wrong with a file that others can write
        raise ConfigError(f"{place}: its {MANIFEST} is damaged or of another version of papm; {ADVICE}") from None


def _table(made: Manifest, images: Sequence[str]) -> bytes:
    """Image, path and shard of each; a row group is a shard, so that one is read without the others."""
    pyarrow, parquet = arrow()
    names = image_names([PurePosixPath(address) for address in images])
    schema = pyarrow.schema([("image", pyarrow.string()), ("path", pyarrow.string()), ("shard", pyarrow.int32())])
    stream = io.BytesIO()
    with parquet.ParquetWriter(stream, schema.with_metadata({ABOUT: json.dumps(asdict(made))})) as writer:
        for k in range(made.shards):
            part = slice(k * made.shard, (k + 1) * made.shard)
            rows = [names[part], images[part], [k] * made.of_shard(k)]
            writer.write_table(pyarrow.table(rows, schema=schema.with_metadata({ABOUT: json.dumps(asdict(made))})))
    return stream.getvalue()


class Listing:
    """The images of single shards, from the manifest's file."""

    def __init__(self, place: Place) -> None:
        _, parquet = arrow()
        self.file = parquet.ParquetFile(place.path(MANIFEST), filesystem=place.fs)

    def shard(self, number: int) -> tuple[list[str], list[str]]:
        """Names and addresses of its images."""
        read = self.file.read_row_group(number, columns=["image", "path"])
        return read.column("image").to_pylist(), read.column("path").to_pylist()


def parts_done(place: Place, made: Manifest) -> dict[int, dict[str, Any]]:
    """What the parts of this manifest that are there say of themselves, by shard."""
    _, parquet = arrow()
    numbers = [int(found[1]) for name in place.names(COUNTS) if (found := PART.fullmatch(name))]
    if beyond := [n for n in numbers if n >= made.shards]:
        raise ConfigError(f"{place}: {part_name(beyond[0])} is none of its {made.shards} parts; remove it, or {ADVICE}")

    def facts(number: int) -> dict[str, Any] | None:
        try:
            found = parquet.read_metadata(place.path(part_name(number)), filesystem=place.fs)
            about = json.loads(found.metadata[ABOUT])
            whole = found.num_rows == made.of_shard(number) == about["images"]
            return about if whole and (about["key"], about["shard"]) == (made.key, number) else None
        except Exception:  # no part of ours, or a damaged one: it is counted again
            return None

    with ThreadPoolExecutor(8) as pool:  # an object store takes its time for each
        return {n: about for n, about in zip(numbers, pool.map(facts, numbers)) if about is not None}
