"""The transport cost by bandwidth, by shape, and beside other costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from papm import ggd
from papm.report.charts import Card, Series
from papm.study.figures.base import Asked, Figure, Made, register
from papm.study.figures.sheet import curves, sheet
from papm.transport import Cost

LIMIT = 1500.0  # of the axis, px²: four times what leaving mass where it is costs
DUSTBIN = 10 * math.log(1e16)  # of leaving it, at ε = 10
GREY = 6  # in the palette


def charts() -> list[Card]:
    """By σ at s = 2, by s at σ = 16, and costs by name."""
    r = torch.linspace(0, 40, 801, dtype=torch.float64)
    by_sigma = {f"σ = {s:g} px": ggd.transport_cost(r**2, s, 2.0) for s in (4.0, 8.0, 16.0, 32.0)}
    by_shape = {f"s = {s:g}": ggd.transport_cost(r**2, 16.0, s) for s in (0.5, 1.0, 2.0, 4.0, 8.0)}
    others = {
        "r² (L2)": Cost("l2")(r**2),
        "log-GGD, σ = 16, s = 4": Cost("log-ggd", 16.0, 4.0)(r**2),
        "GGD-L1, σ = 16, s = 2": Cost("ggd-l1", 16.0, 2.0)(r**2),
        "GGD-L2, σ = 16, s = 2": Cost("ggd-l2", 16.0, 2.0)(r**2),
    }
    bin_words = f"Grey: leaving mass where it is costs {DUSTBIN:.0f}; far above it the shape of a cost has no effect."
    return [
        _chart(r, by_sigma, "GGD-L2 cost by bandwidth, s = 2", bin_words),
        _chart(r, by_shape, "GGD-L2 cost by shape, σ = 16 px", "Whatever s, e·r² at σ√2 = 22.6 px."),
        _chart(r, others, "Costs by name", "L2 and GGD-L2 are in px², GGD-L1 in px, log-GGD has no unit.", "cost"),
    ]


def _chart(r: Tensor, named: Mapping[str, Tensor], title: str, remark: str, label: str = "cost, px²") -> Card:
    """Curves up to the limit of the axis, and the cost of the dustbin."""
    series = []
    for k, (name, cost) in enumerate(named.items()):
        kept = cost <= LIMIT
        series.append(Series(name, r[kept].tolist(), cost[kept].tolist(), k, k))
    series.append(Series("leaving it", [0.0, float(r[-1])], [DUSTBIN, DUSTBIN], GREY, 2))
    return curves(series, title, remark, "distance from the dot, px", label)


def draw(asked: Asked) -> Made:
    """Closed forms; nothing is measured."""
    return Made(sheet(charts(), "The transport cost"), ("c(r) = r²·exp((r²/2σ²)^(s/2)) and others, closed forms.",))


FIGURE = register(
    Figure("cost-shapes", "the transport cost by σ, by s, and beside other costs", "Figures 5 and 6", draw)
)
