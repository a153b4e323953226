"""The CPU fast path: the scaling iterations of one image as a small C loop, compiled once with the system's compiler.

See `papm.compiled`. Without a compiler nothing fails: `available()` is False and the torch path is used.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papm.c_sources import LOOPS
from papm.compiled import c_library, on_threads
from papm.errors import ConfigError
from papm.transport.windows import Window, WindowProblem

SOURCE = Path(__file__).with_name("sinkhorn.c")
WIDTHS = (4, 8, 12, 16, 24, 32, 48, 64)  # the loops of sinkhorn.c
FUNCTIONS: dict[torch.dtype, tuple[str, type[Any]]] = {
    torch.float32: ("papm_float_sinkhorn", ctypes.c_float),
    torch.float64: ("papm_double_sinkhorn", ctypes.c_double),
}
THREAD_WORK = 2_000_000  # multiply-adds below which starting threads costs more than it saves


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    names = dict(FUNCTIONS.values())
    library = c_library(SOURCE, *LOOPS["transport/sinkhorn.c"], functions=tuple(names))
    if library is not None:
        for name, number in names.items():
            function = getattr(library, name)
            function.restype = ctypes.c_int
            function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int] * 5 + [number] * 2 + [ctypes.c_int]
    return library


def available() -> bool:
    """Whether the compiled loop can be used here (builds it at the first call)."""
    return _library() is not None


def usable(window: Window | None) -> bool:
    """Whether it can solve this problem: a window no wider than its widest loop."""
    return window is not None and 2 * window.radius + 1 <= WIDTHS[-1] and available()


def solve(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(u, v) after `iterations`, as `reference.scaling` on the windows; CPU. Images run on threads of their own."""
    library = _library()
    if library is None:
        raise ConfigError("the compiled transport solver needs a C compiler; use solver 'sparse' or 'auto'")
    (h, w), radius = problem.size, problem.radius
    rows = 2 * radius + 1
    width = next((k for k in WIDTHS if k >= rows), 0)
    if not width or a.dtype not in FUNCTIONS or a.device.type != "cpu":
        raise ConfigError("the compiled transport solver works on the CPU and takes narrow windows; use solver 'auto'")
    function = getattr(library, FUNCTIONS[a.dtype][0])
    kernel = problem.block(torch.arange(-radius, radius + 1), torch.arange(-radius, width - radius)).contiguous()
    pitch = w + width - 1
    base = (problem.cells[0] * pitch + problem.cells[1]).to(torch.int32).contiguous()
    a, b, u = a.contiguous(), b.contiguous(), u.clone(memory_format=torch.contiguous_format)
    v = torch.empty_like(b)
    scratch = b.new_empty(len(b), 2 * (h + rows - 1) * pitch)

    def image(k: int) -> int:
        pointers = [t[k].data_ptr() for t in (kernel, base, a, b, u, v, scratch)]
        return int(function(*pointers, a.shape[1], h, w, rows, width, floor, problem.far, iterations))

    if any(on_threads(image, len(b), pays=kernel.numel() * iterations > THREAD_WORK)):
        raise RuntimeError(f"the compiled transport loop has no code for windows of width {width}")
    return u, v
