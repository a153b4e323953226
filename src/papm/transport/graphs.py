"""The torch path captured: its many small kernels become one launch.

Captured graphs are kept in a small least-recently-used cache; shapes are rounded up by the callers so that few are needed.
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
from papm.graphs import capture, new_pool, round_up
from papm.transport import reference
from papm.transport.windows import WindowProblem

MAX_GRAPHS = 16
Function = Callable[..., tuple[Tensor, ...]]
Captured = tuple[Callable[[], None], list[Tensor], tuple[Tensor, ...]]
_cache: OrderedDict[Hashable, Captured] = OrderedDict()


def replay(key: Hashable, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
    """function(*inputs), from the graph captured under `key` and the inputs' shapes; runs it plainly inside a capture."""
    if torch.cuda.is_current_stream_capturing():
        return function(*inputs)
    full = (key, *((t.shape, t.dtype, t.device) for t in inputs))
    if full in _cache:
        _cache.move_to_end(full)
    else:
        with torch.cuda.device(inputs[0].device):
            _cache[full] = _capture(function, inputs)
        while len(_cache) > MAX_GRAPHS:
            _cache.popitem(last=False)
    again, static, outputs = _cache[full]
    for to, new in zip(static, inputs):
        to.copy_(new)
    again()
    return tuple(t.clone() for t in outputs)


@functools.lru_cache(maxsize=16)
def _pool(device: torch.device) -> Any:
    """What the graphs of a device compute on the way is never live at the same time, and the cache is never emptied."""
    return new_pool()


def _capture(function: Function, inputs: tuple[Tensor, ...]) -> Captured:
    """Captured on copies of the inputs that every replay overwrites."""
    static = [t.clone() for t in inputs]
    again, outputs = capture(lambda: function(*static), pool=_pool(inputs[0].device))
    return again, static, outputs


def solve(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(u, v) after `iterations`: the torch path on the windows, captured."""
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
