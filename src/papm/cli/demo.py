"""`papm demo`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from papm.cli import ui
from papm.cli.options import Json


def demo(
    out: Annotated[Path, Option(help="Where the runs and report.html go.")] = Path("demo"),
    look: Annotated[str, Option(help="crowd, vehicles or cells.")] = "crowd",
    steps: Annotated[int, Option(help="Training steps of each of the runs.")] = 450,
    seed: Annotated[int, Option(help="Seed of the scenes and of training.")] = 0,
    force: Annotated[bool, Option("--force", help="Replace an earlier demo in --out.")] = False,
    json: Json = False,
) -> None:
    """Count cells with a ready model, then make scenes with known truth, train on exact and on misplaced dots, compare; about
    three minutes on a CPU.

    Example: papm demo --look cells --out demo-cells
    """
    from papm.cli.training_bar import TrainingBar
    from papm.study.demo import Demo, first_look, run_demo

    plan = Demo(out=out, look=look, steps=steps, seed=seed)
    plan.prepare(force)
    with ui.err.status("counting cells"):
        looked = first_look(plan)
    if not json:
        ui.say(looked.words)
        ui.say(f"Now {look} scenes are drawn, and networks learn to count in them.")
    with ui.bar() as progress:
        outcome = run_demo(plan, lambda title: TrainingBar(progress, title, steps))
    if json:
        ui.print_json({"ready": looked.to_mapping(), **outcome.to_mapping()})
        return
    ui.table(
        outcome.columns,
        outcome.rows,
        title=f"Test MAE on {plan.test} {look} scenes of {outcome.mean_count:.0f} objects",
    )
    ui.say(outcome.words)
    command = "papm" if shutil.which("papm") else sys.argv[0]  # `make demo` runs it without activating .venv
    ui.say(f"Pictures and curves: {outcome.report}   Try: {command} predict {outcome.best} YOUR_IMAGE --out results")
