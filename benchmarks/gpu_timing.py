"""How long a call takes on the GPU, between CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def device_ms(
    function: Callable[[], object], *, warm: int = 1, least: int = 3, most: int = 20, budget: float = 0.2
) -> float:
    """Median time of a call on the GPU, between CUDA events: `least` calls, and up to `most` within `budget` seconds."""
    for _ in range(warm):
        function()
    times: list[float] = []
    while len(times) < least or (sum(times) < 1e3 * budget and len(times) < most):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)
