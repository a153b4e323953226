"""Several trainings at a time on screen: a bar for each, a line when one ends, its result kept at once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.progress import TaskID

from papm.cli import ui
from papm.engine.interrupts import interruptible
from papm.engine.run_folder import read_metrics
from papm.errors import PapmError
from papm.report.svg import told_apart
from papm.study.queue import Job, Outcome, complaint, work_off
from papm.study.run import Task, collect
from papm.study.run import job as as_job

LOOK = 2.0  # seconds between looks at what a training has written
REPORT = 60.0  # seconds between lines where there is no terminal
BESIDE = 50  # letters of a bar beside its name: steps and times, and a little of the bar itself


class JobBars:
    """A `QueueWatcher` that draws, and writes the result of every training that ends."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = {t.name: t for t in tasks}
        self.shown = dict(zip(self.tasks, told_apart(list(self.tasks), ui.err.width - BESIDE)))
        self.outcomes: list[dict[str, object]] = []
        self.progress = ui.bar()
        self.all = self.progress.add_task("trainings", total=len(tasks), note="")
        self.bars: dict[str, TaskID] = {}
        self.looked, self.log = time.monotonic(), ui.Log(REPORT)

    def __enter__(self) -> JobBars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    @property
    def done(self) -> int:
        """Trainings whose result is written."""
        return sum(o["outcome"] == "done" for o in self.outcomes)

    def summary(self) -> list[list[object]]:
        """What became of each training, for a table."""
        rows: list[list[object]] = []
        for o in self.outcomes:
            bias = o.get("bias")
            figures = [o.get("mae"), o.get("rmse"), 100 * bias if isinstance(bias, float) else None]
            cells = ["–" if v is None else v for v in figures]
            task = self.tasks[str(o["name"])]
            who = f"{task.cell.name}, seed {task.seed}"
            rows.append([who, o["outcome"], f"{o['step']} of {o['steps']}", *cells, o["seconds"]])
        return rows

    def started(self, job: Job) -> None:
        """A bar for the job."""
        ui.note(f"{job.name}: started")
        self.bars[job.name] = self.progress.add_task(self.shown[job.name], total=self.tasks[job.name].steps, note="")

    def ended(self, job: Job, outcome: Outcome, seconds: float) -> None:
        """Keep the result, or say what went wrong."""
        task, figures, said = self.tasks[job.name], {}, f"{outcome} after {seconds:.0f} s"
        if outcome == "done":
            try:
                values = collect(task)
                figures = {k: values.get(k) for k in ("mae", "rmse", "bias", "mae_best_on_test")}
                said = f"MAE {values['mae']:.2f} after {seconds:.0f} s" if values.get("mae") is not None else said
            except PapmError as error:
                outcome, said = "failed", str(error)
        elif outcome == "failed":
            said = f"failed: {complaint(job.log)} (all of it: {job.log})"
        ui.note(f"{job.name}: {said}")
        self.outcomes.append(
            {"name": job.name, "outcome": outcome, "run": str(task.folder), "result": str(task.result), **figures}
            | {"seconds": round(seconds, 1), "step": _step(job), "steps": task.steps}
        )
        if job.name in self.bars:
            self.progress.remove_task(self.bars.pop(job.name))
        if outcome in ("done", "failed"):
            self.progress.advance(self.all)

    def tick(self, running: Sequence[Job]) -> None:
        """Look how far each training is, now and then."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        steps = {job.name: _step(job) for job in running}
        for name, step in steps.items():
            self.progress.update(self.bars[name], completed=step, total=self.tasks[name].steps)
        self.log(lambda: "; ".join(f"{name}: step {step}/{self.tasks[name].steps}" for name, step in steps.items()))


def work_off_tasks(tasks: Sequence[Task], jobs: int, minutes: float | None = None) -> tuple[JobBars, bool]:
    """Train what is missing, with bars; what became of each, and whether it was interrupted."""
    bars = JobBars(tasks)
    try:
        with interruptible(), bars:
            work_off([as_job(t) for t in tasks], jobs, bars, minutes=minutes)
    except KeyboardInterrupt:
        return bars, True
    return bars, False


def _step(job: Job) -> int:
    if job.folder is None:
        return 0
    try:
        rows = read_metrics(job.folder / "metrics.csv")
    except (OSError, ValueError):
        return 0
    return max((int(r["step"]) for r in rows), default=0)
