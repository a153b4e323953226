"""What may be said about the figures: a conclusion, and the table as text, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from papm.report.page import figure, percent
from papm.study.robustness.figures import Figure, Table
from papm.study.robustness.plan import amount, amounts, done
from papm.study.show import DASH
from papm.text import n_of


def conclusion(table: Table) -> str:
    """One sentence: who is best at which distance, where that is more than chance, and where it is not."""
    if not table.whole:
        return "No distance is measured with every method yet."
    if len(table.methods) < 2:
        return cost(table)
    by_winner: dict[str | None, list[float]] = {}
    for distance, winner in table.winners.items():
        by_winner.setdefault(winner, []).append(distance)
    nobody = by_winner.pop(None, [])
    several = [len(f.seeds) > 1 for f in table.figures.values()]
    beginning = "With one seed only for some figures" if any(several) else "In one training each"
    beginning, verb = ("Over the seeds", "is best") if all(several) else (beginning, "errs least")
    said = [
        f"{name} {verb} {_at(distances, table.kind)}{_margin(table, distances)}"
        for name, distances in by_winner.items()
    ]
    if nobody:
        said.append(f"{_at(nobody, table.kind)} no method is clearly better than all the others")
    return f"{beginning}, {'; '.join(said)}."


def _margin(table: Table, distances: Sequence[float]) -> str:
    """By how much the best is below the next, at least."""
    lowest = [sorted(table.figures[m, d].mae for m in table.methods)[:2] for d in distances]
    least = min(1 - first / second for first, second in lowest)
    return f", by {percent(least)}" + (" or more" if len(distances) > 1 else "")


def cost(table: Table) -> str:
    """One sentence: what the largest distance that was measured costs each method."""
    moved = [d for d in table.whole if d]
    if not moved or 0.0 not in table.whole:
        return "What misplaced dots cost is not measured yet."
    distance = moved[-1]
    parts = [
        f"{m} {percent(table.change(m, distance), sign=True)}" + ("" if table.clear(m, distance) else " (unclear)")
        for m in table.methods
    ]
    return f"Dots {done(table.kind)} {amount(distance, table.kind)} change the MAE of {listed(parts)}."


def basis(table: Table) -> str:
    """What 'clearly' means here, and what it leaves out."""
    images = f"the {n_of(table.images, 'test image')}" if table.images else "the test images"
    meant = f"Best or clear: by more than the 95 % interval over {images}"
    if len(table.seeds) > 1:
        return f"{meant}, and with every seed ({', '.join(map(str, table.seeds))})."
    return (
        f"{meant}. There is one seed: how far two trainings of the same method lie apart is not in it; "
        "--seeds 0,1,2 shows that."
    )


def answer(table: Table) -> list[str]:
    """The sentences below the table."""
    return [conclusion(table), *([cost(table)] if len(table.methods) > 1 else []), basis(table)]


def _at(distances: Sequence[float], kind: str = "ring") -> str:
    """
    >>> _at([0.0]), _at([4.0, 8.0, 16.0]), _at([0.0, 0.1], "missed")
    ('with exact dots', 'at 4, 8 and 16 px', 'with exact dots and at 10 %')
    """
    far = amounts([d for d in distances if d], kind)
    words = ["with exact dots"] if 0.0 in distances else []
    return " and ".join(words + ([f"at {listed(far)}"] if far else []))


def listed(words: Sequence[str]) -> str:
    """Words with commas, and an "and" before the last.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# -- the table -----------------------------------------------------------------------------------------------------------


def columns(table: Table) -> list[str]:
    """Headings of the printed table."""
    return ["method", *(amount(d, table.kind) if d else "exact dots" for d in table.distances)]


def rows(table: Table) -> list[list[str]]:
    """Its cells: the MAE and its change, and below them how far it may be off."""
    cells = to_rows(table, "")
    return [[m, *(_text(cell) for cell in cells if cell["method"] == m)] for m in table.methods]


def _text(cell: Mapping[str, Any]) -> str:
    if cell["mae"] is None:
        return DASH
    said = figure(cell["mae"])
    if cell["change"] is not None:
        said += f"  {percent(cell['change'], sign=True)}{'' if cell['change_is_clear'] else ' ?'}"
    return said if cell["low"] is None else f"{said}\n{figure(cell['low'])} to {figure(cell['high'])}"


def to_rows(table: Table, kind: str) -> list[dict[str, Any]]:
    """One mapping per cell, for JSON and CSV; low and high are the range over seeds, or of one seed its 95 % interval."""
    best, nothing = table.winners, Figure((), ())
    made = []
    for method in table.methods:
        for distance in table.distances:
            found, change = table.figures.get((method, distance), nothing), table.change(method, distance)
            low, high = found.spread or (None, None)
            made.append(
                {
                    "method": method,
                    "distance": distance,
                    "kind": kind if distance else "",
                    "mae": found.mae if found.maes else None,
                    "low": low,
                    "high": high,
                    "rmse": found.rmse,
                    "change": change,
                    "change_is_clear": None if change is None else table.clear(method, distance),
                    "best": best.get(distance) == method,
                    "seeds": list(found.seeds),
                }
            )
    return made


def to_csv(table: Table, kind: str) -> str:
    """The same as text."""
    text = io.StringIO()
    lines = to_rows(table, kind)
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**line, "seeds": " ".join(map(str, line["seeds"]))} for line in lines)
    return text.getvalue()
