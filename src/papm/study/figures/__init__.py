"""The paper's figures as commands: one file each, found by name in `FIGURES`."""

from papm.study.figures import (
    click_positions,
    consistency,
    cost_shapes,
    kernel_shapes,
    predictions,
    response_difference,
    sweep,
    vehicle_maps,
)
from papm.study.figures.base import FIGURES, Asked, Figure, Made

__all__ = [
    "FIGURES", "Asked", "Figure", "Made", "click_positions", "consistency", "cost_shapes", "kernel_shapes", "predictions",
    "response_difference", "sweep", "vehicle_maps",
]  # fmt: skip
