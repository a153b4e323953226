"""The kernel of points on a grid, kept only where it matters: a window of cells around each point.

exp(-C/ε) falls so fast that in the working precision almost all of it is zero or cannot count. Since Σu ≤ Σa/δ and
Σv ≤ Σb/δ, all entries below k₀ together change a denominator Kᵀu + δ by less than k₀/δ² of itself; with
k₀ = max(smallest normal number, precision·δ²) that is the rounding of the arithmetic. At ε = 10, stride 8 and float32,
25 cells of 4096 remain to a point for GGD-L2(16, 2), 61 for L2.

When the cost has a finite cap that the kernel can still see, the kernel is κ·11ᵀ plus a window: `far` is that κ.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.text import Brief
from papm.transport.costs import Cost, kernel_radius, reach_of


@dataclass(frozen=True)
class Window:
    """The shape of the neighbourhood of a point: `half[k]` cells to each side in row k - radius."""

    half: tuple[int, ...]
    smallest: float  # kernel values up to this are taken as zero

    @property
    def radius(self) -> int:
        """Rows above and below."""
        return len(self.half) // 2

    @property
    def entries(self) -> int:
        """Cells in the window."""
        return sum(2 * k + 1 for k in self.half)


@functools.lru_cache(maxsize=256)
def window_for(
    cost: Cost, reg: float, stride: int, floor: float, dtype: torch.dtype, cells: int | None = None
) -> Window | None:
    """The cells that can hold a kernel value that counts, or None when there is no bound (or the cost is not radial).

    No farther than from one end to the other of a map of `cells` cells: a wide kernel would ask for millions of them.
    """
    if not cost.radial:
        return None
    info = torch.finfo(dtype)
    smallest = max(info.tiny, info.eps * floor * floor)
    far = far_value(cost, reg, smallest)
    reach = reach_of(cost, cost.cap * (1 - 1e-12)) if far else kernel_radius(cost, reg, smallest)
    if not math.isfinite(reach):
        return None

    def gap(k: int) -> float:  # least distance along one axis from anywhere in a cell to the centre of the k-th next
        return max(0.0, (k - 0.5) * stride)

    last = math.inf if cells is None else cells - 1
    half = []
    k = 0
    while k <= last and gap(k) <= reach:
        side = 0
        while side < last and gap(k) ** 2 + gap(side + 1) ** 2 <= reach**2:
            side += 1
        half.append(side)
        k += 1
    return Window((*half[:0:-1], *half), smallest)


def far_value(cost: Cost, reg: float, smallest: float) -> float:
    """κ = exp(-cap/ε), the kernel beyond the cap, or 0 when it is too small to count."""
    kappa = math.exp(-cost.cap / reg)
    return kappa if kappa > smallest else 0.0


@functools.lru_cache(maxsize=64)
def _offsets(half: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(dy, dx) [entries] of the window's cells, row by row. Kept, so that no copy to the device happens in a step."""
    radius = len(half) // 2
    pairs = [(k - radius, dx) for k, side in enumerate(half) for dx in range(-side, side + 1)]
    dy, dx = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(-1)
    return dy.contiguous().to(device), dx.contiguous().to(device)


def cells_of(xy: Tensor, size: tuple[int, int], stride: int) -> tuple[Tensor, Tensor]:
    """Row and column [B, n] of the cell of each point; a point outside belongs to the nearest cell."""
    cell = torch.div(xy, stride, rounding_mode="floor").long()
    return cell[..., 1].clamp(0, size[0] - 1), cell[..., 0].clamp(0, size[1] - 1)


def kernel_values(r2: Tensor, cost: Cost, reg: float, smallest: float) -> Tensor:
    """exp(-C/ε) - κ at squared distances, zero where it is not above `smallest` (or not above κ); r² may be infinite."""
    far = far_value(cost, reg, smallest)
    least = math.log(max(smallest, far))
    exponent = cost(r2) * (-1 / reg)
    drop = exponent <= least
    kernel = exponent.masked_fill_(drop, 0.0).exp_()  # masked first: on a CPU numbers below the normal range are slow
    return (kernel.sub_(far) if far else kernel).masked_fill_(drop, 0.0)


def axis_distances(position: Tensor, cell: Tensor, offset: Tensor, length: int, stride: int) -> Tensor:
    """Squared distance along one axis from positions to the centres of cells `cell` + `offset`; infinite outside the map."""
    other = cell.to(position.dtype) + offset
    squared = ((other + 0.5) * stride - position).square()
    return torch.where((other >= 0) & (other < length), squared, math.inf)


def window_kernel(
    xy: Tensor,
    cells: tuple[Tensor, Tensor],
    size: tuple[int, int],
    stride: int,
    cost: Cost,
    reg: float,
    offsets: tuple[Tensor, Tensor],
    smallest: float,
    entries_first: bool = False,
) -> Tensor:
    """exp(-C/ε) - κ on the windows, [B, n, entries], or [B, entries, n] with `entries_first`; zero outside the map."""
    dim = 1 if entries_first else 2
    dy, dx = (o[:, None] if entries_first else o for o in offsets)
    y = axis_distances(xy[..., 1].unsqueeze(dim), cells[0].unsqueeze(dim), dy, size[0], stride)
    x = axis_distances(xy[..., 0].unsqueeze(dim), cells[1].unsqueeze(dim), dx, size[1], stride)
    return kernel_values(y + x, cost, reg, smallest)


@dataclass(frozen=True, eq=False, repr=False)
class WindowProblem(Brief):
    """The windows of a batch of points on the h × w grid, as gather and scatter indices into a padded map.

    The tables are made when first used: the compiled solvers lay them out in ways of their own.
    """

    xy: Tensor  # [B, n, 2]
    size: tuple[int, int]
    stride: int
    cost: Cost
    reg: float
    window: Window

    @property
    def radius(self) -> int:
        """Cells of padding on each side of the map that `index` points into."""
        return self.window.radius

    @property
    def far(self) -> float:
        """κ, the kernel outside the windows."""
        return far_value(self.cost, self.reg, self.window.smallest)

    @functools.cached_property
    def cells(self) -> tuple[Tensor, Tensor]:
        """Row and column [B, n] of each point's cell."""
        return cells_of(self.xy, self.size, self.stride)

    @functools.cached_property
    def kernel(self) -> Tensor:
        """exp(-C/ε) - κ on the windows, [B, n, entries]."""
        return window_kernel(
            self.xy, self.cells, self.size, self.stride, self.cost, self.reg,
            _offsets(self.window.half, self.xy.device), self.window.smallest,
        )  # fmt: skip

    @functools.cached_property
    def index(self) -> Tensor:
        """Where each entry sits in the padded map, [B, n·entries]."""
        dy, dx = _offsets(self.window.half, self.xy.device)
        pitch = self.size[1] + 2 * self.radius
        first = (self.cells[0] + self.radius) * pitch + self.cells[1] + self.radius
        return (first[..., None] + (dy * pitch + dx)).flatten(1)

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The kernel on a rectangle of offsets instead of the window, [B, n, rows, columns]."""
        y = axis_distances(self.xy[..., 1, None], self.cells[0][..., None], rows, self.size[0], self.stride)
        x = axis_distances(self.xy[..., 0, None], self.cells[1][..., None], columns, self.size[1], self.stride)
        return kernel_values(y[..., :, None] + x[..., None, :], self.cost, self.reg, self.window.smallest)

    def _padded(self, v: Tensor) -> Tensor:
        r = self.radius
        return F.pad(v.view(len(v), *self.size), (r, r, r, r)).flatten(1)

    def gather(self, v: Tensor) -> Tensor:
        """v [B, m] at the cells of each window, [B, n, entries]; zero outside the map."""
        return self._padded(v).gather(1, self.index).view_as(self.kernel)

    def apply(self, v: Tensor) -> Tensor:
        """K·v by gathering."""
        out = (self.gather(v) * self.kernel).sum(-1)
        return out + self.far * v.sum(-1, keepdim=True) if self.far else out

    def adjoint(self, u: Tensor) -> Tensor:
        """Kᵀ·u by scattering."""
        r, (h, w) = self.radius, self.size
        flat = u.new_zeros(len(u), (h + 2 * r) * (w + 2 * r))
        flat.scatter_add_(1, self.index, (u[..., None] * self.kernel).flatten(1))
        out = flat.view(-1, h + 2 * r, w + 2 * r)[:, r : r + h, r : r + w].flatten(1)
        return out + self.far * u.sum(-1, keepdim=True) if self.far else out

    def value(self, log_u: Tensor, log_v: Tensor) -> Tensor:
        """⟨C, T⟩ = -ε Σ u·K·ln K·v over the windows, and cap·κ·u·v outside them."""
        u, v = log_u.exp(), log_v.exp()
        near = self.gather(v)
        if not self.far:
            return -self.reg * (u * (torch.xlogy(self.kernel, self.kernel) * near).sum(-1)).sum(-1)
        full = self.kernel + self.far
        inside = (-self.reg * torch.xlogy(full, full) * near).sum(-1)
        outside = self.cost.cap * self.far * (v.sum(-1, keepdim=True) - near.sum(-1))
        return (u * (inside + outside)).sum(-1)

    def marginals(self, log_u: Tensor, log_v: Tensor) -> tuple[Tensor, Tensor]:
        """u·(Kv) and v·(Kᵀu)."""
        u, v = log_u.exp(), log_v.exp()
        return u * self.apply(v), v * self.adjoint(u)

    def cost_matrix(self) -> Tensor:
        """The exact cost, dense."""
        return self.cost.pairwise(self.xy, cell_centres(self.size, self.stride, self.xy))


def cell_centres(size: tuple[int, int], stride: int, like: Tensor) -> Tensor:
    """(x, y) [h·w, 2] of the cell centres in pixels, row by row.

    >>> cell_centres((1, 2), 8, torch.zeros(1)).tolist()
    [[4.0, 4.0], [12.0, 4.0]]
    """
    y = (torch.arange(size[0], device=like.device, dtype=like.dtype) + 0.5) * stride
    x = (torch.arange(size[1], device=like.device, dtype=like.dtype) + 0.5) * stride
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
