"""CUDA graphs: many small kernels recorded once per shape and replayed with one launch.

Recorded graphs are kept in a small least-recently-used cache; shapes are rounded up by the callers so that few are needed.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.errors import ConfigError
from papm.transport import reference
from papm.transport.windows import WindowProblem

MAX_GRAPHS = 16
Function = Callable[..., tuple[Tensor, ...]]
Recorded = tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, ...]]
_cache: OrderedDict[Hashable, Recorded] = OrderedDict()


@functools.lru_cache(maxsize=16)
def _pool(device: torch.device) -> Any:
    """One memory pool for all graphs of a device: what they compute on the way is never live at the same time."""
    return torch.cuda.graph_pool_handle()


def replay(key: Hashable, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
    """function(*inputs), from the graph recorded under `key` and the inputs' shapes; runs it plainly inside a capture."""
    if torch.cuda.is_current_stream_capturing():
        return function(*inputs)
    full = (key, *((t.shape, t.dtype, t.device) for t in inputs))
    if full in _cache:
        _cache.move_to_end(full)
    else:
        with torch.cuda.device(inputs[0].device):
            _cache[full] = _record(function, inputs)
        while len(_cache) > MAX_GRAPHS:
            _cache.popitem(last=False)
    graph, static, outputs = _cache[full]
    for to, new in zip(static, inputs):
        to.copy_(new)
    graph.replay()
    return tuple(t.clone() for t in outputs)


def _record(function: Function, inputs: tuple[Tensor, ...]) -> Recorded:
    """Run aside, then record on copies of the inputs that every replay fills anew."""
    static = [t.clone() for t in inputs]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # lazy set-up must not be recorded
        for _ in range(2):
            function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool(inputs[0].device)):
        outputs = function(*static)
    return graph, static, outputs


def round_up(n: int) -> int:
    """A length with few distinct values: powers of two from 64 to 2048, then multiples of 1024.

    >>> [round_up(k) for k in (0, 65, 2000, 3000)]
    [64, 128, 2048, 3072]
    """
    return max(64, 1 << (n - 1).bit_length()) if n <= 2048 else -(-n // 1024) * 1024


def solve(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(u, v) after `iterations`: the torch path on the windows, recorded."""
    if not a.is_cuda:
        raise ConfigError("the graph transport solver runs on CUDA only; use solver 'auto'")
    p, n = problem, a.shape[1]
    extra = round_up(n) - n

    def run(xy: Tensor, a_: Tensor, b_: Tensor, u_: Tensor) -> tuple[Tensor, Tensor]:
        static = WindowProblem(xy, p.size, p.stride, p.cost, p.reg, p.window)
        return reference.scaling(static, a_, b_, u_, floor, iterations)

    key = ("sparse", p.size, p.stride, p.cost, p.reg, p.window, floor, iterations)
    u, v = replay(key, run, F.pad(p.xy, (0, 0, 0, extra)), F.pad(a, (0, extra)), b, F.pad(u, (0, extra)))
    return u[:, :n], v
