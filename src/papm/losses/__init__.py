"""Losses on density maps and on point proposals: plain functions in `papm.losses.functional`, modules by name here.

`papm.losses.create("hd-papm", stride=8)`. A loss is one function and one `register` line; importing it here makes it known.
"""

from papm.losses import (
    bayesian,
    classes,
    density,
    distil,
    forward_correction,
    functional,
    kdmg,
    noisecc,
    points,
    transport,
    unbalanced,
)
from papm.losses.base import CountingLoss, LossContext, PointLoss
from papm.losses.registry import create, names, options, register

__all__ = [
    "CountingLoss",
    "LossContext",
    "PointLoss",
    "bayesian",
    "classes",
    "create",
    "density",
    "distil",
    "forward_correction",
    "functional",
    "kdmg",
    "names",
    "noisecc",
    "options",
    "points",
    "register",
    "transport",
    "unbalanced",
]
