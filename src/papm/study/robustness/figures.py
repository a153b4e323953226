"""What each method reaches at each distance, and which differences are more than chance explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from papm.errors import PapmError
from papm.metrics.counting import paired_difference
from papm.report.load import interval, number, read_counted
from papm.study.results import Group, Result
from papm.study.show import View


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


@dataclass(frozen=True)
class Table:
    """Figures by (method, distance), a method with settings of its own being another; those not measured yet are absent."""

    methods: tuple[str, ...]
    distances: tuple[float, ...]
    figures: Mapping[tuple[str, float], Figure]
    kind: str = "ring"  # of displacement, or of blunder, of which a distance is then the share

    def change(self, method: str, distance: float) -> float | None:
        """How much larger the MAE is than with exact dots, as a share of it; None where one of the two is missing.

        >>> t = Table(("gl",), (0.0, 8.0), {("gl", 0.0): Figure((10.0,)), ("gl", 8.0): Figure((12.5,))})
        >>> t.change("gl", 8.0)
        0.25
        """
        exact, moved = self.figures.get((method, 0.0)), self.figures.get((method, distance))
        if not distance or exact is None or moved is None or not exact.mae:
            return None
        return moved.mae / exact.mae - 1

    def clear(self, method: str, distance: float) -> bool:
        """Whether that change is more than chance explains."""
        exact, moved = self.figures.get((method, 0.0)), self.figures.get((method, distance))
        if exact is None or moved is None:
            return False
        return clearly_less(exact, moved) or clearly_less(moved, exact)

    @property
    def whole(self) -> tuple[float, ...]:
        """Distances that every method is measured at."""
        return tuple(d for d in self.distances if all((m, d) in self.figures for m in self.methods))

    @property
    def winners(self) -> dict[float, str | None]:
        """For each distance that all methods are measured at, the one that is clearly better than every other, if any."""
        found: dict[float, str | None] = {}
        for distance in self.whole:
            every = {m: self.figures[m, distance] for m in self.methods}
            best = min(every, key=lambda m: every[m].mae)
            clear = all(clearly_less(every[best], f) for m, f in every.items() if m != best)
            found[distance] = best if clear else None
        return found

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of any figure."""
        return tuple(sorted({s for f in self.figures.values() for s in f.seeds}))

    @property
    def images(self) -> int | None:
        """Test images behind the figures; None where the runs are gone."""
        return max((len(f.errors) for f in self.figures.values()), default=0) or None


def build(shown: View, runs: Path) -> Table:
    """The table of a study with its results; `runs` is where the run folders are."""
    figures: dict[tuple[str, float], Figure] = {}
    for line in shown.lines:
        if line.group is not None and (made := _figure(line.group, runs)) is not None:
            figures[line.cell.row, float(line.cell.settings["noise"])] = made
    methods = dict.fromkeys(c.row for c in shown.study.cells)
    distances = dict.fromkeys(float(c.settings["noise"]) for c in shown.study.cells)
    kinds = (str(c.settings["noise_kind"]) for c in shown.study.cells if c.settings.get("noise_kind"))
    return Table(tuple(methods), tuple(sorted(distances)), figures, next(kinds, "ring"))


def _figure(group: Group, runs: Path) -> Figure | None:
    known = {s.seed: mae for s in group.seeds if (mae := s.figures[0]) is not None}
    if not known:
        return None
    every = [r for s in group.seeds if s.seed in known for r in s.results]
    ends = [e for r in every if (e := interval(r.values, "mae")) is not None]
    return Figure(
        maes=tuple(known.values()),
        seeds=tuple(known),
        rmse=group.mean(1),
        interval=(fmean(e[0] for e in ends), fmean(e[1] for e in ends)) if len(ends) == len(every) else None,
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
