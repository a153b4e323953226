"""`papm study figure`: the paper's figures, drawn from runs, from results, or from small trainings on drawn scenes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.options import Device, Jobs, Json
from papm.cli.study import Places, results_of
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.study.figures import Figure

RUNS = "Run folders to draw from; small networks are trained on drawn scenes where none are given and some are needed."
SHOWN = "Images: NAME:FOLDER or a folder; the runs' own test images, or drawn scenes, when not given."
OUT = "The file to write, .svg or .png as the figure is; NAME.svg or NAME.png when not given."


def figure(
    name: Annotated[str | None, Argument(help="A figure; without one they are listed.", show_default=False)] = None,
    runs: Annotated[list[Path] | None, Argument(help=RUNS, show_default=False)] = None,
    out: Annotated[Path | None, Option(help=OUT, show_default=False)] = None,
    data: Annotated[str | None, Option(help=SHOWN, show_default=False)] = None,
    split: Annotated[str, Option(help="Which split of the images.")] = "test",
    images: Annotated[int, Option(help="How many images are shown.")] = 3,
    results: Places = None,
    steps: Annotated[int | None, Option(help="Steps of the small trainings.", show_default=False)] = None,
    trained: Annotated[Path, Option(help="Where the small trainings are kept.")] = Path("runs/figures"),
    jobs: Jobs = 1,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Draw a figure of the paper; without a name, list them.

    Examples:

    papm study figure kernel-shapes --out kernel.svg

    papm study figure predictions runs/hd runs/al runs/p2p --images 4

    papm study figure consistency --jobs 2
    """
    from papm.predict.unlike import compared
    from papm.study.figures import FIGURES, Asked

    if name is None:
        _list(json)
        return
    chosen = FIGURES.get(name)
    if images < 1:
        raise ConfigError(f"at least one image is needed, not {images}")
    if runs is None and chosen.trainings is not None:
        runs = _train(chosen, steps, trained, jobs)
    with ui.err.status(f"drawing {name}"), compared():
        made = chosen.draw(Asked(tuple(runs or ()), data, split, results_of(results), images, device))
    path = made.save(out or Path(f"{name}{made.suffix}"))
    if json:
        ui.print_json({"figure": name, "file": str(path), "values": made.values})
        return
    for words in made.words:
        ui.say(words)
    ui.say(f"Figure: {path}")


def _list(json: bool) -> None:
    from papm.study.figures import FIGURES

    rows = [[f.name, f.summary, f.where] for f in map(FIGURES.get, FIGURES)]
    if json:
        ui.print_json([dict(zip(("name", "summary", "where"), row)) for row in rows])
    else:
        ui.table(["figure", "what it shows", "in the paper"], rows)


def _train(chosen: Figure, steps: int | None, folder: Path, jobs: int) -> list[Path]:
    """The small trainings of a figure; those that are done are not repeated."""
    from papm.cli.jobs import work_off_tasks
    from papm.study.figures.base import tasks_of

    tasks = tasks_of(chosen, steps, folder)
    missing = [t for t in tasks if not (t.folder / "result.json").exists()]
    if missing:
        ui.note(f"Training {len(missing)} small networks on drawn scenes, kept in {folder}.")
        bars, _ = work_off_tasks(missing, jobs)
        if bars.done < len(missing):
            ui.note("Some trainings are not done; the same command goes on.")
            raise Exit(1)
    return [t.folder for t in tasks]
