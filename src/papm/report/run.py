"""report.html of a training run: what was asked, how it went, how far off the counts are and on which images."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from papm import config as configuration
from papm import methods
from papm.config import GROUPS, TrainConfig
from papm.errors import ConfigError
from papm.metrics.counting import counting_errors
from papm.report import charts, page
from papm.report.charts import Series
from papm.report.load import Counted, Run, curve, interval, number, read_run
from papm.text import n_of

WORST = 12  # images in the table of the worst


def write_report(folder: Path) -> Path:
    """Write folder/report.html from what the folder of a run holds, finished or not."""
    run = read_run(folder)
    return page.render(
        "run.html.j2",
        folder / "report.html",
        title=_title(run),
        subtitle=_subtitle(run),
        head=headline(run),
        warnings=warnings(run),
        chosen=how_chosen(run.config, run.result),
        more=other_figures(run),
        learning=learning_charts(run),
        counting=counting_charts(run.counted),
        levels=by_crowding(run.counted),
        worst=run.counted[:WORST],
        images=len(run.counted),
        objects=round(sum(c.truth for c in run.counted if math.isfinite(c.truth))),
        examples=page.embed((_caption(p), p) for p in run.examples),
        changed=changed(run.config),
        config=yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
        environment=_flat(run.environment),
        command=command(run.config, f"{folder}-again"),
        revision=str(run.environment.get("revision", "")),
    )


FIGURES = ("mae", "rmse", "nae", "bias")


@dataclass(frozen=True)
class Headline:
    """The figures on top: those of result.json, or of the last evaluation of a run that has not finished."""

    figures: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None]
    images: float | None
    where: str  # which images


def headline(run: Run) -> Headline:
    """The figures of error of a run, whatever stage it is in."""
    if run.result is not None:
        source, where = run.result, str(run.result.get("split") or "test")
    else:
        source = next((r for r in reversed(run.metrics) if "mae" in r), {})
        where = "validation" if run.config.get("select") == "val" else "watched"
    figures, intervals = {k: number(source, k) for k in FIGURES}, {k: interval(source, k) for k in FIGURES}
    return Headline(figures, intervals, number(source, "images"), where)


def warnings(run: Run) -> list[str]:
    """What a reader must know before believing the figures."""
    found = []
    select = (run.result or run.config).get("select")
    if run.result is None:
        at, of = (run.metrics[-1]["step"] if run.metrics else 0), run.config.get("steps", "?")
        found.append(
            f"This run has not finished: it was at step {at:,} of {_count(of)} when this page was written. The figures are "
            "those of its last evaluation during training. Go on with papm train … --resume."
        )
    if select == "test":
        found.append(
            "The weights were chosen on the test images: the step with the lowest test error was kept. Many papers report so, "
            "but it flatters: expect a larger error on new images. For an honest figure use select=val or select=last."
        )
    if run.result is not None and run.result.get("mae") is None:
        found.append(
            "The data has no test images, so nothing is known about the error on images that were not trained on."
        )
    if run.result is not None and select == "val" and run.result.get("split") == "val":
        found.append(
            "The data has no test images: the figures are those of the validation images, on which the weights were chosen "
            "too. Expect a somewhat larger error on new images."
        )
    broken = sum(not math.isfinite(c.predicted) for c in run.counted)
    if broken:
        verb = "is not a number" if broken == 1 else "are not numbers"
        found.append(f"{broken} of {len(run.counted)} predicted counts {verb}: the network has diverged.")
    return found


def how_chosen(config: Mapping[str, Any], result: Mapping[str, Any] | None) -> str:
    """One sentence: which weights the figures belong to.

    >>> how_chosen({}, {"select": "val", "selected_step": 15, "sizes": {"val": 1}})
    'lowest error on 1 held-out validation image (step 15)'
    """
    if result is None:
        return "as they were at the last evaluation; the run has not finished"
    select = result.get("select")
    step = number(result, "selected_step")
    at = f" (step {step:,.0f})" if step is not None else ""
    averaged = "averaged " if config.get("ema") else ""
    sizes = result.get("sizes")
    n = number(sizes, "val") if isinstance(sizes, dict) else None
    held = n_of(round(n), "held-out validation image") if n else "held-out validation images"
    return {
        "val": f"lowest error on {held}{at}",
        "last": f"the last {averaged}weights{at}; no evaluation chose them",
        "test": f"lowest error on the test images themselves{at}",
    }.get(str(select), "not known")


def other_figures(run: Run) -> list[tuple[str, str]]:
    """Smaller figures of a finished run, in words."""
    r = run.result
    if r is None:
        return []
    looks = " (raw weights)" if _looked_at_raw(run) else ""
    rows = [
        ("images", _sizes(r.get("sizes"))),
        ("MAE of the last weights", page.figure(number(r, "mae_last"))),
        (f"lowest MAE on the test images during training{looks}", page.figure(number(r, "mae_best_on_test"))),
        ("MAE when only points inside the image count", page.figure(number(r, "mae_in_image"))),
        ("training and evaluation took", page.duration(number(r, "seconds"))),
        ("on", str(r.get("hardware") or "–")),
    ]
    return [(name, value) for name, value in rows if value != "–"]


def _looked_at_raw(run: Run) -> bool:
    """Whether evaluations during training saw other weights than the averaged ones that are the result."""
    return run.config.get("watch") == "raw" and run.config.get("ema") != 0


def _sizes(sizes: object) -> str:
    """How many images the run had.

    >>> _sizes({"train": 270, "val": 30, "test": 182})
    '270 trained on, 30 held out for validation, 182 tested on'
    """
    words = {"train": "trained on", "val": "held out for validation", "test": "tested on"}
    known = sizes if isinstance(sizes, Mapping) else {}
    return ", ".join(f"{_count(known[k])} {word}" for k, word in words.items() if k in known) or "–"


def learning_charts(run: Run) -> list[tuple[str, str, Any]]:
    """(heading, remark, chart) of the curves in metrics.csv."""
    rows = run.metrics
    x, loss = curve(rows, "loss")
    smooth = [
        Series("loss", x, loss, faint=True),
        Series("loss", x, charts.smoothed(loss, max(1, len(loss) // 20) | 1)),
    ]
    errors = [
        Series(k.upper(), *curve(rows, k), colour=c, marks=True, best=True) for c, k in enumerate(("mae", "rmse"))
    ]
    looks = "; raw weights, the result is the averaged ones'" if _looked_at_raw(run) else ""
    made: list[tuple[str, str, Any]] = [
        ("Training loss", "pale: as logged; strong: moving mean",
         charts.line_chart(smooth, title="Training loss over steps", x_label="step", y_label="loss")),
        ("Error while training", f"rings: the lowest of each{looks}",
         charts.line_chart(errors, title="Evaluation MAE and RMSE over steps", x_label="step", y_label="objects per image")),
    ]  # fmt: skip
    names = list(dict.fromkeys(name for row in rows for name in row["terms"]))
    if len(names) > 1:
        parts = [Series(name, *curve(rows, name), colour=c) for c, name in enumerate(names)]
        svg = charts.line_chart(parts, title="Terms of the loss over steps", x_label="step", y_label="term")
        made.append(("Terms of the loss", "before their weights", svg))
    crops = Series("count error", *curve(rows, "count_error"), colour=2)
    if len(crops.x):
        svg = charts.line_chart(
            [crops], title="Count error of training crops", x_label="step", y_label="objects per crop"
        )
        made.append(("Count error of the training crops", "mean |predicted − true|", svg))
    rate = Series("learning rate", *curve(rows, "lr"), colour=3)
    svg = charts.line_chart(
        [rate], title="Learning rate over steps", x_label="step", y_label="learning rate", log=False
    )
    made.append(
        ("Learning rate", "of the head; the trunk has its own" if run.config.get("trunk_lr") else "as it was", svg)
    )
    return [(name, remark, page.chart(svg)) for name, remark, svg in made]


def counting_charts(counted: list[Counted]) -> list[tuple[str, str, Any]]:
    """(heading, remark, chart) of the counts of every image."""
    if not counted:
        return []
    truth, predicted = [c.truth for c in counted], [c.predicted for c in counted]
    errors = [c.error for c in counted]
    tips = [f"{c.image}: predicted {page.figure(c.predicted)}, true {c.truth:,.0f}" for c in counted]
    made = [
        ("Predicted against true", "one dot an image",
         charts.scatter_chart(truth, predicted, title="Predicted against true counts", x_label="true count",
                              y_label="predicted count", tips=tips, diagonal=True)),
        ("Error against true count", "above the line: too many counted",
         charts.scatter_chart(truth, errors, title="Error against true count", x_label="true count",
                              y_label="predicted − true", tips=tips, level=0.0)),
    ]  # fmt: skip
    if len(counted) <= charts.FEW:
        bars = [charts.Bars("predicted − true", errors)]
        svg = charts.bar_chart(
            [c.image for c in counted], bars, title="Error of each image", y_label="predicted − true"
        )
        made.append(("Errors", "one bar per image; above zero: too many counted", svg))
    else:
        svg = charts.histogram(errors, title="Histogram of errors", x_label="predicted − true", y_label="images")
        made.append(("How errors are spread", "right of the line: too many counted", svg))
    return [(name, remark, page.chart(svg)) for name, remark, svg in made]


def by_crowding(counted: list[Counted]) -> list[dict[str, Any]]:
    """Errors of the images with few, middling and many objects, a third each; empty for fewer than nine images."""
    kept = sorted((c for c in counted if math.isfinite(c.predicted)), key=lambda c: c.truth)
    if len(kept) < 9:
        return []
    cuts = [0, round(len(kept) / 3), round(2 * len(kept) / 3), len(kept)]
    rows = []
    for name, start, end in zip(("fewest objects", "middle third", "most objects"), cuts, cuts[1:]):
        part = kept[start:end]
        score = counting_errors([c.predicted for c in part], [c.truth for c in part]).to_dict()
        rows.append({"name": name, "low": part[0].truth, "high": part[-1].truth, **score})
    return rows


def changed(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(key, value, default) of the settings that are not at their default."""
    usual = configuration.to_mapping(TrainConfig())
    missing = object()
    return [
        (key, _scalar(value), _scalar(usual[key]) if key in usual else "")
        for key, value in config.items()
        if usual.get(key, missing) != value
    ]


def command(config: Mapping[str, Any], out: str) -> str:
    """The `papm train` line that makes this run again: what its method's recipe does not already set."""
    method, backbone = str(config.get("method", "")), str(config.get("backbone", ""))
    try:
        network = config.get("network")
        recipe = methods.recipe(method, backbone, network if isinstance(network, Mapping) else None)
    except ConfigError:  # a method this version does not know: spell everything out
        recipe = {}
    base = {**configuration.to_mapping(TrainConfig()), **recipe}
    words = ["papm", "train", str(config.get("data", "")), "--method", method, "--backbone", backbone, "--out", out]
    groups = {field: group for group, field in GROUPS.items()}
    for key, value in config.items():
        if key in ("data", "method", "backbone") or (key in base and base[key] == value):
            continue
        if key in groups and isinstance(value, Mapping):
            words += [f"{groups[key]}.{name}={_scalar(v)}" for name, v in value.items()]
        elif key in ("weights", "init") and value is not None:
            words += [f"--{key}", str(value)]
        else:
            words.append(f"{key}={_scalar(value)}")
    return shlex.join(words)


def _scalar(value: Any) -> str:
    """A value as YAML on one line, which is how the command line reads it."""
    if isinstance(value, float):
        return repr(value)
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()


def _title(run: Run) -> str:
    source = run.result or run.config
    data = (run.result or {}).get("dataset") or run.config.get("data", "")
    return f"{source.get('method', '?')} · {source.get('backbone', '?')} · {data}"


def _subtitle(run: Run) -> str:
    c = run.config
    words = [run.folder.resolve().name, f"{_count(c.get('steps', '?'))} steps", f"seed {c.get('seed', '?')}"]
    if c.get("noise"):
        words.append(f"training points moved by {c['noise']} px ({c.get('noise_kind', '?')})")
    return " · ".join(words)


def _caption(path: Path) -> str:
    """`03_IMG_12.png` shows IMG_12.

    >>> _caption(Path("03_IMG_12.png"))
    'IMG_12'
    """
    head, _, tail = path.stem.partition("_")
    return tail if head.isdigit() and tail else path.stem


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested mappings as rows of text."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        rows += _flat(value) if isinstance(value, Mapping) else [(str(key), "none" if value is None else str(value))]
    return rows


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
