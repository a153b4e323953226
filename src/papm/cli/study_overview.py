"""`papm study show --all` and `results`: every table and every claim of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from papm.cli import ui
from papm.cli.study import Places, results_of

if TYPE_CHECKING:
    from papm.study.results import Result

OUT = "The first page; those of the tables go into the folder of its name."


def show_everything(results: Sequence[Result], json: bool) -> None:
    """The tables with today's settings, how much of each is missing, then the claims."""
    from papm.study import claims, show, tables

    studies = [tables.load(name) for name in tables.names()]
    views = [show.view(s, results) for s in studies]
    judged = [j for s in studies for j in claims.judge(s, results)]
    if json:
        made = [show.to_json(v) for v in views]
        ui.print_json({"studies": made, "claims": [j.to_json() for j in judged]})
        return
    for view in views:
        ui.table(show.columns(view), show.rows(view), title=show.title(view.study))
        ui.say(view.remarks[0])
    ui.table(claims.HEAD, claims.rows(judged), title="Claims of the paper, with today's settings")
    ui.say(claims.counted(judged).capitalize() + ".")


def write_results(
    out: Annotated[Path, Option(help=OUT)] = Path("docs/results.md"),
    results: Places = None,
) -> None:
    """Write what is reached as documents: a first page, and one page per table.

    Example: papm study results --out docs/results.md
    """
    from papm.study.document import write

    made = write(results_of(results), out)
    ui.say(f"{made[0]}, and {len(made) - 1} pages in {out.parent / out.stem}")
