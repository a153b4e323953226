"""The kernel exp(-C/ε) of a transport problem, as something that can be applied, whatever way it is stored.

A problem is n weighted points (rows), m weighted cells (columns), batched over B images. The solvers need K·v and Kᵀ·u;
the results need the plan T = diag(u)·K·diag(v), its cost ⟨C, T⟩ and its marginals. Dense, separable and windowed storage
(`windows.py`) offer the same few methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from papm.text import Brief


class Problem(Protocol):
    """What a stored kernel offers. u is [B, n], v is [B, m]."""

    @property
    def reg(self) -> float:
        """ε."""

    def apply(self, v: Tensor) -> Tensor:
        """K·v, [B, n]."""

    def adjoint(self, u: Tensor) -> Tensor:
        """Kᵀ·u, [B, m]."""

    def value(self, log_u: Tensor, log_v: Tensor) -> Tensor:
        """⟨C, T⟩, [B]."""

    def marginals(self, log_u: Tensor, log_v: Tensor) -> tuple[Tensor, Tensor]:
        """(T1, Tᵀ1): what leaves each point [B, n] and what reaches each cell [B, m]."""

    def cost_matrix(self) -> Tensor:
        """C, dense [B, n, m]."""


@dataclass(frozen=True, eq=False, repr=False)
class DenseProblem(Brief):
    """The whole cost matrix [B, n, m] is kept."""

    cost: Tensor
    reg: float
    kernel: Tensor

    @staticmethod
    def build(cost: Tensor, reg: float) -> DenseProblem:
        """From the cost alone."""
        return DenseProblem(cost, reg, torch.exp(-cost / reg))

    def apply(self, v: Tensor) -> Tensor:
        """K·v as a batched matrix-vector product."""
        return torch.bmm(self.kernel, v[..., None])[..., 0]

    def adjoint(self, u: Tensor) -> Tensor:
        """Kᵀ·u as a batched matrix-vector product."""
        return torch.bmm(u[:, None], self.kernel)[:, 0]

    def value(self, log_u: Tensor, log_v: Tensor) -> Tensor:
        """⟨C, T⟩ with T formed in the log domain; a pair at infinite cost moves nothing and costs nothing."""
        plan = dense_plan(log_u, log_v, self.cost, self.reg)
        return torch.where(plan > 0, self.cost * plan, 0.0).sum((-1, -2))

    def marginals(self, log_u: Tensor, log_v: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the plan, formed in the log domain."""
        plan = dense_plan(log_u, log_v, self.cost, self.reg)
        return plan.sum(-1), plan.sum(-2)

    def cost_matrix(self) -> Tensor:
        """As it is."""
        return self.cost


@dataclass(frozen=True, eq=False, repr=False)
class SeparableProblem(Brief):
    """A cost c·r² on a grid: K factors into a profile of each row and each column, K_ij = Y_i,row(j)·X_i,col(j)."""

    rows: Tensor  # [B, n, h], squared vertical distances
    columns: Tensor  # [B, n, w]
    coefficient: float
    reg: float
    row_kernel: Tensor
    column_kernel: Tensor

    @staticmethod
    def build(xy: Tensor, size: tuple[int, int], stride: int, coefficient: float, reg: float) -> SeparableProblem:
        """For points [B, n, 2] and the h × w grid of that stride."""
        h, w = size
        centre_y = (torch.arange(h, device=xy.device, dtype=xy.dtype) + 0.5) * stride
        centre_x = (torch.arange(w, device=xy.device, dtype=xy.dtype) + 0.5) * stride
        rows, columns = (xy[..., 1, None] - centre_y).square(), (xy[..., 0, None] - centre_x).square()
        scale = -coefficient / reg
        return SeparableProblem(rows, columns, coefficient, reg, torch.exp(scale * rows), torch.exp(scale * columns))

    def apply(self, v: Tensor) -> Tensor:
        """Sum over rows by a matrix product, then over columns."""
        grid = v.view(len(v), self.rows.shape[-1], self.columns.shape[-1])
        return (torch.bmm(self.row_kernel, grid) * self.column_kernel).sum(-1)

    def adjoint(self, u: Tensor) -> Tensor:
        """Yᵀ·diag(u)·X."""
        return torch.bmm(self.row_kernel.mT, u[..., None] * self.column_kernel).flatten(1)

    def value(self, log_u: Tensor, log_v: Tensor) -> Tensor:
        """⟨C, T⟩ = Σ u·(C∘K)·v, where C∘K is a sum of two products of profiles."""
        v = log_v.exp().view(len(log_v), self.rows.shape[-1], self.columns.shape[-1])
        moved = torch.bmm(self.row_kernel * self.rows, v) * self.column_kernel
        moved = moved + torch.bmm(self.row_kernel, v) * (self.column_kernel * self.columns)
        return self.coefficient * (log_u.exp() * moved.sum(-1)).sum(-1)

    def marginals(self, log_u: Tensor, log_v: Tensor) -> tuple[Tensor, Tensor]:
        """u·(Kv) and v·(Kᵀu)."""
        u, v = log_u.exp(), log_v.exp()
        return u * self.apply(v), v * self.adjoint(u)

    def cost_matrix(self) -> Tensor:
        """Rows plus columns, dense."""
        return self.coefficient * (self.rows[..., :, None] + self.columns[..., None, :]).flatten(2)


def dense_plan(log_u: Tensor, log_v: Tensor, cost: Tensor, reg: float) -> Tensor:
    """T = diag(u)·exp(-C/ε)·diag(v), [..., n, m], formed in the log domain so that nothing overflows."""
    return torch.exp(log_u[..., :, None] + log_v[..., None, :] - cost / reg)
