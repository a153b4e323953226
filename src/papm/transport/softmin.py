"""Passes over a dense cost that keep nothing of its size: what unbalanced transport needs of it, at the speed of reading it.

In torch each pass writes and reads several tensors as large as the cost. Here a pass is a small C loop on the CPU and one
CUDA kernel on a GPU (`papm.compiled`), both for float32; torch does it elsewhere, and where neither can be built.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from papm.c_sources import LOOPS
from papm.compiled import buildable, c_library, cuda_kernel, on_threads

SOURCE = Path(__file__).with_name("softmin.c")
CUDA_SOURCE = Path(__file__).with_name("softmin.cu")
STEEPEST = 80.0  # largest exponent of a plan: e⁸⁰ is a large number in float32, and no infinity
THREADS, TILE = 256, 32  # to a row; rows and columns of a block of columns
THREAD_WORK = 500_000  # entries below which starting threads costs more than it saves
Way = Literal["torch", "c", "cuda"]


def way_for(cost: Tensor) -> Way:
    """Who does the work for such a cost."""
    if cost.dtype != torch.float32 or not cost.numel():
        return "torch"
    if cost.is_cuda:
        return "cuda" if _cuda_available(cost.device) else "torch"
    return "c" if cost.device.type == "cpu" and _library() is not None else "torch"


def softmin(
    cost: Tensor, add: Tensor, eps: float, damping: float, limit: float, over: Literal["rows", "columns"], way: Way
) -> Tensor:
    """-ε·λ·ln Σ exp(add - C/ε), between ±limit, for costs [B, n, m].

    Over "columns" `add` is [B, m] and the sum runs along a row, result [B, n]; over "rows" the other way round.

    >>> C = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]])
    >>> softmin(C, torch.zeros(1, 2), 1.0, 1.0, 1e30, "columns", "torch")
    tensor([[-0.3133, -0.1269]])
    """
    if way == "torch":
        shaped = add[:, None, :] if over == "columns" else add[:, :, None]
        found = torch.logsumexp(shaped - cost / eps, 2 if over == "columns" else 1)
        return (-eps * damping * found).clamp(-limit, limit)
    b, n, m = cost.shape
    out = torch.empty(b, n if over == "columns" else m, dtype=cost.dtype, device=cost.device)
    name = "softmin_rows" if over == "columns" else "softmin_columns"
    _pass(way, name, (cost, add, out), (n, m), (1 / eps, -eps * damping, limit))
    return out


def received(cost: Tensor, f: Tensor, g: Tensor, b: Tensor, eps: float, way: Way) -> Tensor:
    """Σ_j k·b of each row, [B, n], with k = exp((f + g - C)/ε)."""
    if way == "torch":
        return torch.bmm(ratio(cost, f, g, eps), b[..., None])[..., 0]
    out = torch.empty_like(f)
    _pass(way, "plan_rows", (cost, f, g, b, out), (cost.shape[1], cost.shape[2]), (1 / eps,))
    return out


def sent(cost: Tensor, f: Tensor, g: Tensor, a: Tensor, s: Tensor, eps: float, way: Way) -> Tensor:
    """Σ_i a·k, Σ_i s·k and Σ_i a·k·ln(a·k) of each column, [B, 3, m], over rows whose weight a is not zero."""
    if way == "torch":
        k = ratio(cost, f, g, eps)
        ak = k * a[..., None]
        logs = torch.where(ak > 0, ak.clamp(min=torch.finfo(ak.dtype).tiny).log(), 0.0)
        signed = torch.where(a == 0, 0.0, s)
        return torch.stack([ak.sum(1), torch.bmm(signed[:, None], k)[:, 0], (ak * logs).sum(1)], 1)
    out = cost.new_empty(len(cost), 3, cost.shape[2])
    _pass(way, "plan_columns", (cost, f, g, a, s, out), (cost.shape[1], cost.shape[2]), (1 / eps,))
    return out


def ratio(cost: Tensor, f: Tensor, g: Tensor, eps: float) -> Tensor:
    """k = exp((f + g - C)/ε), at most e⁸⁰, [B, n, m]: the one thing here that is as large as the cost."""
    return torch.exp(((f[..., :, None] + g[..., None, :] - cost) / eps).clamp(max=STEEPEST))


# -- launching ---------------------------------------------------------------------------------------------------------


def _pass(way: Way, name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, int], numbers: tuple[float, ...]) -> None:
    """One pass; the last of the tensors takes the result. All but it are made contiguous."""
    *given, out = tensors
    tensors = (*(t.contiguous() for t in given), out)
    (_in_c if way == "c" else _on_gpu)(name, tensors, sizes, numbers)


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    signatures = (("softmin_rows", 3, 3), ("softmin_columns", 3, 3), ("plan_rows", 5, 1), ("plan_columns", 6, 1))
    library = c_library(
        SOURCE, *LOOPS["transport/softmin.c"], functions=tuple(f"papm_{name}" for name, _, _ in signatures)
    )
    if library is not None:
        for name, pointers, numbers in signatures:
            function = getattr(library, f"papm_{name}")
            function.restype = None
            function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int] * 2 + [ctypes.c_float] * numbers
    return library


def _in_c(name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, int], numbers: tuple[float, ...]) -> None:
    function: Callable[..., None] = getattr(_library(), f"papm_{name}")

    def image(k: int) -> None:
        function(*(t[k].data_ptr() for t in tensors), *sizes, *numbers)

    on_threads(image, len(tensors[0]), pays=tensors[0].numel() > THREAD_WORK)


def source() -> str:
    """The CUDA source."""
    return f"#define THREADS {THREADS}\n#define TILE {TILE}\n" + CUDA_SOURCE.read_text(encoding="utf-8")


@functools.lru_cache(maxsize=32)
def _kernel(name: str, device: torch.device) -> Any:
    return cuda_kernel(source(), name, device)


@functools.lru_cache(maxsize=8)
def _cuda_available(device: torch.device) -> bool:
    names = ("softmin_rows", "softmin_columns", "plan_rows", "plan_columns")
    return buildable(lambda: [_kernel(name, device) for name in names], "the CUDA kernels of unbalanced transport")


def _on_gpu(name: str, tensors: tuple[Tensor, ...], sizes: tuple[int, int], numbers: tuple[float, ...]) -> None:
    (n, m), images = sizes, len(tensors[0])
    by_rows = name.endswith("rows")
    with torch.cuda.device(tensors[0].device):
        _kernel(name, tensors[0].device)(
            grid=(images * n, 1, 1) if by_rows else (-(-m // TILE), images, 1),
            block=(THREADS, 1, 1) if by_rows else (TILE, TILE, 1),
            args=[*tensors, n, m, *numbers],
        )
