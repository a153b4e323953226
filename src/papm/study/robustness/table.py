"""The figures: what each method reaches at each distance, how sure that is, and what may be said about it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from papm.errors import PapmError
from papm.metrics.counting import paired_difference
from papm.report.load import interval, number, read_counted
from papm.report.page import figure, percent
from papm.study.results import Group, Result, assign
from papm.study.robustness.plan import in_pixels
from papm.study.tables import Study
from papm.text import n_of

DASH = "–"


@dataclass(frozen=True)
class Figure:
    """The MAE of one method at one distance: one per seed, and the mean |error| over seeds of every test image."""

    maes: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    rmse: float | None = None
    interval: tuple[float, float] | None = None  # 95 % over images, the mean of the seeds' ends
    errors: Mapping[str, float] = field(default_factory=dict)  # empty where the run folders are gone

    @property
    def mae(self) -> float:
        """Mean over seeds."""
        return fmean(self.maes)

    @property
    def spread(self) -> tuple[float, float] | None:
        """The range over seeds; of a single one, its interval over images."""
        return (min(self.maes), max(self.maes)) if len(self.maes) > 1 else self.interval


@dataclass(frozen=True)
class Table:
    """Figures by (method, distance), a method with settings of its own being another; those not measured yet are absent."""

    methods: tuple[str, ...]
    distances: tuple[float, ...]
    figures: Mapping[tuple[str, float], Figure]

    def get(self, method: str, distance: float) -> Figure | None:
        """The figure of one cell."""
        return self.figures.get((method, distance))

    def change(self, method: str, distance: float) -> float | None:
        """How much larger the MAE is than with exact dots, as a share of it; None where one of the two is missing.

        >>> t = Table(("gl",), (0.0, 8.0), {("gl", 0.0): Figure((10.0,)), ("gl", 8.0): Figure((12.5,))})
        >>> t.change("gl", 8.0)
        0.25
        """
        exact, moved = self.get(method, 0.0), self.get(method, distance)
        if not distance or exact is None or moved is None or not exact.mae:
            return None
        return moved.mae / exact.mae - 1

    def clear(self, method: str, distance: float) -> bool:
        """Whether that change is more than chance explains."""
        exact, moved = self.get(method, 0.0), self.get(method, distance)
        if exact is None or moved is None:
            return False
        return clearly_less(exact, moved) or clearly_less(moved, exact)

    @property
    def whole(self) -> tuple[float, ...]:
        """Distances that every method is measured at."""
        return tuple(d for d in self.distances if all((m, d) in self.figures for m in self.methods))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of any figure."""
        return tuple(sorted({s for f in self.figures.values() for s in f.seeds}))

    @property
    def images(self) -> int | None:
        """Test images behind the figures; None where the runs are gone."""
        return max((len(f.errors) for f in self.figures.values()), default=0) or None


def clearly_less(a: Figure, b: Figure) -> bool:
    """Whether a's MAE is lower than b's by more than chance explains.

    Over images: the paired 95 % bootstrap interval of the difference leaves out zero (without the counts of each image, the
    two intervals do not touch). Over seeds, where there are several: every seed of a is below every seed of b.
    """
    if not a.mae < b.mae:
        return False
    if max(len(a.maes), len(b.maes)) > 1 and max(a.maes) >= min(b.maes):
        return False
    if a.errors and a.errors.keys() == b.errors.keys():
        names = sorted(a.errors)
        gap = paired_difference([a.errors[n] for n in names], [b.errors[n] for n in names], [0.0] * len(names))
        return gap.verdict == "better"
    return a.interval is not None and b.interval is not None and a.interval[1] < b.interval[0]


def winners(table: Table) -> dict[float, str | None]:
    """For each distance that all methods are measured at, the one that is clearly better than every other, if any."""
    found: dict[float, str | None] = {}
    for distance in table.whole:
        every = {m: table.figures[m, distance] for m in table.methods}
        best = min(every, key=lambda m: every[m].mae)
        clear = all(clearly_less(every[best], f) for m, f in every.items() if m != best)
        found[distance] = best if clear else None
    return found


# -- words ---------------------------------------------------------------------------------------------------------------


def conclusion(table: Table) -> str:
    """One sentence: who is best at which distance, where that is more than chance, and where it is not."""
    if not table.whole:
        return "No distance is measured with every method yet."
    if len(table.methods) < 2:
        return cost(table)
    by_winner: dict[str | None, list[float]] = {}
    for distance, winner in winners(table).items():
        by_winner.setdefault(winner, []).append(distance)
    nobody = by_winner.pop(None, [])
    beginning, verb = _seeds_in_words(table)
    said = [f"{name} {verb} {_at(distances)}{_margin(table, distances)}" for name, distances in by_winner.items()]
    if nobody:
        said.append(f"{_at(nobody)} no method is clearly better than all the others")
    return f"{beginning}{'; '.join(said)}."


def _seeds_in_words(table: Table) -> tuple[str, str]:
    """How the sentence begins, and what it says of a winner: one training speaks for itself, not for its method."""
    several = [len(f.seeds) > 1 for f in table.figures.values()]
    if all(several):
        return "Over the seeds, ", "is best"
    return ("With one seed only for some figures, " if any(several) else "In one training each, "), "errs least"


def _margin(table: Table, distances: Sequence[float]) -> str:
    """By how much the best is below the next, at least."""
    least = 1.0
    for d in distances:
        first, second = sorted(table.figures[m, d].mae for m in table.methods)[:2]
        least = min(least, 1 - first / second)
    return f", by {percent(least)}" + (" or more" if len(distances) > 1 else "")


def cost(table: Table) -> str:
    """One sentence: what the largest distance that was measured costs each method."""
    moved = [d for d in table.whole if d]
    if not moved or 0.0 not in table.whole:
        return "What misplaced dots cost is not measured yet."
    distance = moved[-1]
    parts = []
    for method in table.methods:
        change = percent(table.change(method, distance), sign=True)
        parts.append(f"{method} {change}" + ("" if table.clear(method, distance) else " (unclear)"))
    return f"Dots moved by {in_pixels(distance)} change the MAE of {listed(parts)}."


def basis(table: Table) -> str:
    """What 'clearly' means here, and what it leaves out."""
    images = f"the {n_of(table.images, 'test image')}" if table.images else "the test images"
    if len(table.seeds) > 1:
        return (
            f"Best or clear: by more than the 95 % interval over {images}, and with every seed "
            f"({', '.join(map(str, table.seeds))})."
        )
    return (
        f"Best or clear: by more than the 95 % interval over {images}. There is one seed: how far two trainings "
        "of the same method lie apart is not in it; --seeds 0,1,2 shows that."
    )


def _at(distances: Sequence[float]) -> str:
    """
    >>> _at([0.0]), _at([4.0, 8.0, 16.0]), _at([0.0, 4.0])
    ('with exact dots', 'at 4, 8 and 16 px', 'with exact dots and at 4 px')
    """
    far = [d for d in distances if d]
    words = ["with exact dots"] if 0.0 in distances else []
    if far:
        words.append(f"at {listed([f'{d:g}' for d in far])} px")
    return " and ".join(words)


def listed(words: Sequence[str]) -> str:
    """Words with commas, and an "and" before the last.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# -- from results, and to files ------------------------------------------------------------------------------------------


def build(study: Study, results: Sequence[Result], select: str, runs: Path) -> Table:
    """The table of a study, from results with its settings; `runs` is where the run folders are."""
    figures: dict[tuple[str, float], Figure] = {}
    for cell, groups in zip(study.cells, assign(study, results)):
        chosen = [g for g in groups if g.select == select and not g.differences and g.seeds]
        if chosen and (made := _figure(chosen[0], runs)) is not None:
            figures[cell.row, float(cell.settings["noise"])] = made
    methods = dict.fromkeys(c.row for c in study.cells)
    distances = dict.fromkeys(float(c.settings["noise"]) for c in study.cells)
    return Table(tuple(methods), tuple(sorted(distances)), figures)


def used(study: Study, results: Sequence[Result], select: str) -> list[dict[str, Any]]:
    """The results behind the table, one object a training."""
    groups = [g for some in assign(study, results) for g in some if g.select == select and not g.differences]
    return [dict(r.values) for g in groups for s in g.seeds for r in s.results]


def _figure(group: Group, runs: Path) -> Figure | None:
    known = [s for s in group.seeds if s.figures[0] is not None]
    if not known:
        return None
    every = [r for s in known for r in s.results]
    ends = [interval(r.values, "mae") for r in every]
    between = [e for e in ends if e is not None]
    rmses = [v for r in every if (v := number(r.values, "rmse")) is not None]
    return Figure(
        maes=tuple(float(s.figures[0] or 0.0) for s in known),
        seeds=tuple(s.seed for s in known),
        rmse=fmean(rmses) if rmses else None,
        interval=(fmean(e[0] for e in between), fmean(e[1] for e in between)) if len(between) == len(every) else None,
        errors=_errors(every, runs),
    )


def _errors(results: Iterable[Result], runs: Path) -> dict[str, float]:
    """Mean |error| of every image over these trainings; empty unless each has its run folder."""
    found: dict[str, list[float]] = {}
    for result in results:
        folder = runs / str(result.values["dataset"]) / result.path.stem
        try:
            counted = read_counted(folder / "predictions.csv")
        except PapmError:
            return {}
        mae = number(result.values, "mae")
        if not counted or mae is None or abs(fmean(abs(c.error) for c in counted) - mae) > 1e-3 * max(1.0, mae):
            return {}  # of another training
        for one in counted:
            found.setdefault(one.image, []).append(abs(one.error))
    return {image: fmean(values) for image, values in found.items()}


def columns(table: Table) -> list[str]:
    """Headings of the printed table."""
    return ["method", *(f"{in_pixels(d)} dots" if not d else in_pixels(d) for d in table.distances)]


def rows(table: Table) -> list[list[str]]:
    """Its cells: the MAE and its change, and below them how far it may be off."""
    return [[m, *(_cell(table, m, d) for d in table.distances)] for m in table.methods]


def _cell(table: Table, method: str, distance: float) -> str:
    found = table.get(method, distance)
    if found is None:
        return DASH
    change = table.change(method, distance)
    first = figure(found.mae) + (
        "" if change is None else f"  {percent(change, sign=True)}{'' if table.clear(method, distance) else ' ?'}"
    )
    return first if found.spread is None else f"{first}\n{figure(found.spread[0])} to {figure(found.spread[1])}"


def to_rows(table: Table, kind: str) -> list[dict[str, Any]]:
    """One mapping per cell, for JSON and CSV."""
    best = winners(table)
    made = []
    for method in table.methods:
        for distance in table.distances:
            found = table.get(method, distance)
            low, high = (found and found.spread) or (None, None)
            change = table.change(method, distance)
            made.append(
                {
                    "method": method,
                    "distance": distance,
                    "kind": kind if distance else "",
                    "mae": found and found.mae,
                    "low": low,
                    "high": high,
                    "rmse": found and found.rmse,
                    "change": change,
                    "change_is_clear": None if change is None else table.clear(method, distance),
                    "best": best.get(distance) == method,
                    "seeds": list(found.seeds) if found else [],
                }
            )
    return made


def to_csv(table: Table, kind: str) -> str:
    """The same as text; low and high are the range over seeds, or of one seed the 95 % interval over images."""
    text = io.StringIO()
    lines = to_rows(table, kind)
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({**line, "seeds": " ".join(map(str, line["seeds"]))})
    return text.getvalue()
