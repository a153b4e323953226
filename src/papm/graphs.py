"""CUDA graphs: many small kernels recorded once and launched as one.

What is recorded must not wait for the device, nor choose its operations by looking at values on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


@functools.lru_cache(maxsize=16)
def _pool(device: int) -> Any:
    """One memory pool for all graphs of a device: what they compute on the way is never live at the same time."""
    return torch.cuda.graph_pool_handle()


def capture(function: Callable[[], Result], warm: int = 2) -> tuple[Callable[[], None], Result]:
    """Record `function()` on the current device: how to run it again, and its result, which every run fills anew.

    It runs `warm` times before, on a stream aside as recording asks: kernels are built and workspaces allocated there.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads (loaders, loggers) may go on using the device meanwhile.
    with torch.cuda.graph(graph, pool=_pool(torch.cuda.current_device()), capture_error_mode="thread_local"):
        result = function()
    return graph.replay, result


def round_up(n: int) -> int:
    """A length with few distinct values: powers of two from 64 to 2048, then multiples of 1024.

    >>> [round_up(k) for k in (0, 65, 2000, 3000)]
    [64, 128, 2048, 3072]
    """
    return max(64, 1 << (n - 1).bit_length()) if n <= 2048 else -(-n // 1024) * 1024
