"""Decoded images on disk, one file per image, shared by every run that uses the image.

A file is named after what is in it: the path, size and time of change of the image file, and the size it is shown at. So
another seed, split or hold-out finds it again, and a changed image is decoded again. It is written beside its place, flushed
and renamed: what has the name is whole, also when several runs write it at once. The folder is closed to other users. Files may
vanish at any time (another run makes room, a user tidies up): what is not there is decoded each time it is needed, until a run
opens the images again.

The folder is kept below `limit_bytes`: files are written only when images are opened, and those unused for longest go first.
Images beyond the limit are decoded each time they are needed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papm.data.cache import ImageStore, decoded, decoded_bytes, in_threads, region_of
from papm.data.source_key import source_key
from papm.errors import ConfigError, DataError
from papm.files import is_private, private_folder, replacing
from papm.structures import Sample

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[np.uint8]]
LIMIT_GB = 200.0  # PAPM_CACHE_GB in the environment overrides it
FREE_SHARE = 0.8  # never more than this share of what the disk can still give
STALE = 86_400.0  # seconds after which a draft belongs to a process that died
_SUFFIXES = (".rgb", ".roi")


def limit_bytes(folder: Path, held: int = 0) -> int:
    """How much the cache may hold: PAPM_CACHE_GB, or LIMIT_GB, and at most a share of the disk beside what it holds."""
    text = os.environ.get("PAPM_CACHE_GB", "").strip()
    try:
        limit = float(text) if text else LIMIT_GB
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise ConfigError(f"PAPM_CACHE_GB is '{text}'; write a number of gigabytes, such as {LIMIT_GB:g}")
    free = shutil.disk_usage(folder).free
    return int(min(limit * 1e9, held + FREE_SHARE * free))


@dataclass(frozen=True)
class DiskStore:
    """Images that are read in windows from mapped files; `files` has the file of each, None: it cannot be kept."""

    samples: Sequence[Sample]
    files: Sequence[Path | None]
    regions: Sequence[Path | None]

    @property
    def device(self) -> torch.device:
        """Not a place that a network computes on: batches are rendered on the host."""
        return torch.device("meta")

    @property
    def nbytes(self) -> int:
        """Size of the decoded images."""
        return decoded_bytes(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def image(self, k: int) -> Tensor:
        """Image k, uint8 [3, H, W]."""
        h, w = self.samples[k].size
        return torch.from_numpy(self._pixels(k).reshape(h, w, 3).copy()).permute(2, 0, 1)

    def windows(self, heads: Tensor, crop: int, scale_min: float, resized: bool) -> tuple[ImageStore, Tensor]:
        """What the crops of `heads` [B, augment.HEAD] look at, as a store of B images, and the heads that speak of it.

        Only the part of an image under its crop is read; indices into it are those into the whole image.
        """
        pixels: list[Array] = []
        masks: list[Array] = []
        starts, sizes, pitches, total = [], [], [], 0
        with_roi = any(self.samples[int(k)].roi_source is not None for k in heads[:, 0])
        for image, x, y, scale in heads[:, :4].tolist():
            k = int(image)
            h, w = self.samples[k].size
            (top, bottom), (left, right) = (
                _span(corner, crop, side, scale, scale_min, resized) for corner, side in ((y, h), (x, w))
            )
            part = self._pixels(k)[top:bottom, left:right]
            pixels.append(part.reshape(-1, 3))
            if with_roi:
                masks.append(self._region(k)[top:bottom, left:right].reshape(-1))
            pitches.append(right - left)
            starts.append(total - top * (right - left) - left)
            sizes.append((h, w))
            total += len(pixels[-1])
        store = ImageStore(
            torch.from_numpy(np.concatenate(pixels)),
            torch.tensor(starts),
            torch.tensor(sizes),
            torch.from_numpy(np.concatenate(masks)).bool() if with_roi else None,
            torch.tensor(pitches),
        )
        own = heads.clone()
        own[:, 0] = torch.arange(len(heads), dtype=own.dtype)
        return store, own

    def _pixels(self, k: int) -> Array:
        """[H, W, 3], mapped where there is a file."""
        sample = self.samples[k]
        return _read(self.files[k], (*sample.size, 3), lambda: _pixel_array(sample))

    def _region(self, k: int) -> Array:
        """[H, W], 1 where objects count."""
        sample = self.samples[k]
        if sample.roi_source is None:
            return np.ones(sample.size, dtype=np.uint8)
        return _read(self.regions[k], sample.size, lambda: _region_array(sample))


def open_store(
    samples: Sequence[Sample],
    folder: Path,
    on_item: Callable[[], None] | None = None,
    threads: int | None = None,
) -> DiskStore:
    """Images from the cache in `folder`; those it lacks are decoded now, once, as far as its limit allows."""
    files = [_place(folder, s.source, s.size, ".rgb") for s in samples]
    regions = [None if s.roi_source is None else _place(folder, s.roi_source, s.size, ".roi") for s in samples]
    areas = [s.size[0] * s.size[1] for s in samples]
    wanted = {f: 3 * area for f, area in zip(files, areas) if f} | {f: area for f, area in zip(regions, areas) if f}
    try:
        private_folder(folder)
        kept, missing = _make_room(folder, wanted)
        store = DiskStore(
            tuple(samples), [f if f in kept else None for f in files], [f if f in kept else None for f in regions]
        )

        def one(k: int) -> None:
            for file, array in ((files[k], _pixel_array), (regions[k], _region_array)):
                if file in missing:
                    with replacing(file, permissions=0o600) as stream:  # whole, and nobody else's to change
                        stream.write(array(samples[k]).data)

        todo = [k for k in range(len(samples)) if files[k] in missing or regions[k] in missing]
        if on_item is not None:
            for _ in range(len(samples) - len(todo)):
                on_item()
        in_threads(one, todo, on_item, threads)
    except OSError as error:
        need = sum(wanted.values()) / 1e9
        raise DataError(
            f"{folder}: cannot hold the decoded images, {need:.2f} GB ({error.strerror or error}); "
            "set PAPM_CACHE to a folder that can"
        ) from None
    return store


def _place(folder: Path, source: object, size: tuple[int, int], suffix: str) -> Path | None:
    key = source_key(source, size)
    return None if key is None else folder / key[:2] / f"{key}{suffix}"


def _make_room(folder: Path, wanted: Mapping[Path, int]) -> tuple[set[Path], set[Path]]:
    """The files that there is room for, and those of them that are still to be written; others may have to go."""
    held = _held(folder)
    present = {f for f, n in wanted.items() if f in held and held[f][1] == n}
    room = limit_bytes(folder, sum(n for _, n in held.values())) - sum(wanted[f] for f in present)
    missing: set[Path] = set()
    beyond = 0
    for file, n in wanted.items():
        if file in present:
            with contextlib.suppress(OSError):
                os.utime(file)  # used now: the last to go
        elif n <= room:
            missing.add(file)
            room -= n
        else:
            beyond += n
    gone = _remove_oldest({f: facts for f, facts in held.items() if f not in present}, room)
    if gone:
        logger.warning("%s: %.1f GB of images that were unused for longest made room for new ones", folder, gone / 1e9)
    if beyond:
        logger.warning(
            "%s: %.1f GB of decoded images are beyond the limit of the cache and are decoded each time they are needed; "
            "raise PAPM_CACHE_GB, or use smaller images (data.max_side)",
            folder,
            beyond / 1e9,
        )
    return present | missing, missing


def _held(folder: Path) -> dict[Path, tuple[float, int]]:
    """Time and size of the files of the cache. Drafts of processes that died go, and what another user may have put there."""
    held: dict[Path, tuple[float, int]] = {}
    now = time.time()
    for place in (folder, *(d for d in folder.iterdir() if d.is_dir() and len(d.name) == 2)):
        with contextlib.suppress(OSError), os.scandir(place) as found:
            for item in found:
                with contextlib.suppress(OSError):
                    facts = item.stat(follow_symlinks=False)
                    stale = item.name.endswith(".tmp") and now - facts.st_mtime > STALE
                    ours = item.name.endswith(_SUFFIXES)
                    if stale or (ours and not is_private(facts)):
                        Path(item.path).unlink()
                    elif ours:
                        held[Path(item.path)] = (facts.st_mtime, facts.st_size)
    return held


def _remove_oldest(held: Mapping[Path, tuple[float, int]], room: int) -> int:
    """Remove those unused for longest until the others fit in `room`; the number of bytes that went."""
    gone, excess = 0, sum(n for _, n in held.values()) - room
    for (_, n), file in sorted((facts, file) for file, facts in held.items()):
        if gone >= excess:
            break
        with contextlib.suppress(OSError):
            file.unlink()
            gone += n
    return gone


def _pixel_array(sample: Sample) -> Array:
    """[H, W, 3]."""
    return np.ascontiguousarray(decoded(sample).permute(1, 2, 0).numpy())


def _region_array(sample: Sample) -> Array:
    """[H, W], 0 and 1."""
    region = region_of(sample)
    assert region is not None
    return np.ascontiguousarray(region.to(torch.uint8).numpy())


def _read(file: Path | None, shape: tuple[int, ...], make: Callable[[], Array]) -> Array:
    """What a file holds, mapped; what it should hold, when it is not there."""
    if file is None:
        return make()
    try:
        if file.stat().st_size == math.prod(shape):
            return np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
    except (OSError, ValueError):
        pass
    _say_gone(file.parent.parent)
    return make()


@functools.lru_cache(maxsize=16)
def _say_gone(folder: Path) -> None:
    """Once a folder: a run without its files is right, but slow."""
    logger.warning(
        "%s: decoded images have gone; they are decoded each time they are needed until a run opens them", folder
    )


def _span(corner: float, crop: int, side: int, scale: float, scale_min: float, resized: bool) -> tuple[int, int]:
    """First and last + 1 of the source pixels along a side that a crop looks at, as `crops.cut_crops` does."""
    if resized:
        reach = math.ceil(max(1.0, 1 / scale_min)) + 1  # half the taps, and one for rounding
        first = math.floor((corner + 0.5) / scale - 0.5) - reach
        last = math.floor((corner + crop - 0.5) / scale - 0.5) + reach
    else:
        first, last = int(corner), int(corner) + crop - 1
    return min(max(first, 0), side - 1), min(max(last, 0), side - 1) + 1
