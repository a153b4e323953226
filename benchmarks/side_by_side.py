"""Run several trainings side by side on one GPU, most important first, within a time limit.

    python benchmarks/side_by_side.py jobs.json OUT --minutes 9 --workers 6

`jobs.json` is a list of [name, [arguments of `papm train`, without --out]]. A training of 8 × 256² crops leaves most of a large
GPU idle; six at a time, with NVIDIA's MPS server running (`nvidia-cuda-mps-control -d`), take little longer than one. A job
that has no chance to end in time is not started, one that runs over is stopped (go on later with `--resume`). At the end every
result found is printed and written to OUT/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Work off the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--least", type=float, default=60, help="seconds below which no job is started")
    given = parser.parse_args()
    waiting = json.loads(given.jobs.read_text())
    end = time.monotonic() + 60 * given.minutes
    lock = threading.Lock()
    given.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                name, words = waiting.pop(0)
            left = end - time.monotonic()
            if left < given.least:
                print(f"{name}: not started, no time left", flush=True)
                continue
            folder = given.out / name
            command = [sys.executable, "-m", "papm", "train", *words, "--out", str(folder)]
            if (folder / "config.yaml").exists():
                command.append("--resume")
            with (given.out / f"{name}.log").open("a") as log:
                try:
                    code = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=left).returncode
                except subprocess.TimeoutExpired:
                    code = -1
            print(f"{name}: {'stopped at the limit' if code == -1 else f'exit code {code}'}", flush=True)

    workers = [threading.Thread(target=work) for _ in range(given.workers)]
    for worker in workers:
        worker.start()
        time.sleep(1)
    for worker in workers:
        worker.join()
    results = {}
    for file in sorted(given.out.glob("*/result.json")):
        results[file.parent.name] = json.loads(file.read_text())
    (given.out / "results.json").write_text(json.dumps(results, indent=1))
    for name, r in results.items():
        print(
            f"{name:32} MAE {r['mae']:.2f}  last {r['mae_last']:.2f}  best on test {r['mae_best_on_test']}  {r['seconds']} s"
        )


if __name__ == "__main__":
    main()
