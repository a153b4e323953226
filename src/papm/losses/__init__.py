"""Losses on density maps and on point proposals, by name: `papm.losses.create("hd-papm", stride=8)`.

A loss is one file and one `register` line; importing it here makes it known.
"""

from papm.losses import density, regions, transport, unbalanced
from papm.losses.base import CountingLoss, LossContext, create, names, options

__all__ = ["CountingLoss", "LossContext", "create", "density", "names", "options", "regions", "transport", "unbalanced"]
