"""The two reference solvers: scaling form and log domain, equal at equal iterations for any cost.

Both run exactly the iteration the published results rest on, from u = a, cells first:

    v ← b / (Kᵀu + δ),    u ← a / (Kv + δ),    K = exp(-C/ε),  δ = 1e-16

The floor δ is no numerical detail. It is the dual of a *dustbin*: the fixed point maximises

    ⟨a,α⟩ + ⟨b,β⟩ - ε·Σ exp((α+β-C)/ε) - ε·δ·(Σ exp(α/ε) + Σ exp(β/ε))

so that any point and any cell may be left unmatched at cost ε·ln(1/δ), 368.4 at ε = 10. Mass farther than the reach of
that cost is not moved but left. In the log domain the floor is a `logaddexp` with ln δ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from papm.transport.problem import Problem

FLOOR = 1e-16  # DM-Count's


def scaling(problem: Problem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int) -> tuple[Tensor, Tensor]:
    """(u, v) after `iterations` from u [B, n], for weights a [B, n] and b [B, m]."""
    v = torch.zeros_like(b)
    for _ in range(iterations):
        v = b / (problem.adjoint(u) + floor)
        u = a / (problem.apply(v) + floor)
    return u, v


def log_domain(
    cost: Tensor, reg: float, a: Tensor, b: Tensor, log_u: Tensor, log_floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(ln u, ln v) after `iterations` from ln u [B, n], for a dense cost [B, n, m]; `log_floor` may be -inf."""
    scaled = cost / -reg
    log_a, log_b, log_v = a.log(), b.log(), torch.full_like(b, -math.inf)
    floor = torch.tensor(log_floor, dtype=cost.dtype, device=cost.device)
    for _ in range(iterations):
        log_v = log_b - _at_least(torch.logsumexp(scaled + log_u[..., :, None], -2), floor)
        log_u = log_a - _at_least(torch.logsumexp(scaled + log_v[..., None, :], -1), floor)
    return log_u, log_v


def _at_least(x: Tensor, floor: Tensor) -> Tensor:
    # With an infinitely dear dustbin, an all-zero row would give ln 0 - ln 0; the smallest number keeps it -inf.
    return torch.logaddexp(x, floor).clamp(min=-torch.finfo(x.dtype).max)
