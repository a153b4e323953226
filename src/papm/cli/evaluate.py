"""`papm eval`: counts against annotations, or points against annotations (`--localization`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from papm.cli.options import Beside, Count, Device, How, Precision, Tile
from papm.errors import ConfigError, unknown
from papm.text import interval, n_of

if TYPE_CHECKING:
    from papm.data.base import Dataset
    from papm.engine.evaluate import Evaluation
    from papm.metrics.counting import CountingScore
    from papm.predict.predictor import Counter

PROTOCOLS = ("nwpu", "qnrf")


def add(app: typer.Typer) -> None:
    app.command("eval", short_help="Count a split and compare with its annotations.")(evaluate)


def evaluate(
    model: Annotated[Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Argument(help="NAME:FOLDER, a dataset name, or a folder.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE …", help="Options of the dataset (docs/datasets.md), e.g. origin=0.5", show_default=False
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which split to count.")] = "test",
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the result of every image to this CSV file.")] = None,
    localization: Annotated[
        str | None, typer.Option(help="Compare points instead of counts: nwpu or qnrf, the protocol.")
    ] = None,
    radius: Annotated[
        str | None, typer.Option(help="With nwpu: these distances in pixels, such as 4,8, instead of object sizes.")
    ] = None,
    matching: Annotated[str | None, typer.Option(help="With qnrf: greedy (default) or maximum.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Points from this file ('id n x y …' a line) instead of a model.")
    ] = None,
    ground_truth: Annotated[
        Path | None, typer.Option(help="Their truth ('id n x y sigma_s sigma_l level …' a line) instead of data.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--game", help="Also GAME(0) … GAME(3); always with regions of interest.")
    ] = False,
    submission: Annotated[
        Path | None, typer.Option(help="Write the two files that the NWPU-Crowd server takes to this folder.")
    ] = None,
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Count a split and compare with its annotations; with --localization compare where the objects are.

    Examples:

    papm eval runs/first photos/ --split test

    papm eval runs/first photos/ --with runs/second

    papm eval runs/first shanghaitech-a:data/ShanghaiTech --localization nwpu --radius 4,8

    papm eval --localization nwpu --predictions mine.txt --ground-truth val_gt_loc.txt

    papm eval runs/first nwpu:data/NWPU-Crowd --split test-hidden --submission mine
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is auto, cpu or cuda, not '{device}'")
    how = How(device, tile, count, precision, beside or ())
    if localization is None:
        given = {
            "--radius": radius,
            "--matching": matching,
            "--predictions": predictions,
            "--ground-truth": ground_truth,
        }
        for option, value in given.items():
            if value is not None:
                raise ConfigError(f"{option} goes with --localization {' or '.join(PROTOCOLS)}")
        _count(*_both(model, data), split, how, out, json, _options(data, options), grid, submission)
        return
    if grid or submission is not None:
        raise ConfigError("--game and --submission go with counts; leave out --localization")
    radii = _radii(radius)
    _check(localization, radii, matching)
    from papm.cli import localization as points

    if predictions is None and ground_truth is None:
        sized = localization == "nwpu" and not radii
        found, about = points.from_model(*_both(model, data), split, how, sized, _options(data, options))
    else:
        if predictions is None or ground_truth is None:
            raise ConfigError("--predictions and --ground-truth go together: give both files")
        if model is not None or data is not None or beside:
            raise ConfigError("give either MODEL and DATA, or --predictions and --ground-truth")
        found, about = points.from_files(predictions, ground_truth), {}
    if localization == "nwpu":
        points.show_nwpu(found, about, radii, out, json)
    else:
        points.show_qnrf(found, about, matching or "greedy", out, json)


def _both(model: Path | None, data: str | None) -> tuple[Path, str]:
    if model is None or data is None:
        raise ConfigError("give a model and data: papm eval MODEL DATA (papm eval --help tells more)")
    return model, data


def _radii(text: str | None) -> tuple[float, ...]:
    """The distances of --radius.

    >>> _radii("4, 8")
    (4.0, 8.0)
    """
    if text is None:
        return ()
    try:
        radii = tuple(float(cell) for cell in text.split(","))
    except ValueError:
        radii = ()
    if not radii or not all(0 < r < 1e6 for r in radii):
        raise ConfigError(f"--radius is distances in pixels separated by commas, such as 4,8; got '{text}'")
    return radii


def _check(localization: str, radii: tuple[float, ...], matching: str | None) -> None:
    if localization not in PROTOCOLS:
        raise unknown("localization protocol", localization, PROTOCOLS)
    if radii and localization != "nwpu":
        raise ConfigError("--radius goes with --localization nwpu; qnrf measures 1 to 100 px")
    if matching is not None and localization != "qnrf":
        raise ConfigError("--matching goes with --localization qnrf; nwpu always matches as many as possible")
    if matching not in (None, "greedy", "maximum"):
        raise unknown("matching", matching, ("greedy", "maximum"))


def _options(data: str | None, given: list[str] | None) -> dict[str, Any]:
    """key=value pairs as options of the dataset."""
    if not given or data is None:
        return {}
    from papm.cli import dataset_io as io

    return io.reader_options(io.parse(data)[0], given)


def _count(
    model: Path,
    data: str,
    split: str,
    how: How,
    out: Path | None,
    json: bool,
    options: dict[str, Any],
    grid: bool,
    submission: Path | None,
) -> None:
    from papm.cli import ui
    from papm.cli.localization import keep_sizes, open_split
    from papm.cli.submission import write_submission
    from papm.data import require_annotated
    from papm.data.resize import OPTIONS, bounds
    from papm.engine import evaluate as engine
    from papm.engine.result import scores
    from papm.predict.ensemble import Ensemble

    if submission is not None:
        keep_sizes(options, "--submission")
    if grid and how.beside:
        raise ConfigError("GAME is of the map of one model: leave out --game or --with")
    counter = how.open(model)
    members = counter.members if isinstance(counter, Ensemble) else (counter,)
    own_size = not set(options) & set(OPTIONS)  # images as each model knows them, unless somebody wants to see another
    dataset, split = open_split(data, split, {**options, **bounds(members[0].resize)} if own_size else options)
    about: dict[str, Any] = {"data": data, "split": split, "model": str(model), "method": counter.spec.method}
    if submission is not None:
        about |= write_submission(counter, dataset, submission)
        if not json:
            ui.say(
                f"For the server, {n_of(about['images'], 'image')}: {submission}/counting.txt, {submission}/localization.txt"
            )
        if dataset.hidden:
            if json:
                ui.print_json(about)
            return
    require_annotated(dataset)
    grid = grid or (len(members) == 1 and any(s.roi_source is not None for s in dataset))
    each = []
    with ui.items("counting", len(dataset) * len(members)) as advance:
        for member in members:
            if member is not members[0] and own_size:
                dataset, _ = open_split(data, split, {**options, **bounds(member.resize)})
            if own_size:
                _warn_of_shrinking(member, dataset)
            each.append(
                engine.evaluate(
                    member.network,
                    dataset,
                    grid=grid,
                    precision=member.precision,
                    tile=member.tile,
                    classes=member.spec.classes,
                    on_item=advance,
                    on_tile=advance.part,
                    strict=True,
                )
            )
    by_model = dict(zip(counter.names, each)) if isinstance(counter, Ensemble) else {}
    found = engine.mean_of(by_model) if by_model else each[0]
    alone = {name: e.score for name, e in by_model.items()}
    levels = _levels(dataset.name, found)
    if out is not None:
        engine.write_evaluation(out, found)
    if json:
        about |= {"models": {n: {"mae": s.mae, "rmse": s.rmse} for n, s in alone.items()}} if alone else {}
        result = {**about, **scores(found), "levels": {k: s.to_dict() for k, s in levels.items()}}
        ui.print_json({**result, "game": {str(k): v for k, v in found.game.items()}} if grid else result)
    else:
        _show(found, alone, levels, f"{data} {split}: {n_of(found.score.n, 'image')}")


def _warn_of_shrinking(counter: Counter, dataset: Dataset) -> None:
    """Name the image that the model's rule shrinks most, where that is much more than in its training."""
    from papm.cli import ui

    said = [(s, w) for s in dataset if (w := counter.warning(s.published.size))]
    if said:
        sample, warning = max(said, key=lambda found: max(found[0].published.size))
        more = f" (and {len(said) - 1} more of {len(dataset)})" if len(said) > 1 else ""
        ui.note(f"WARNING: {sample.name}{more}: {warning} (resize=none counts images at their own size)")


def _show(
    found: Evaluation, alone: Mapping[str, CountingScore], levels: Mapping[str, CountingScore], title: str
) -> None:
    """Tables and sentences; `alone`: the score of each of several models."""
    from papm.cli import ui

    figures = [("MAE", found.score.mae), ("RMSE", found.score.rmse), ("NAE", found.score.nae)]
    ends = found.intervals()
    rows: list[list[object]] = [[n, v, interval(ends[n.lower()]) or "–"] for n, v in figures]
    rows += [[f"GAME({k})", v, ""] for k, v in found.game.items()]
    ui.table(["metric", "value", "95 % interval"], rows, title=title)
    if alone:
        apart = ", ".join(f"{name} {score.mae:.2f}" for name, score in alone.items())
        ui.say(f"These are of the mean of the counts. MAE of each model alone: {apart}")
    ui.say(f"Bias of the total count {100 * found.score.bias:+.1f} %")
    if found.readings:
        ui.say("Counted " + ", ".join(f"as {how}: MAE {mae:.2f}" for how, mae in found.mae_by_count.items()))
    if found.score_in_image.mae != found.score.mae:
        ui.say(f"Against points inside their image only: MAE {found.score_in_image.mae:.2f}")
    if found.classes:
        ui.table(
            ["class", "objects", "MAE", "RMSE", "bias %"],
            [
                [k, int(sum(n)), s.mae, s.rmse, 100 * s.bias if math.isfinite(s.bias) else "–"]
                for (k, s), n in zip(found.class_scores.items(), zip(*found.truth_by_class))
            ],
            title="By class",
        )
    if len(levels) > 1:
        ui.table(
            ["objects", "images", "MAE", "RMSE", "bias %"],
            [[k, s.n, s.mae, s.rmse, 100 * s.bias if math.isfinite(s.bias) else "–"] for k, s in levels.items()],
            title="By the number of objects in an image",
        )


def _levels(dataset: str, found: Evaluation) -> dict[str, CountingScore]:
    """Errors apart for few and for many objects: the levels of the benchmark where it has some."""
    from papm.metrics.counting import JHU_LEVELS, NWPU_LEVELS, by_level

    return by_level(found.predicted, found.truth, NWPU_LEVELS if dataset == "nwpu" else JHU_LEVELS)
