"""What displaced dots cost, and whether PAPM minds them less than its base: the answer of a study with `pairs`.

Figures are means over seeds. A difference is taken seed by seed, for both trainings of a seed have the same displaced dots; its
interval is Student's, 95 %, over the seeds: mean ± t·s/√n. How much chance the test images leave is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from scipy import stats

from papm.report import page
from papm.study.results import Result
from papm.study.robustness import figures, words
from papm.study.robustness.figures import Table
from papm.study.robustness.page import line_charts
from papm.study.robustness.plan import amount
from papm.study.show import view
from papm.study.tables import Study
from papm.text import n_of


@dataclass(frozen=True)
class Difference:
    """Of two MAEs, seed by seed; the ends are None with one seed."""

    mean: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> Difference:
        """
        >>> print(Difference.of([1.0, 2.0, 3.0]), Difference.of([1.0]))
        +2.00 (-0.48 to +4.48) +1.00 (one seed)
        """
        mean, n = fmean(values), len(values)
        if n < 2:
            return Difference(mean)
        half = float(stats.t.ppf(0.975, n - 1)) * stdev(values) / math.sqrt(n)
        return Difference(mean, mean - half, mean + half)

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        ends = "one seed" if self.low is None else f"{self.low:+.2f} to {self.high:+.2f}"
        return f"{self.mean:+.2f} ({ends})"


def difference(table: Table, one: tuple[str, float], other: tuple[str, float]) -> Difference | None:
    """MAE of `one` (row, distance) less that of `other`, over the seeds that both have."""
    found = [dict(zip(f.seeds, f.maes)) for k in (one, other) if (f := table.figures.get(k)) is not None]
    seeds = sorted(found[0].keys() & found[1].keys()) if len(found) == 2 else []
    return Difference.of([found[0][s] - found[1][s] for s in seeds]) if seeds else None


def table_of(study: Study, results: Sequence[Result], runs: Path, select: str = "last") -> Table:
    """The figures of a study whose columns are distances."""
    return figures.build(view(study, list(results), select=select), runs)


def answer(table: Table, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """What the table shows, in sentences: the conclusion first, then each pair at each distance."""
    far = max(table.distances)
    costs = {m: d for m in table.methods if (d := difference(table, (m, far), (m, 0.0))) is not None}
    gains = {p: d for p in pairs if (d := difference(table, (p[1], far), (p[0], far))) is not None}
    if not costs or not gains:
        return [f"Not measured yet: what dots displaced by {amount(far, table.kind)} cost."]
    seen = [m for m, d in costs.items() if d.clear and d.mean > 0]
    better = [p for p, d in gains.items() if d.mean < 0]
    sure = [p for p, d in gains.items() if d.clear]
    rise = fmean(c for m in costs if (c := table.change(m, far)) is not None)
    seeds = n_of(len(table.seeds), "seed")
    said = [
        f"Dots displaced by {amount(far, table.kind)} raise the MAE by {100 * rise:.0f} % on average; {_lost(costs, seen)}.",
        f"PAPM has the lower MAE there in {len(better)} of {n_of(len(gains), 'pair')}, {_sure(gains, sure)}.",
    ]
    for (base, papm), gain in gains.items():
        both = [difference(table, (m, far), (m, 0.0)) for m in (base, papm)]
        lost = f"{papm} loses {both[1]}, {base} {both[0]}" if all(both) else ""
        said.append(f"{papm} less {base} at {amount(far, table.kind)}: {gain}, {_verdict(gain)}; {lost} to exact dots.")
    said.append(f"In brackets: 95 % interval of the difference over {seeds}, Student's t.")
    return said


def _lost(costs: dict[str, Difference], seen: Sequence[str]) -> str:
    """How many methods lose more than chance explains, where there are seeds to say it."""
    told = [d for d in costs.values() if d.low is not None]
    if not told:
        return "how much of it is chance, one seed each does not say"
    return f"{len(seen)} of {n_of(len(told), 'method')} with several seeds lose more than chance explains"


def _sure(gains: dict[tuple[str, str], Difference], sure: Sequence[tuple[str, str]]) -> str:
    """In how many pairs the difference is more than chance, and for whom, where there are seeds to say it."""
    if all(d.low is None for d in gains.values()):
        return "which one seed each does not tell from chance"
    if not sure:
        return "in none of them by more than chance explains"
    named = [f"{p[1] if gains[p].mean < 0 else p[0]} is better" for p in sure]
    return f"and the difference is more than chance explains in {len(sure)} ({words.listed(named)})"


def _verdict(gain: Difference) -> str:
    if not gain.clear:
        return "which chance may explain"
    return "better by more than chance" if gain.mean < 0 else "worse by more than chance"


def write_page(study: Study, table: Table, path: Path) -> Path:
    """The answer, the table and the curves as a page."""
    return page.render(
        "study.html.j2",
        path,
        title=study.title,
        kind="Displaced dots",
        lead=["Training dots are moved once, before training; test dots are exact."],
        warnings=page.said((len(table.seeds) < 2, "One seed: how far two trainings lie apart is not known.")),
        answer=answer(table, study.pairs),
        heading=("MAE, objects per image", "lower is better; in percent, the change against exact dots"),
        columns=words.columns(table),
        rows=words.rows(table),
        best=set(),
        caption="Below each figure: the lowest and the highest of the seeds. A question mark: chance may explain the change.",
        charts=line_charts(table),
        pictures=[],
        facts=[("seeds", ", ".join(map(str, table.seeds)))],
    )
