"""What commands share on screen: progress, tables, JSON. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from papm.text import duration

out = Console(highlight=False, emoji=False)  # a file may be called :car:.jpg
err = Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """A line of a result; long paths are not broken, square brackets mean themselves."""
    out.print(text, soft_wrap=True, markup=False)


def note(text: str) -> None:
    """A remark or a complaint, beside the results."""
    err.print(text, soft_wrap=True, markup=False)


def print_json(value: Any) -> None:
    """Machine-readable output, nothing else on stdout; a number that is not finite is null."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_json_line(value: Any) -> None:
    """The same on one line, at once: what goes on for long is read as it comes."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A plain table; numbers to the right."""
    if title:  # not rich's own title, which is folded to the width of a narrow table
        say(title)
    made = Table()
    for k, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(r[k], (int, float)) or r[k] in ("", "–") for r in rows)
        made.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(v) for v in row))
    out.print(made)


def _cell(value: object) -> Text:
    """The text itself: square brackets in the name of a file or class are no markup."""
    return Text(f"{value:.2f}" if isinstance(value, float) else str(value))


class _Bar(Progress):
    """A bar that says nothing where it is disabled: before 14.3 rich ends it with an empty line all the same."""

    def stop(self) -> None:
        if not self.disable:
            super().stop()


def bar() -> Progress:
    """A progress bar that draws on a terminal and stays silent elsewhere."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return _Bar(*columns, console=err, refresh_per_second=4, transient=True, disable=not err.is_terminal)


class Log:
    """Says how far something is, at most once in so many seconds, where there is no terminal to draw on."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds, self.said = seconds, time.monotonic()

    def __call__(self, text: Callable[[], str]) -> None:
        if not err.is_terminal and time.monotonic() - self.said > self.seconds:
            self.said = time.monotonic()
            note(text())


class _Items:
    """Called once per item."""

    def __init__(self, progress: Progress, task: TaskID, what: str, total: int, done: int = 0) -> None:
        self.progress, self.task, self.what, self.log = progress, task, what, Log()
        self.total, self.done, self.before = total, done, done
        self.start = self.began = time.monotonic()  # of all items, and of the present one

    def __call__(self) -> None:
        self.done, self.began = self.done + 1, time.monotonic()
        self.progress.update(self.task, advance=1, note="")
        self.log(self._far)

    def at(self, done: int, total: int, note: str = "", before: int = 0) -> None:
        """`done` of `total` items, `before` of them earlier, for those who learn the number late."""
        self.done, self.total, self.before = done, total, before
        self.progress.update(self.task, completed=done, total=total, note=note)
        self.log(self._far)

    def part(self, done: int, total: int) -> None:
        """How far the present item is, once it has taken two seconds."""
        if total > 1 and time.monotonic() - self.began > 2:
            self.progress.update(self.task, note=f"tile {done}/{total}")
            self.log(lambda: f"{self._far()}, tile {done}/{total} of the next")

    def _far(self) -> str:
        now, more = self.done - self.before, self.total - self.done
        left = f", {duration((time.monotonic() - self.start) / now * more)} left" if now > 0 and more > 0 else ""
        return f"{self.what}: {self.done}/{self.total or '?'}{left}"


@contextmanager
def items(what: str, total: int, done: int = 0) -> Iterator[_Items]:
    """A bar over a number of items, 0 where nobody knows how many; `done` of them before."""
    with bar() as progress:
        task = progress.add_task(what, total=total or None, completed=done, note="")
        yield _Items(progress, task, what, total, done)
