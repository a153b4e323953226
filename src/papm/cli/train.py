"""`papm train`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from papm.cli import ui
from papm.cli.advice import before_training, chosen_on_few
from papm.cli.options import Data, Json
from papm.errors import ConfigError
from papm.extras import MissingExtraError
from papm.text import bias_of, interval, n_of

if TYPE_CHECKING:
    from papm.api import Choice, Run

SETTINGS = "Settings (docs/guide/settings.md), e.g. steps=5000 loss.sigma=6"


def train(
    data: Data,
    settings: Annotated[list[str] | None, Argument(metavar="KEY=VALUE …", help=SETTINGS)] = None,
    method: Annotated[
        str | None,
        Option(help="What the network learns (docs/guide/training.md); by default al-papm on a GPU, else hd-papm."),
    ] = None,
    backbone: Annotated[
        str | None, Option(help="The network; by default dinov2 on a GPU, on a CPU lite, or tiny for cells.")
    ] = None,
    weights: Annotated[str | None, Option(help="imagenet, or a .safetensors/.pth file for the trunk.")] = None,
    init: Annotated[str | None, Option(help="A papm checkpoint to start from.")] = None,
    out: Annotated[Path, Option(help="The run folder.")] = Path("runs/run"),
    config: Annotated[Path | None, Option(help="A YAML file of settings, e.g. a run's config.yaml.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Time a few steps, say what the run would take.")] = False,
    json: Json = False,
) -> None:
    """Train a counter on images with dots.

    What is not given follows from the data and the machine.

    Example: papm train photos/ --out runs/first
    """
    from papm import api
    from papm.cli.training_bar import TrainingBar, downloads
    from papm.engine import meeting, run_folder
    from papm.engine.ranks import is_first_process

    asked = {"method": method, "backbone": backbone, "weights": weights, "init": init}
    given = _given(config, {k: v for k, v in asked.items() if v is not None}, settings)
    kind, network = (str(given.get(key, api.AUTO)) for key in ("method", "backbone"))
    if is_first_process() and (resume or not dry_run):
        run_folder.check_place(out, resume)
    try:
        with ui.bar() as progress:
            progress.add_task("looking at the data", total=None, note="")
            resumed = out if resume else None
            look = partial(api.configure, data, kind, network, given, resumed, downloads(progress))
            chosen = meeting.met(look, out) if dry_run else look()
    except meeting.Disagreement:
        if is_first_process():
            raise
        raise Exit(2) from None
    resolved = chosen.config
    if dry_run:
        _estimate(chosen, resumed, json)
        return
    advice = [] if resume else [*chosen.why, *before_training(resolved)]
    with ui.bar() as progress:
        reading = progress.add_task("reading images", total=None, note="")
        watcher = TrainingBar(progress, f"{resolved.method} · {resolved.backbone}", resolved.steps, reading, advice)
        hear: dict[str, Any] = {"on_image": partial(progress.advance, reading), "on_download": downloads(progress)}
        run = api.run(resolved, out, resume=resume, watcher=watcher, splits=chosen.splits, **hear)
    if not is_first_process():
        raise Exit(1 if run.interrupted else 0)
    if run.interrupted:
        ui.note(f"Stopped at step {run.step} of {resolved.steps}; everything is in {out}. Go on with --resume.")
        raise Exit(1)
    report = _report(run)
    if json:
        ui.print_json(run.result)
    else:
        _say(run.result)
        page = f"   Report: {report}" if report else ""
        ui.say(f"Run: {out}{page}   Next: papm predict {shlex.quote(str(out))} IMAGE --out results")


def _report(run: Run) -> Path | None:
    """The page of a run; where it cannot be written for want of a package, that is said and nothing is lost."""
    try:
        return run.report()
    except MissingExtraError as error:
        ui.note(f"papm: {error}; then: papm report {shlex.quote(str(run.folder))}")
        return None


def _given(config: Path | None, options: dict[str, str], settings: list[str] | None) -> dict[str, Any]:
    """What was asked for, the later over the earlier: a file, options, key=value."""
    from papm import config as configuration

    given: dict[str, Any] = {**(configuration.load(config) if config is not None else {}), **options}
    for key, value in configuration.parse_overrides(settings or []).items():
        if key in ("method", "backbone", "data"):
            raise ConfigError(f"give {key} as {'the first argument' if key == 'data' else f'--{key}'}, not as {key}=…")
        given[key] = {**configuration.group(given, key), **value} if isinstance(value, dict) else value
    return given


def _estimate(chosen: Choice, resumed: Path | None, json: bool) -> None:
    """Time a few steps and say what the run would take."""
    from papm.engine.dry_run import dry_run, in_words
    from papm.engine.ranks import is_first_process

    with ui.err.status("timing a few steps"):
        found = dry_run(chosen.config, splits=chosen.splits, resumed=resumed)
    if not is_first_process():
        return
    ui.print_json(found) if json else ui.say(in_words(found, chosen.config))
    for line in () if resumed else (*chosen.why, *before_training(chosen.config, timed=True)):
        ui.note(line)


def _say(result: dict[str, Any]) -> None:
    if result["mae"] is not None:
        between = interval(result["intervals"].get("mae"))
        figures = f"MAE {result['mae']:.2f}{f' (95 % {between})' if between else ''}, RMSE {result['rmse']:.2f}"
        chosen = f"{n_of(result['images'], 'image')}, weights chosen by: {result['select']}"
        ui.say(f"{result['split']} {figures}, {chosen}")
        if result["bias"] is not None:
            ui.say(f"Total count: {bias_of(result['bias'], result['intervals'].get('bias'))}")
    if (known := result.get("interval")) is not None:
        of = f"{known['images']} images of '{known['split']}', which taught and chose nothing"
        ui.say(f"Counts have an interval of {100 * known['level']:g} %, from {of}; on {result['split']} it holds the truth of"
               f" {100 * known['coverage']:.0f} %")  # fmt: skip
    for name, each in result.get("datasets", {}).items():
        total = "" if each["bias"] is None else f"total count {100 * each['bias']:+.1f} %, "
        ui.say(f"  {name}: MAE {each['mae']:.2f}, {total}{n_of(each['n'], 'image')}")
    if few := chosen_on_few(result):
        ui.note(few)
