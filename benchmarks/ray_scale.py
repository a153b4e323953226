"""Very many small images through `papm predict --engine ray`: none lost and none twice after two kills, and how fast.

    python benchmarks/ray_scale.py --images 100000 --out results/speed/ray-scale.json

Draws 1,000 images of 64×64 and links them as often as asked, makes a `tiny` network of random weights, and
- counts a share of the images with the plain predictor, as the command does and in batches, with as many threads as workers,
  twice, in turn with Ray that does the same with 1 worker and with all of them;
- counts all of them with the command, kills a worker after a third of the shards and the command after two thirds, goes on, and
  looks at every row.

Rates are given without and with the start of Ray, which does not grow with the number of images.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import ray
import torch
from PIL import Image

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.predict.folder import ImageFiles
from papm.predict.journal import Journal, asked_of
from papm.predict.predictor import Counter
from papm.predict.results import image_names
from papm.predict.scaleout.run import Far, predict_many

DRAWN, SIDE, FOLDER = 1000, 64, 1000


def make_images(root: Path, number: int) -> list[Path]:
    """PNG files in folders of a thousand; beyond the first thousand they are links."""
    rng = np.random.default_rng(0)
    files: list[Path] = []
    for k in range(number):
        path = root / f"{k // FOLDER:05d}" / f"{k:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if k < DRAWN:
            coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
        else:
            os.link(files[k % DRAWN], path)
        files.append(path)
    return files


def plain_rate(model: Path, files: list[Path], folder: Path, threads: int) -> float:
    """Images a second of what `papm predict --no-overlays --no-points` does."""
    torch.set_num_threads(threads)
    counter = Counter.load(model, "cpu")
    named = dict(zip(files, image_names(files)))
    began = time.perf_counter()
    ImageFiles(folder, counter, False, False, None, Journal(folder, asked_of(counter, False))).count(named, named)
    return len(files) / (time.perf_counter() - began)


def batch_rate(model: Path, files: list[Path], threads: int, batch: int) -> tuple[float, float]:
    """The same in batches, from Python, and nothing written; and images for each second that the process computed."""
    torch.set_num_threads(threads)
    counter = Counter.load(model, "cpu")
    began, computed = time.perf_counter(), time.process_time()
    for _ in counter.predict_many(files, points=False, batch=batch):
        pass
    return len(files) / (time.perf_counter() - began), len(files) / (time.process_time() - computed)


def ray_rate(model: Path, files: list[Path], out: Path, workers: int, batch: int) -> tuple[float, float, float]:
    """Images a second without and with the start of Ray, and images for each second that its processes computed."""
    far: list[tuple[Far, float]] = []

    def seen(now: Far) -> None:
        far.append((now, sum(seconds for _, seconds in below(os.getpid()).values())))

    # Shards as a long list has them: of a handful of images each, files and messages would be what is timed.
    asked = {"device": "cpu", "batch": batch, "shard": 500}
    made = predict_many(model, files, out, workers=workers, on_shard=seen, **asked)
    assert made.failed == 0 and made.images == len(files)
    (first, before), (last, after) = far[1], far[-1]
    return last.rate, len(files) / made.seconds, (last.images - first.images) / (after - before)


def below(pid: int) -> dict[int, tuple[bytes, float]]:
    """The processes that descend from one, with it: their names, and the seconds that they computed."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[bytes, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                cells = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(cells[1])
                ticks = int(cells[11]) + int(cells[12])
                found[int(folder.name)] = (folder / "cmdline").read_bytes(), ticks / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue

    def descends(child: int) -> bool:
        while child in parents and child != pid:
            child = parents[child]
        return child == pid

    return {p: facts for p, facts in found.items() if descends(p)}


def workers_of(pid: int) -> list[int]:
    """The processes below one that hold a model."""
    return [p for p, (name, _) in below(pid).items() if b"MapWorker" in name]


def killed_run(model: Path, images: Path, out: Path, workers: int, batch: int, number: int) -> dict[str, Any]:
    """Two kills, then what the folder holds."""
    words = ["predict", model, f"{images}/*/*.png", "--engine", "ray", "--workers", workers, "--device", "cpu"]
    command = [sys.executable, "-m", "papm", *map(str, words), "--batch", str(batch), "--out", str(out)]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    shards = 0
    for share, kill in ((1 / 3, "worker"), (2 / 3, "command")):
        while True:
            if process.poll() is not None:
                raise SystemExit(f"the command ended before the {kill} was killed; give more --images")
            done = len(list((out / "counts").glob("part-*.parquet")))
            if not shards and (out / "manifest.parquet").exists():
                shards = parquet.read_metadata(out / "manifest.parquet").num_row_groups
            if shards and done >= share * shards:
                break
            time.sleep(0.05)
        print(f"killing the {kill} after {done} of {shards} shards")
        os.kill(workers_of(process.pid)[0] if kill == "worker" else process.pid, signal.SIGKILL)
    process.wait()
    kept = len(list((out / "counts").glob("part-*.parquet")))
    code = subprocess.run([*command, "--resume"]).returncode
    seconds = time.perf_counter() - began
    table = parquet.read_table(out / "counts")
    names, counts = table.column("image").to_pylist(), np.array(table.column("count").to_pylist(), dtype=float)
    order = {name: k for k, name in enumerate(sorted(names))}
    by_image = np.empty(len(names))
    by_image[[order[n] for n in names]] = counts
    same = by_image[: number // DRAWN * DRAWN].reshape(-1, DRAWN)
    assert code == 0 and len(names) == number
    return {
        "rows": len(names),
        "different images": len(set(names)),
        "rows without a count": int(np.isnan(counts).sum()),
        "largest difference between counts of one picture": float(np.ptp(same, axis=0).max()),
        "shards": shards,
        "shards kept after the kills": kept,
        "seconds with both kills and both starts": round(seconds, 1),
    }


def main() -> None:
    """Measure, print a table, write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--timed", type=int, default=None, help="images of each timing; an eighth of --images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the figures")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="papm-scale-"))
    try:
        files = make_images(root / "images", asked.images)
        torch.manual_seed(0)
        model = root / "tiny.ckpt"
        checkpoint.save(model, ModelSpec("tiny", {}, "hd-papm"), models.create("tiny").state_dict())
        few = files[: asked.timed or max(4 * DRAWN, asked.images // 8)]
        rates: dict[str, list[float]] = {}

        def note(name: str, *values: float) -> None:
            rates.setdefault(name, []).extend(values)
            print(f"{name}: {', '.join(f'{v:.0f}' for v in values)} images/s", flush=True)

        for turn in range(2):
            note("plain, as the command", plain_rate(model, few, root / f"plain-{turn}", asked.workers))
            for workers in (1, asked.workers):
                steady, computed = batch_rate(model, few, workers, asked.batch)
                note(f"plain in batches, threads: {workers}", steady)
                note(f"plain in batches, threads: {workers}, a CPU second", computed)
                steady, whole, computed = ray_rate(model, few, root / f"ray-{turn}-{workers}", workers, asked.batch)
                note(f"ray, workers: {workers}", steady)
                note(f"ray, workers: {workers}, a CPU second", computed)
                note(f"ray, workers: {workers}, with its start", whole)
        means = {name: round(float(np.mean(values)), 1) for name, values in rates.items()}
        most = means[f"ray, workers: {asked.workers}"]
        found = {
            "images": asked.images,
            "images timed": len(few),
            "side": SIDE,
            "network": "tiny",
            "images/s": means,
            "images/s, each": {k: [round(v, 1) for v in values] for k, values in rates.items()},
            "ray / plain as the command": round(most / means["plain, as the command"], 3),
            "ray / plain in batches": round(most / means[f"plain in batches, threads: {asked.workers}"], 3),
            "ray / plain in batches, one of each": round(
                means["ray, workers: 1"] / means["plain in batches, threads: 1"], 3
            ),
            "ray / plain in batches, a CPU second": round(
                means[f"ray, workers: {asked.workers}, a CPU second"]
                / means["plain in batches, threads: 1, a CPU second"],
                3,
            ),
            f"ray, {asked.workers} workers / 1": round(most / means["ray, workers: 1"], 3),
            "load before": [round(v, 1) for v in os.getloadavg()],
            "killed": killed_run(model, root / "images", root / "killed", asked.workers, asked.batch, asked.images),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "ray": ray.__version__,
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, value in found.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, cell in inner:
            print(f"{name + (': ' if key else '') + key:<64} {cell}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
