"""Windows laid out for the GPU: points sorted by cell, so that Kᵀ·u can be gathered instead of scattered.

After the sort, the points in a run of cells of one row are a run of points. A cell is seen by the points of a few such
runs, one to each row of the window; no list of entries needs sorting and nothing is added atomically, so the result is the
same on every run. Nothing here waits for the device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.text import Brief
from papm.transport.windows import WindowProblem, _offsets, window_kernel


@dataclass(frozen=True, eq=False, repr=False)
class SortedWindows(Brief):
    """The kernel [B, entries, n] of the sorted points and where the points of each cell are."""

    order: Tensor  # [B, n], sorted position → point
    cell: Tensor  # [B, n] int32, row·w + column; padding points belong to no cell's run (h·w in `start` terms)
    start: Tensor  # [B, h·w + 1] int32, first sorted point at or after each cell
    kernel: Tensor  # [B, entries, n]

    @staticmethod
    def build(problem: WindowProblem, a: Tensor) -> SortedWindows:
        """Sort the points with weight a > 0 by cell; the others come last, with a kernel of zeros."""
        h, w = problem.size
        row, column = problem.cells
        key = torch.where(a > 0, row * w + column, h * w)
        key, order = torch.sort(key, dim=1, stable=True)
        runs = torch.arange(h * w + 1, device=key.device).expand(len(key), -1).contiguous()
        start = torch.searchsorted(key, runs)
        real = key < h * w
        cell = torch.where(real, key, 0)
        cells = torch.div(cell, w, rounding_mode="floor"), cell % w
        xy = problem.xy.gather(1, order[..., None].expand(-1, -1, 2))
        kernel = window_kernel(
            xy, cells, problem.size, problem.stride, problem.cost, problem.reg,
            _offsets(problem.window.half, xy.device), problem.window.smallest, entries_first=True,
        )  # fmt: skip
        kernel = torch.where(real[:, None], kernel, 0.0)
        return SortedWindows(order, cell.to(torch.int32), start.to(torch.int32), kernel)

    def sort(self, u: Tensor) -> Tensor:
        """A quantity [B, n] of the points in sorted order."""
        return u.gather(1, self.order).contiguous()

    def unsort(self, u: Tensor) -> Tensor:
        """Back to the points' own order."""
        return torch.empty_like(u).scatter_(1, self.order, u)


@functools.lru_cache(maxsize=32)
def _runs(half: tuple[int, ...], size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """For each row of the window and each cell, the first cell of the run that sees it and the cell after the last."""
    h, w = size
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    low, high = [], []
    for r, side in enumerate(half):
        row = y - (r - len(half) // 2)
        inside = (row >= 0) & (row < h)
        low.append(torch.where(inside, row * w + (x - side).clamp(min=0), 0).flatten())
        high.append(torch.where(inside, row * w + (x + side).clamp(max=w - 1) + 1, 0).flatten())
    return torch.stack(low).to(device), torch.stack(high).to(device)


def list_starts(start: Tensor, half: tuple[int, ...], size: tuple[int, int]) -> Tensor:
    """[B, h·w + 1] int32: where the list of entries of each cell begins when the lists stand one after another."""
    low, high = _runs(half, size, start.device)
    lengths = (start[:, high] - start[:, low]).sum(1)
    return torch.nn.functional.pad(lengths.cumsum(1), (1, 0)).to(torch.int32)
