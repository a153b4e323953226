"""The kernel for several shapes, and what a larger shape does to the top and to the side."""

from __future__ import annotations

import torch

from papm import ggd
from papm.report.charts import Card, Series
from papm.study.figures.base import Asked, Figure, Made, register
from papm.study.figures.sheet import curves, sheet

SIGMA, SHAPES = 4.0, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # the paper's, Table 7
BANDWIDTHS, SHAPE = (2.0, 4.0, 8.0, 16.0), 8.0  # Table 8
NEAR, FAR = 12.0, 30.0  # px


def charts() -> list[Card]:
    """By shape at σ = 4, and by bandwidth at s = 8."""
    near = torch.linspace(0, NEAR, 241, dtype=torch.float64)
    far = torch.linspace(0, FAR, 301, dtype=torch.float64)
    words = {2.0: "s = 2, Gaussian", 8.0: "s = 8, HD-PAPM"}
    by_shape = [
        Series(words.get(s, f"s = {s:g}"), near.tolist(), ggd.kernel(near**2, SIGMA, s).tolist(), k, k)
        for k, s in enumerate(SHAPES)
    ]
    by_sigma = [
        Series(f"σ = {b:g} px", far.tolist(), ggd.kernel(far**2, b, SHAPE).tolist(), k, k)
        for k, b in enumerate(BANDWIDTHS)
    ]
    x, y = "distance from the dot, px", "response, 1 at the dot"
    cross = f"All shapes meet at σ√2 = {SIGMA * 2**0.5:.1f} px, where the response is 1/e."
    wall = "Nearly a disc of radius σ√2: dots within it weigh the same."
    return [
        curves(by_shape, "Kernel by shape, σ = 4 px", cross, x, y),
        curves(by_sigma, "Kernel by bandwidth, s = 8", wall, x, y),
    ]


def draw(asked: Asked) -> Made:
    """The closed form; nothing is measured."""
    return Made(
        sheet(charts(), "The kernel by shape and by bandwidth"), ("k(r) = exp(-(r²/2σ²)^(s/2)), a closed form.",)
    )


FIGURE = register(Figure("kernel-shapes", "the kernel by shape s and by bandwidth σ", "Figure 4", draw))
