"""Unbalanced entropic transport: mass may be made or destroyed at a price ρ, as in GL.

    min_Π  ⟨C, Π⟩ + ε·KL(Π | a⊗b) + ρ·KL(Π1 | a) + ρ·KL(Πᵀ1 | b)

solved in the log domain by damped, symmetric, annealed updates (GL takes them from geomloss):

    f̃ = λ·softmin_ε(C - g),  g̃ = λ·softmin_ε(C - f),  λ = 1/(1 + ε/ρ),   (f, g) ← ½(f + f̃, g + g̃)

with ε halved from the diameter down to `reg` and one full step last. As ρ → ∞ the damping vanishes: balanced transport.
Potentials here are relative to the marginals, Π = a·b·exp((f + g - C)/ε). Every pass over the cost is one of
`papm.transport.softmin`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.errors import ConfigError
from papm.text import Brief
from papm.transport import softmin
from papm.transport.softmin import Way

LARGEST = 1e30  # a potential of something that cannot be matched at all; finite, so that no ∞ - ∞ arises


@dataclass(frozen=True, eq=False, repr=False)
class UnbalancedResult(Brief):
    """Potentials f of the rows [B, n] and g of the columns [B, m], and what follows from them."""

    f: Tensor
    g: Tensor
    a: Tensor
    b: Tensor
    cost: Tensor
    reg: float
    rho: float
    way: Way = "torch"  # who passes over the cost

    def ratio(self) -> Tensor:
        """Π/(a·b) = exp((f + g - C)/ε), [B, n, m]; at most e⁸⁰."""
        return softmin.ratio(self.cost, self.f, self.g, self.reg)

    def received(self) -> Tensor:
        """Π1, what each row gets, [B, n]."""
        return self.a * softmin.received(self.cost, self.f, self.g, self.b, self.reg, self.way)

    def sent(self, signs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ_i p, Σ_i signs·p and Σ_i p·ln p of each column [B, m], where p = Π/b: what it sends to row i, by its mass."""
        sums = softmin.sent(self.cost, self.f, self.g, self.a, self.a * signs, self.reg, self.way)
        return sums[:, 0], sums[:, 1], sums[:, 2]

    def plan(self) -> Tensor:
        """Π, [B, n, m]."""
        return self.ratio() * self.a[..., :, None] * self.b[..., None, :]

    def _price(self, potential: Tensor, factor: float) -> Tensor:
        """factor/ρ · ρ(1 - exp(-f/ρ)), which is the potential itself when ρ is infinite."""
        if math.isinf(self.rho):
            return potential
        return -factor * torch.expm1(-potential / self.rho)

    @property
    def value(self) -> Tensor:
        """(ρ + ε/2)·(⟨a, 1 - e^(-f/ρ)⟩ + ⟨b, 1 - e^(-g/ρ)⟩), [B]: GL's and geomloss's figure."""
        factor = self.rho + self.reg / 2
        rows, columns = self._price(self.f, factor), self._price(self.g, factor)
        zero = torch.zeros((), dtype=rows.dtype, device=rows.device)
        return torch.where(self.a > 0, self.a * rows, zero).sum(-1) + torch.where(
            self.b > 0, self.b * columns, zero
        ).sum(-1)

    @property
    def column_gradient(self) -> Tensor:
        """∂value/∂b at the optimum (Danskin), [B, m]: (ρ + ε)(1 - e^(-g/ρ)) - ε/2."""
        if math.isinf(self.rho):
            return self.g
        return self._price(self.g, self.rho + self.reg) - self.reg / 2


def schedule(reg: float, diameter: float, ratio: float) -> list[float]:
    """The values of ε: the diameter, then down by `ratio` to `reg`.

    >>> [round(e, 3) for e in schedule(0.01, 1.41, 0.5)]
    [1.41, 1.41, 0.705, 0.352, 0.176, 0.088, 0.044, 0.022, 0.011, 0.01]
    """
    if not 0 < ratio < 1:
        raise ConfigError(f"the annealing ratio must lie between 0 and 1, not {ratio}")
    steps = [diameter]
    value = diameter
    while value > reg:
        steps.append(value)
        value *= ratio
    return [*steps, reg]


def unbalanced(
    a: Tensor,
    b: Tensor,
    cost: Tensor,
    reg: float = 0.01,
    rho: float = 0.5,
    *,
    diameter: float = math.sqrt(2),
    ratio: float = 0.5,
    extra: int = 0,
    least: float = 0.0,
    way: Way | None = None,
) -> UnbalancedResult:
    """Solve between weights a [B, n] and b [B, m] (any masses) at cost [B, n, m]; `extra` more updates at the last ε.

    Defaults are GL's: ε = 0.01, ρ = 0.5, coordinates in units of the crop. `least` is a mass every column is taken to have
    in the updates: at zero mass the pull of the rows on it is infinite, and so would be the gradient. `way`: who passes over
    the cost, by default the fastest that can.
    """
    if not (reg > 0 and rho > 0):
        raise ConfigError(f"ε and ρ must be positive, not {reg} and {rho}")
    if cost.dim() != 3 or a.shape != cost.shape[:2] or b.shape != (cost.shape[0], cost.shape[2]):
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)} and {tuple(cost.shape)}"
        raise ConfigError(f"weights [B, n] and [B, m] and a cost [B, n, m] do not fit together: {shapes}")
    with torch.no_grad(), torch.autocast(cost.device.type, enabled=False):
        dtype = torch.float64 if cost.dtype == torch.float64 else torch.float32
        a, b, cost = (t.detach().to(dtype) for t in (a, b, cost))
        cost = cost.contiguous()
        log_a, log_b = a.log(), b.clamp(min=least).log()
        by = softmin.way_for(cost) if way is None else way

        def damping(eps: float) -> float:
            return 1.0 if math.isinf(rho) else 1 / (1 + eps / rho)

        def rows(eps: float, g: Tensor) -> Tensor:
            return softmin.softmin(cost, log_b + g / eps, eps, damping(eps), LARGEST * eps, "columns", by)

        def columns(eps: float, f: Tensor) -> Tensor:
            return softmin.softmin(cost, log_a + f / eps, eps, damping(eps), LARGEST * eps, "rows", by)

        steps = schedule(reg, max(diameter, reg), ratio)
        f, g = rows(steps[0], torch.zeros_like(b)), columns(steps[0], torch.zeros_like(a))
        for eps in steps + [reg] * extra:
            f, g = (f + rows(eps, g)) / 2, (g + columns(eps, f)) / 2
        f, g = rows(reg, g), columns(reg, f)
        return UnbalancedResult(f, g, a, b, cost, reg, rho, by)
