"""Decoded images in one buffer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from papm.data.cache import build_store, decoded_bytes
from papm.errors import DataError
from papm.structures import Sample

SIZES = [(13, 17), (1, 1), (40, 9)]


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    made = []
    rng = np.random.default_rng(0)
    for k, (h, w) in enumerate(SIZES):
        path = tmp_path / f"{k}.png"
        Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(path)
        made.append(Sample(str(k), path, torch.zeros(0, 2), (h, w)))
    return made


@pytest.mark.parametrize("threads", [1, 4, None])
def test_memory_holds_the_images(samples: list[Sample], threads: int | None) -> None:
    seen: list[int] = []
    memory = build_store(samples, on_item=lambda: seen.append(1), threads=threads)
    assert len(seen) == len(memory) == 3
    for k, s in enumerate(samples):
        assert torch.equal(memory.image(k), s.image)
    assert decoded_bytes(samples) == memory.nbytes == memory.pixels.numel() == 3 * sum(h * w for h, w in SIZES)
    assert memory.roi is None


def test_moving_a_store(samples: list[Sample]) -> None:
    store = build_store(samples).to("cpu")
    assert torch.equal(store.image(2), samples[2].image)


def test_a_size_that_is_not_the_headers(samples: list[Sample]) -> None:
    with pytest.raises(DataError, match="its header said"):
        build_store([replace(samples[0], size=(17, 13))])


def test_an_image_that_has_gone(samples: list[Sample]) -> None:
    path = samples[1].path
    assert path is not None
    path.unlink()
    with pytest.raises(DataError, match=r"1\.png"):
        build_store(samples)


def test_regions_of_interest(samples: list[Sample]) -> None:
    region = torch.zeros(40, 9, dtype=torch.bool)
    region[3:5] = True
    store = build_store([*samples[:2], replace(samples[2], roi_source=lambda: region)])
    assert store.roi is not None and len(store.roi) == len(store.pixels)
    start = int(store.starts[2])
    assert store.roi[:start].all() and torch.equal(store.roi[start:].view(40, 9), region)
    with pytest.raises(DataError, match="region of interest"):
        build_store([replace(samples[0], roi_source=lambda: region)])
