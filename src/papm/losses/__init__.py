"""Losses on density maps and on point proposals, by name: `papm.losses.create("hd-papm", stride=8)`.

A loss is one file and one `register` line; importing it here makes it known.
"""

from papm.losses import bayesian, classes, density, forward, kdmg, noisecc, points, transport, unbalanced
from papm.losses.base import CountingLoss, LossContext, PointLoss, create, names, options

__all__ = [
    "CountingLoss",
    "LossContext",
    "PointLoss",
    "bayesian",
    "classes",
    "create",
    "density",
    "forward",
    "kdmg",
    "names",
    "noisecc",
    "options",
    "points",
    "transport",
    "unbalanced",
]
