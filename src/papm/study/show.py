"""A table with what was measured beside what the paper says: as lines, Markdown or JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papm.study import training
from papm.study.results import Group, Result, assign
from papm.study.tables import Cell, Study, in_words
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


def view(
    study: Study,
    results: Sequence[Result],
    *,
    select: str = "last",
    everything: bool = False,
) -> View:
    """Lines for every cell: results with today's recipe and this selection; with `everything`, a line for each other too."""
    lines: list[Line] = []
    missing: list[Cell] = []
    others = elsewhere = 0
    for cell, groups in zip(study.cells, assign(study, results)):
        today = [g for g in groups if g.select == select and not g.differences]
        measured = [g for g in today if g.seeds]
        if not measured:
            missing.append(cell)
        shown = groups if everything else measured
        lines += [Line(cell, g) for g in shown if g.seeds] or [Line(cell, None)]
        others += sum(len(g.seeds) for g in groups if g.differences)
        elsewhere += sum(len(g.seeds) for g in groups if not g.differences and g.select != select)
    remarks = _remarks(study, lines, missing, 0 if everything else others, 0 if everything else elsewhere, select)
    return View(study, tuple(lines), select, everything, tuple(missing), tuple(remarks))


def measured(study: Study, results: Sequence[Result], select: str = "last") -> int:
    """How many cells have a result."""
    return len(study.cells) - len(view(study, results, select=select).missing)


def _remarks(
    study: Study, lines: Sequence[Line], missing: Sequence[Cell], others: int, elsewhere: int, select: str
) -> list[str]:
    total = len(study.cells)
    said = []
    if missing:
        named = ": " + "; ".join(c.name for c in missing) if len(missing) <= 6 else ""
        needs = ", ".join(dict.fromkeys(str(c.settings["dataset"]) for c in missing))
        said.append(f"Missing: {n_of(len(missing), 'cell')} of {total}{named}. Needed: {needs}.")
    else:
        said.append(f"All {total} cells are measured." if total > 1 else "The cell is measured.")
    if others:
        said.append(
            f"{n_of(others, 'result')} with other settings than today's recipe {_is(others)} left out; --all shows them."
        )
    if elsewhere:
        said.append(f"{n_of(elsewhere, 'result')} with another select than {select} {_is(elsewhere)} left out.")
    partly = sum(1 for line in lines if line.group and None in (line.group.mean(k) for k in range(len(study.metrics))))
    if partly:
        said.append(
            f"{n_of(partly, 'cell')} {'lacks' if partly == 1 else 'lack'} some figures; papm study run adds them."
        )
    own = [s for s in study.specials if any(s.settings.items() <= line.cell.special.items() for line in lines)]
    said += [f"Own settings: {training.in_words(s.settings)} ({in_words(s)})." for s in own]
    files = {h for line in lines if line.group for h in line.group.of("weights_sha256") if h}
    if len(files) > 1:
        said.append(f"The trunks started from {len(files)} different files of weights.")
    return said


def _is(n: int) -> str:
    return "is" if n == 1 else "are"


# -- texts ---------------------------------------------------------------------------------------------------------------


def columns(shown: View) -> list[str]:
    """Headings of the table."""
    metrics = " / ".join(m.title for m in shown.study.figures)
    place = ["on"] if len(_places(shown)) > 1 else []
    extra = ["chosen by", "settings"] if shown.everything else []
    best = ["best MAE on test"] if "mae" in shown.study.metrics else []
    paper = _has_paper(shown)
    return [
        "",
        *place,
        *([f"paper {metrics}"] if paper else []),
        f"measured {metrics}" if paper else metrics,
        *(["difference"] if paper else []),
        "range over seeds",
        "seeds",
        *best,
        *extra,
    ]


def _has_paper(shown: View) -> bool:
    """Whether there is a paper to compare with; a study of one's own may have none."""
    return any(cell.paper for cell in shown.study.cells)


def _places(shown: View) -> set[str]:
    """The columns of the study that are shown; one alone is named in the caption instead."""
    return {line.cell.column for line in shown.lines}


def rows(shown: View) -> list[list[str]]:
    """Every cell of the table as text."""
    named = "on" in columns(shown)
    return [_row(shown, line, named) for line in shown.lines]


def _row(shown: View, line: Line, named: bool) -> list[str]:
    study, cell, group = shown.study, line.cell, line.group
    digits = [digits_of(study, k) for k in range(len(study.metrics))]
    marks = "".join(f" [{n}]" for n in numbers(study, cell))
    paper = (" / ".join(cell.paper) if cell.paper else DASH) + (" (quoted)" if cell.quoted else "") + marks
    compared = _has_paper(shown)
    out = [cell.row, *([cell.column] if named else []), *([paper] if compared else [])]
    if group is None:
        out += [DASH] * (3 + compared + ("mae" in study.metrics))
        return [*out, "", ""] if shown.everything else out
    means = [group.mean(k) for k in range(len(digits))]
    printed = [cell.printed(k) for k in range(len(digits))]
    apart = [None if m is None or p is None else m - p for m, p in zip(means, printed)]
    out.append(" / ".join(_text(m, d) for m, d in zip(means, digits)) + _where(group))
    if compared:
        known = any(a is not None for a in apart)
        out.append(" / ".join(_text(a, d, "+") for a, d in zip(apart, digits)) if known else DASH)
    spread = group.values(0)
    out.append(f"{_text(min(spread), digits[0])} to {_text(max(spread), digits[0])}" if len(spread) > 1 else DASH)
    out.append(", ".join(str(s.seed) for s in group.seeds))
    if "mae" in study.metrics:
        out.append(_text(group.best_on_test, digits[study.metrics.index("mae")]))
    return [*out, group.select, training.in_words(group.differences)] if shown.everything else out


def numbers(study: Study, cell: Cell) -> list[int]:
    """The numbers of the notes on a cell, as printed: notes on the whole table have none."""
    special = [k for k, n in enumerate(study.notes) if not n.general]
    return [1 + special.index(k) for k in cell.notes]


def notes(shown: View) -> list[str]:
    """The notes that the lines refer to, and those on the whole table."""
    study = shown.study
    used = {k for line in shown.lines for k in line.cell.notes}
    special = [k for k, n in enumerate(study.notes) if not n.general]
    return [f"[{1 + special.index(k)}] {study.notes[k].text}" for k in special if k in used] + [
        n.text for n in study.notes if n.general
    ]


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
    printed = [len(c.paper[metric].partition(".")[2]) for c in study.cells if c.paper]
    return max(printed, default=0) or study.figures[metric].digits


def _text(value: float | None, digits: int, sign: str = "") -> str:
    if value is None:
        return DASH
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")  # + 0.0: no negative zero


def _where(group: Group) -> str:
    """The split, where it is not the test images."""
    splits = [s for s in group.of("split") if s not in (None, "test")]
    return f" ({', '.join(map(str, splits))})" if splits else ""


def title(study: Study) -> str:
    """The study in one line."""
    return f"{study.name}: {study.title}" + (f" ({study.where})" if study.where else "")


def markdown(shown: View) -> str:
    """The table as Markdown, its remarks and notes below."""
    head, body = columns(shown), rows(shown)
    out = [f"**{shown.study.title}**" + (f" ({shown.study.where})" if shown.study.where else ""), ""]
    out += ["| " + " | ".join(map(_cell, head)) + " |", "|" + "---|" * len(head)]
    out += ["| " + " | ".join(map(_cell, row)) + " |" for row in body]
    out += ["", caption(shown), "", *(f"- {words}" for words in (*shown.remarks, *notes(shown)))]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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
        "notes": [{"text": n.text, "rows": list(n.rows), "columns": list(n.columns)} for n in study.notes],
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
