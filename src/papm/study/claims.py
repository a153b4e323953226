"""The paper's claims against what was measured: confirmed, not confirmed, refuted, or not measured.

A claim is that a row has a lower figure than another. With d = ours − the other's (mean over seeds, today's settings),

    Var(d) = variance over images + Σ over the two of variance of one seed / number of seeds        interval: d ± t √Var(d)

with Student's t of Welch's degrees of freedom, for few seeds tell little of their own variance. Results that hold the error of
every image are compared image by image. Where one does not, the variance over images is the sum of those behind the two 95 %
intervals, which is far larger: the same images are hard for both. With one seed run-to-run variance is not in the interval,
and where no result has one the choice of images is not; both are said.

    confirmed       the interval lies on the claimed side of zero
    refuted         it lies on the other side
    not confirmed   it holds zero: the difference may be chance
    not measured    a figure is missing, or the two are of different recipes

A claim against several rows is confirmed when it is against each of them, refuted when it is against one; the interval shown is
that of the row it is least sure against.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from papm.study.cells import Claim, Study
from papm.study.results import Group, Result, Seed
from papm.study.show import DASH, digits_of, text_of, view
from papm.text import n_of

VERDICTS = ("confirmed", "not confirmed", "refuted", "not measured")
NORMAL = 1.96  # half the width of a 95 % interval, in standard deviations
Groups = Mapping[tuple[str, str], Group | None]


@dataclass(frozen=True)
class Judged:
    """A claim in one column (or over a change of columns), and what the measurements say."""

    study: Study
    claim: Claim
    columns: tuple[str, ...]
    verdict: str
    printed: float | None  # the paper's difference
    difference: float | None = None
    ends: tuple[float, float] | None = None
    remark: str = ""

    @property
    def text(self) -> str:
        """The claim in words."""
        one = self.claim
        others = (
            one.others[0]
            if len(one.others) == 1
            else "every other"
            if len(one.others) > 2
            else " and ".join(one.others)
        )
        if one.change:
            return f"{one.row} loses less than {others} from {self.columns[0]} to {self.columns[1]}"
        place = f" on {self.columns[0]}" if self.columns[0] else ""
        return f"{one.row} {'below' if one.lower else 'above'} {others}{place}"

    @property
    def figures(self) -> str:
        """The measured difference with its interval."""
        if self.difference is None:
            return DASH
        digits = self.digits
        between = "" if self.ends is None else " ({} to {})".format(*(text_of(e, digits, "+") for e in self.ends))
        return text_of(self.difference, digits, "+") + between

    @property
    def digits(self) -> int:
        """Decimals of the figures."""
        return digits_of(self.study, self.study.metrics.index(self.claim.metric))

    def to_json(self) -> dict[str, Any]:
        """The same for other programs."""
        ends = None if self.ends is None else list(self.ends)
        return {
            "study": self.study.name, "claim": self.text, "metric": self.claim.metric, "columns": list(self.columns),
            "verdict": self.verdict, "paper": self.printed, "difference": self.difference, "interval": ends,
            "remark": self.remark,
        }  # fmt: skip


def judge(study: Study, results: Sequence[Result]) -> list[Judged]:
    """Every claim of a study, column by column; those about cells that were left out of it are too."""
    have = {(c.row, c.column) for c in study.cells}
    asked = [
        (claim, columns)
        for claim in study.claims
        for columns in ([claim.columns] if claim.change else [(c,) for c in claim.columns])
        if all((row, column) in have for row in (claim.row, *claim.others) for column in columns)
    ]
    groups = view(study, results).groups() if asked else {}
    return [_judged(study, claim, columns, groups) for claim, columns in asked]


def _judged(study: Study, claim: Claim, columns: tuple[str, ...], groups: Groups) -> Judged:
    metric = study.metrics.index(claim.metric)
    sign = 1 if claim.lower else -1
    printed = [_printed(study, claim, other, columns, metric) for other in claim.others]
    known = [p for p in printed if p is not None]
    paper = max(known, key=lambda d: sign * d) if len(known) == len(printed) else None
    used = [groups.get((row, column)) for row in (claim.row, *claim.others) for column in columns]
    whole = [g for g in used if g is not None and g.mean(metric) is not None]
    if len(whole) < len(used):
        return Judged(study, claim, columns, "not measured", paper)
    if len({g.recipe for g in whole} - {"own"}) > 1:  # "own": what the row sets, as in a sweep of σ
        return Judged(study, claim, columns, "not measured", paper, remark="results of different recipes")
    found = [_difference(claim, other, columns, groups, metric) for other in claim.others]
    verdicts = [_verdict(sign * one.mean, one.half) for one in found]
    verdict = next(v for v in ("refuted", "not confirmed", "confirmed") if v in verdicts)
    d, half, how = max(found, key=lambda one: sign * one.mean + (one.half or 0.0))
    remark = f"{n_of(min(len(g.seeds) for g in whole), 'seed')}, {how}"
    return Judged(study, claim, columns, verdict, paper, d, None if half is None else (d - half, d + half), remark)


def _verdict(d: float, half: float | None) -> str:
    """Of a difference that the claim says is below zero."""
    if half is None:
        return "not confirmed"
    return "confirmed" if d + half < 0 else "refuted" if d - half > 0 else "not confirmed"


def _terms(claim: Claim, other: str, columns: Sequence[str]) -> Iterator[tuple[float, str, str]]:
    """(sign, row, column) of the figures that a difference is the sum of."""
    for sign, row in ((1.0, claim.row), (-1.0, other)):
        if claim.change:
            yield -sign, row, columns[0]
        yield sign, row, columns[-1]


def _printed(study: Study, claim: Claim, other: str, columns: Sequence[str], metric: int) -> float | None:
    cells = {(c.row, c.column): c.printed(metric) for c in study.cells}
    found = [(sign, cells[row, column]) for sign, row, column in _terms(claim, other, columns)]
    return None if any(v is None for _, v in found) else sum(sign * v for sign, v in found if v is not None)


class _Difference(NamedTuple):
    """A difference, half of its interval, and how images are in it."""

    mean: float
    half: float | None  # None where nothing tells of chance
    how: str


def _difference(claim: Claim, other: str, columns: Sequence[str], groups: Groups, metric: int) -> _Difference:
    terms = [(sign, group) for sign, row, column in _terms(claim, other, columns) if (group := groups[row, column])]
    total = sum(sign * (group.mean(metric) or 0.0) for sign, group in terms)
    several = [v for _, group in terms if len(v := group.values(metric)) > 1]
    parts = [(statistics.variance(v) / len(v), len(v) - 1) for v in several]  # variance, degrees of freedom
    each = _paired(terms) if claim.metric == "mae" else None
    if each is not None:
        parts.append((float(np.var(each, ddof=1) / len(each)), len(each) - 1))
        return _Difference(total, _half(parts), "image by image")
    apart = [_apart(group, claim.metric) for _, group in terms]
    known = [v for v in apart if v is not None]
    whole = len(known) == len(apart)
    how = "images not paired" if whole else "without variance over images"
    if not whole and len(several) < len(terms):
        return _Difference(total, None, how)
    return _Difference(total, _half([*parts, (sum(known), math.inf)]), how)


def _half(parts: Sequence[tuple[float, float]]) -> float:
    """Half of the 95 % interval of a sum of independent parts, (variance, its degrees of freedom) each.

    >>> round(_half([(1.0, math.inf)]), 2), round(_half([(1.0, 2)]), 2), _half([(0.0, 1)])
    (1.96, 4.3, 0.0)
    """
    variance = sum(v for v, _ in parts)
    lack = sum(v**2 / df for v, df in parts)
    freedom = variance**2 / lack if lack > 0 else math.inf
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(variance)


def _paired(terms: Sequence[tuple[float, Group]]) -> NDArray[np.float64] | None:
    """What the difference is in each image; None where errors of the same images are not known."""
    errors = [[_errors(seed) for seed in group.seeds] for _, group in terms]
    sizes = {e.size for seeds in errors for e in seeds}
    if len(sizes) != 1 or max(sizes) < 2:
        return None
    each: NDArray[np.float64] = np.sum([sign * np.mean(seeds, 0) for (sign, _), seeds in zip(terms, errors)], 0)
    return each


def _parts(seed: Seed) -> list[list[Mapping[str, Any]]]:
    """The results of each part of a seed, usually one: several of a part where its training was repeated."""
    return [[r.values for r in same] for _, same in groupby(seed.results, key=lambda r: r.settings)]


def _errors(seed: Seed) -> NDArray[np.float64]:
    """|error| of every image, the parts of a seed one after another, the mean of repetitions; none where a result has none."""
    found = []
    for part in _parts(seed):
        try:
            each = [np.abs(np.array(str(r.get("errors") or "").split(), float)) for r in part]
        except ValueError:
            return np.empty(0)
        if len({e.size for e in each}) > 1 or not each[0].size:
            return np.empty(0)
        found.append(np.mean(each, 0))
    return np.concatenate(found)


def _apart(group: Group, name: str) -> float | None:
    """The variance over images behind the intervals of the results, the mean over seeds."""
    found = [_over_images(seed, name) for seed in group.seeds]
    known = [v for v in found if v is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None


def _over_images(seed: Seed, name: str) -> float | None:
    """The variance of the mean over the parts of a seed, usually one."""
    found = []
    for part in _parts(seed):
        ends = [e for r in part if (e := (r.get("intervals") or {}).get(name)) is not None]
        if len(ends) < len(part):
            return None
        found.append(statistics.fmean(((high - low) / (2 * NORMAL)) ** 2 for low, high in ends))
    return sum(found) / len(found) ** 2


def counted(found: Sequence[Judged]) -> str:
    """How many claims have which verdict."""
    return ", ".join(f"{sum(j.verdict == v for j in found)} {v}" for v in VERDICTS)


HEAD = ["claim", "in", "paper's difference", "measured (95 %)", "verdict", ""]


def rows(found: Sequence[Judged]) -> list[list[str]]:
    """A line for each claim."""
    return [[j.text, j.study.name, text_of(j.printed, j.digits, "+"), j.figures, j.verdict, j.remark] for j in found]


def in_words(found: Sequence[Judged]) -> list[str]:
    """A sentence for each claim."""
    out = []
    for j in found:
        measured = "" if j.difference is None else f": {j.figures}, {j.remark}"
        out.append(f"Claim: {j.text}: {j.verdict}{measured}")
    return out
