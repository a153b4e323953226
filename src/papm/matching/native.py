"""The CPU fast path: assign.c, compiled once; each problem on a thread of its own."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from papm.c_sources import LOOPS
from papm.compiled import c_library
from papm.errors import ConfigError
from papm.text import Brief

SOURCE = Path(__file__).with_name("assign.c")
ROUNDS = 8  # of bids; more of them cost what they save (100–400 rows, 1024 columns)
NOT_FINITE = 2


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Brief):
    """The column of each row of one problem, and the duals that prove it: cost - u - v ≥ 0, v ≤ 0, zero where unused."""

    columns: Tensor  # [n] int32
    u: Tensor  # [n] float64
    v: Tensor  # [m] float64


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    # Without infinities, nan and signed zeros, which the source does not use, minima become vector instructions.
    library = c_library(SOURCE, *LOOPS["matching/assign.c"], functions=("papm_assign",))
    if library is not None:
        library.papm_assign.restype = ctypes.c_int
        number, pointer = ctypes.c_int, ctypes.c_void_p
        library.papm_assign.argtypes = (pointer, number, number, ctypes.c_longlong, number, *[pointer] * 4)
    return library


def available() -> bool:
    """Whether the compiled solver can be used here (builds it at the first call)."""
    return _library() is not None


def solve(cost: Tensor, rounds: int = ROUNDS) -> Solution | None:
    """One problem with no more rows than columns, float32 on the CPU; None if a cost is not finite."""
    library = _library()
    if library is None:
        raise ConfigError("the compiled assignment needs a C compiler; use solver 'scipy' or 'auto'")
    n, m = cost.shape
    if cost.dtype != torch.float32 or cost.device.type != "cpu" or n > m:
        raise ConfigError("the compiled assignment takes float32 on the CPU and no more rows than columns; use 'auto'")
    if m > 1 and cost.stride(1) != 1:
        cost = cost.contiguous()
    columns = torch.empty(n, dtype=torch.int32)
    u, v = torch.empty(n, dtype=torch.float64), torch.empty(m, dtype=torch.float64)
    pointers = [t.data_ptr() for t in (columns, u, v)]
    code = library.papm_assign(cost.data_ptr(), n, m, cost.stride(0), rounds, *pointers, None)
    if code == NOT_FINITE:
        return None
    if code:
        raise MemoryError(f"no memory for an assignment of {n} rows and {m} columns")
    return Solution(columns, u, v)
