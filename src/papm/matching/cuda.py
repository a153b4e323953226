"""The GPU fast path: all problems of a batch in one launch of assign.cu, without waiting for the device.

A thread block solves one problem; costs stay in device memory, everything else in the block's shared memory, which bounds
the size (on one H200 about 8192 columns). See `papm.compiled` for how it is built.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papm.compiled import ask_for_shared, buildable, cuda_kernel, shared_limit
from papm.errors import ConfigError

SOURCE = Path(__file__).with_name("assign.cu")
THREADS = 1024
ROUNDS = 16  # of bids: each takes all free rows at once


def source(redux: bool) -> str:
    """The CUDA source, for devices with warp-wide minima (compute capability 8.0) or without."""
    return f"#define REDUX {int(redux)}\n" + SOURCE.read_text(encoding="utf-8")


@functools.lru_cache(maxsize=16)
def _compiled(device: torch.device, redux: bool) -> Any:
    return cuda_kernel(source(redux), "assign", device)


@functools.lru_cache(maxsize=8)
def default_redux(device: torch.device) -> bool:
    """Whether the device has warp-wide integer minima."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


@functools.lru_cache(maxsize=8)
def available(device: torch.device) -> bool:
    """Whether the kernel can be built for this device (builds it at the first call)."""
    return buildable(lambda: _compiled(device, default_redux(device)), "the CUDA kernel of the assignment")


def shared_bytes(n: int, m: int) -> int:
    """Shared memory of one block for problems of at most n × m: v, key, from, owner by column; u and three indices by row."""
    rows, columns = min(n, m), max(n, m)
    return columns * (8 + 8 + 4 + 4) + rows * (8 + 4 + 4 + 4)


def fits(n: int, m: int, device: torch.device) -> bool:
    """Whether a block can hold such problems."""
    return shared_bytes(n, m) <= shared_limit(device)


def solve(
    costs: Tensor, counts: Tensor, threads: int = THREADS, rounds: int = ROUNDS, redux: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Columns [B, N] int64 (-1 for none) for costs [B, N, M], counts [B, 2] int32; and steps [B, 3], for measuring.

    float32 on CUDA. Costs that are not finite count as ±1e30: they cannot be refused without waiting for the device.
    """
    if not costs.is_cuda or costs.dtype != torch.float32:
        raise ConfigError("the cuda assignment takes float32 on CUDA; use solver 'auto'")
    problems, n, m = costs.shape
    if not fits(n, m, costs.device):
        raise ConfigError(f"{n} × {m} is too large for the cuda assignment; use solver 'auto'")
    columns = torch.empty(problems, n, dtype=torch.int64, device=costs.device)
    steps = torch.zeros(problems, 3, dtype=torch.int32, device=costs.device)
    if min(problems, n, m) == 0:
        return columns.fill_(-1), steps
    kernel = _compiled(costs.device, default_redux(costs.device) if redux is None else redux)
    shared = shared_bytes(n, m)
    with torch.cuda.device(costs.device):
        ask_for_shared(kernel, shared)
        kernel(
            grid=(problems, 1, 1),
            block=(threads, 1, 1),
            args=[
                costs.contiguous(), counts.to(costs.device, torch.int32).contiguous(), columns, steps,
                n, m, min(n, m), max(n, m), rounds,
            ],
            shared_mem=shared,
        )  # fmt: skip
    return columns, steps
