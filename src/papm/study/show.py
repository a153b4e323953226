"""A table with what was measured beside what the paper says: as lines, Markdown or JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papm.engine.resumed import UNKNOWN
from papm.methods import RECIPE
from papm.study import training
from papm.study.cells import Cell, Study
from papm.study.results import Group, Result, assign, newest
from papm.text import n_of

DASH = "–"
SELECTED = {
    "last": "the last weights",
    "val": "weights chosen on held-out images",
    "test": "weights chosen on the test images",
}


@dataclass(frozen=True)
class Line:
    """One line of the table: a cell with one group of results, or without."""

    cell: Cell
    group: Group | None


@dataclass(frozen=True)
class View:
    """A study with results: its lines, and what is to be said below them."""

    study: Study
    lines: tuple[Line, ...]
    select: str
    everything: bool
    missing: tuple[Cell, ...]
    remarks: tuple[str, ...]

    def groups(self) -> dict[tuple[str, str], Group | None]:
        """(row, column) → its results, of a view without `everything`."""
        return {(line.cell.row, line.cell.column): line.group for line in self.lines}


def view(study: Study, results: Sequence[Result], *, select: str = "last", everything: bool = False) -> View:
    """Lines for every cell: results with today's recipe and this selection; with `everything`, a line for each other too."""
    lines: list[Line] = []
    missing: list[Cell] = []
    others = elsewhere = 0
    for cell, groups in zip(study.cells, assign(study, results)):
        alike = [g for g in groups if g.select == select and not g.differences and g.seeds]
        measured = newest(alike)
        if not measured:
            missing.append(cell)
        lines += [Line(cell, g) for g in (groups if everything else measured) if g.seeds] or [Line(cell, None)]
        if not everything:
            others += sum(len(g.seeds) for g in groups if g.differences or (g in alike and g not in measured))
            elsewhere += sum(len(g.seeds) for g in groups if not g.differences and g.select != select)
    remarks = [_said_missing(study, missing)]
    for n, what in (
        (others, "with other settings than today's recipe {} left out; --all shows them."),
        (elsewhere, f"with another select than {select} {{}} left out."),
    ):
        if n:
            remarks.append(f"{n_of(n, 'result')} {what.format('is' if n == 1 else 'are')}")
    return View(study, tuple(lines), select, everything, tuple(missing), (*remarks, *_remarks(study, lines)))


def measured(study: Study, results: Sequence[Result], select: str = "last") -> int:
    """How many cells have a result."""
    return len(study.cells) - len(view(study, results, select=select).missing)


def _said_missing(study: Study, missing: Sequence[Cell]) -> str:
    total = len(study.cells)
    if not missing:
        return f"All {total} cells are measured." if total > 1 else "The cell is measured."
    named = ": " + "; ".join(c.name for c in missing) if len(missing) <= 6 else ""
    needs = ", ".join(dict.fromkeys(str(c.settings["dataset"]) for c in missing))
    return f"Missing: {n_of(len(missing), 'cell')} of {total}{named}. Needed: {needs}."


def _remarks(study: Study, lines: Sequence[Line]) -> list[str]:
    """What must be known about the figures that are shown."""
    said = []
    partly = sum(1 for line in lines if line.group and None in (line.group.mean(k) for k in range(len(study.metrics))))
    if partly:
        verb = "lacks" if partly == 1 else "lack"
        said.append(f"{n_of(partly, 'cell')} {verb} some figures; papm study run adds them.")
    own = [s for s in study.specials if any(s.settings.items() <= line.cell.special.items() for line in lines)]
    said += [f"Own settings: {training.in_words(s.settings)} ({s})." for s in own]
    older = [
        x.cell.name for x in lines if x.group and not x.group.differences and x.group.recipe not in ("own", RECIPE)
    ]
    if older:
        said.append(f"Today's settings, but results of an earlier recipe than {RECIPE}: {'; '.join(older)}.")
    files = {h for line in lines if line.group for h in line.group.of("weights_sha256") if h and h != UNKNOWN}
    if len(files) > 1:
        said.append(f"The trunks started from {len(files)} different files of weights.")
    return said


# -- texts ---------------------------------------------------------------------------------------------------------------


def columns(shown: View) -> list[str]:
    """Headings of the table."""
    return list(_texts(shown, shown.lines[0]))


def rows(shown: View) -> list[list[str]]:
    """Every cell of the table as text."""
    return [list(_texts(shown, line).values()) for line in shown.lines]


def _texts(shown: View, line: Line) -> dict[str, str]:
    """One line of the table: heading → text."""
    study, group = shown.study, line.group or Group("", {}, ())
    spread, digits = group.values(0), digits_of(study, 0)
    out = {"": line.cell.row}
    if len(_places(shown)) > 1:
        out["on"] = line.cell.column
    out |= _figures(study, line.cell, group)
    between = f"{text_of(min(spread), digits)} to {text_of(max(spread), digits)}" if len(spread) > 1 else DASH
    out |= {"range over seeds": between, "seeds": ", ".join(str(s.seed) for s in group.seeds) or DASH}
    if "mae" in study.metrics:
        out["best MAE on test"] = text_of(group.best_on_test, digits_of(study, study.metrics.index("mae")))
    if shown.everything:
        words = training.in_words(group.differences)
        out |= {"recipe": group.recipe, "chosen by": group.select, "settings": words}
    return out


def _figures(study: Study, cell: Cell, group: Group) -> dict[str, str]:
    """What the paper prints, what was measured, and how far they are apart; a study of one's own may have no paper."""
    every = [(group.mean(k), cell.printed(k), digits_of(study, k)) for k in range(len(study.metrics))]
    metrics = " / ".join(m.title for m in study.figures)
    measured = " / ".join(text_of(mean, digits) for mean, _, digits in every) + _split(group) if group.seeds else DASH
    if not any(c.paper for c in study.cells):
        return {metrics: measured}
    apart = [(None if m is None or p is None else m - p, digits) for m, p, digits in every]
    known = any(a is not None for a, _ in apart)
    marks = "".join(f" [{n}]" for n in numbers(study, cell))
    return {
        f"paper {metrics}": (" / ".join(cell.paper) or DASH) + (" (quoted)" if cell.quoted else "") + marks,
        f"measured {metrics}": measured,
        "difference": " / ".join(text_of(a, digits, "+") for a, digits in apart) if known else DASH,
    }


def _places(shown: View) -> set[str]:
    """The columns of the study that are shown; one alone is named in the caption instead."""
    return {line.cell.column for line in shown.lines}


def _numbered(study: Study) -> list[int]:
    """The places of the notes that have a number: those on the whole table have none."""
    return [k for k, n in enumerate(study.notes) if n.where]


def numbers(study: Study, cell: Cell) -> list[int]:
    """The numbers of the notes on a cell, as printed."""
    return [1 + _numbered(study).index(k) for k in cell.notes]


def notes(shown: View) -> list[str]:
    """The notes that the lines refer to, and those on the whole table."""
    every, used = shown.study.notes, {k for line in shown.lines for k in line.cell.notes}
    said = [f"[{n}] {every[k].text}" for n, k in enumerate(_numbered(shown.study), 1) if k in used]
    return said + [n.text for n in every if not n.where]


def caption(shown: View) -> str:
    """What the figures are."""
    by = "each line says how they were chosen" if shown.everything else SELECTED[shown.select]
    places = _places(shown) - {""}
    said = [f"{place}." for place in places if len(places) == 1]
    said.append(f"Measured: mean over seeds; {by}.")
    if "mae" in shown.study.metrics:
        said.append("Best on test: the lowest test MAE of any evaluation, which flatters.")
    if "rmse" in shown.study.metrics:
        said.append("Papers print RMSE as MSE.")
    return " ".join(said)


def digits_of(study: Study, metric: int) -> int:
    """As many decimals as the paper prints, or as are usual."""
    printed = [len(c.paper[metric].partition(".")[2]) for c in study.cells if metric < len(c.paper)]
    return max(printed, default=0) or study.figures[metric].digits


def text_of(value: float | None, digits: int, sign: str = "") -> str:
    """A figure with a true minus, a dash where there is none."""
    if value is None:
        return DASH
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")  # + 0.0: no negative zero


def _split(group: Group) -> str:
    """The split, where it is not the test images."""
    splits = [s for s in group.of("split") if s not in (None, "test")]
    return f" ({', '.join(map(str, splits))})" if splits else ""


def title(study: Study) -> str:
    """The study in one line."""
    return f"{study.name}: {study.title}" + (f" ({study.where})" if study.where else "")


def markdown(shown: View) -> str:
    """The table as Markdown, its remarks and notes below."""
    head = f"**{shown.study.title}**" + (f" ({shown.study.where})" if shown.study.where else "")
    return f"{head}\n\n{markdown_table(columns(shown), rows(shown))}\n{markdown_below(shown)}"


def markdown_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Rows of texts as a Markdown table.

    >>> print(markdown_table(["", "MAE"], [["a|b", "1"]]), end="")
    |  | MAE |
    |---|---|
    | a\\|b | 1 |
    """
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in (head, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def markdown_below(shown: View) -> str:
    """What the figures are, remarks and notes, as Markdown."""
    return "\n".join([caption(shown), "", *(f"- {words}" for words in (*shown.remarks, *notes(shown)))]) + "\n"


def to_json(shown: View) -> dict[str, Any]:
    """The same for other programs."""
    study = shown.study
    return {
        "study": study.name,
        "title": study.title,
        "where": study.where,
        "metrics": list(study.metrics),
        "select": shown.select,
        "cells": len(study.cells),
        "missing": [{"row": c.row, "column": c.column, "settings": dict(c.settings)} for c in shown.missing],
        "lines": [_line(study, line) for line in shown.lines],
        "remarks": list(shown.remarks),
        "notes": [
            {"text": n.text, "rows": list(n.where.get("row", ())), "columns": list(n.where.get("column", ()))}
            for n in study.notes
        ],
    }


def _line(study: Study, line: Line) -> dict[str, Any]:
    cell, group = line.cell, line.group
    out: dict[str, Any] = {
        "row": cell.row,
        "column": cell.column,
        "settings": dict(cell.settings),
        "paper": dict(zip(study.metrics, (cell.printed(k) for k in range(len(study.metrics))))) if cell.paper else None,
        "quoted": cell.quoted,
        "notes": list(numbers(study, cell)),
        "measured": None,
    }
    if group is not None:
        out["measured"] = {
            "select": group.select,
            "differences": dict(group.differences),
            "seeds": [s.seed for s in group.seeds],
            "unfinished": group.unfinished,
            "metrics": {m: _summary(group, k) for k, m in enumerate(study.metrics)},
            "mae_best_on_test": group.best_on_test,
            **{k: group.of(k) for k in ("split", "hardware", "revision", "weights_sha256")},
            "files": [str(r.path) for s in group.seeds for r in s.results],
        }
    return out


def _summary(group: Group, metric: int) -> Mapping[str, float] | None:
    values = group.values(metric)
    if not values:
        return None
    spread = {"std": statistics.stdev(values)} if len(values) > 1 else {}
    return {"mean": statistics.fmean(values), "min": min(values), "max": max(values), **spread}
