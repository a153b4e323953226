"""`papm study`: tables of trainings, the paper's or one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.cli.study_options import read_pairs, read_seeds, read_weights
from papm.errors import ConfigError, unknown
from papm.text import n_of

if TYPE_CHECKING:
    from papm.study.results import Result
    from papm.study.run import Task
    from papm.study.tables import Study

app = typer.Typer(
    help="The paper's tables: what it says, what was measured, and the trainings that are missing.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SELECTIONS = ("last", "val", "test")
DEFAULT = Path("results")
Name = Annotated[str, typer.Argument(help="A study of `papm study list`, or a YAML file of one's own.")]
Settings = Annotated[list[str] | None, typer.Argument(help="Settings of every cell: key=value …", show_default=False)]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only cells of this row, column, dataset, network or method (a,b: either); repeat for both."),
]
Places = Annotated[
    list[Path] | None,
    typer.Option(
        help="A folder of result files or runs; may be repeated. results/ when it is there.", show_default=False
    ),
]


@app.command("list")
def list_studies(
    results: Places = None,
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the studies, with the number of cells that are measured.

    Example: papm study list --results results
    """
    from papm.cli import ui
    from papm.study import tables
    from papm.study.show import measured

    found = _results(results)
    rows = []
    for name in tables.names():
        study = tables.load(name)
        rows.append([name, study.title, study.where.partition(",")[0], len(study.cells), measured(study, found)])
    if json:
        keys = ("name", "title", "where", "cells", "measured")
        ui.print_json([dict(zip(keys, row)) for row in rows])
        return
    ui.table(["study", "title", "in the paper", "cells", "measured"], rows)
    _say_if_nowhere(results)


@app.command("show")
def show(
    name: Name,
    settings: Settings = None,
    results: Places = None,
    only: Only = None,
    select: Annotated[str, typer.Option(help="Whose weights: last, val or test.")] = "last",
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also results made with other settings, which are named, and other selections."),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table: mean ± deviation over seeds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
) -> None:
    """Show the paper's figures beside the measured ones.

    Examples:

    papm study show crowds --only vgg19 --only shanghaitech-a

    papm study show noise --results runs --markdown

    papm study show mine.yaml --latex

    papm study show hd-papm-shape steps=16000
    """
    from papm.cli import ui
    from papm.study import show as shown
    from papm.study import training

    if select not in SELECTIONS:
        raise unknown("selection", select, SELECTIONS)
    if markdown + latex + json + (html is not None) > 1:
        raise ConfigError("give one of --markdown, --latex, --json and --html")
    if latex and everything:
        raise ConfigError("a LaTeX table has one figure per cell; leave out --all or --latex")
    study = _study(name, only, training.read_settings(settings, {"select": "--select"}))
    view = shown.view(study, _results(results), select=select, everything=everything)
    if html is not None:
        from papm.study.page import write_page

        ui.say(f"Page: {write_page(view, html)}")
    elif json:
        ui.print_json(shown.to_json(view))
    elif latex:
        from papm.study.latex import latex as as_latex

        ui.say(as_latex(view).rstrip("\n"))
    elif markdown:
        ui.say(shown.markdown(view).rstrip("\n"))
    else:
        ui.table(shown.columns(view), shown.rows(view), title=shown.title(study))
        for words in (shown.caption(view), *view.remarks, *shown.notes(view)):
            ui.say(words)
        _say_if_nowhere(results)


@app.command("run")
def run(
    name: Name,
    settings: Settings = None,
    data: Annotated[
        list[str] | None, typer.Option(help="DATASET=FOLDER, once for each dataset.", show_default=False)
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="imagenet (the default), none or a file; NETWORK=FILE for one network.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Where results are looked for and written.")] = DEFAULT,
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2.")] = "0",
    select: Annotated[str, typer.Option(help="How weights are chosen: last, val or test.")] = "last",
    only: Only = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Stop after so long; the next call goes on.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what is measured already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands, do nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what became of each training as JSON.")] = False,
) -> None:
    """Train the cells that have no result; stopped by Ctrl-C, the same command goes on.

    Examples:

    papm study run crowds --data shanghaitech-a=data/ShanghaiTech --only vgg19 --seeds 0,1,2 --jobs 6

    papm study run mine.yaml --out runs/mine steps=2000 device=cpu
    """
    from papm.cli import ui
    from papm.study import training
    from papm.study.results import read
    from papm.study.run import Request, datasets_given, plan

    if select not in SELECTIONS:
        raise unknown("selection", select, SELECTIONS)
    taken = {"seed": "--seeds", "select": "--select", "weights": "--weights"}
    study = _study(name, only, training.read_settings(settings, taken))
    request = Request(
        data=read_pairs(data, "--data DATASET=FOLDER"),
        weights=read_weights(weights),
        out=out,
        results=results,
        seeds=read_seeds(seeds),
        select=select,
        again=again,
    )
    _, lacking = datasets_given(study, request.data)
    if lacking:
        ui.note(f"Left out, as no --data DATASET=FOLDER was given: cells on {', '.join(lacking)}.")
    tasks = plan(study, read([results]) if results.exists() else [], request)
    if dry_run:
        _print_commands(tasks)
    elif tasks:
        _work_off(tasks, jobs, minutes, json)
    elif json:
        ui.print_json([])
    else:
        ui.say(f"Nothing to train: every cell has its result in {results}; --again trains them again.")


def _print_commands(tasks: list[Task]) -> None:
    import shlex

    from papm.cli import ui
    from papm.study.run import evaluate_words, train_words

    for task in tasks:
        if not (task.folder / "result.json").exists():
            ui.say(shlex.join(["papm", *train_words(task, resume=(task.folder / "config.yaml").exists())]))
        for evaluation in task.evaluations:
            ui.say(shlex.join(["papm", *evaluate_words(task, evaluation, "test")]))


def _work_off(tasks: list[Task], jobs: int, minutes: float | None, json: bool) -> None:
    from papm.cli import ui
    from papm.cli.jobs import work_off_tasks

    bars, stopped = work_off_tasks(tasks, jobs, minutes)
    if stopped:
        ui.note(f"Stopped; {bars.done} of {n_of(len(tasks), 'training')} done. The same command goes on.")
        raise typer.Exit(1)
    if json:
        ui.print_json(bars.outcomes)
    else:
        ui.say(f"{bars.done} of {n_of(len(tasks), 'training')} done; results are in {tasks[0].result.parents[1]}.")
    if bars.done < len(tasks):
        raise typer.Exit(1)


def _study(name: str, only: list[str] | None, settings: Mapping[str, Any]) -> Study:
    """The study with these cells and these settings."""
    from papm.study import tables

    study = tables.load(name).only(only or [])
    return study.with_settings(settings) if settings else study


def _results(places: list[Path] | None) -> list[Result]:
    from papm.study.results import read

    if places:
        return read(places)
    return read([DEFAULT]) if DEFAULT.is_dir() else []


def _say_if_nowhere(places: list[Path] | None) -> None:
    from papm.cli import ui

    if not places and not DEFAULT.is_dir():
        ui.note(f"There is no folder {DEFAULT} here: nothing counts as measured. --results names where results are.")
