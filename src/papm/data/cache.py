"""Decoded images in one flat buffer: on the compute device when they fit there, else in memory or in a mapped file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from papm.errors import DataError
from papm.structures import Sample


@dataclass(frozen=True)
class ImageStore:
    """Images of any sizes as one array of RGB pixels; pixel (i, j) of image k is pixels[starts[k] + i·W + j]."""

    pixels: Tensor  # [total, 3] uint8
    starts: Tensor  # [n] int64
    sizes: Tensor  # [n, 2] int64 (H, W)
    roi: Tensor | None = None  # [total] bool

    def to(self, device: torch.device | str) -> ImageStore:
        """The same store on another device."""
        roi = None if self.roi is None else self.roi.to(device)
        return ImageStore(self.pixels.to(device), self.starts.to(device), self.sizes.to(device), roi)

    def image(self, k: int) -> Tensor:
        """Image k, uint8 [3, H, W]."""
        start, (h, w) = int(self.starts[k]), self.sizes[k].tolist()
        return self.pixels[start : start + h * w].view(h, w, 3).permute(2, 0, 1)

    def __len__(self) -> int:
        return len(self.starts)


def decoded_bytes(samples: Sequence[Sample]) -> int:
    """Memory the decoded images take."""
    return sum(3 * s.size[0] * s.size[1] for s in samples)


def build_store(
    samples: Sequence[Sample],
    folder: Path | None = None,
    on_item: Callable[[], None] | None = None,
    threads: int | None = None,
) -> ImageStore:
    """Decode every image once, into memory or, with `folder`, into a file there that is mapped and reused."""
    sizes = torch.tensor([s.size for s in samples], dtype=torch.int64).reshape(-1, 2)
    areas = sizes.prod(1)
    starts = areas.cumsum(0) - areas
    total = int(areas.sum())
    if folder is None:
        pixels = torch.empty(total, 3, dtype=torch.uint8)
        _decode(samples, starts, pixels, on_item, threads)
    else:
        pixels = _mapped(samples, starts, total, folder, on_item, threads)
    roi = None
    if any(s.roi_source is not None for s in samples):
        roi = torch.ones(total, dtype=torch.bool)
        for s, start in zip(samples, starts.tolist()):
            region = s.roi
            if region is not None:
                if tuple(region.shape) != s.size:
                    raise DataError(f"{s.name}: region of interest is {tuple(region.shape)}, the image {s.size}")
                roi[start : start + region.numel()] = region.reshape(-1).bool()
    return ImageStore(pixels, starts, sizes, roi)


def _decode(
    samples: Sequence[Sample], starts: Tensor, pixels: Tensor, on_item: Callable[[], None] | None, threads: int | None
) -> None:
    def one(k: int) -> None:
        image = samples[k].image
        if tuple(image.shape[1:]) != samples[k].size:
            raise DataError(
                f"{samples[k].name}: the image is {tuple(image.shape[1:])}, its header said {samples[k].size}"
            )
        start = int(starts[k])
        pixels[start : start + image.shape[1] * image.shape[2]] = image.permute(1, 2, 0).reshape(-1, 3)

    # Decoders release the interpreter lock, so threads are enough.
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.map(one, range(len(samples))):
            if on_item is not None:
                on_item()


def _mapped(
    samples: Sequence[Sample],
    starts: Tensor,
    total: int,
    folder: Path,
    on_item: Callable[[], None] | None,
    threads: int | None,
) -> Tensor:
    """A mapped file named after what is in it: written beside its place and renamed, so that it is whole or absent."""
    fingerprint = _fingerprint(samples)
    target = folder / f"{fingerprint or uuid.uuid4().hex}.rgb"
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.stat().st_size != 3 * total:
            _reserve(draft, 3 * total)
            buffer = np.memmap(draft, dtype=np.uint8, mode="r+", shape=(total, 3))
            _decode(samples, starts, torch.from_numpy(buffer), on_item, threads)
            buffer.flush()
            draft.replace(target)
        # Copy-on-write: torch wants writable memory, the file stays as it is.
        pixels = torch.from_numpy(np.memmap(target, dtype=np.uint8, mode="c", shape=(total, 3)))
        if fingerprint is None:
            target.unlink()  # the mapping stays; nobody else could know what was in the file
    except OSError as error:
        raise DataError(
            f"{folder}: cannot hold the decoded images, {3 * total / 1e9:.2f} GB ({error.strerror or error})"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return pixels


def _reserve(path: Path, size: int) -> None:
    """A file of that size whose blocks exist: a disk that fills up under a mapping would kill the process."""
    with path.open("wb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:
            stream.truncate(size)


def _fingerprint(samples: Sequence[Sample]) -> str | None:
    """A name for these pixels, or None when a sample is drawn by a function that only its address tells apart."""
    facts = []
    for s in samples:
        try:
            stat = s.path.stat() if s.path is not None else None
        except OSError as error:
            raise DataError(f"{s.path}: cannot read this image ({error.strerror})") from None
        if stat is None and " at 0x" in repr(s.source):
            return None
        facts.append([str(s.path or s.source), s.size, None if stat is None else [stat.st_size, stat.st_mtime_ns]])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
