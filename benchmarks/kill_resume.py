"""Kill a training run at random moments, resume it each time, and compare with a run that was left alone.

    python benchmarks/kill_resume.py [--kills 20] [--steps 600] [--seed 0]

Every logged loss and every weight must be the same to the last bit. Prints one line a kill and a verdict; exit code 1 when
anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from papm import checkpoint
from papm.engine.run_folder import read_metrics

SPEC = "synthetic:train=8,test=3,size=96,count=5-10"


def command(folder: Path, steps: int, resume: bool) -> list[str]:
    """The run; it logs every step and writes a checkpoint every seventh."""
    settings = [f"steps={steps}", "crop=64", "batch=2", "log_every=1", "save_every=7", "eval_every=50", "select=last"]
    run = [
        sys.executable,
        "-m",
        "papm",
        "train",
        SPEC,
        "--method",
        "al-papm",
        "--backbone",
        "tiny",
        "--out",
        str(folder),
    ]
    return [*run, "device=cpu", *settings, *(["--resume"] if resume else [])]


def losses(folder: Path) -> dict[int, float]:
    """Logged loss of each step."""
    return {r["step"]: r["loss"] for r in read_metrics(folder / "metrics.csv") if "loss" in r}


def metrics_size(folder: Path) -> int:
    """Grows with every logged step."""
    file = folder / "metrics.csv"
    return file.stat().st_size if file.exists() else 0


def main() -> int:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        whole, cut = Path(place) / "whole", Path(place) / "cut"
        began = time.monotonic()
        process = subprocess.Popen(command(whole, given.steps, False), env=environment, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (whole / "metrics.csv").exists():
            time.sleep(0.05)
        start = time.monotonic() - began
        if process.wait():
            return 1
        full = time.monotonic() - began - start
        print(f"left alone: {start:.1f} s to start, {full:.1f} s of training", flush=True)
        for kill in range(given.kills):
            reached = max(losses(cut), default=0)
            resume = (cut / "config.yaml").exists()
            process = subprocess.Popen(
                command(cut, given.steps, resume), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            # At any moment: every fourth while starting, the others while stepping or writing a checkpoint.
            if kill % 4 == 3:
                time.sleep(random.uniform(0.2, start))
            else:
                size = metrics_size(cut)
                while process.poll() is None and metrics_size(cut) == size:
                    time.sleep(0.01)
                time.sleep(random.uniform(0, full / given.kills))
            ended = process.poll() is not None
            process.kill()
            process.wait()
            now = max(losses(cut), default=0)
            print(f"kill {kill + 1}: steps {reached} → {now}{', had ended' if ended else ''}", flush=True)
        resume = (cut / "config.yaml").exists()
        subprocess.run(command(cut, given.steps, resume), env=environment, check=True, stdout=subprocess.DEVNULL)
        same_losses = losses(whole) == losses(cut)
        a, b = (checkpoint.load(f / "best.ckpt")[1] for f in (whole, cut))
        same_weights = all(torch.equal(a[k], b[k]) for k in a)
        words = {True: "equal", False: "DIFFER"}
        print(f"{len(losses(whole))} losses {words[same_losses]}, weights {words[same_weights]}")
        return 0 if same_losses and same_weights else 1


if __name__ == "__main__":
    raise SystemExit(main())
