"""`papm robustness`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from papm.cli.study_options import read_seeds, read_weights
from papm.errors import ConfigError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.study.robustness.plan import Asked

KIND = "How dots are moved: ring, disc or gaussian; or a share of them missed or doubled."


def add(app: typer.Typer) -> None:
    app.command("robustness", short_help="Train methods with dots moved by several distances, compare.")(robustness)


def robustness(
    data: Annotated[str, typer.Argument(help="NAME:FOLDER, a dataset name, or a folder whose format is recognised.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE …", help="Settings of every training, e.g. steps=3000")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, such as hd-papm,al-papm, each with settings of its own where it has some: 'hd-papm,hd-papm "
            "loss.sigma=8'; those of points bring their network along."
        ),
    ] = "gaussian,hd-papm,dm-count,al-papm",
    distances: Annotated[
        str | None,
        typer.Option(
            help="Pixels, such as 0,4,8,16; when not given 0, ¼, ½ and 1 × the distance between neighbours. Shares of the dots,"
            " such as 0.05,0.1,0.2, where they are missed or doubled.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help=KIND)] = "ring",
    seeds: Annotated[str, typer.Option(help="Seeds, such as 0,1,2; each is a training of every cell.")] = "0",
    backbone: Annotated[
        str | None, typer.Option(help="The network; without a GPU tiny, else vgg19.", show_default=False)
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="imagenet (the default), none or a file; NETWORK=FILE for one network.", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the page, the figures and the runs go.")] = Path("robustness"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained and how long it takes, do nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """How much do misplaced dots cost on these images, and which method tolerates them best?

    Trains every method with training dots moved by every distance, and writes robustness.html, .csv and .json; test dots
    are never moved. Stopped by Ctrl-C, the same command goes on.

    Examples:

    papm robustness photos

    papm robustness photos --methods hd-papm,al-papm,p2p-papm --distances 0,4,8 --kind disc --seeds 0,1,2 steps=3000

    papm robustness photos --kind missed --distances 0.1,0.3

    papm robustness photos --methods 'p2p-papm,p2p-papm network.offsets=false'
    """
    from papm.cli import ui
    from papm.cli.jobs import work_off_tasks
    from papm.report.page import require_pages
    from papm.study.results import read
    from papm.study.robustness import plan
    from papm.study.robustness.images import check_folder, claim_folder
    from papm.study.run import plan as missing
    from papm.study.timing import seconds_each

    if jobs < 1:
        raise ConfigError(f"at least one job at a time is needed, not {jobs}")
    require_pages()
    asked = plan.ask(
        data, settings or [], methods=methods, distances=distances, kind=kind, backbone=backbone,
        seeds=read_seeds(seeds), weights=read_weights(weights), out=out,
    )  # fmt: skip
    study, folder = asked.study, (asked.out, asked.data, asked.settings)
    check_folder(*folder)
    known = read([asked.request.results]) if asked.request.results.exists() else []
    tasks = missing(study, known, asked.request)
    with ui.err.status("timing a few steps of each method"):
        each = seconds_each(tasks, known, asked.data.splits)
    if dry_run and json:
        ui.print_json(plan.planned(asked, tasks, each))
        return
    for line in plan.announcement(asked, tasks, each, jobs):
        ui.say(line) if dry_run else ui.note(line)
    if dry_run:
        return
    claim_folder(*folder)
    bars, stopped = work_off_tasks(tasks, jobs)
    _answer(asked, json)
    if bars.done < len(tasks):
        why = "Stopped" if stopped else "Some failed"
        ui.note(f"{why}; {bars.done} of {n_of(len(tasks), 'training')} done. The same command goes on.")
        raise typer.Exit(1)


def _answer(asked: Asked, json: bool) -> None:
    """Table, page and files of all that is measured by now."""
    from papm.cli import ui
    from papm.study.results import read
    from papm.study.robustness import figures, page, plan, words
    from papm.study.show import view

    kept = asked.request.results
    shown = view(asked.study, read([kept]) if kept.exists() else [], select=asked.select)
    table = figures.build(shown, asked.request.out)
    files = page.write_files(asked, shown, table)
    if json:
        ui.print_json(page.to_json(asked, table, files))
        return
    done = plan.done(asked.kind).rstrip(":")
    title = f"Test MAE with training dots {done} (?: chance may explain the change)"
    ui.table(words.columns(table), words.rows(table), title=title)
    for line in words.answer(table):
        ui.say(line)
    ui.say(f"Page: {files['html']}   Figures: {files['csv']}   Results: {files['json']}")
