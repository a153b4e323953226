"""Decoded images in one flat buffer, on the compute device or in memory (on disk: `disk_cache`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.errors import DataError
from papm.structures import Sample
from papm.text import Brief


@dataclass(frozen=True, eq=False, repr=False)
class ImageStore(Brief):
    """Images of any sizes as one array of RGB pixels; pixel (i, j) of image k is pixels[starts[k] + i·pitch[k] + j].

    `pitch` is the width of the image unless the store holds only a window of it.
    """

    pixels: Tensor  # [total, 3] uint8
    starts: Tensor  # [n] int64
    sizes: Tensor  # [n, 2] int64 (H, W)
    roi: Tensor | None = None  # [total] bool
    pitch: Tensor | None = None  # [n] int64

    def to(self, device: torch.device | str) -> ImageStore:
        """The same store on another device."""
        roi, pitch = (None if t is None else t.to(device) for t in (self.roi, self.pitch))
        return ImageStore(self.pixels.to(device), self.starts.to(device), self.sizes.to(device), roi, pitch)

    def image(self, k: int) -> Tensor:
        """Image k, uint8 [3, H, W]."""
        start, (h, w) = int(self.starts[k]), self.sizes[k].tolist()
        return self.pixels[start : start + h * w].view(h, w, 3).permute(2, 0, 1)

    @property
    def device(self) -> torch.device:
        """Where the pixels live."""
        return self.pixels.device

    @property
    def nbytes(self) -> int:
        """Size of the pixels."""
        return self.pixels.numel()

    def __len__(self) -> int:
        return len(self.starts)


def decoded_bytes(samples: Sequence[Sample]) -> int:
    """Memory the decoded images take."""
    return sum(3 * s.size[0] * s.size[1] for s in samples)


def build_store(
    samples: Sequence[Sample], on_item: Callable[[], None] | None = None, threads: int | None = None
) -> ImageStore:
    """Decode every image once, into memory."""
    sizes = torch.tensor([s.size for s in samples], dtype=torch.int64).reshape(-1, 2)
    areas = sizes.prod(1)
    starts = areas.cumsum(0) - areas
    total = int(areas.sum())
    pixels = torch.empty(total, 3, dtype=torch.uint8)

    def one(k: int) -> None:
        image = decoded(samples[k])
        start = int(starts[k])
        pixels[start : start + image.shape[1] * image.shape[2]] = image.permute(1, 2, 0).reshape(-1, 3)

    in_threads(one, range(len(samples)), on_item, threads)
    roi = None
    if any(s.roi_source is not None for s in samples):
        roi = torch.ones(total, dtype=torch.bool)
        for s, start in zip(samples, starts.tolist()):
            region = region_of(s)
            if region is not None:
                roi[start : start + region.numel()] = region.reshape(-1)
    return ImageStore(pixels, starts, sizes, roi)


def decoded(sample: Sample) -> Tensor:
    """The pixels of a sample, uint8 [3, H, W]; DataError when they are not of the size the sample says."""
    image = sample.image
    if tuple(image.shape[1:]) != sample.size:
        raise DataError(f"{sample.name}: the image is {tuple(image.shape[1:])}, its header said {sample.size}")
    return image


def region_of(sample: Sample) -> Tensor | None:
    """The region of interest of a sample, bool [H, W]; DataError when it is not of the image's size."""
    region = sample.roi
    if region is not None and tuple(region.shape) != sample.size:
        raise DataError(f"{sample.name}: region of interest is {tuple(region.shape)}, the image {sample.size}")
    return None if region is None else region.bool()


def in_threads(
    one: Callable[[int], None],
    items: Sequence[int],
    on_item: Callable[[], None] | None = None,
    threads: int | None = None,
) -> None:
    """Call `one` for every item; decoders release the interpreter lock, so threads are enough."""
    with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
        try:
            for _ in pool.map(one, items):
                if on_item is not None:
                    on_item()
        except BaseException:  # the first fault ends it: nobody waits for thousands of other images
            pool.shutdown(cancel_futures=True)
            raise
