"""Losses as a user calls them, `loss(density, points).total.backward()`, 8 crops of 512², stride 8, on a GPU, in ms.

    PYTHONPATH=src python benchmarks/losses_gpu.py [out.json]

For a ratio run it with the `src` of another revision as PYTHONPATH, on the same machine.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from papm import losses
from papm.structures import PointBatch

NAMES = ("al-papm", "dm-count", "hd-papm", "gaussian", "bl", "noisecc", "gl", "gl-papm")


def milliseconds(name: str, points: int, calls: int = 40) -> float:
    """Clock time of a call until the device is done, once a loss has seen the shape often enough to be captured."""
    torch.manual_seed(0)
    loss = losses.create(name).cuda()
    density = torch.rand(8, 1, 64, 64, device="cuda", requires_grad=True)
    dots = PointBatch.from_list([torch.rand(points, 2) * 512 for _ in range(8)]).to(torch.device("cuda"))
    for k in range(10 + calls):
        if k == 10:
            torch.cuda.synchronize()
            began = time.perf_counter()
        loss(density, dots).total.backward()
        density.grad = None
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / calls


def main() -> None:
    found = {
        f"{name} n={n}": round(milliseconds(name, n, 10 if name.startswith("gl") else 40), 3)
        for name in NAMES
        for n in (1000, 3000)
    }
    text = json.dumps({"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "ms": found}, indent=1)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
