"""Decoded images in one buffer: the same from memory and from disk, whole or absent."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from papm.data import cache
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


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("threads", [1, 4, None])
def test_memory_and_disk_hold_the_images(samples: list[Sample], tmp_path: Path, threads: int | None) -> None:
    seen: list[int] = []
    memory = build_store(samples, on_item=lambda: seen.append(1), threads=threads)
    disk = build_store(samples, tmp_path / "cache", threads=threads)
    assert len(seen) == len(memory) == len(disk) == 3
    assert torch.equal(memory.pixels, disk.pixels) and torch.equal(memory.starts, disk.starts)
    for k, s in enumerate(samples):
        assert torch.equal(memory.image(k), s.image) and torch.equal(disk.image(k), s.image)
    assert decoded_bytes(samples) == memory.pixels.numel() == 3 * sum(h * w for h, w in SIZES)
    assert memory.roi is None


def test_moving_a_store(samples: list[Sample]) -> None:
    store = build_store(samples).to("cpu")
    assert torch.equal(store.image(2), samples[2].image)


def test_a_file_is_reused(samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    first = build_store(samples, folder)
    names = files(folder)
    assert len(names) == 1 and names[0].endswith(".rgb")

    def refuse(*args: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "_decode", refuse)
    second = build_store(samples, folder)
    assert torch.equal(first.pixels, second.pixels) and files(folder) == names


def test_what_is_written_to_the_tensor_stays_out_of_the_file(samples: list[Sample], tmp_path: Path) -> None:
    store = build_store(samples, tmp_path / "cache")
    store.pixels.zero_()
    assert torch.equal(build_store(samples, tmp_path / "cache").image(0), samples[0].image)


def test_a_changed_image_is_decoded_again(samples: list[Sample], tmp_path: Path) -> None:
    build_store(samples, tmp_path / "cache")
    path = samples[0].path
    assert path is not None
    Image.fromarray(np.full((13, 17, 3), 77, dtype=np.uint8)).save(path)
    os.utime(path, ns=(1, 1))
    assert (build_store(samples, tmp_path / "cache").image(0) == 77).all()


def test_other_images_get_another_file(samples: list[Sample], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    build_store(samples, folder)
    assert torch.equal(build_store(samples[::-1], folder).image(0), samples[2].image)
    assert len(files(folder)) == 2


def test_a_half_written_file_is_never_used(samples: list[Sample], tmp_path: Path) -> None:
    """Neither one cut short, nor the draft of a build that failed in the middle."""
    folder = tmp_path / "cache"
    good = build_store(samples)
    build_store(samples, folder)
    target = next(folder.iterdir())
    target.write_bytes(target.read_bytes()[:100])
    assert torch.equal(build_store(samples, folder).pixels, good.pixels)
    target.unlink()
    broken = [*samples[:2], replace(samples[2], size=(9, 40))]
    with pytest.raises(DataError, match=r"2: the image is \(40, 9\), its header said \(9, 40\)"):
        build_store(broken, folder)
    assert files(folder) == []


def test_a_size_that_is_not_the_headers(samples: list[Sample]) -> None:
    with pytest.raises(DataError, match="its header said"):
        build_store([replace(samples[0], size=(17, 13))])


def test_a_full_disk_is_said_before_anything_is_decoded(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match=r"cannot hold the decoded images, 0\.00 GB \(No space left on device\)"):
        build_store(samples, tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_a_folder_that_is_a_file(samples: list[Sample], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match="cannot hold the decoded images"):
        build_store(samples, tmp_path / "cache")


def test_an_image_that_has_gone(samples: list[Sample], tmp_path: Path) -> None:
    path = samples[1].path
    assert path is not None
    path.unlink()
    for folder in (None, tmp_path / "cache"):
        with pytest.raises(DataError, match=r"1\.png"):
            build_store(samples, folder)


def test_images_drawn_by_a_function_are_not_kept_for_the_next_run(tmp_path: Path) -> None:
    """Two functions may have the same address in two runs: what the first drew must not be taken for the second's."""
    folder = tmp_path / "cache"
    for value in (3, 9):
        sample = Sample(
            "drawn", lambda value=value: torch.full((3, 4, 5), value, dtype=torch.uint8), torch.zeros(0, 2), (4, 5)
        )
        store = build_store([sample], folder)
        assert (store.image(0) == value).all()
        assert files(folder) == []


def test_regions_of_interest(samples: list[Sample]) -> None:
    region = torch.zeros(40, 9, dtype=torch.bool)
    region[3:5] = True
    store = build_store([*samples[:2], replace(samples[2], roi_source=lambda: region)])
    assert store.roi is not None and len(store.roi) == len(store.pixels)
    start = int(store.starts[2])
    assert store.roi[:start].all() and torch.equal(store.roi[start:].view(40, 9), region)
    with pytest.raises(DataError, match="region of interest"):
        build_store([replace(samples[0], roi_source=lambda: region)])
