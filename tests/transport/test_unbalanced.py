"""Unbalanced transport: its limits, its gradient, and geomloss as an oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from papm.errors import ConfigError
from papm.transport import sinkhorn
from papm.transport.unbalanced import unbalanced


def random_problem(seed: int = 0, n: int = 5, m: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.rand(1, n, 2, generator=rng).double(), torch.rand(1, m, 2, generator=rng).double()
    return torch.ones(1, n).double(), torch.rand(1, m, generator=rng).double() + 0.1, torch.cdist(x, y)


@pytest.mark.slow
def test_infinite_price_is_balanced_transport() -> None:
    a, b, cost = random_problem()
    a, b = a / a.sum(), b / b.sum()
    want = sinkhorn(a, b, cost, 0.05, 4000, "log", dustbin=math.inf).plan()
    errors = []
    for rho in (1.0, 100.0, 1e6, math.inf):
        plan = unbalanced(a, b, cost, 0.05, rho, extra=3000).plan()
        errors.append(float((plan - want).abs().max()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-6 and errors[3] < 1e-9


def test_a_low_price_destroys_what_is_far() -> None:
    a = b = torch.ones(1, 1).double()
    cost = torch.full((1, 1, 1), 5.0).double()
    assert float(unbalanced(a, b, cost, 0.01, 0.1).plan()) < 1e-6
    assert float(unbalanced(a, b, cost * 0, 0.01, 0.1).plan()) == pytest.approx(1, abs=0.05)


def test_fixed_point_equations() -> None:
    a, b, cost = random_problem(1)
    r = unbalanced(a, b, cost, 0.05, 0.5, extra=3000)
    plan = r.plan()
    torch.testing.assert_close(plan.sum(2), a * torch.exp(-r.f / 0.5), rtol=1e-7, atol=0)
    torch.testing.assert_close(plan.sum(1), b * torch.exp(-r.g / 0.5), rtol=1e-7, atol=0)


@pytest.mark.slow
def test_gradient_is_that_of_the_value() -> None:
    a, b, cost = random_problem(2)
    g = unbalanced(a, b, cost, 0.05, 0.5, extra=3000).column_gradient
    for j in (0, 5, 11):
        step = torch.zeros_like(b)
        step[0, j] = 1e-5
        up, down = (unbalanced(a, b + s * step, cost, 0.05, 0.5, extra=3000).value for s in (1, -1))
        assert float(up - down) / 2e-5 == pytest.approx(float(g[0, j]), rel=1e-6)


def test_geomloss_gives_the_same_figure() -> None:
    geomloss = pytest.importorskip("geomloss")
    a, b, _ = random_problem(3)
    rng = torch.Generator().manual_seed(9)
    x, y = torch.rand(1, 5, 2, generator=rng).double(), torch.rand(1, 12, 2, generator=rng).double()
    loss = geomloss.SamplesLoss(
        "sinkhorn", p=1, blur=0.01, reach=0.5, scaling=0.5, debias=False, cost=torch.cdist, diameter=math.sqrt(2),
        backend="tensorized",
    )  # fmt: skip
    want = loss(a, x, b, y)
    torch.testing.assert_close(unbalanced(a, b, torch.cdist(x, y)).value, want, rtol=1e-6, atol=0)


def test_nothing_to_match_is_finite() -> None:
    b = torch.rand(2, 6)
    a = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    r = unbalanced(a, b, torch.rand(2, 2, 6))
    assert torch.isfinite(r.value).all() and torch.isfinite(r.column_gradient).all()
    assert float(r.plan()[1].sum()) == 0
    assert float(r.value[1]) == pytest.approx(float((0.5 + 0.005) * b[1].sum()), rel=1e-4)
    none = unbalanced(torch.zeros(1, 0), b[:1], torch.zeros(1, 0, 6))
    assert torch.isfinite(none.value).all()


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        unbalanced(torch.ones(1, 2), torch.ones(1, 3), torch.ones(1, 3, 2))
    with pytest.raises(ConfigError, match="positive"):
        unbalanced(torch.ones(1, 2), torch.ones(1, 3), torch.ones(1, 2, 3), reg=0.0)
