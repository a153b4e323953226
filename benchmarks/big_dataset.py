"""How a dataset of thousands of large images loads: opening, decoding once, the first batch with a warm cache, memory.

    python benchmarks/big_dataset.py --images 300
    python benchmarks/big_dataset.py --images 10000 --warm-only

Images of four megapixels are written to a temporary folder (a few different ones, under many names), and each stage runs in a
process of its own, so that its peak memory is its own. What is measured at fewer than 10,000 images is scaled up by the
number of images, and said to be. With --warm-only the cache is not built but faked by files of holes: 10,000 decoded images
take 120 GB, holes take none, and opening, mapping and cutting crops do not know the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FULL = 10_000
SIZE = (1632, 2464)  # H, W: four megapixels
KINDS = 8  # different images; the rest are copies, for writing 10,000 JPEGs of their own takes half an hour


def write_images(folder: Path, images: int) -> None:
    """`images` JPEGs with ten points each."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    made = []
    for k in range(min(KINDS, images)):
        small = rng.integers(0, 256, (SIZE[0] // 8, SIZE[1] // 8, 3), dtype=np.uint8)
        path = folder.parent / f"kind{k}.jpg"
        Image.fromarray(small).resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC).save(path, quality=85)
        made.append(path.read_bytes())
    for k in range(images):
        (folder / f"{k:05d}.jpg").write_bytes(made[k % len(made)])
        xy = rng.random((10, 2)) * (SIZE[1], SIZE[0])
        (folder / f"{k:05d}.txt").write_text("".join(f"{x:.1f} {y:.1f}\n" for x, y in xy))


def peak_mb() -> float:
    """Largest resident memory of this process so far; mapped pages of the cache count while they are in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stage(name: str, photos: str, cache: str) -> dict[str, float]:
    """One stage, in this process."""
    import numpy as np

    from papm import data
    from papm.data.augment import Augment, plan
    from papm.data.crops import render
    from papm.data.disk_cache import open_store

    before = peak_mb()
    began, work = time.perf_counter(), time.process_time()
    samples = data.open("folder", photos)["all"].samples
    opened = time.perf_counter() - began
    # on a machine that others use, the time of the processor says more than that of the clock
    found = {"open_s": opened, "open_cpu_s": time.process_time() - work, "peak_mb": peak_mb(), "imports_mb": before}
    if name == "open":
        return found
    if name == "holes":
        fill_with_holes(samples, Path(cache))
        return {}
    if name == "ready":
        return ready(photos, Path(cache))
    began = time.perf_counter()
    store = open_store(samples, Path(cache))
    found["store_s"] = time.perf_counter() - began
    points = [np.concatenate([s.points.numpy(), np.ones((s.count, 1), np.float32)], 1) for s in samples]
    augment = Augment(crop=512, scale_min=0.75, scale_max=1.5)
    began = time.perf_counter()
    steps = 1 if name == "cold" else 20
    for step in range(steps):
        render(store, plan(step, augment, [s.size for s in samples], points, seed=0, batch=8), augment)
        if step == 0:
            found["first_batch_s"] = time.perf_counter() - began
    found["batch_ms"] = 1e3 * (time.perf_counter() - began) / steps
    found["peak_mb"] = peak_mb()
    return found


def fill_with_holes(samples: Sequence[Any], cache: Path) -> None:
    """A cache file of the right name and size for every image, with nothing in it."""
    from papm.data import disk_cache

    for sample in samples:
        file = disk_cache._place(cache, sample.source, sample.size, ".rgb")
        assert file is not None
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            stream.truncate(3 * sample.size[0] * sample.size[1])


def ready(photos: str, cache: Path) -> dict[str, float]:
    """From nothing to the first training batch, as `papm train` goes about it."""
    import torch

    from papm import data
    from papm.config import TrainConfig
    from papm.data.splits import choose
    from papm.engine.data import CountingData

    config = TrainConfig(cache="disk", crop=512, device="cpu", select="val")
    began = time.perf_counter()
    splits = choose(data.open_spec(photos), "val", 0.1, 0)
    loaded = CountingData(splits, config, 0.0, cache)
    loaded.load(torch.device("cpu"))
    loaded.render(loaded.plan(0))
    first = time.perf_counter() - began
    for step in range(1, 11):
        loaded.render(loaded.plan(step))
    return {"first_batch_s": first, "batch_ms": 1e2 * (time.perf_counter() - began - first), "peak_mb": peak_mb()}


def run(name: str, photos: Path, cache: Path) -> dict[str, float]:
    """One stage, in a process of its own."""
    words = [sys.executable, __file__, "--stage", name, "--photos", str(photos), "--cache", str(cache)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PAPM_CACHE_GB": "400"},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Write images, run the stages, print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--open-only", action="store_true", help="Measure opening alone: it needs no space for pixels.")
    parser.add_argument(
        "--warm-only", action="store_true", help="First batch with a cache that is there already, faked."
    )
    parser.add_argument("--stage", choices=("open", "cold", "warm", "holes", "ready"), help=argparse.SUPPRESS)
    parser.add_argument("--photos", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stage:
        print(json.dumps(stage(asked.stage, asked.photos, asked.cache)))
        return
    with tempfile.TemporaryDirectory() as folder:
        photos, cache = Path(folder) / "photos", Path(folder) / "cache"
        write_images(photos, asked.images)
        if asked.warm_only:
            run("holes", photos, cache)
            times = [run("ready", photos, cache) for _ in range(2)]
            for found in times:
                print(f"{asked.images} images:", {k: round(v, 2) for k, v in found.items()})
            return
        stages = ("open",) if asked.open_only else ("open", "cold", "warm")
        found = {name: run(name, photos, cache) for name in stages}
    scale = FULL / asked.images
    print(f"{asked.images} images of {SIZE[0] * SIZE[1] / 1e6:.1f} MP")
    for name, values in found.items():
        print(f"{name:5}", {k: round(v, 2) for k, v in values.items()})
    print(f"scaled to {FULL} images (×{scale:g}): open {found['open']['open_s'] * scale:.1f} s", end="")
    if "warm" in found:
        cold, warm = found["cold"], found["warm"]
        ready = (warm["open_s"] + warm["store_s"]) * scale + warm["first_batch_s"]
        print(
            f", cold build {cold['store_s'] * scale / 60:.0f} min, warm first batch {ready:.1f} s after the start",
            end="",
        )
    print()


if __name__ == "__main__":
    main()
