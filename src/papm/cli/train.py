"""`papm train`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.errors import ConfigError, PapmError
from papm.text import interval, n_of

if TYPE_CHECKING:
    from papm.config import TrainConfig

FEW = 5  # validation images below which the lowest of twenty evaluations says little
OPTIONS = ("method", "backbone", "weights", "init", "out", "config", "resume", "dry-run", "json", "help")


def add(app: typer.Typer) -> None:
    app.command("train")(train)


def refuse_settings_as_options(argv: Sequence[str]) -> None:
    """`papm train … --steps 5` is a slip that many tools allow: say how it is written here.

    >>> refuse_settings_as_options(["train", "photos", "--steps", "5"])
    Traceback (most recent call last):
    papm.errors.ConfigError: --steps is a setting, not an option: write steps=5
    """
    from papm import config as configuration

    if not argv or argv[0] != "train":
        return
    known = {*configuration.names(), "learning_rate", "epochs"} - set(OPTIONS)
    for k, word in enumerate(argv):
        if word == "--":
            return
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if name in OPTIONS:
            continue
        if key.partition(".")[0] not in known and key.partition(".")[0] not in configuration.GROUPS:
            _refuse_options_of_parts(key, value if equals else _following(argv, k))
            continue
        if key == "data":
            raise ConfigError("data is the first argument, not an option: write papm train DATA …")
        following = _following(argv, k)
        if key == "epochs":
            raise ConfigError("training is counted in steps of `batch` crops, not in epochs: write steps=NUMBER")
        key = "lr" if key == "learning_rate" else key
        raise ConfigError(f"--{name} is a setting, not an option: write {key}={value if equals else following}")


def _following(argv: Sequence[str], k: int) -> str:
    return argv[k + 1] if k + 1 < len(argv) and not argv[k + 1].startswith("-") else "VALUE"


def _refuse_options_of_parts(key: str, value: str) -> None:
    """`--sigma 5` belongs to a loss or a network."""
    from papm import losses, models

    if any(key in losses.options(name) for name in losses.names()):
        raise ConfigError(f"--{key} is an option of a loss: write loss.{key}={value}")
    if any(key in models.info(name).options for name in models.names()):
        raise ConfigError(f"--{key} is an option of a network: write network.{key}={value}")


def train(
    data: Annotated[str, typer.Argument(help="NAME:FOLDER, a dataset name, or a folder whose format is recognised.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE …", help="Settings (docs/guide.md), e.g. steps=5000 loss.sigma=6"),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="What the network learns (docs/guide.md); hd-papm when not given.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="The network; vgg19 when not given. On a CPU give tiny.")] = None,
    weights: Annotated[str | None, typer.Option(help="imagenet, or a .safetensors/.pth file for the trunk.")] = None,
    init: Annotated[str | None, typer.Option(help="A papm checkpoint to start from.")] = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/run"),
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings, e.g. a run's config.yaml.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Time a few steps, say what the run would take, stop.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a counter on images with dots.

    Example: papm train photos/ --backbone tiny --out runs/first steps=1000
    """
    from papm import config as configuration
    from papm.cli import ui
    from papm.engine import run_folder
    from papm.engine import train as engine
    from papm.engine.build import resolve
    from papm.engine.ranks import is_first_process
    from papm.predict.predictor import Counter
    from papm.report.examples import save_examples
    from papm.report.run import write_report

    given: dict[str, Any] = configuration.load(config) if config is not None else {}
    if resume and (out / "config.yaml").exists():  # what was asked for then, and over it what is asked for now
        given = {**configuration.to_mapping(run_folder.stored_config(out)), **given}
    asked = {"method": method, "backbone": backbone, "weights": weights, "init": init}
    given |= {k: v for k, v in asked.items() if v is not None}
    for key, value in configuration.parse_overrides(settings or []).items():
        if key in ("method", "backbone", "data"):
            raise ConfigError(f"give {key} as {'the first argument' if key == 'data' else f'--{key}'}, not as {key}=…")
        given[key] = {**configuration.group(given, key), **value} if isinstance(value, dict) else value
    given["data"] = data
    resolved = resolve(str(given.get("method", "hd-papm")), str(given.get("backbone", "vgg19")), given)
    if dry_run:
        from papm.engine.dry_run import dry_run as estimate
        from papm.engine.dry_run import in_words

        with ui.err.status("timing a few steps"):
            found = estimate(resolved)
        if not is_first_process():
            return
        ui.print_json(found) if json else ui.say(in_words(found, resolved))
        for line in before_training(resolved, timed=True):
            ui.note(line)
        return
    advice = [] if resume else before_training(resolved)
    with ui.bar() as progress:
        reading = progress.add_task("reading images", total=None, note="")
        watcher = ui.TrainingBar(progress, f"{resolved.method} · {resolved.backbone}", resolved.steps, reading, advice)

        def on_image() -> None:
            progress.advance(reading)

        run = engine.train(
            resolved, out, resume=resume, watcher=watcher, on_image=on_image, on_download=ui.downloads(progress)
        )
    if run.interrupted:
        if is_first_process():
            ui.note(f"Stopped at step {run.step} of {resolved.steps}; everything is in {out}. Go on with --resume.")
        raise typer.Exit(1)
    if not is_first_process():
        return
    assert run.result is not None
    try:
        if run.shown is not None:
            save_examples(Counter.load(out, resolved.device), run.shown, out)
        report = write_report(out)
    except PapmError as error:
        raise PapmError(f"{error}; the result is written: make room, and --resume adds pictures and report") from None
    if json:
        ui.print_json(run.result)
        return
    if run.result["mae"] is not None:
        between = interval(run.result["intervals"].get("mae"))
        ui.say(
            f"{run.result['split']} MAE {run.result['mae']:.2f}{f' (95 % {between})' if between else ''}, "
            f"RMSE {run.result['rmse']:.2f}, "
            f"{n_of(run.result['images'], 'image')}, weights chosen by: {run.result['select']}"
        )
    if few := chosen_on_few(run.result):
        ui.note(few)
    ui.say(f"Run: {out}   Report: {report}   Next: papm predict {shlex.quote(str(out))} IMAGE --out results")


def before_training(config: TrainConfig, timed: bool = False) -> list[str]:
    """What is worth knowing before hours are spent: a large network on a CPU (unless `timed`), or one that starts from nothing.

    >>> from papm.config import TrainConfig
    >>> before_training(TrainConfig(data="photos", backbone="tiny"))
    []
    """
    import torch

    from papm import models

    about = models.info(config.backbone)
    if config.network.get("trunk", about.trunk) in (None, "tiny"):
        return []
    said = []
    if not timed and (config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())):
        small = "network.trunk=tiny" if about.kind == "points" else "--backbone tiny"
        said.append(f"{config.backbone} is slow on a CPU: --dry-run says how long it takes; {small} is made for a CPU.")
    if config.weights is None and config.init is None:
        said.append(f"{config.backbone} starts from random weights; --weights imagenet gives far better counts.")
    return said


def chosen_on_few(result: dict[str, Any]) -> str | None:
    """A caution where the weights were chosen on so few images that the choice is mostly chance.

    >>> chosen_on_few({"select": "val", "sizes": {"train": 9, "val": 1, "test": 2}})
    'Weights chosen on 1 image are mostly chance (trained on 9): give more images, or select=last.'
    """
    sizes = result.get("sizes") or {}
    if result.get("select") != "val" or not 0 < sizes.get("val", 0) < FEW:
        return None
    n = sizes["val"]
    return (
        f"Weights chosen on {n_of(n, 'image')} are mostly chance (trained on {sizes.get('train')}): "
        "give more images, or select=last."
    )
