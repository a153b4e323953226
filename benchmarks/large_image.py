"""How much memory counting in one large image takes: peak resident size of a process of its own.

    PYTHONPATH=src python3 benchmarks/large_image.py --backbone tiny vgg19 --size 8400 12000

Weights are random, pixels noise. Prints one JSON line a network: seconds, peak memory with the file read, counted, its points
found and its picture drawn, and of a process that has imported everything and read nothing. With --most the count ends after
so many tiles, which tells the memory of a slow network (every tile takes the same) without waiting for its result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def peak_mb() -> float:
    """Peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Enough(Exception):
    """As many tiles as were asked for."""


def measure(path: Path, backbone: str, tile: str, device: str, most: int) -> dict[str, Any]:
    """Count in one file; runs in a process of its own."""
    import torch

    from papm import models
    from papm.checkpoint import ModelSpec
    from papm.draw import overlay
    from papm.images import read_image
    from papm.predict.prediction import Prediction
    from papm.predict.predictor import Counter

    torch.manual_seed(0)
    counter = Counter(models.create(backbone), ModelSpec(backbone), device, tile)
    overlay(torch.zeros(3, 32, 32, dtype=torch.uint8), torch.rand(1, 4, 4), 8)
    start_mb, began = peak_mb(), time.monotonic()
    image = read_image(path)
    read_mb, tiles = peak_mb(), [1, 1]
    found: Prediction | None = None

    def on_tile(done: int, total: int) -> None:
        tiles[:] = done, total
        if done == most:
            raise Enough

    with contextlib.suppress(Enough):
        found = counter.predict(image, on_tile=on_tile)
    count_mb, seconds = peak_mb(), time.monotonic() - began
    if found is not None:
        overlay(image, found.density, found.stride, points=found.points)
    return {
        "backbone": backbone,
        "size": list(image.shape[1:]),
        "tile": tile,
        "tiles": f"{tiles[0]} of {tiles[1]}",
        "count": None if found is None else round(found.count, 3),
        "seconds": round(seconds, 1),
        "start_mb": round(start_mb),
        "read_mb": round(read_mb),
        "count_mb": round(count_mb),
        "peak_mb": round(peak_mb()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", nargs="+", default=["tiny", "vgg19"])
    parser.add_argument("--size", nargs=2, type=int, default=[8400, 12000], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--tile", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=0, help="end after so many tiles")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(Path(args.only), args.backbone[0], args.tile, args.device, args.most)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.jpg"
        height, width = args.size
        noise = np.random.default_rng(0).integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
        Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR).save(path, quality=80)
        for backbone in args.backbone:
            command = [sys.executable, __file__, "--backbone", backbone, "--tile", args.tile, "--device", args.device]
            subprocess.run([*command, "--most", str(args.most), "--only", str(path)], check=True)


if __name__ == "__main__":
    main()
