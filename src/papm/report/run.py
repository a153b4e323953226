"""report.html of a training run: what was asked, how it went, how far off the counts are and on which images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from papm.config import SHARES
from papm.metrics.counting import counting_errors
from papm.report import charts, page
from papm.report.calibrated import calibrated_figures
from papm.report.charts import Card, Series
from papm.report.load import Counted, Run, curve, interval, number, read_run
from papm.report.page import Fact
from papm.report.settings import changed, command
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
        figures=headline(run),
        warnings=warnings(run),
        chosen=how_chosen(run.config, run.result),
        more=other_figures(run) + calibrated_figures(run),
        learning=learning_charts(run),
        counting=counting_charts(run.counted),
        levels=by_crowding(run.counted),
        worst=run.counted[:WORST],
        images=len(run.counted),
        examples=page.embed((_caption(p), p) for p in run.examples),
        changed=changed(run.config),
        config=yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
        environment=_flat(run.environment),
        command=command(run.config, f"{folder}-again"),
        revision=str(run.environment.get("revision", "")),
    )


def headline(run: Run) -> list[Fact]:
    """The figures on top: those of result.json, or of the last evaluation of a run that has not finished."""
    if run.result is not None:
        source, where = run.result, str(run.result.get("split") or "test")
    else:
        source = next((r for r in reversed(run.metrics) if "mae" in r), {})
        where = "validation" if run.config.get("select") == "val" else "watched"

    def between(key: str, words: Callable[[float], str]) -> str:
        pair = interval(source, key)
        return f"{words(pair[0])} to {words(pair[1])}" if pair else ""

    mae, bias = between("mae", page.figure), page.percent(number(source, "bias"), sign=True)
    objects = round(sum(c.truth for c in run.counted if math.isfinite(c.truth)))
    made = [
        Fact("MAE", page.figure(number(source, "mae")), f"95 % interval {mae}" if mae else "objects per image",
             remark=f", {where} images"),
        Fact("RMSE", page.figure(number(source, "rmse")), between("rmse", page.figure), "called MSE in papers of this field"),
        Fact("NAE", page.percent(number(source, "nae")), between("nae", page.percent), "mean error relative to the true count"),
        Fact("Bias", bias, between("bias", page.percent), "of all objects; above zero: too many"),
    ]  # fmt: skip
    if (images := number(source, "images")) is not None:
        made.append(Fact("Images", page.whole(images), f"{objects:,} objects" if objects else ""))
    return made


def warnings(run: Run) -> list[str]:
    """What a reader must know before believing the figures."""
    select, finished = (run.result or run.config).get("select"), run.result is not None
    result: Mapping[str, Any] = run.result or {}
    at, of = (run.metrics[-1]["step"] if run.metrics else 0), _count(run.config.get("steps", "?"))
    broken = sum(not math.isfinite(c.predicted) for c in run.counted)
    verb = "is not a number" if broken == 1 else "are not numbers"
    return page.said(
        (not finished, f"This run has not finished: it was at step {at:,} of {of} when this page was written. The figures are "
         "those of its last evaluation during training. Go on with papm train … --resume."),
        (select == "test", "The weights were chosen on the test images: the step with the lowest test error was kept. Many "
         "papers report so, but it flatters: expect a larger error on new images. For an honest figure use select=val or "
         "select=last."),
        (finished and result.get("mae") is None,
         "The data has no test images, so nothing is known about the error on images that were not trained on."),
        (select == "val" and result.get("split") == "val", "The data has no test images: the figures are those of the "
         "validation images, on which the weights were chosen too. Expect a somewhat larger error on new images."),
        (broken, f"{broken} of {len(run.counted)} predicted counts {verb}: the network has diverged."),
    )  # fmt: skip


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
    raw = " (raw weights)" if _watched_raw(run) else ""
    rows = [
        ("images", _sizes(r.get("sizes"))),
        ("MAE of the last weights", page.figure(number(r, "mae_last"))),
        (f"lowest MAE on the test images during training{raw}", page.figure(number(r, "mae_best_on_test"))),
        ("MAE when only points inside the image count", page.figure(number(r, "mae_in_image"))),
        ("training and evaluation took", page.duration(number(r, "seconds"))),
        ("on", str(r.get("hardware") or "–")),
    ]
    return [(name, value) for name, value in rows if value != "–"]


def _watched_raw(run: Run) -> bool:
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


def learning_charts(run: Run) -> list[Card]:
    """The curves in metrics.csv."""
    rows = run.metrics
    chart = functools.partial(charts.line_chart, x_label="step")
    x, loss = curve(rows, "loss")
    mean = Series("loss", x, charts.smoothed(loss, max(1, len(loss) // 20) | 1))
    errors = [
        Series(k.upper(), *curve(rows, k), colour=c, marks=True, best=True) for c, k in enumerate(("mae", "rmse"))
    ]
    raw = "; raw weights, the result is the averaged ones'" if _watched_raw(run) else ""
    names = list(dict.fromkeys(name for row in rows for name in row["terms"]))
    terms = [Series(name, *curve(rows, name), colour=c) for c, name in enumerate(names)]
    crops = Series("count error", *curve(rows, "count_error"), colour=2)
    rate = Series("learning rate", *curve(rows, "lr"), colour=3)
    whose = "of the head; the trunk has its own" if run.config.get("trunk_lr") else "as it was"
    faint = Series("loss", x, loss, faint=True)
    made = [
        chart([faint, mean], title="Training loss", remark="pale: as logged; strong: moving mean", y_label="loss"),
        chart(
            errors, title="Error while training", remark=f"rings: the lowest of each{raw}", y_label="objects per image"
        ),
    ]
    if len(terms) > 1:
        made.append(chart(terms, title="Terms of the loss", remark="before their weights", y_label="term"))
    if crops.x:
        mean_error = "mean |predicted − true|"
        made.append(
            chart([crops], title="Count error of the training crops", remark=mean_error, y_label="objects per crop")
        )
    return [*made, chart([rate], title="Learning rate", remark=whose, y_label="learning rate", log=False)]


def counting_charts(counted: list[Counted]) -> list[Card]:
    """The counts of every image."""
    if not counted:
        return []
    truth, predicted = [c.truth for c in counted], [c.predicted for c in counted]
    errors, error = [c.error for c in counted], "predicted − true"
    tips = [f"{c.image}: predicted {page.figure(c.predicted)}, true {c.truth:,.0f}" for c in counted]
    chart = functools.partial(charts.scatter_chart, truth, tips=tips, x_label="true count")
    dots, above = "one dot per image", "above the line: too many counted"
    made = [
        chart(predicted, title="Predicted against true", remark=dots, y_label="predicted count", diagonal=True),
        chart(errors, title="Error against true count", remark=above, y_label=error, level=0.0),
    ]
    if len(counted) > charts.FEW:
        right = "right of the line: too many counted"
        spread = charts.histogram(errors, title="How errors are spread", remark=right, x_label=error, y_label="images")
        return [*made, spread]
    names, each = [c.image for c in counted], "one bar per image; above zero: too many counted"
    return [*made, charts.bar_chart(names, [charts.Bars(error, errors)], title="Errors", remark=each, y_label=error)]


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


def _title(run: Run) -> str:
    source = run.result or run.config
    data = (run.result or {}).get("dataset") or run.config.get("data", "")
    return f"{source.get('method', '?')} · {source.get('backbone', '?')} · {data}"


def _subtitle(run: Run) -> str:
    c = run.config
    words = [run.folder.resolve().name, f"{_count(c.get('steps', '?'))} steps", f"seed {c.get('seed', '?')}"]
    if c.get("noise"):
        kind, amount = c.get("noise_kind", "?"), c["noise"]
        done = f"{kind}, a share of {amount}" if kind in SHARES else f"moved by {amount} px ({kind})"
        words.append(f"training points {done}")
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
