"""One page over several runs: who is how far off on what, with intervals, curves and pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote

from papm.metrics.counting import CountingScore, PairedDifference, counting_errors, paired_difference
from papm.report import charts, page
from papm.report.charts import Bars, Card, Series
from papm.report.load import Counted, curve, interval, number, read_counted, read_curves
from papm.report.page import figure
from papm.report.svg import WIDTH, Key

NARROW = 14  # bars that fit a chart of half the page's width


@dataclass(frozen=True)
class ComparedRun:
    """A finished run and its place in the table: `label` is its row (a method), `group` its column (the data)."""

    label: str
    group: str
    folder: Path
    result: dict[str, Any]


class Cell(NamedTuple):
    """The MAE of one label in one group: the mean of its runs, and how far it may be off.

    [low, high] is the 95 % interval over images of a single run, or the smallest and largest MAE of several runs.
    """

    mae: float
    low: float | None
    high: float | None
    runs: int
    best: bool = False

    def __str__(self) -> str:
        between = "" if self.low is None else f"{figure(self.low)} to {figure(self.high)}"
        runs = f" · {self.runs} runs" if self.runs > 1 else ""
        return f"{figure(self.mae)}\n{between}{runs}"


@dataclass(frozen=True)
class Together:
    """The mean of the counts of several runs on the same images, image by image, and how it does beside the first of them."""

    runs: int
    score: CountingScore
    against_first: PairedDifference


def write_comparison(
    path: Path,
    *,
    title: str,
    intro: str,
    runs: Sequence[ComparedRun],
    examples: Sequence[tuple[str, Path]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Write one page that compares `runs`: table, bars, learning curves, example pictures, notes."""
    labels, groups = list(dict.fromkeys(r.label for r in runs)), list(dict.fromkeys(r.group for r in runs))
    table = cells(runs)
    several = any(c.runs > 1 for c in table.values())
    wide = len(labels) * len(groups) > NARROW or len(groups) > 3
    gaps = {key: _versus(d) for key, d in differences(runs, labels, groups).items()}
    best = [key for key, c in table.items() if c.best and len(labels) > 1]
    return page.render(
        "compare.html.j2",
        path,
        title=title,
        intro=[p.strip() for p in intro.split("\n\n") if p.strip()],
        warnings=warnings(runs),
        labels=labels,
        groups=groups,
        table=_rows(labels, groups, {key: str(c) for key, c in table.items()}),
        best=[(labels.index(label), 1 + groups.index(g)) for label, g in best],
        several=several,
        bars=bars(labels, groups, table, several, wide),
        wide=wide,
        curves=curves(runs, labels, groups),
        differences=_rows(labels[1:], groups, gaps),
        runs=[_run(r, path) for r in runs],
        examples=[(words, list(some)) for words, some in groupby(page.embed(examples), key=lambda p: p.caption)],
        notes=[n for n in notes if n],
    )


def _rows(labels: Sequence[str], groups: Sequence[str], texts: Mapping[tuple[str, str], str]) -> list[list[str]]:
    """A table of what is known, a row per label and a column per group; nothing where nothing is."""
    return [[label, *(texts.get((label, g), "–") for g in groups)] for label in labels] if texts else []


def _versus(gap: PairedDifference) -> str:
    difference, low, high = (figure(v, sign=True) for v in (gap.difference, gap.low, gap.high))
    return f"{difference} {gap.verdict}\n{low} to {high}"


def cells(runs: Sequence[ComparedRun]) -> dict[tuple[str, str], Cell]:
    """(label, group) → its figure; the lowest of each group is marked. Runs without a figure have no cell."""
    found: dict[tuple[str, str], Cell] = {}
    for key in dict.fromkeys((r.label, r.group) for r in runs):
        some = [r.result for r in runs if (r.label, r.group) == key]
        values = [v for v in (number(result, "mae") for result in some) if v is not None]
        if values:
            pair = (min(values), max(values)) if len(values) > 1 else interval(some[0], "mae")
            low, high = pair or (None, None)
            found[key] = Cell(fmean(values), low, high, len(values))
    lowest = {g: min(c.mae for (_, group), c in found.items() if group == g) for _, g in found}
    return {k: c._replace(best=c.mae == lowest[k[1]]) for k, c in found.items()}


def bars(
    labels: Sequence[str], groups: Sequence[str], table: dict[tuple[str, str], Cell], several: bool, wide: bool
) -> Card:
    """The table as bars: a colour a label, whiskers for the intervals."""
    nothing = Cell(math.nan, None, None, 0)
    made = []
    for label in labels:
        row = [table.get((label, g), nothing) for g in groups]
        made.append(Bars(label, [c.mae for c in row], [c.low for c in row], [c.high for c in row]))
    unit, width = "MAE, objects per image", 2 * WIDTH if wide else WIDTH
    remark = f"whiskers: the intervals{' or ranges' if several else ''}"
    return charts.bar_chart(groups, made, title="The same as bars", remark=remark, y_label=unit, width=width)


def curves(runs: Sequence[ComparedRun], labels: Sequence[str], groups: Sequence[str]) -> list[Card]:
    """Error while training of all runs over steps and over time.

    Losses are not drawn together: those of different methods are in different units.
    """
    rows = [read_curves(r.folder) for r in runs]
    keys = [Key(label, k) for k, label in enumerate(labels)] if len(labels) > 1 else []
    keys += [Key(group, dash=k, neutral=True) for k, group in enumerate(groups)] if len(groups) > 1 else []
    made = []
    for over, title in (("step", "Error while training"), ("seconds", "The same over time")):
        series = []
        for r, found in zip(runs, rows):
            name = r.label if len(groups) < 2 else f"{r.label}, {r.group}"
            x, y = curve(found, "mae", over)
            series.append(Series(name, x, y, labels.index(r.label), groups.index(r.group), marks=True))
        remark = "MAE of the images watched during training"
        made.append(charts.line_chart(series, title=title, remark=remark, x_label=over, y_label="MAE", keys=keys))
    return made


def differences(
    runs: Sequence[ComparedRun], labels: Sequence[str], groups: Sequence[str]
) -> dict[tuple[str, str], PairedDifference]:
    """(label, group) → its MAE less that of the first label on the same images, with the paired 95 % interval.

    Only where both have one run in the group, with predictions.csv of the same images.
    """
    found: dict[tuple[str, str], PairedDifference] = {}
    for group in groups:
        inside = [[r for r in runs if r.label == label and r.group == group] for label in labels]
        counted = {some[0].label: _counted(some[0]) for some in inside if len(some) == 1}
        first = counted.get(labels[0], {})
        for label in labels[1:]:
            other = counted.get(label, {})
            if _same_images(first, other):
                found[label, group] = _difference([other[n].predicted for n in first], first)
    return found


def together(runs: Sequence[ComparedRun]) -> dict[str, Together]:
    """group → what the mean of the counts of its runs is worth; only where two or more counted the images of the first."""
    found: dict[str, Together] = {}
    for group in dict.fromkeys(r.group for r in runs):
        counted = [_counted(r) for r in runs if r.group == group]
        first = counted[0]
        same = [c for c in counted if _same_images(first, c)]
        if len(same) > 1:
            mean = [fmean(c[n].predicted for c in same) for n in first]
            score = counting_errors(mean, [c.truth for c in first.values()])
            found[group] = Together(len(same), score, _difference(mean, first))
    return found


def _counted(run: ComparedRun) -> dict[str, Counted]:
    """image → how it was counted, in the order of names; empty without predictions.csv."""
    return {c.image: c for c in sorted(read_counted(run.folder / "predictions.csv"), key=lambda c: c.image)}


def _same_images(a: dict[str, Counted], b: dict[str, Counted]) -> bool:
    return bool(a) and {k: c.truth for k, c in a.items()} == {k: c.truth for k, c in b.items()}


def _difference(predicted: Sequence[float], first: dict[str, Counted]) -> PairedDifference:
    return paired_difference(predicted, [c.predicted for c in first.values()], [c.truth for c in first.values()])


def warnings(runs: Sequence[ComparedRun]) -> list[str]:
    """What a reader must know before believing the figures."""
    on_test = [f"{r.label} ({r.group})" for r in runs if r.result.get("select") == "test"]
    which = "All runs" if len(on_test) == len(runs) else ", ".join(on_test)
    return page.said(
        (on_test,
         f"{which}: the weights were chosen on the test images, as many papers do; expect larger errors on new images."),
        (len({r.result.get("select") for r in runs}) > 1,
         "The runs chose their weights in different ways (last column of the table of runs): compare with care."),
    )  # fmt: skip


def _run(run: ComparedRun, path: Path) -> dict[str, Any]:
    """One line of the table of runs."""
    r = run.result
    report = run.folder / "report.html"
    link = quote(Path(os.path.relpath(report, path.parent)).as_posix()) if report.exists() else ""
    figures = {k: number(r, k) for k in ("mae", "rmse", "nae", "bias", "images", "steps", "seed", "seconds")}
    return {"label": run.label, "group": run.group, "link": link, "select": str(r.get("select", "–")), **figures}
