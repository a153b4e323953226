"""`pip install papm` in a fresh environment: does the core work with its dependencies and nothing else?

    python tools/core_install.py       # needs an index with torch; prints sizes and times as JSON

The test suite does the cheap part of this (tests/test_core.py refuses imports); this one installs.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from environments import Environment, wheel
from project import ROOT, requirements

LOOP = """
import papm, torch
density = torch.rand(2, 1, 32, 32, requires_grad=True)
loss = papm.losses.create("al-papm", stride=8)
step = torch.optim.SGD([density], lr=1e-3)
for _ in range(5):
    step.zero_grad()
    loss(density, [torch.rand(20, 2) * 256, torch.zeros(0, 2)]).total.backward()
    step.step()
assert density.isfinite().all()
"""
TIMED = """
import subprocess, statistics, sys, time
def seconds(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start
for code in ("pass", "import torch", "import papm", "import papm.losses"):
    seconds(code)
    print(f"{statistics.median(seconds(code) for _ in range(5)):.3f}")
"""
TRAIN = (
    "train synthetic:train=4,test=2,count=5-9,size=64x64 --backbone tiny --out run steps=3 crop=32 batch=1 device=cpu"
)


def main() -> None:
    """Install, use, measure."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = wheel(folder / "dist")
        core = Environment(folder / "core")
        core.install("-c", ROOT / "constraints.txt", made)
        core.run("-m", "pip", "check")
        listed = json.loads(core.run("-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
        packages = {p["name"].lower(): p["version"] for p in listed}
        for extra in (
            "lightning",
            "torchmetrics",
            "tensorboard",
            "onnx",
            "starlette",
            "uvicorn",
            "opencv-python-headless",
        ):
            assert extra not in packages, f"{extra} is installed, and nothing of the core asks for it"
        core.run("-c", LOOP)
        core.run("-m", "papm", *TRAIN.split())
        core.run("-c", "from PIL import Image; Image.new('RGB', (64, 48), 'grey').save('photo.png')")
        counted = json.loads(core.run("-m", "papm", "predict", "run", "photo.png", "--out", "counts", "--json"))
        assert (core.folder / "counts" / "counts.csv").exists() and counted
        bare, torch, papm, losses = map(float, core.run("-c", TIMED).split())
        print(
            json.dumps(
                {
                    "wheel_kb": round(made.stat().st_size / 1e3),
                    "dependencies": sorted(r.name for r in requirements()),
                    "packages_installed": len(packages),
                    "versions": packages,
                    "seconds": {
                        "python": bare,
                        "import torch": torch,
                        "import papm": papm,
                        "import papm.losses": losses,
                    },
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
