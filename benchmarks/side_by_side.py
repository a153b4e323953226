"""Run any `papm train` commands side by side on one GPU, most important first, within a time limit.

    python benchmarks/side_by_side.py jobs.json OUT --minutes 9 --workers 6

`jobs.json` is a list of [name, [arguments of `papm train`, without --out]]. For the cells of a table use `papm study run`: the
same queue (`papm.study.queue`) with the list made from the table. A job that has no chance to end in time is not
started, one that runs over is stopped with a checkpoint; calling again goes on. At the end every result found is printed and
written to OUT/results.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from papm.study.queue import Command, Job, Outcome, work_off


class Printer:
    """A `QueueWatcher` that says when jobs end."""

    def started(self, job: Job) -> None:
        """Nothing: the list is known."""

    def ended(self, job: Job, outcome: Outcome, seconds: float) -> None:
        """One line a job."""
        print(f"{job.name}: {outcome} after {seconds:.0f} s", flush=True)

    def tick(self, running: Sequence[Job]) -> None:
        """Nothing: progress is in the logs."""


def job(name: str, words: list[str], out: Path) -> Job:
    """One training; goes on where it was stopped."""
    folder = out / name

    def train() -> Command | None:
        if (folder / "result.json").exists():
            return None
        resume = ["--resume"] if (folder / "config.yaml").exists() else []
        return Command((sys.executable, "-m", "papm", "train", *words, "--out", str(folder), *resume))

    return Job(name, out / f"{name}.log", (train,), folder)


def main() -> None:
    """Work off the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--least", type=float, default=60, help="seconds below which no job is started")
    parser.add_argument(
        "--lead", type=float, default=0, help="seconds the first job runs alone, to compile for the others"
    )
    given = parser.parse_args()
    jobs = [job(name, words, given.out) for name, words in json.loads(given.jobs.read_text())]
    given.out.mkdir(parents=True, exist_ok=True)
    work_off(jobs, given.workers, Printer(), minutes=given.minutes, least=given.least, grace=20, lead=given.lead)
    results = {f.parent.name: json.loads(f.read_text()) for f in sorted(given.out.glob("*/result.json"))}
    (given.out / "results.json").write_text(json.dumps(results, indent=1))
    for name, r in results.items():
        print(
            f"{name:32} MAE {r['mae']:.2f}  last {r['mae_last']:.2f}  best on test {r['mae_best_on_test']}  {r['seconds']} s"
        )


if __name__ == "__main__":
    main()
