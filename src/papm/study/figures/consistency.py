"""How consistent responses are: where their peaks lie around the true centres after training on displaced dots.

Peaks are the points that a network gives (local maxima of its map, or its proposals). A peak belongs to a centre when it is the
nearest free one within half the distance to the next centre, at most 16 px. Over all pairs with offset d = peak − centre:

    bias      |mean d|, px              responses that all lie to one side
    spread    √(mean |d − mean d|²), px   responses that lie now here, now there
    found     share of the centres that have a peak

Dots are moved in random directions, so a network that tolerates them keeps a small spread; a bias would be a fault of its
own. Intervals are the middle 95 % of 2000 resamplings of the images; the difference between a method and the one it is built
on is resampled on the same images. Peaks beyond the radius are not found: read spread and found together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papm.metrics.pairing import candidates, first_come
from papm.neighbours import spacing
from papm.predict.prediction import Prediction
from papm.report.charts import Bars, Card, bar_chart
from papm.structures import Sample
from papm.study.figures.base import Asked, Figure, Made, Trainings, drawn_study, register
from papm.study.figures.runs import PAIRS, Trained, images, interval, read_moved, resamples
from papm.study.figures.sheet import sheet
from papm.study.show import text_of
from papm.text import Brief, n_of

FARTHEST = 16.0  # px
METHODS, MOVED = ("gaussian", "hd-papm", "dm-count", "al-papm"), (0.0, 4.0, 8.0)
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Offsets(Brief):
    """Sums over the pairs of each image [n]: pairs, Σdx, Σdy, Σ|d|², and its centres."""

    sums: Array  # [n, 5]

    def __call__(self, index: NDArray[np.int64]) -> dict[str, Array]:
        """Bias, spread and found share of resampled images [..., n]."""
        pairs, x, y, squares, centres = np.moveaxis(self.sums[index].sum(-2), -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            bias = np.hypot(x, y) / pairs
            spread = np.sqrt(np.maximum(0, squares / pairs - bias**2))
            return {"bias": bias, "spread": spread, "found": pairs / centres}


def offsets(predictions: Sequence[Prediction], samples: Sequence[Sample]) -> Offsets:
    """Where the peaks of a network lie around the centres of each image."""
    return Offsets(np.array([_sums(p, s) for p, s in zip(predictions, samples)], dtype=np.float64).reshape(-1, 5))


def _sums(prediction: Prediction, sample: Sample) -> tuple[float, ...]:
    centres = sample.points[sample.inside & sample.counted]
    if prediction.points is None or not len(prediction.points) or not len(centres):
        return 0, 0, 0, 0, len(centres)
    radius = (spacing(centres, 1, alone=2 * FARTHEST) / 2).clamp(max=FARTHEST)
    peaks, truth = prediction.points.double().cpu().numpy(), centres.double().numpy()
    rows, columns, distance = candidates(peaks, truth, radius.double().numpy())
    order = np.argsort(distance, kind="stable")
    taken = order[first_come(rows[order].tolist(), columns[order].tolist())]
    d = peaks[rows[taken]] - truth[columns[taken]]
    return len(d), float(d[:, 0].sum()), float(d[:, 1].sum()), float((d**2).sum()), len(truth)


def trainings(steps: int) -> Trainings:
    """Two pairs of methods at three distances."""
    return ((drawn_study(steps, METHODS, MOVED), (0,)),)


def draw(asked: Asked) -> Made:
    """Spread, bias and share found, a group of bars for each distance."""
    runs = read_moved(asked)
    dataset = images(asked, runs)
    samples = [s for s in dataset if s.count]
    found: dict[tuple[str, float], list[Offsets]] = {}
    for run in runs:
        found.setdefault((run.config.method, run.config.noise), []).append(offsets(run.predict(samples), samples))
    every = {key: _measured(each, len(samples)) for key, each in found.items()}
    where = f"{n_of(len(samples), 'image')} of {dataset.name}, {runs[0].config.backbone}; whiskers: 95 % over images."
    cards = [
        _card(
            every,
            runs,
            "spread",
            "Spread of peaks",
            "root mean square, px",
            f"Around the true centres, by how far training dots were moved. {where}",
        ),
        _card(
            every,
            runs,
            "bias",
            "Bias of peaks",
            "|mean offset|, px",
            "Mean offset of all pairs; 0: no side is preferred.",
        ),
        _card(
            every,
            runs,
            "found",
            "Centres with a peak",
            "share",
            "Within half the distance to the next centre, ≤ 16 px.",
        ),
    ]
    compared = list(_compared(found, len(samples)))
    words = tuple(c.pop("words") for c in compared)
    values = {
        f"{m}, {d:g} px": {k: dict(zip(("value", "low", "high"), v)) for k, v in one.items()}
        for (m, d), one in every.items()
    }
    return Made(sheet(cards, "How consistent responses are"), words, {"measured": values, "compared": compared})


def _resampled(each: Sequence[Offsets], n: int) -> dict[str, tuple[float, Array]]:
    """Value and resampled values, the mean over seeds."""
    whole, index = np.arange(n), resamples(n)
    values, drawn = ([o(i) for o in each] for i in (whole, index))
    return {k: (float(np.mean([v[k] for v in values])), np.mean([v[k] for v in drawn], 0)) for k in values[0]}


def _measured(each: Sequence[Offsets], n: int) -> dict[str, tuple[float, float, float]]:
    return {k: (value, *interval(drawn)) for k, (value, drawn) in _resampled(each, n).items()}


def _card(
    every: Mapping[tuple[str, float], Mapping[str, tuple[float, float, float]]],
    runs: Sequence[Trained],
    key: str,
    title: str,
    label: str,
    remark: str,
) -> Card:
    names = dict.fromkeys((r.config.method, r.name) for r in runs)
    moved = sorted({d for _, d in every})
    bars = []
    for method, name in names:
        columns = [every[method, d][key] if (method, d) in every else (None, None, None) for d in moved]
        bars.append(Bars(name, *([c[k] for c in columns] for k in range(3))))
    return bar_chart([f"{d:g} px" for d in moved], bars, title=title, remark=remark, y_label=label)


def _compared(found: Mapping[tuple[str, float], Sequence[Offsets]], n: int) -> Any:
    """The spread of each method less that of the one it is built on, at each distance that both have."""
    for base, ours in PAIRS:
        for moved in sorted({d for m, d in found if m == ours} & {d for m, d in found if m == base}):
            (a, drawn_a), (b, drawn_b) = (_resampled(found[m, moved], n)["spread"] for m in (ours, base))
            low, high = interval(drawn_a - drawn_b)
            verdict = "more consistent" if high < 0 else "less consistent" if low > 0 else "no difference beyond chance"
            ends = [text_of(v, 2, "+") for v in (a - b, low, high)]
            moving = f"{ours} less {base}, dots moved by {moved:g} px"
            words = f"{moving}: spread {ends[0]} px (95 % {ends[1]} to {ends[2]}): {verdict}"
            yield {
                "method": ours, "base": base, "noise": moved, "difference": a - b, "low": low, "high": high,
                "verdict": verdict, "words": words,
            }  # fmt: skip


FIGURE = register(
    Figure(
        "consistency",
        "bias and spread of response peaks around true centres, by displacement of training dots",
        "a measure of “more consistent responses”, Figure 7",
        draw,
        trainings,
    )
)
