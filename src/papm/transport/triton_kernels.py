"""The GPU path without NVRTC: two small Triton kernels an iteration, recorded in a CUDA graph."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.errors import ConfigError
from papm.graphs import round_up
from papm.transport import graphs
from papm.transport.sorted_windows import SortedWindows
from papm.transport.windows import WindowProblem

POINTS, CELLS, LANES = 64, 32, 8  # points to a program; cells to a program, and points of a cell at a time


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs on the CPU, for tests: TRITON_INTERPRET=1."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.lru_cache(maxsize=64)
def _shape(half: tuple[int, ...], device: torch.device) -> Tensor:
    """The window as the kernels want it: sides, first entries, number of entries."""
    first = [sum(2 * k + 1 for k in half[:r]) for r in range(len(half) + 1)]
    return torch.tensor([*half, *first], dtype=torch.int32).to(device)


def iterate(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """The iterations as plain launches."""
    source = importlib.import_module("papm.transport.triton_source")
    table = SortedWindows.build(problem, a)
    (h, w), (images, n) = problem.size, a.shape
    half = problem.window.half
    kernel, shape = table.kernel.contiguous(), _shape(half, a.device)
    weights, mass, u, v = table.sort(a), b.contiguous(), table.sort(u), torch.empty_like(b)
    by_cell, by_point = (-(-h * w // CELLS), images), (-(-n // POINTS), images)
    for _ in range(iterations):
        source.columns[by_cell](
            kernel, table.cell, table.start, shape, mass, u, v, n, h, w, floor,
            ROWS=len(half), CELLS=CELLS, LANES=LANES, num_warps=4,
        )  # fmt: skip
        source.rows[by_point](
            kernel, table.cell, shape, weights, u, v, n, h, w, floor, ROWS=len(half), POINTS=POINTS, num_warps=2
        )
    return table.unsort(u), v


def solve(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(u, v) after `iterations`, as `reference.scaling` on the windows; float32, no host sync."""
    if a.dtype != torch.float32 or problem.far or not (a.is_cuda or interpreted()):
        raise ConfigError(
            "the triton transport solver takes float32 on CUDA and a cost without a visible cap; use 'auto'"
        )
    if a.numel() == 0:
        return u.clone(), b / floor
    if not a.is_cuda:
        return iterate(problem, a, b, u, floor, iterations)
    p, n = problem, a.shape[1]
    extra = round_up(n) - n

    def run(xy: Tensor, a_: Tensor, b_: Tensor, u_: Tensor) -> tuple[Tensor, Tensor]:
        static = WindowProblem(xy, p.size, p.stride, p.cost, p.reg, p.window)
        return iterate(static, a_, b_, u_, floor, iterations)

    key = ("triton", p.size, p.stride, p.cost, p.reg, p.window, floor, iterations)
    u, v = graphs.replay(key, run, F.pad(p.xy, (0, 0, 0, extra)), F.pad(a, (0, extra)), b, F.pad(u, (0, extra)))
    return u[:, :n], v
