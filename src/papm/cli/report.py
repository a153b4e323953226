"""`papm report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add(app: typer.Typer) -> None:
    app.command("report")(report)


def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write report.html of a run again, from what its folder holds.

    Example: papm report runs/first
    """
    from papm.cli import ui
    from papm.report.run import write_report

    ui.say(f"Report: {write_report(run)}")
