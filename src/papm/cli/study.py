"""`papm study list`, `show`: tables of trainings, the paper's or one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from papm.cli import ui
from papm.cli.options import Json, one_of
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.study.results import Result
    from papm.study.tables import Study

SELECTIONS = ("last", "val", "test")
DEFAULT = Path("results")
STUDY = "A study of `papm study list`, or a YAML file of one's own."
Name = Annotated[str, Argument(help=STUDY)]
Settings = Annotated[list[str] | None, Argument(help="Settings of every cell: key=value …", show_default=False)]
ONLY = "Only cells of this row, column, dataset, network or method (a,b: either); repeat for both."
Only = Annotated[list[str] | None, Option(help=ONLY)]
PLACES = "A folder of result files or runs; may be repeated. results/ when it is there."
Places = Annotated[list[Path] | None, Option(help=PLACES, show_default=False)]
ALL = "Also results made with other settings, which are named, and other selections."


def list_studies(results: Places = None, json: Json = False) -> None:
    """List the studies, with the number of cells that are measured.

    Example: papm study list --results results
    """
    from papm.study import tables
    from papm.study.show import measured

    found = results_of(results)
    rows = []
    for name in [*tables.names(), *tables.more_names()]:
        study = tables.load(name)
        rows.append([name, study.title, study.where.partition(",")[0], len(study.cells), measured(study, found)])
    if json:
        keys = ("name", "title", "where", "cells", "measured")
        ui.print_json([dict(zip(keys, row)) for row in rows])
        return
    ui.table(["study", "title", "in the paper", "cells", "measured"], rows)
    _say_if_nowhere(results)


def show(
    name: Annotated[str | None, Argument(help=f"{STUDY} All of them with --all.", show_default=False)] = None,
    settings: Settings = None,
    results: Places = None,
    only: Only = None,
    select: Annotated[str, Option(help="Whose weights: last, val or test.")] = "last",
    everything: Annotated[bool, Option("--all", help=ALL)] = False,
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, Option("--latex", help="Print a LaTeX table: mean ± deviation over seeds.")] = False,
    json: Json = False,
    html: Annotated[Path | None, Option(help="Write a page to this file.")] = None,
) -> None:
    """Show the paper's figures beside the measured ones, and which of its claims they confirm; --all alone shows every table.

    Examples:

    papm study show --all

    papm study show crowds --only vgg19 --only shanghaitech-a

    papm study show noise --results runs --markdown

    papm study show mine.yaml --latex

    papm study show hd-papm-shape steps=16000
    """
    from papm.study import show as shown
    from papm.study import training
    from papm.study.claims import in_words, judge

    one_of("selection", select, SELECTIONS)
    if name is None:
        if not everything or markdown or latex or html is not None or only or settings:
            raise ConfigError("name a study of `papm study list`, or give --all alone (or with --json) for all of them")
        from papm.cli.study_overview import show_everything

        show_everything(results_of(results), json)
        return
    if markdown + latex + json + (html is not None) > 1:
        raise ConfigError("give one of --markdown, --latex, --json and --html")
    if latex and everything:
        raise ConfigError("a LaTeX table has one figure per cell; leave out --all or --latex")
    study = study_of(name, only, training.read_settings(settings, {"select": "--select"}))
    found = results_of(results)
    view = shown.view(study, found, select=select, everything=everything)
    if html is not None:
        from papm.study.page import write_page

        ui.say(f"Page: {write_page(view, html)}")
    elif json:
        ui.print_json({**shown.to_json(view), "claims": [j.to_json() for j in judge(study, found)]})
    elif latex:
        from papm.study.latex import latex as as_latex

        ui.say(as_latex(view).rstrip("\n"))
    elif markdown:
        ui.say(shown.markdown(view).rstrip("\n"))
    else:
        ui.table(shown.columns(view), shown.rows(view), title=shown.title(study))
        for words in (shown.caption(view), *view.remarks, *shown.notes(view)):
            ui.say(words)
        for words in in_words(judge(study, found)):
            ui.say(words)
        _say_if_nowhere(results)


def study_of(name: str, only: list[str] | None, settings: Mapping[str, Any]) -> Study:
    """The study with these cells and these settings."""
    from papm.study import tables

    study = tables.load(name).only(only or [])
    return study.with_settings(settings) if settings else study


def results_of(places: list[Path] | None) -> list[Result]:
    """The results in these places, or those in `results/` where it is there."""
    from papm.study.results import read

    if places:
        return read(places)
    return read([DEFAULT]) if DEFAULT.is_dir() else []


def _say_if_nowhere(places: list[Path] | None) -> None:

    if not places and not DEFAULT.is_dir():
        ui.note(f"There is no folder {DEFAULT} here: nothing counts as measured. --results names where results are.")
