"""Entropic optimal transport between annotated points and density maps, balanced (with a dustbin) and unbalanced."""

from papm.transport.costs import Cost, dustbin_for, kernel_radius, reach_of
from papm.transport.costs import create as create_cost
from papm.transport.result import TransportResult
from papm.transport.solve import grid_sinkhorn, sinkhorn

__all__ = [
    "Cost",
    "TransportResult",
    "create_cost",
    "dustbin_for",
    "grid_sinkhorn",
    "kernel_radius",
    "reach_of",
    "sinkhorn",
]
