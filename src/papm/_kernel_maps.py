"""Fast path of `targets` on a CPU: a C loop that draws `ggd.kernel` on the window of each point, three times as fast as torch.

A test holds it to `ggd.kernel`; where there is no compiler, `targets` draws the same windows in torch.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from papm.c_sources import LOOPS
from papm.compiled import c_library

SOURCE = Path(__file__).with_name("_kernel_maps.c")
SQUARINGS = {2.0: 0, 4.0: 1, 8.0: 2, 16.0: 3}  # shape → how often r²/2σ² is squared
MOST = 1023  # the largest radius; wider kernels are left to torch


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    library = c_library(SOURCE, *LOOPS["_kernel_maps.c"], functions=("papm_windows",))
    if library is not None:
        number, pointer, single = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
        library.papm_windows.restype = number
        library.papm_windows.argtypes = (
            *(pointer, pointer, ctypes.c_long, number, single, number),
            *(pointer, pointer, number, number, number, number, pointer),
        )
    return library


def usable(points: Tensor, shape: float, radius: int) -> bool:
    """Whether the loop can draw these: float32 on the CPU, a shape it knows, a window that is not too wide."""
    fits = points.dtype == torch.float32 and points.device.type == "cpu" and shape in SQUARINGS and radius <= MOST
    return fits and _library() is not None


def add(
    maps: Tensor,
    points: Tensor,
    keep: Tensor,
    radius: int,
    sigma: float,
    shape: float,
    size: tuple[int, int],
    stride: int,
    lower: Tensor,
    upper: Tensor,
) -> None:
    """Add the kernels of points [B, n, 2] where `keep` [B, n] into maps [B, h, w] of images `size`, in place.

    Pixels between the corners `lower` and `upper` [B, 2] (x, y) count in each kernel's norm.
    """
    library = _library()
    assert library is not None
    points, keep = points.detach().contiguous(), keep.to(torch.uint8).contiguous()
    lower, upper = lower.to(torch.float32).contiguous(), upper.to(torch.float32).contiguous()
    for b in range(len(maps)):
        code = library.papm_windows(
            points[b].data_ptr(), keep[b].data_ptr(), points.shape[1], radius, 1 / (2 * sigma * sigma), SQUARINGS[shape],
            lower[b].data_ptr(), upper[b].data_ptr(), size[0], size[1], stride, maps.shape[2], maps[b].data_ptr(),
        )  # fmt: skip
        if code:
            raise MemoryError("no memory for the window of a kernel")
