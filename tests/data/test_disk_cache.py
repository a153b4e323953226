"""Decoded images on disk: the pixels of memory, one file an image, whole or absent, shared and bounded."""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from papm.data import disk_cache
from papm.data.augment import Augment, plan
from papm.data.cache import build_store
from papm.data.crops import render
from papm.data.disk_cache import DiskStore, limit_bytes, open_store, source_key
from papm.data.resize import Resize
from papm.errors import ConfigError, DataError
from papm.structures import Sample

SIZES = [(33, 57), (1, 1), (140, 39), (64, 64)]


def read_region(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(path))


def make(folder: Path, sizes: Sequence[tuple[int, int]] = SIZES, roi: bool = False) -> list[Sample]:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    made = []
    for k, (h, w) in enumerate(sizes):
        path = folder / f"{k}.png"
        Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(path)
        source = None
        if roi and k % 2 == 0:
            np.save(folder / f"{k}.npy", rng.random((h, w)) < 0.5)
            source = functools.partial(read_region, folder / f"{k}.npy")
        made.append(Sample(str(k), path, torch.rand(5, 2) * torch.tensor([w, h]), (h, w), roi_source=source))
    return made


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    return make(tmp_path / "photos")


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def refuse(*args: object) -> None:
    raise AssertionError("decoded again")


@pytest.mark.parametrize("threads", [1, 4, None])
def test_the_images_are_there(samples: list[Sample], tmp_path: Path, threads: int | None) -> None:
    seen: list[int] = []
    store = open_store(samples, tmp_path / "cache", lambda: seen.append(1), threads)
    assert len(seen) == len(store) == len(samples) == len(files(tmp_path / "cache"))
    assert store.nbytes == sum(3 * h * w for h, w in SIZES)
    for k, s in enumerate(samples):
        assert torch.equal(store.image(k), s.image)


AUGMENTS = [
    Augment(crop=32, flip=0.5, grey=0.3),
    Augment(crop=48, margin=16, flip=0.5),
    Augment(crop=32, scale_min=0.5, scale_max=2.0),
    Augment(crop=32, scale_min=0.3, scale_max=0.3),
    Augment(crop=32, scale_min=1.7, scale_max=3.0),
]


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("roi", [False, True])
def test_a_batch_is_that_of_memory_to_the_last_bit(tmp_path: Path, augment: Augment, roi: bool) -> None:
    samples = make(tmp_path / "photos", roi=roi)
    memory, disk = build_store(samples), open_store(samples, tmp_path / "cache")
    points = [np.concatenate([s.points.numpy(), np.ones((5, 1), np.float32)], 1) for s in samples]
    for step in range(12):
        made = plan(step, augment, [s.size for s in samples], points, seed=3, batch=4)
        a, b = render(memory, made, augment), render(disk, made, augment)
        assert torch.equal(a.images, b.images) and torch.equal(a.points.xy, b.points.xy)
        assert a.mask is not None and b.mask is not None and torch.equal(a.mask, b.mask)
        for x, y in ((a.offsets, b.offsets), (a.sizes, b.sizes)):
            assert x is not None and y is not None and torch.equal(x, y)


def test_other_splits_share_the_files(samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    open_store(samples, folder)
    names = files(folder)
    monkeypatch.setattr(disk_cache, "decoded", refuse)
    for some in (samples, samples[::-1], samples[1:3], [samples[3]]):
        store = open_store(some, folder)
        assert torch.equal(store.image(0), some[0].image)
    assert files(folder) == names


def test_a_changed_image_or_size_is_decoded_again(samples: list[Sample], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    open_store(samples, folder)
    path = samples[0].path
    assert path is not None
    Image.fromarray(np.full((33, 57, 3), 77, dtype=np.uint8)).save(path)
    os.utime(path, ns=(1, 1))
    assert (open_store(samples, folder).image(0) == 77).all()
    small = Resize(max_side=40).apply(samples[2])
    assert torch.equal(open_store([small], folder).image(0), small.image) and small.size == (40, 11)
    assert len(files(folder)) == len(samples) + 2


def test_a_changed_region_is_read_again(tmp_path: Path) -> None:
    samples = make(tmp_path / "photos", roi=True)
    augment = Augment(crop=32, flip=0)
    points = [np.zeros((0, 3), np.float32)] * len(samples)

    def mask() -> torch.Tensor:
        store = open_store(samples, tmp_path / "cache")
        found = render(store, plan(0, augment, [s.size for s in samples], points, seed=0, batch=4), augment).mask
        assert found is not None
        return found

    before = mask()
    for k in (0, 2):
        np.save(tmp_path / "photos" / f"{k}.npy", np.zeros(SIZES[k], dtype=bool))
        os.utime(tmp_path / "photos" / f"{k}.npy", ns=(1, 1))
    assert int(mask().sum()) < int(before.sum())
    wrong = [replace(samples[0], roi_source=functools.partial(read_region, tmp_path / "photos" / "2.npy"))]
    with pytest.raises(DataError, match="region of interest"):
        open_store(wrong, tmp_path / "cache")


def test_half_written_files_are_never_read(samples: list[Sample], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    open_store(samples, folder)
    for target in folder.rglob("*.rgb"):
        target.write_bytes(target.read_bytes()[:-1])
    store = open_store(samples, folder)
    for k, s in enumerate(samples):
        assert torch.equal(store.image(k), s.image)
    broken = [*samples[:2], replace(samples[2], size=(39, 140))]
    before = files(folder)
    with pytest.raises(DataError, match=r"2: the image is \(140, 39\), its header said \(39, 140\)"):
        open_store(broken, folder)
    assert files(folder) == before, "no draft stays"


def test_files_may_vanish_under_a_run(samples: list[Sample], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(samples, tmp_path / "cache")
    assert torch.equal(store.image(0), samples[0].image) and not caplog.text
    for target in list((tmp_path / "cache").rglob("*.rgb")):
        target.unlink()
    for k, s in enumerate(samples):
        assert torch.equal(store.image(k), s.image)
    assert caplog.text.count("decoded images have gone") == 1
    assert files(tmp_path / "cache") == [], "another run may have needed the room"
    open_store(samples, tmp_path / "cache")
    assert len(files(tmp_path / "cache")) == len(samples)


def test_drafts_of_dead_processes_are_removed(samples: list[Sample], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / "ab").mkdir(parents=True)
    old, young = folder / "ab" / ".x.1.tmp", folder / "ab" / ".y.2.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    open_store(samples, folder)
    assert not old.exists() and young.exists()


def test_several_runs_at_once(tmp_path: Path) -> None:
    samples = make(tmp_path / "photos", [(50 + k, 60) for k in range(12)])
    stores: dict[int, DiskStore] = {}

    def run(k: int) -> None:
        stores[k] = open_store(samples[k:] + samples[:k], tmp_path / "cache")

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, store in stores.items():
        assert torch.equal(store.image(0), samples[k].image)
    assert len(files(tmp_path / "cache")) == 12


def test_the_oldest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    old, used, new = (make(tmp_path / name, [(100, 100)]) for name in ("old", "used", "new"))
    for part in (old, used):
        open_store(part, folder)
    kept = {
        name: next(folder.rglob(f"{source_key(s[0].source, s[0].size)}.rgb"))
        for name, s in (("old", old), ("used", used))
    }
    os.utime(kept["old"], (100, 100))
    os.utime(kept["used"], (50, 50))
    open_store(used, folder)  # its use makes it the younger
    assert kept["used"].stat().st_mtime > time.time() - 60
    monkeypatch.setenv("PAPM_CACHE_GB", str(65_000 / 1e9))
    open_store(new, folder)
    assert not kept["old"].exists() and kept["used"].exists() and len(files(folder)) == 2
    assert "unused for longest" in caplog.text


def test_what_is_beyond_the_limit_is_decoded_each_time(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PAPM_CACHE_GB", str(3 * 34 * 57 / 1e9))
    store = open_store(samples, tmp_path / "cache")
    for k, s in enumerate(samples):
        assert torch.equal(store.image(k), s.image)
    assert sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*.rgb")) <= 3 * 34 * 57
    assert "PAPM_CACHE_GB" in caplog.text
    monkeypatch.setenv("PAPM_CACHE_GB", "0")
    assert torch.equal(open_store(samples, tmp_path / "none").image(0), samples[0].image)
    assert files(tmp_path / "none") == []
    for text in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("PAPM_CACHE_GB", text)
        with pytest.raises(ConfigError, match="PAPM_CACHE_GB"):
            limit_bytes(tmp_path)


def test_a_full_disk_is_one_sentence(samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"cannot hold the decoded images, 0\.00 GB \(No space left on device\)"):
        open_store(samples, tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_a_folder_that_is_a_file(samples: list[Sample], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match="cannot hold the decoded images"):
        open_store(samples, tmp_path / "cache")


def test_pixels_of_other_users_are_not_used(
    samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    open_store(samples, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.rglob("*.rgb"):  # as another user could leave them in a folder that was open to all
        file.write_bytes(bytes(file.stat().st_size))
        file.chmod(0o666)
    folder.chmod(0o777)
    store = open_store(samples, folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    for k, s in enumerate(samples):
        assert torch.equal(store.image(k), s.image)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(DataError, match=r"cache: cannot hold .*belongs to another user.*set PAPM_CACHE"):
        open_store(samples, folder)


def test_an_image_that_has_gone(samples: list[Sample], tmp_path: Path) -> None:
    assert samples[1].path is not None
    samples[1].path.unlink()
    with pytest.raises(DataError, match=r"1\.png"):
        open_store(samples, tmp_path / "cache")


def test_what_a_function_draws_is_not_kept(tmp_path: Path) -> None:
    """Two functions may have the same address in two runs: what the first drew must not be taken for the second's."""
    for value in (3, 9):
        drawn = Sample(
            "drawn", lambda value=value: torch.full((3, 4, 5), value, dtype=torch.uint8), torch.zeros(0, 2), (4, 5)
        )
        assert (open_store([drawn], tmp_path / "cache").image(0) == value).all()
        assert files(tmp_path / "cache") == []


@dataclass(frozen=True)
class Plain:
    """A picture of values, as a dataset of one's own may draw it."""

    values: Any

    def paint(self) -> Tensor:
        return torch.as_tensor(self.values).reshape(3, 40, 50).to(torch.uint8)


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray])
def test_what_methods_draw_is_not_mixed_up(tmp_path: Path, kind: Any) -> None:
    """Pictures that differ in the middle only, which a printed array leaves out."""
    for middle in (3, 9):
        values = np.zeros(6000, np.uint8)
        values[3000] = middle
        drawn = Sample("drawn", Plain(kind(values)).paint, torch.zeros(0, 2), (40, 50))
        assert int(open_store([drawn], tmp_path / "cache").image(0).max()) == middle


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-60, 200), st.sampled_from([16, 32]), st.integers(1, 90), st.floats(0.3, 3.0))
def test_a_span_holds_all_that_a_crop_looks_at(corner: int, crop: int, side: int, scale: float) -> None:
    from papm.data.crops import _taps

    place = torch.arange(crop, dtype=torch.float32)[None] + corner
    for s, low, resized in ((scale, 0.3, True), (1.0, 1.0, False)):
        rows, _ = _taps(place, torch.tensor([s]), torch.tensor([side]), low, resized)
        first, last = disk_cache._span(corner, crop, side, s, low, resized)
        assert first <= int(rows.min()) and int(rows.max()) < last <= side
