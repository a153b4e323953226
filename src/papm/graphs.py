"""CUDA graphs: many small kernels captured once and launched as one.

What is captured must not wait for the device, nor choose its operations by looking at values on it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def new_pool() -> Any:
    """Memory for graphs that never run at the same time. Each owner of graphs has its own: a pool ends with its last graph."""
    return torch.cuda.graph_pool_handle()


def capture(function: Callable[[], Result], warm: int = 2, pool: Any = None) -> tuple[Callable[[], None], Result]:
    """Capture `function()` on the current device: how to run it again, and its result, which every run overwrites.

    It runs `warm` times before, on a stream aside as capturing asks: kernels are built and workspaces allocated there.
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
    with _no_collection(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = function()
    return graph.replay, result


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is collected now and not inside: the end of another graph there would end this capture."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def round_up(n: int) -> int:
    """A length with few distinct values: powers of two from 64 to 2048, then multiples of 1024.

    >>> [round_up(k) for k in (0, 65, 2000, 3000)]
    [64, 128, 2048, 3072]
    """
    return max(64, 1 << (n - 1).bit_length()) if n <= 2048 else -(-n // 1024) * 1024
