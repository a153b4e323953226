"""The kernel: its mass, its limits, the costs built from it, and what the paper prints instead."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from papm import ggd

SHAPES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SIGMAS = (2.0, 4.0, 8.0, 16.0, 32.0)
# The sweeps of the paper's AL-PAPM tables, and the targets' σ.
COST_SHAPES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def kernel_at(r: float, sigma: float, shape: float) -> float:
    return float(ggd.kernel(torch.tensor(r * r, dtype=torch.float64), sigma, shape))


def mass(sigma: float, shape: float) -> float:
    """∫∫ k dx dy = ∫ 2πr k dr, in the variable r/σ, cut where the integrand is far below 1e-12."""
    end = math.sqrt(2) * 60.0 ** (1 / shape)
    breaks = [q for q in (0.5, 1.0, math.sqrt(2), 2.0) if q < end]
    value, _ = integrate.quad(
        lambda q: 2 * math.pi * q * kernel_at(q * sigma, sigma, shape), 0, end, points=breaks, limit=400
    )
    return value * sigma**2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [2.0, 16.0])
def test_normalizer_makes_the_kernel_a_density(sigma: float, shape: float) -> None:
    assert ggd.normalizer(sigma, shape) * mass(sigma, shape) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(("shape", "factor"), [(0.5, 6.0), (1, 2.0), (2, 1.596), (4, 1.644), (8, 1.765), (16, 1.864)])
def test_the_papers_first_normaliser_is_wrong_by_these_factors(shape: float, factor: float) -> None:
    """Form A, s / (π Γ(1/s) 2^(1/s) σ²), belongs to eq. (1), whose exponent is s, not to the kernel, whose is s/2."""
    printed = shape / (math.pi * math.gamma(1 / shape) * 2 ** (1 / shape) * 16)
    assert printed * mass(4.0, shape) == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize(("shape", "factor"), [(2, 9.03), (8, 492.8), (16, 127_572)])
def test_the_papers_second_normaliser_is_wrong_by_these_factors(shape: float, factor: float) -> None:
    """Form B, s·2^s / (π σ² Γ(1/s)), is form A with 2^s on top instead of 2^(1/s) below: a misprint."""
    printed = shape * 2**shape / (math.pi * 16 * math.gamma(1 / shape))
    assert printed * mass(4.0, shape) == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.7, 4.0, 15.0])
def test_shape_two_is_the_gaussian(sigma: float) -> None:
    r2 = torch.linspace(0, 9 * sigma**2, 50, dtype=torch.float64)
    assert torch.allclose(ggd.kernel(r2, sigma, 2.0), torch.exp(-r2 / (2 * sigma**2)), rtol=1e-12, atol=0)
    assert ggd.normalizer(sigma, 2.0) == pytest.approx(1 / (2 * math.pi * sigma**2), rel=1e-12)


@given(
    shape=st.sampled_from((*COST_SHAPES, 3.0, 6.5)), sigma=st.floats(0.3, 40), r=st.lists(st.floats(0, 100), max_size=8)
)
def test_kernel_is_the_formula(shape: float, sigma: float, r: list[float]) -> None:
    """Squaring instead of pow, for the shapes in use, changes nothing."""
    x = np.array(r)
    with np.errstate(under="ignore", over="ignore"):
        expected = np.exp(-((x**2 / (2 * sigma**2)) ** (shape / 2)))
    found = ggd.kernel(torch.from_numpy(x**2), sigma, shape).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_kernel_takes_one_sigma_a_point() -> None:
    r2 = torch.tensor([[1.0, 4.0], [9.0, 16.0]])
    sigma = torch.tensor([[2.0], [3.0]])
    both = ggd.kernel(r2, sigma, 8.0)
    for row, s in enumerate((2.0, 3.0)):
        assert torch.equal(both[row], ggd.kernel(r2[row], s, 8.0))


@pytest.mark.parametrize("shape", SHAPES)
def test_support_radius_is_where_the_kernel_falls_to_the_tolerance(shape: float) -> None:
    for tolerance in (1e-2, 1e-8):
        r = ggd.support_radius(4.0, shape, tolerance)
        assert kernel_at(r, 4.0, shape) == pytest.approx(tolerance, rel=1e-6)


def test_half_maximum_radius() -> None:
    """σ = 4: 4.71, 5.16, 5.40, 5.53 px for s = 2, 4, 8, 16; the plateau is a disc of radius σ√2."""
    for shape, r in ((2.0, 4.71), (4.0, 5.16), (8.0, 5.40), (16.0, 5.53)):
        assert ggd.support_radius(4.0, shape, 0.5) == pytest.approx(r, abs=5e-3)
        assert kernel_at(4 * math.sqrt(2), 4.0, shape) == pytest.approx(math.exp(-1))


# --- eq. (1) ----------------------------------------------------------------------------------------------------------


def grid(dimension: int, half: float, n: int) -> tuple[torch.Tensor, float]:
    """Midpoints of an n^D grid over [-half, half]^D, and the volume of one cell."""
    step = 2 * half / n
    axis = (torch.arange(n, dtype=torch.float64) + 0.5) * step - half
    return torch.stack(torch.meshgrid(*[axis] * dimension, indexing="ij"), -1).reshape(-1, dimension), step**dimension


SCATTERS = {
    1: torch.tensor([[1.7]]),
    2: torch.tensor([[2.0, 0.6], [0.6, 0.5]]),
    3: torch.tensor([[1.5, 0.3, 0.1], [0.3, 0.8, -0.2], [0.1, -0.2, 1.1]]),
}


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("shape", [0.75, 1.0, 4.0])
@pytest.mark.parametrize("turned", [False, True])
def test_pdf_integrates_to_one(dimension: int, shape: float, turned: bool) -> None:
    n = {1: 4000, 2: 500, 3: 90}[dimension]
    x, volume = grid(dimension, 11.0 if shape < 1 else 6.5 if shape == 1 else 3.0, n)
    scatter = SCATTERS[dimension].double() if turned else None
    total = float(ggd.pdf(x, 0.9, shape, scatter).sum()) * volume
    assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_pdf_of_shape_one_is_the_multivariate_normal(dimension: int, turned: bool) -> None:
    x = torch.randn(40, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scatter = SCATTERS[dimension].double() if turned else torch.eye(dimension, dtype=torch.float64)
    sigma = 1.3
    normal = torch.distributions.MultivariateNormal(torch.zeros(dimension, dtype=torch.float64), sigma**2 * scatter)
    assert torch.allclose(ggd.pdf(x, sigma, 1.0, scatter if turned else None), normal.log_prob(x).exp(), rtol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_is_the_pdf_of_half_its_shape(shape: float) -> None:
    """`kernel(σ, s)` is eq. (1) with shape s/2 and bandwidth σ√2·2^(-1/s), up to the factor; the factor is K."""
    x = 6 * torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sigma = 4.0
    found = ggd.pdf(x, sigma * math.sqrt(2) * 2 ** (-1 / shape), shape / 2)
    expected = ggd.normalizer(sigma, shape) * ggd.kernel(x.square().sum(-1), sigma, shape)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_pdf_keeps_leading_dimensions() -> None:
    x = torch.randn(3, 4, 2)
    scatter = SCATTERS[2]
    assert torch.allclose(ggd.pdf(x, 1.0, 2.0, scatter)[1, 2], ggd.pdf(x[1, 2], 1.0, 2.0, scatter))
    assert ggd.pdf(x, 1.0, 2.0).shape == (3, 4)


# --- the transport cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", COST_SHAPES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_cost_laws(sigma: float, shape: float) -> None:
    """c(0) = 0, c ≥ r², growing with r, finite in float32 at every distance, larger for a smaller σ."""
    r = torch.linspace(0, 5000, 20001)
    r2 = r.square()
    cost = ggd.transport_cost(r2, sigma, shape)
    assert cost.dtype == torch.float32
    assert cost[0] == 0
    assert torch.isfinite(cost).all()
    assert (cost >= r2).all()
    assert (cost.diff() >= 0).all()
    assert (cost[:-1][cost[1:] < ggd.COST_CAP] < cost[1:][cost[1:] < ggd.COST_CAP]).all()
    wider = ggd.transport_cost(r2, 1.25 * sigma, shape)
    assert (wider <= cost).all()
    below = (cost < ggd.COST_CAP) & (r > 0.5 * sigma)
    assert below.any() and (wider[below] < cost[below]).all()


def test_cost_values() -> None:
    """σ = 16, s = 2 at 8, 16, 32 px: 72.5, 422, 7566, against 64, 256, 1024 of plain L2."""
    r = torch.tensor([8.0, 16.0, 32.0])
    assert torch.allclose(ggd.transport_cost(r.square(), 16.0, 2.0), torch.tensor([72.52, 422.07, 7566.2]), rtol=1e-4)


def test_cost_is_exact_below_the_cap() -> None:
    """In float64, against the formula, up to where the bound begins (t = 80)."""
    r = torch.linspace(0, 200, 400, dtype=torch.float64)
    t = r.square() / (2 * 16.0**2)
    exact = r.square() * torch.exp(t)
    assert torch.allclose(ggd.transport_cost(r.square(), 16.0, 2.0), exact.clamp(max=ggd.COST_CAP), rtol=1e-12)


def test_cost_of_a_huge_sigma_is_the_squared_distance() -> None:
    r2 = torch.linspace(0, 700, 100).square()
    assert torch.allclose(ggd.transport_cost(r2, 1e6, 2.0), r2, rtol=1e-6)


@pytest.mark.parametrize("shape", [*SHAPES, 3.0])
def test_kernel_and_cost_can_be_differentiated(shape: float) -> None:
    """The squaring in place, which is fast, must not overwrite what the backward pass reads."""
    r2 = torch.tensor([1.0, 9.0, 40.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: ggd.kernel(t, 4.0, shape), r2)
    assert torch.autograd.gradcheck(lambda t: ggd.transport_cost(t, 4.0, shape), r2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cost_of_half_precision_is_float32(dtype: torch.dtype) -> None:
    r2 = torch.tensor([0.0, 64.0, 4096.0, 40000.0], dtype=dtype)
    cost = ggd.transport_cost(r2, 16.0, 2.0)
    assert cost.dtype == torch.float32 and torch.isfinite(cost).all()
    assert torch.equal(cost, ggd.transport_cost(r2.float(), 16.0, 2.0))


def test_cost_at_infinity_and_own_cap() -> None:
    r2 = torch.tensor([math.inf, 1e30, 4.0])
    assert ggd.transport_cost(r2, 4.0, 8.0).tolist()[:2] == pytest.approx([1e30, 1e30])
    assert ggd.transport_cost(r2, 4.0, 8.0, cap=10.0).tolist() == pytest.approx([10, 10, 4.0], rel=1e-3)


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_sample_follows_the_kernel(shape: float) -> None:
    """(r²/2σ²)^(s/2) is Gamma(2/s), the angle uniform, and E r² = 2σ² Γ(4/s)/Γ(2/s)."""
    xy = ggd.sample(20_000, 3.0, shape, torch.Generator().manual_seed(3)).numpy()
    r2 = (xy**2).sum(1)
    assert stats.kstest((r2 / 18) ** (shape / 2), stats.gamma(2 / shape).cdf).pvalue > 1e-3
    assert stats.kstest(np.arctan2(xy[:, 1], xy[:, 0]), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3
    if shape >= 1:
        expected = 18 * math.gamma(4 / shape) / math.gamma(2 / shape)
        assert r2.mean() == pytest.approx(expected, rel=0.06)


def test_sample_is_seeded_and_takes_one_sigma_a_point() -> None:
    first, second = (ggd.sample(5, 2.0, 8.0, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    scaled = ggd.sample(5, torch.tensor([2.0, 4.0, 2.0, 2.0, 2.0]), 8.0, torch.Generator().manual_seed(7))
    assert torch.allclose(scaled[1], 2 * first[1]) and torch.allclose(scaled[2], first[2])
    assert ggd.sample(0, 1.0, 2.0).shape == (0, 2)
