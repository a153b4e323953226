"""What a transport solver returns: scalings, potentials, and the plan and its figures when asked for."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.text import Brief
from papm.transport.problem import Problem, dense_plan


@dataclass(frozen=True, eq=False, repr=False)
class TransportResult(Brief):
    """The state after the last iteration. Figures lead with B unless the problem was given without; fields always do.

    Potentials are those of the Shannon-entropy objective, α = ε·ln(u + δ) and β = ε·ln(v + δ); geomloss's are relative to
    the marginals: ε·ln(v/b).
    """

    log_u: Tensor  # [B, n]
    log_v: Tensor  # [B, m]
    a: Tensor
    b: Tensor
    reg: float
    dustbin: float  # cost of leaving mass unmatched, ε·ln(1/δ)
    iterations: int
    problem: Problem
    solver: str = "reference"
    batched: bool = True
    known_value: Tensor | None = None  # [B], from solvers that find it on the way

    def _shape(self, t: Tensor) -> Tensor:
        return t if self.batched else t[0]

    def _potential(self, log_scaling: Tensor) -> Tensor:
        floor = torch.full((), -self.dustbin / self.reg, dtype=log_scaling.dtype, device=log_scaling.device)
        return self.reg * torch.logaddexp(log_scaling, floor)

    @functools.cached_property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """(α, β): of the points [B, n] and of the cells [B, m], in units of cost."""
        return self._shape(self._potential(self.log_u)), self.beta

    @functools.cached_property
    def beta(self) -> Tensor:
        """The potential of the cells alone, [B, m]."""
        return self._shape(self._potential(self.log_v))

    @functools.cached_property
    def value(self) -> Tensor:
        """⟨C, T⟩ [B]: what moving the matched mass costs."""
        if self.known_value is not None:
            return self._shape(self.known_value)
        return self._shape(self.problem.value(self.log_u, self.log_v))

    @property
    def unmatched(self) -> tuple[Tensor, Tensor]:
        """Mass left in the dustbin [B]: of the points δ·Σu, and of the cells δ·Σv (the latter exact at convergence)."""
        points, cells = self._left()
        return self._shape(points.sum(-1)), self._shape(cells.sum(-1))

    def _left(self) -> tuple[Tensor, Tensor]:
        log_floor = -self.dustbin / self.reg
        return (self.log_u + log_floor).exp(), (self.log_v + log_floor).exp()

    def plan(self) -> Tensor:
        """T = diag(u)·exp(-C/ε)·diag(v), dense [B, n, m]."""
        return self._shape(dense_plan(self.log_u, self.log_v, self.problem.cost_matrix(), self.reg))

    @property
    def marginal_errors(self) -> tuple[Tensor, Tensor]:
        """(Σ|u·(Kv + δ) - a|, Σ|v·(Kᵀu + δ) - b|) [B], the dustbin counted as matched: zero at the fixed point."""
        rows, columns = self.problem.marginals(self.log_u, self.log_v)
        points, cells = self._left()
        return self._shape((rows + points - self.a).abs().sum(-1)), self._shape(
            (columns + cells - self.b).abs().sum(-1)
        )
