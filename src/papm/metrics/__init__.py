"""How good predictions are: functions over NumPy first, torchmetrics classes over them (loaded when first asked for).

`papm.metrics.counting_errors(predicted, truth)`, `papm.metrics.game.game(density, points, size=(H, W), stride=8)`,
`papm.metrics.qnrf(predicted, truth)` with one array of points per image.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from papm.extras import require
from papm.metrics import counting, game, localization
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
from papm.metrics.localization import PointScore, RadiusScore, box_sigmas, nwpu, within
from papm.metrics.normalized_ap import NapScore, nap
from papm.metrics.qnrf_protocol import QnrfScore, qnrf

if TYPE_CHECKING:
    from papm.metrics.torch_metrics import (
        CountingMetrics,
        GridErrors,
        NormalizedAP,
        NwpuLocalization,
        QnrfLocalization,
        RadiusLocalization,
    )

__all__ = [
    "JHU_LEVELS",
    "NWPU_LEVELS",
    "CountingMetrics",
    "CountingScore",
    "GridErrors",
    "NapScore",
    "NormalizedAP",
    "NwpuLocalization",
    "PairedDifference",
    "PointScore",
    "QnrfLocalization",
    "QnrfScore",
    "RadiusLocalization",
    "RadiusScore",
    "bootstrap",
    "box_sigmas",
    "by_level",
    "counting",
    "counting_errors",
    "game",
    "localization",
    "nap",
    "nwpu",
    "paired_difference",
    "qnrf",
    "within",
]

_TORCH = ("CountingMetrics", "GridErrors", "NormalizedAP", "NwpuLocalization", "QnrfLocalization", "RadiusLocalization")


def __getattr__(name: str) -> Any:
    if name in _TORCH:  # torchmetrics takes seconds to import
        require("train", f"papm.metrics.{name} needs", "torchmetrics")
        return getattr(import_module("papm.metrics.torch_metrics"), name)
    raise AttributeError(f"module 'papm.metrics' has no attribute '{name}'")
