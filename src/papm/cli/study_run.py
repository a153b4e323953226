"""`papm study run`: the trainings that a table lacks."""

from __future__ import annotations

import shlex
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.options import Jobs, Json, Weights, one_of
from papm.cli.study import DEFAULT, SELECTIONS, Only, Settings, study_of
from papm.cli.study_options import read_pairs, read_seeds, read_tiers, read_weights
from papm.text import n_of

if TYPE_CHECKING:
    from papm.study.run import Request, Task
    from papm.study.tables import Study

FOLDERS = "DATASET=FOLDER, once for each dataset; others are looked for in the folder that PAPM_DATA names."
SEVERAL = "A study of `papm study list`, or a YAML file; several (a,b) share one queue."
TIER = "Only cells of these tiers of the study, such as 1 or 1,2, with the seeds that they have there."


def run(
    name: Annotated[str, Argument(help=SEVERAL)],
    settings: Settings = None,
    data: Annotated[list[str] | None, Option("--data", "--data-root", help=FOLDERS, show_default=False)] = None,
    weights: Weights = None,
    out: Annotated[Path, Option(help="Where the run folders go.")] = Path("runs"),
    results: Annotated[Path, Option(help="Where results are looked for and written.")] = DEFAULT,
    seeds: Annotated[
        str | None, Option(help="Seeds, such as 0,1,2; those of the study, or of the tier.", show_default=False)
    ] = None,
    tier: Annotated[str | None, Option(help=TIER, show_default=False)] = None,
    select: Annotated[str, Option(help="How weights are chosen: last, val or test.")] = "last",
    only: Only = None,
    jobs: Jobs = 1,
    minutes: Annotated[float | None, Option(help="Stop after so long; the next call goes on.")] = None,
    again: Annotated[bool, Option("--again", help="Also what is measured already.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the commands, do nothing.")] = False,
    json: Json = False,
) -> None:
    """Train the cells that have no result; stopped by Ctrl-C, the same command goes on.

    Examples:

    papm study run crowds --data shanghaitech-a=data/ShanghaiTech --only vgg19 --seeds 0,1,2 --jobs 6

    papm study run crowds,trancos,cars --tier 2 --jobs 10 --minutes 9

    papm study run mine.yaml --out runs/mine steps=2000 device=cpu

    papm study run displacement-synthetic --jobs 2
    """
    from papm.study import training
    from papm.study.data_roots import found_in, lacking
    from papm.study.results import read
    from papm.study.run import Request, plan_all

    one_of("selection", select, SELECTIONS)
    taken = {"seed": "--seeds", "select": "--select", "weights": "--weights"}
    own = training.read_settings(settings, taken)
    studies = [study_of(each, only, own) for each in name.split(",")]
    tiers = read_tiers(tier, studies)
    request = Request(
        data=found_in(environ.get("PAPM_DATA"), studies, read_pairs(data, "--data DATASET=FOLDER")),
        weights=read_weights(weights),
        out=out,
        results=results,
        seeds=() if seeds is None else read_seeds(seeds),
        select=select,
        again=again,
        tiers=tiers,
    )
    tasks = plan_all(studies, read([results]) if results.exists() else [], request)
    if missing := lacking(studies, request):
        ui.note(f"Left out, for want of --data DATASET=FOLDER: cells on {', '.join(missing)}.")
    if dry_run:
        _print_commands(tasks)
        return
    if tasks:
        _work_off(tasks, jobs, minutes, json)
    elif json:
        ui.print_json([])
    else:
        ui.say(f"Nothing to train: every cell has its result in {results}; --again trains them again.")
    for study in studies:
        if study.pairs and not json:
            _answer(study, request)


def _answer(study: Study, request: Request) -> None:
    """What a study of displaced dots shows."""
    from papm.study import displacement
    from papm.study.results import read
    from papm.study.robustness import words

    table = displacement.table_of(study, read([request.results]), request.out, request.select)
    ui.table(
        words.columns(table), words.rows(table), title=f"{study.title}: test MAE (?: chance may explain the change)"
    )
    for line in displacement.answer(table, study.pairs):
        ui.say(line)
    ui.say(f"Page: {displacement.write_page(study, table, request.out / f'{study.name}.html')}")


def _print_commands(tasks: list[Task]) -> None:
    from papm.study.run import evaluate_words, train_words

    for task in tasks:
        if not (task.folder / "result.json").exists():
            ui.say(shlex.join(["papm", *train_words(task, resume=(task.folder / "config.yaml").exists())]))
        for evaluation in task.evaluations:
            ui.say(shlex.join(["papm", *evaluate_words(task, evaluation, "test")]))


def _work_off(tasks: list[Task], jobs: int, minutes: float | None, json: bool) -> None:
    from papm.cli.jobs import work_off_tasks

    bars, stopped = work_off_tasks(tasks, jobs, minutes)
    done = f"{bars.done} of {n_of(len(tasks), 'training')} done"
    if json:
        ui.print_json(bars.outcomes)
    elif bars.outcomes:
        ui.table(["training", "outcome", "step", "MAE", "RMSE", "bias %", "seconds"], bars.summary())
    if stopped:
        ui.note(f"Stopped; {done}. The same command goes on.")
    elif not json:
        ui.say(f"{done}; results are in {tasks[0].result.parents[1]}.")
    if stopped or bars.done < len(tasks):
        raise Exit(1)
