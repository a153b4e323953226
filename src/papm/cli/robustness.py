"""`papm robustness`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.cli.study_options import read_seeds, read_weights
from papm.errors import ConfigError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.study.robustness.plan import Asked
    from papm.study.run import Task
    from papm.study.tables import Study


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
            help="Pixels, such as 0,4,8,16; when not given 0, ¼, ½ and 1 × the distance between neighbours.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="How dots are moved: ring, disc or gaussian.")] = "ring",
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

    papm robustness photos --methods 'p2p-papm,p2p-papm network.offsets=false'
    """
    from papm.cli import ui
    from papm.cli.jobs import work_off_tasks
    from papm.study.results import read
    from papm.study.robustness import plan
    from papm.study.robustness.timing import seconds_each
    from papm.study.run import plan as missing

    if jobs < 1:
        raise ConfigError(f"at least one job at a time is needed, not {jobs}")
    asked = _ask(data, settings, methods, distances, kind, seeds, backbone, weights, out)
    study = plan.study(asked)
    plan.check_folder(asked)
    kept = asked.request.results
    known = read([kept]) if kept.exists() else []
    tasks = missing(study, known, asked.request)
    each: dict[str, float] = {}
    if tasks:
        with ui.err.status("timing a few steps of each method"):
            each = seconds_each(tasks, known, asked.data.splits)
    if dry_run and json:
        ui.print_json(_planned(asked, tasks, each))
        return
    for line in announcement(asked, tasks, each, jobs, chosen=distances is None):
        ui.say(line) if dry_run else ui.note(line)
    if dry_run:
        return
    plan.claim_folder(asked)
    bars, stopped = work_off_tasks(tasks, jobs)
    _answer(asked, study, json)
    if bars.done < len(tasks):
        why = "Stopped" if stopped else "Some failed"
        ui.note(f"{why}; {bars.done} of {n_of(len(tasks), 'training')} done. The same command goes on.")
        raise typer.Exit(1)


def _ask(
    data: str,
    settings: list[str] | None,
    methods: str,
    distances: str | None,
    kind: str,
    seeds: str,
    backbone: str | None,
    weights: list[str] | None,
    out: Path,
) -> Asked:
    """The words of the command line as a request; the cheap mistakes are found before the data is read."""
    from papm import config as configuration
    from papm.study.robustness import plan
    from papm.study.training import read_settings

    given = read_settings([s for s in settings or [] if not s.startswith("select=")], plan.TAKEN)
    picked = configuration.parse_overrides(s for s in settings or [] if s.startswith("select="))
    plain = {k: v for k, v in given.items() if "." not in k}
    checked = configuration.from_mapping({"select": "last", **plain, **picked})
    names, moved, how = plan.read_methods(methods), distances and plan.read_distances(distances), plan.read_kind(kind)
    numbers, files = read_seeds(seeds), read_weights(weights)
    network = backbone or plan.usual_backbone(names, checked.device)
    for name in names:
        plan.network_of(plan.method_of(name), network)
    options = {k.removeprefix("data."): v for k, v in given.items() if k.startswith("data.")}
    opened = plan.open_data(data, options, checked.select, numbers[0], checked.val_fraction)
    return plan.Asked(
        opened,
        names,
        moved or plan.usual_distances(opened.spacing),
        how,
        network,
        files,
        given,
        numbers,
        checked.select,
        out,
    )


def announcement(asked: Asked, tasks: Sequence[Task], each: Mapping[str, float], jobs: int, chosen: bool) -> list[str]:
    """What is about to happen, and how long it takes about."""
    from papm.report.page import duration
    from papm.study.robustness.plan import KINDS, method_of, network_of

    said = []
    far = ", ".join(f"{d:g}" for d in asked.distances)
    if chosen and asked.data.spacing is not None:
        said.append(
            f"Distances: {far} px, which is 0, ¼, ½ and 1 × the median distance between neighbouring training dots, "
            f"{asked.data.spacing:.1f} px; --distances sets others."
        )
    elif chosen:
        said.append(f"Distances: {far} px, since no training image has two dots; --distances sets others.")
    total = len(asked.methods) * len(asked.distances) * len(asked.seeds)
    networks = dict.fromkeys(network_of(method_of(m), asked.backbone)["backbone"] for m in asked.methods)
    said.append(
        f"{n_of(len(asked.methods), 'method')} ({', '.join(asked.methods)}) × "
        f"{n_of(len(asked.distances), 'distance')} ({far} px, {asked.kind}: {KINDS[asked.kind]}) × "
        f"{n_of(len(asked.seeds), 'seed')}: "
        f"{n_of(total, 'training')} on {' and '.join(networks)}, of which {total - len(tasks)} are done."
    )
    if tasks:
        whole = sum(each[t.cell.row] for t in tasks)
        at_once = (
            f"; {jobs} at a time may take as little as {duration(whole / min(jobs, len(tasks)))}" if jobs > 1 else ""
        )
        one = ", ".join(f"{m} {duration(s)}" for m, s in each.items())
        said.append(f"About {duration(whole)} one after another ({one} each){at_once}.")
    return said


def _planned(asked: Asked, tasks: Sequence[Task], each: Mapping[str, float]) -> dict[str, Any]:
    """The same for other programs."""
    return {
        "methods": list(asked.methods),
        "distances": list(asked.distances),
        "kind": asked.kind,
        "backbone": asked.backbone,
        "seeds": list(asked.seeds),
        "spacing": asked.data.spacing,
        "trainings": len(asked.methods) * len(asked.distances) * len(asked.seeds),
        "missing": [t.name for t in tasks],
        "seconds_each": {m: round(s, 1) for m, s in each.items()},
        "seconds": round(sum(each[t.cell.row] for t in tasks), 1),
    }


def _answer(asked: Asked, study: Study, json: bool) -> None:
    """Table, page and files of all that is measured by now."""
    from papm.cli import ui
    from papm.study.results import read
    from papm.study.robustness import page, table

    kept = asked.request.results
    results = read([kept]) if kept.exists() else []
    made = table.build(study, results, asked.select, asked.request.out)
    files = page.write_files(asked, study, results, made)
    if json:
        ui.print_json(page.to_json(asked, made, files))
        return
    ui.table(
        table.columns(made),
        table.rows(made),
        title="Test MAE with training dots moved by (?: chance may explain the change)",
    )
    for line in (table.conclusion(made), table.cost(made) if len(made.methods) > 1 else "", table.basis(made)):
        if line:
            ui.say(line)
    ui.say(f"Page: {files['html']}   Figures: {files['csv']}   Results: {files['json']}")
