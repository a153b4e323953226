"""`papm study rank`: which variant of a recipe is best over several datasets."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from papm.cli import ui
from papm.cli.options import Json, one_of
from papm.cli.study import SELECTIONS, Name, Only, Places, Settings, results_of, study_of


def rank(
    name: Name,
    settings: Settings = None,
    results: Places = None,
    only: Only = None,
    select: Annotated[str, Option(help="Whose weights: last, val or test.")] = "last",
    json: Json = False,
) -> None:
    """Rank the rows of a study by their MAE over its columns, with the bias beside it.

    Example: papm study rank variants --results results
    """
    from papm.study import training
    from papm.study.rank import rank as ranked

    one_of("selection", select, SELECTIONS)
    study = study_of(name, only, training.read_settings(settings, {"select": "--select"}))
    found = ranked(study, results_of(results), select)
    if json:
        ui.print_json(found.to_json())
        return
    head, body = found.table()
    ui.table(head, body, title=study.title)
    for words in found.words():
        ui.say(words)
