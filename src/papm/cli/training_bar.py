"""A training on screen: its progress, its loss and its last evaluation; downloads of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.progress import Progress, TaskID

from papm.cli import ui


class TrainingBar:
    """A `Watcher` that draws: one bar a run, the loss and the last evaluation beside it."""

    def __init__(
        self, progress: Progress, title: str, total: int, before: TaskID | None = None, advice: Sequence[str] = ()
    ) -> None:
        self.progress, self.title, self.before, self.advice = progress, title, before, advice
        self.task = progress.add_task(title, total=total, note="")
        self.total, self.loss, self.mae, self.log = total, "", "", ui.Log()

    def on_start(self, sizes: dict[str, int]) -> None:
        for line in self.advice:  # not before: a wrong request is answered by one sentence
            ui.note(line)
        if self.before is not None:
            uses = {"train": "to train on", "val": "to choose the weights by", "test": "to test on"}
            ui.note("Images: " + ", ".join(f"{n} {uses[k]}" for k, n in sizes.items()) + ".")

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
        self.total, self.loss = total, f"loss {values['loss']:.4g}"
        self._show(step)

    def on_evaluation(self, step: int, values: dict[str, float]) -> None:
        self.mae = f"MAE {values['mae']:.2f}"
        self._show(step)

    def _show(self, step: int) -> None:
        if self.before is not None:  # what came before the first step is done
            self.progress.update(self.before, visible=False)
            self.before = None
        self.progress.update(self.task, completed=step, note=f"{self.loss}  {self.mae}")
        far = f"{self.title}: step {step}/{self.total}"
        self.log(lambda: "  ".join(filter(None, (far, self.loss, self.mae))))


def downloads(progress: Progress) -> Callable[[int, int | None], None]:
    """Draws a bar once something is downloaded: called with bytes done and bytes in all."""
    task: list[TaskID] = []

    def on_bytes(done: int, total: int | None) -> None:
        if not task:
            task.append(progress.add_task("downloading weights, MB", total=None, note=""))
        size = None if total is None else total / 1e6
        progress.update(task[0], completed=done / 1e6, total=size, visible=size is None or done < (total or 0))

    return on_bytes
