"""How good predictions are: functions over NumPy first, torchmetrics classes over them (loaded when first asked for).

`papm.metrics.counting_errors(predicted, truth)`, `papm.metrics.game.game(density, points, size=(H, W), stride=8)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from papm.metrics import counting, game
from papm.metrics.counting import (
    JHU_LEVELS,
    NWPU_LEVELS,
    CountingScore,
    PairedDifference,
    bootstrap,
    by_level,
    counting_errors,
    paired_difference,
)

if TYPE_CHECKING:
    from papm.metrics.torch_counting import CountingMetrics

__all__ = [
    "JHU_LEVELS",
    "NWPU_LEVELS",
    "CountingMetrics",
    "CountingScore",
    "PairedDifference",
    "bootstrap",
    "by_level",
    "counting",
    "counting_errors",
    "game",
    "paired_difference",
]


def __getattr__(name: str) -> Any:
    if name == "CountingMetrics":  # torchmetrics takes seconds to import
        from papm.metrics.torch_counting import CountingMetrics

        return CountingMetrics
    raise AttributeError(f"module 'papm.metrics' has no attribute '{name}'")
