"""`papm study show --all`: every table and every claim of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from papm.cli import ui

if TYPE_CHECKING:
    from papm.study.results import Result


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
