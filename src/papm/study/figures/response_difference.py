"""How far responses move when training dots do: networks trained on displaced dots against the one trained on exact dots.

For an image and two maps A, B of the same network trained on dots moved by d and by 0 px,

    difference = Σ|A − B| / ½(ΣA + ΣB)        0: the same map; 2: maps that share no mass

and the bar is the mean over images, its whisker the middle 95 % of 2000 resamplings of the images. Two trainings differ even
when nothing moved: the bar of another seed at 0 px says by how much, and only what rises above it is the displacement's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from papm.errors import ConfigError
from papm.predict.prediction import Prediction
from papm.report.charts import Bars, bar_chart
from papm.report.svg import WIDTH
from papm.structures import Sample
from papm.study.figures.base import Asked, Figure, Made, Trainings, drawn_study, register
from papm.study.figures.runs import Trained, images, interval, read_moved, resamples
from papm.study.figures.sheet import sheet
from papm.text import n_of

METHODS, MOVED = ("gaussian", "hd-papm"), (0.0, 2.0, 4.0, 8.0)  # the paper's
OTHER_SEED = "0 px, other seed"


def difference(a: Tensor, b: Tensor) -> float:
    """Σ|A − B| / ½(ΣA + ΣB) of two maps.

    >>> import torch
    >>> one = torch.tensor([[1.0, 0.0]])
    >>> difference(one, one), difference(one, one.flip(1))
    (0.0, 2.0)
    """
    mass = float(a.double().sum() + b.double().sum()) / 2
    return float((a.double() - b.double()).abs().sum()) / mass if mass > 0 else 0.0


def trainings(steps: int) -> Trainings:
    """The two targets at four distances, and once more from another seed at 0 px."""
    return (drawn_study(steps, METHODS, MOVED), (0,)), (drawn_study(steps, METHODS), (1,))


def draw(asked: Asked) -> Made:
    """A group of bars for each distance, a bar for each method."""
    runs = read_moved(asked)
    dataset = images(asked, runs)
    samples = list(dataset)
    found = {method: _differences(mine, samples) for method, mine in _by_method(runs).items()}
    groups = list(dict.fromkeys(g for each in found.values() for g in each))
    groups.sort(key=lambda g: (g != OTHER_SEED, float(g.split()[0])))
    bars, values = [], dict[str, dict[str, dict[str, float]]]()
    index = resamples(len(samples))
    for name, each in found.items():
        ends = {g: interval(v[index].mean(1)) for g, v in each.items()}
        means = {g: float(v.mean()) for g, v in each.items()}
        bars.append(
            Bars(
                name,
                [means.get(g) for g in groups],
                *([ends[g][k] if g in ends else None for g in groups] for k in (0, 1)),
            )
        )
        values[name] = {g: {"mean": means[g], "low": ends[g][0], "high": ends[g][1]} for g in each}
    where = f"{n_of(len(samples), 'image')} of {dataset.name}, {runs[0].config.backbone}"
    remark = (
        f"Difference: Σ|A − B| / ½(ΣA + ΣB) between the map of a network trained on dots moved so far and of the one trained "
        f"on exact dots; 0 is the same map, 2 no common mass. Mean over {where}; whiskers: 95 % over images."
    )
    card = bar_chart(
        groups,
        bars,
        title="Responses after training on displaced dots",
        remark=remark,
        y_label="difference of responses, share of the count",
        width=1.35 * WIDTH,
    )
    return Made(sheet([card], card.title), (remark,), values)


def _by_method(runs: Sequence[Trained]) -> dict[str, list[Trained]]:
    out: dict[str, list[Trained]] = {}
    for run in runs:
        out.setdefault(run.name, []).append(run)
    for name, mine in out.items():
        if not any(r.config.noise == 0 for r in mine) or len(mine) < 2:
            raise ConfigError(f"{name}: give a run trained on exact dots (noise=0) and at least one on displaced dots")
    return out


def _differences(runs: Sequence[Trained], samples: Sequence[Sample]) -> Mapping[str, NDArray[np.float64]]:
    """Group → the difference in each image."""
    first, *others = runs  # in order of distance, then of seed
    base = _maps(first, samples)
    out: dict[str, list[NDArray[np.float64]]] = {}
    for run in others:
        made = _maps(run, samples)
        if any(a.shape != b.shape for a, b in zip(made, base)):
            raise ConfigError(
                f"{run.folder}: its maps are not of the size of those of {first.folder}; compare one network"
            )
        group = f"{run.config.noise:g} px" if run.config.noise else OTHER_SEED
        out.setdefault(group, []).append(np.array([difference(a, b) for a, b in zip(made, base)]))
    return {g: np.mean(each, 0) for g, each in out.items()}


def _maps(run: Trained, samples: Sequence[Sample]) -> list[Tensor]:
    found: list[Prediction] = run.predict(samples)
    maps = [p.density for p in found if p.density is not None]
    if len(maps) < len(found):
        raise ConfigError(f"{run.folder}: {run.config.method} gives points and no map to compare")
    return maps


FIGURE = register(
    Figure(
        "response-difference",
        "how far responses differ after training on displaced dots",
        "Figure 1C",
        draw,
        trainings,
    )
)
