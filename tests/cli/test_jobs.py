"""Bars of several trainings at a time."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from papm.cli import ui
from papm.cli.jobs import JobBars


def test_bars_on_a_narrow_terminal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(ui, "err", screen)
    more = "loss.sigma=8-loss.shape=2.5-network.activation=abs-noise=8"
    names = [f"shanghaitech-a/vgg19-{m}-{more}-s{k}" for m in ("al-papm", "dm-count") for k in (0, 1)]
    tasks: list[Any] = [SimpleNamespace(name=name, steps=3000) for name in names]
    bars = JobBars(tasks)
    for task in tasks:
        bars.started(task)
    paper = Console(file=io.StringIO(), width=80, color_system=None)
    paper.print(bars.progress.get_renderable())
    lines = paper.file.getvalue().splitlines()[1:5]  # type: ignore[attr-defined]
    assert len(set(lines)) == 4 and all("0/3000" in line and "0:00:00" in line for line in lines), lines
