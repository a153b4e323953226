"""Curves of the error over σ, s and λ: what the paper prints, and what was measured.

Measured points are of one kind of training within a curve: today's recipe where any cell has it, else the settings that most
cells share; the remark below names them. Whiskers are the lowest and the highest end of the 95 % intervals over test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from papm.report import axes, svg
from papm.report.charts import Card
from papm.report.svg import LETTER, Key, colour
from papm.study import tables, training
from papm.study.cells import Cell, Study
from papm.study.figures.base import Asked, Figure, Made, register
from papm.study.figures.sheet import sheet
from papm.study.results import Group, Result, assign, newest
from papm.text import n_of

STUDIES = ("hd-papm-shape", "hd-papm-sigma", "al-papm-shape", "al-papm-sigma", "al-papm-weight")
PAPER, OURS = 6, 0  # colours


@dataclass(frozen=True)
class Point:
    """A measured cell: its place on the axis, its mean, and the ends of its interval."""

    place: int
    mean: float
    ends: tuple[float, float] | None
    seeds: int


def draw(asked: Asked) -> Made:
    """A chart for each sweep."""
    cards: list[Card] = []
    values: dict[str, dict[str, Any]] = {}
    for name in STUDIES:
        study = tables.load(name)
        points, words = measured(study, asked.results)
        cards.append(_card(study, points, words))
        values[name] = {
            "paper": {c.row: c.printed(0) for c in study.cells if c.paper},
            "measured": {study.cells[p.place].row: p.mean for p in points},
            "settings": words,
        }
    known = sum(len(v["measured"]) for v in values.values())
    total = sum(len(tables.load(n).cells) for n in STUDIES)
    return Made(sheet(cards, "The error over σ, s and λ"), (f"{known} of {total} points are measured.",), values)


def measured(study: Study, results: Sequence[Result]) -> tuple[list[Point], str]:
    """The points of one kind of training, and what kind that is."""
    by_cell = assign(study, list(results))
    kinds: dict[str, dict[int, Group]] = {}
    for k, groups in enumerate(by_cell):
        for group in newest([g for g in groups if g.select == "last" and g.seeds and g.values(0)]):
            kinds.setdefault(training.in_words(group.differences), {}).setdefault(k, group)
    if not kinds:
        return [], "Not measured yet."
    words, chosen = max(kinds.items(), key=lambda item: (item[0] == "", len(item[1])))
    points = [Point(k, fmean(g.values(0)), _ends(g, study.cells[k]), len(g.seeds)) for k, g in sorted(chosen.items())]
    said = "today's recipe" if not words else words if len(words) <= 90 else words[:89] + "…"
    return points, f"Measured: {n_of(len(points), 'cell')} of {len(study.cells)}; {said}."


def _ends(group: Group, cell: Cell) -> tuple[float, float] | None:
    found = [e for r in group.results if (e := (r.values.get("intervals") or {}).get("mae"))]
    return (min(e[0] for e in found), max(e[1] for e in found)) if found and len(cell.parts) == 1 else None


def _card(study: Study, points: Sequence[Point], words: str) -> Card:
    """Places evenly along the axis: parameters double from one to the next."""
    cells = study.cells
    printed = [(k, value) for k, c in enumerate(cells) if (value := c.printed(0)) is not None]
    known = [v for _, v in printed] + [v for p in points for v in (p.mean, *(p.ends or ()))]
    symbol = cells[0].row.partition(" = ")[0]
    keys = [Key("paper", PAPER, 1)] * bool(printed) + [Key("measured", OURS, 0)] * bool(points)
    label = f"test MAE, {study.cells[0].settings['dataset']}"
    made = svg.plot(
        (0, len(cells)),
        axes.fit(known or [50.0, 80.0]),
        x_label=f"{symbol}, px" if symbol == "σ" else symbol,
        y_label=label,
        keys=keys,
        names=False,
    )
    names = [c.row.partition(" = ")[2].partition(",")[0] for c in cells]
    for k, name in enumerate(svg.told_apart(names, int((made.x(1) - made.x(0)) / LETTER))):
        made.parts.append(svg.text(made.x(k + 0.5), made.y.start + 17, name, anchor="middle", muted=False))
    made.parts.extend(_line(made, printed, PAPER, 1, "paper"))
    for p in points:
        x = made.x(p.place + 0.5)
        for low, high in [p.ends] if p.ends else []:
            style = f"stroke:{colour(OURS)};stroke-width:1.4"
            made.parts.append(svg.line(x, made.y(low), x, made.y(high), style))
            made.parts.extend(svg.line(x - 4, made.y(end), x + 4, made.y(end), style) for end in (low, high))
    made.parts.extend(_line(made, [(p.place, p.mean) for p in points], OURS, 0, "measured"))
    if len(printed) < 2:
        words = f"{words} The paper prints a curve without figures."
    return Card(study.title, words, made.svg(study.title))


def _line(made: svg.Plot, pairs: Sequence[tuple[int, float]], series: int, dash: int, name: str) -> list[str]:
    """Marks joined by a line where neighbours are known."""
    parts = []
    for (a, u), (b, v) in pairwise(pairs):
        if b == a + 1:
            style = f"stroke:{colour(series)};stroke-width:2{svg.dashed(dash)}"
            parts.append(svg.line(made.x(a + 0.5), made.y(u), made.x(b + 0.5), made.y(v), style))
    return parts + [svg.mark(made.x(k + 0.5), made.y(v), series, 3.6, f"{name}: {v:.1f}") for k, v in pairs]


FIGURE = register(
    Figure(
        "sweep", "the error over s, σ and λ: the paper's values and the measured ones", "Figure 9, Tables 7 to 9", draw
    )
)
