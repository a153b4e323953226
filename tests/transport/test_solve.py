"""The balanced solvers: laws of the plan, the dustbin, agreement of all solvers, POT as an oracle."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.structures import PointBatch
from papm.transport import TransportResult, create_cost, grid_sinkhorn, native, sinkhorn
from papm.transport.solve import Solver
from papm.transport.windows import WindowProblem, cell_centres

torch.set_num_threads(1)


def scene(
    counts: list[int], size: tuple[int, int] = (12, 16), stride: int = 8, seed: int = 0
) -> tuple[PointBatch, Tensor]:
    """Points of a few images in float64 and densities with empty cells and a background leak."""
    rng = torch.Generator().manual_seed(seed)
    extent = torch.tensor([size[1] * stride, size[0] * stride], dtype=torch.float64)
    lists = [torch.rand(n, 2, generator=rng, dtype=torch.float64) * extent for n in counts]
    density = torch.rand(len(counts), *size, generator=rng, dtype=torch.float64) ** 4 + 0.002
    density = density * (torch.rand(len(counts), *size, generator=rng) > 0.3)
    return PointBatch.from_list(lists), density


def single(points: PointBatch) -> PointBatch:
    return PointBatch(points.xy.float(), points.valid)


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def gradient(density: Tensor, result: TransportResult) -> Tensor:
    """Danskin's gradient by the unnormalised density, [B, m]."""
    z, beta = density.flatten(1), result.potentials[1]
    total = z.sum(1, keepdim=True)
    return (beta * total - (z * beta).sum(1, keepdim=True)) / (total.square() + 1e-8)


def test_two_diracs_have_the_obvious_plan() -> None:
    cost = torch.tensor([[0.0, 50.0], [50.0, 0.0]], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    result = sinkhorn(half, half, cost, reg=1.0, iterations=200)
    torch.testing.assert_close(result.plan(), torch.eye(2, dtype=torch.float64) / 2, atol=1e-12, rtol=0)
    assert float(result.value) == pytest.approx(0, abs=1e-9)
    assert max(float(e) for e in result.marginal_errors) < 1e-9


def test_transport_is_symmetric() -> None:
    rng = torch.Generator().manual_seed(1)
    a, b = (torch.rand(n, generator=rng, dtype=torch.float64) for n in (5, 7))
    cost = torch.rand(5, 7, generator=rng, dtype=torch.float64)
    there = sinkhorn(a / a.sum(), b / b.sum(), cost, 0.1, 3000).plan()
    back = sinkhorn(b / b.sum(), a / a.sum(), cost.T, 0.1, 3000).plan()
    torch.testing.assert_close(there, back.T, atol=1e-9, rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_pot_finds_the_same_plan(seed: int) -> None:
    ot = pytest.importorskip("ot")
    rng = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(n, generator=rng, dtype=torch.float64) + 0.1 for n in (6, 9))
    a, b, cost = a / a.sum(), b / b.sum(), torch.rand(6, 9, generator=rng, dtype=torch.float64) * 50
    want = ot.sinkhorn(a.numpy(), b.numpy(), cost.numpy(), 10.0, numItermax=5000, stopThr=1e-14)
    for solver in ("reference", "log"):
        got = sinkhorn(a, b, cost, 10.0, 5000, solver).plan()
        assert abs(got.numpy() - want).max() < 1e-6


@pytest.mark.parametrize("name", ["l2", "ggd-l2", "log-ggd"])
def test_scaling_and_log_solvers_are_equal_at_equal_iterations(name: str) -> None:
    points, density = scene([30, 1, 0, 17])
    reference, log = (grid_sinkhorn(points, density, 8, name, solver=s) for s in ("reference", "log"))
    for got, want in zip(log.potentials, reference.potentials):
        assert float((got - want).abs().max()) < 5e-12
    torch.testing.assert_close(log.value, reference.value, rtol=1e-10, atol=1e-10)


def test_the_iteration_is_the_published_one() -> None:
    """Written out by hand: from u = 1/n, cells first, floor 1e-16, and once more on the output."""
    points, density = scene([9])
    cost = create_cost("ggd-l2").pairwise(points.xy[0], cell_centres((12, 16), 8, points.xy))
    kernel, b = torch.exp(-cost / 10), density.flatten() / (density.sum() + 1e-6)
    u = torch.full((9,), 1 / 9, dtype=torch.float64)
    for _ in range(100):
        v = b / (kernel.T @ u + 1e-16)
        u = (1 / 9) / (kernel @ v + 1e-16)
    result = grid_sinkhorn(points, density, 8, "ggd-l2", solver="reference")
    torch.testing.assert_close(result.potentials[1][0], 10 * torch.log(v + 1e-16), rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(result.potentials[0][0], 10 * torch.log(u + 1e-16), rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(result.plan()[0], u[:, None] * kernel * v, rtol=1e-9, atol=1e-15)


def test_far_cells_saturate_at_the_dustbin() -> None:
    points = PointBatch.from_list([torch.tensor([[4.0, 4.0]], dtype=torch.float64)])
    density = torch.ones(1, 1, 32, dtype=torch.float64)
    result = grid_sinkhorn(points, density, 8, "l2")
    far = result.potentials[1][0, 8:]
    b = 1 / (32 + 1e-6)
    torch.testing.assert_close(far, torch.full_like(far, 10 * math.log(b / 1e-16 + 1e-16)), rtol=1e-9, atol=0)
    assert float(result.unmatched[1]) == pytest.approx(1 - float(result.plan().sum()), abs=1e-3)


def test_a_longer_reach_moves_mass_from_farther() -> None:
    points = PointBatch.from_list([torch.tensor([[4.0, 4.0]], dtype=torch.float64)])
    density = torch.zeros(1, 1, 8, dtype=torch.float64)
    density[0, 0, 3] = 1.0  # 24 px away
    moved = [float(grid_sinkhorn(points, density, 8, "l2", reach=r).plan().sum()) for r in (12.0, 36.0)]
    assert moved[0] < 0.01 and moved[1] > 0.99
    with pytest.raises(ConfigError, match="not both"):
        grid_sinkhorn(points, density, 8, "l2", reach=12.0, dustbin=100.0)
    for wrong in (-12.0, 0.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="reach must be a positive number"):
            grid_sinkhorn(points, density, 8, "l2", reach=wrong)


def test_scaled_coordinates_give_the_same_plan() -> None:
    """σ' = kσ, ε' = k²ε, stride k: the plan is identical and the potentials are k² times as large."""
    points, density = scene([12])
    k = 4
    small = grid_sinkhorn(points, density, 8, create_cost("ggd-l2", 16.0), reg=10.0)
    large = grid_sinkhorn(
        PointBatch(points.xy * k, points.valid), density, 8 * k, create_cost("ggd-l2", 16.0 * k), reg=10.0 * k * k
    )
    torch.testing.assert_close(large.plan(), small.plan(), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(large.potentials[1], small.potentials[1] * k * k, rtol=1e-9, atol=1e-9)


FAST = ["sparse", "compiled", "auto", "reference", "log"]


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    name=st.sampled_from(["l2", "ggd-l2", "ggd-l1"]),
    stride=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 10**6),
)
def test_float32_solvers_agree_with_float64(counts: list[int], name: str, stride: int, seed: int) -> None:
    points, density = scene(counts, (9, 13), stride, seed)
    want = grid_sinkhorn(points, density, stride, name, solver="reference")
    for solver in FAST:
        if solver == "compiled" and not native.available():
            continue
        got = grid_sinkhorn(single(points), density.float(), stride, name, solver=solver)
        assert got.log_v.dtype == torch.float32
        for a, b in zip(got.potentials, want.potentials):
            assert a.numel() == 0 or relative(a, b) < 1e-3, solver
        exact = gradient(density, want)
        assert relative(gradient(density.float(), got), exact) < 1e-3, solver
        torch.testing.assert_close(got.value.double(), want.value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cap", [200.0, 500.0])
def test_a_visible_cap_is_windows_plus_a_constant(cap: float) -> None:
    points, density = scene([25, 3])
    cost = create_cost("ggd-l2", cap=cap)
    want = grid_sinkhorn(points, density, 8, cost, solver="reference")
    for solver, tolerance in (("sparse", 1e-9), ("compiled", 1e-4)):
        if solver == "compiled" and not native.available():
            continue
        given_ = (points, density) if solver == "sparse" else (single(points), density.float())
        got = grid_sinkhorn(*given_, 8, cost, solver=solver)
        for a, b in zip(got.potentials, want.potentials):
            assert relative(a, b) < tolerance
        assert relative(got.value, want.value) < max(tolerance, 1e-8)


@pytest.mark.parametrize("reach", [15.5, 17.0, 20.0, 22.0, 24.0, 40.0, 80.0])
@pytest.mark.parametrize("name", ["l2", "ggd-l2"])
def test_float32_input_agrees_at_any_reach(name: str, reach: float) -> None:
    """Points in the upper third only: cells far from them are where scalings are largest."""
    points, density = scene([40], (16, 16), seed=2)
    points.xy[..., 1] *= 0.3
    want = grid_sinkhorn(points, density, 8, name, reach=reach, solver="log")
    got = grid_sinkhorn(single(points), density.float(), 8, name, reach=reach)
    assert all(relative(a, b) < 1e-4 for a, b in zip(got.potentials, want.potentials))
    torch.testing.assert_close(got.value.double(), want.value, rtol=1e-3, atol=0)
    if got.log_v.dtype == torch.float64:
        for solver in ("sparse", "reference", *(["separable"] if name == "l2" else [])):
            with pytest.raises(ConfigError, match=f"too dear for the '{solver}' solver"):
                grid_sinkhorn(single(points), density.float(), 8, name, reach=reach, solver=solver)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_dustbin_nothing_overflows(dtype: torch.dtype) -> None:
    """A map 480 px wide with its points at one end: the kernel of the other end is zero even in float64."""
    points, density = scene([20], (4, 60))
    points.xy[..., 0] *= 0.1
    points, density = PointBatch(points.xy.to(dtype), points.valid), (density + 0.01).to(dtype)
    result = grid_sinkhorn(points, density, 8, "l2", dustbin=math.inf)
    assert all(torch.isfinite(t).all() for t in result.potentials)
    assert float(result.plan().sum()) == pytest.approx(1, abs=1e-3)


def test_a_wide_kernel_asks_for_no_more_than_the_map() -> None:
    """The kernel of log-ggd(16, 1) ends 14,000 px away: 10⁷ cells to a point, of which the map has 192."""
    points, density = scene([9, 2])
    cost = create_cost("log-ggd", 16.0, 1.0)
    want = grid_sinkhorn(points, density, 8, cost, solver="reference")
    got = grid_sinkhorn(single(points), density.float(), 8, cost, solver="sparse")
    assert isinstance(got.problem, WindowProblem) and got.problem.radius == 15
    assert all(relative(a, b) < 1e-5 for a, b in zip(got.potentials, want.potentials))
    torch.testing.assert_close(got.value.double(), want.value, rtol=1e-4, atol=0)


def test_separable_solver_for_quadratic_costs() -> None:
    points, density = scene([25, 0, 3])
    for cost, reg in ((create_cost("l2"), 10.0), (create_cost("l2"), 1e4), (create_cost("log-ggd", 16.0, 2.0), 10.0)):
        want = grid_sinkhorn(points, density, 8, cost, reg, solver="reference")
        got = grid_sinkhorn(points, density, 8, cost, reg, solver="separable")
        torch.testing.assert_close(got.potentials, want.potentials, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.value, want.value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.plan(), want.plan(), rtol=1e-8, atol=1e-15)
    assert grid_sinkhorn(points, density, 8, "l2", 1e4).solver == "separable"
    with pytest.raises(ConfigError, match="separable"):
        grid_sinkhorn(points, density, 8, "ggd-l2", solver="separable")


def test_points_outside_the_map_still_see_its_border() -> None:
    points = PointBatch.from_list([torch.tensor([[-6.0, 20.0], [130.0, -3.0], [64.0, 99.0]], dtype=torch.float64)])
    _, density = scene([3])
    want = grid_sinkhorn(points, density, 8, "l2", solver="reference")
    got = grid_sinkhorn(single(points), density.float(), 8, "l2", solver="sparse")
    assert relative(got.potentials[1], want.potentials[1]) < 1e-4


def test_sigma_to_infinity_is_dm_count() -> None:
    points, density = scene([20, 5])
    plain = gradient(density, grid_sinkhorn(points, density, 8, "l2", solver="reference"))
    errors = []
    for sigma in (1e3, 1e5, 1e7):
        wide = grid_sinkhorn(points, density, 8, create_cost("ggd-l2", sigma), solver="reference")
        errors.append(relative(gradient(density, wide), plain))
    assert errors[1] < 1e-3 * errors[0] and errors[2] < 1e-9  # it falls as 1/σ²


def dual(result: TransportResult, b: Tensor) -> float:
    """⟨a,α⟩ + ⟨b,β⟩ - ε·Σexp((α+β-C)/ε) - ε·δ·(Σexp(α/ε) + Σexp(β/ε)), what the iteration maximises."""
    eps, floor = result.reg, math.exp(-result.dustbin / result.reg)
    u, v = result.log_u.exp(), result.log_v.exp()
    linear = (result.a * result.log_u).sum() + torch.where(b > 0, b * result.log_v, 0.0).sum()
    return float(eps * (linear - result.plan().sum() - floor * (u.sum() + v.sum())))


@pytest.mark.slow
def test_gradient_is_that_of_the_converged_dual() -> None:
    points, density = scene([4], (4, 5), seed=3)
    density = density + 0.05

    def solve(z: Tensor) -> TransportResult:
        return grid_sinkhorn(points, z, 8, "ggd-l2", iterations=12_000, solver="reference")

    base = solve(density)
    assert max(float(e) for e in base.marginal_errors) < 1e-9
    g = gradient(density, base)[0]
    for j in (0, 7, 13, 19):
        step = torch.zeros(20, dtype=torch.float64)
        step[j] = 1e-5
        up, down = (density + s * step.view(1, 4, 5) for s in (1, -1))
        slope = (dual(solve(up), solve(up).b) - dual(solve(down), solve(down).b)) / 2e-5
        assert slope == pytest.approx(float(g[j]), rel=2e-3, abs=2e-3 * float(g.abs().max()))


def test_gradient_is_orthogonal_and_homogeneous() -> None:
    points, density = scene([30, 7])
    density = density * 10
    g = gradient(density, grid_sinkhorn(points, density, 8, "ggd-l2"))
    scale = (density.flatten(1).abs() * g.abs()).sum(1)
    assert ((density.flatten(1) * g).sum(1).abs() < 1e-6 * scale).all()
    again = gradient(density * 3, grid_sinkhorn(points, density * 3, 8, "ggd-l2"))
    torch.testing.assert_close(again, g / 3, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["l2", "ggd-l2"])
def test_degenerate_images(name: str) -> None:
    none, one = torch.zeros(0, 2), torch.tensor([[5.0, 5.0]])
    twice = torch.tensor([[30.0, 30.0]] * 5)
    points = PointBatch.from_list([none, one, twice, twice])
    density = torch.rand(4, 8, 8)
    density[3] = 0
    for solver in ("sparse", "reference", "log", "auto"):
        result = grid_sinkhorn(points, density, 8, name, solver=solver)
        for t in (*result.potentials, result.value, *result.marginal_errors, result.plan()):
            assert torch.isfinite(t).all(), solver
        assert float(result.value[0]) == 0 and float(result.plan()[3].sum()) == 0
    assert grid_sinkhorn(PointBatch.from_list([none]), density[:1], 8, name).plan().shape == (1, 0, 64)


def test_equal_points_share_equally() -> None:
    points = PointBatch.from_list([torch.tensor([[30.0, 30.0]] * 5)])
    result = grid_sinkhorn(points, torch.rand(1, 8, 8), 8, "l2", solver="sparse")
    alpha = result.potentials[0][0]
    assert (alpha == alpha[0]).all()


def test_exactly_the_asked_iterations() -> None:
    points, density = scene([10])
    few, many = (grid_sinkhorn(points, density, 8, "l2", iterations=k) for k in (100, 5000))
    assert grid_sinkhorn(points, density, 8, "l2").iterations == few.iterations == 100
    assert max(float(e) for e in many.marginal_errors) < 1e-3 < max(float(e) for e in few.marginal_errors)


def test_autocast_does_not_reach_the_solver() -> None:
    points, density = scene([10])
    want = grid_sinkhorn(single(points), density.float(), 8, "ggd-l2")
    with torch.autocast("cpu", torch.bfloat16):
        got = grid_sinkhorn(single(points), density.float(), 8, "ggd-l2", solver="reference")
    assert got.log_v.dtype == torch.float32 and relative(got.potentials[1], want.potentials[1]) < 1e-4


def test_bad_arguments_are_refused() -> None:
    points, density = scene([3])
    with pytest.raises(ConfigError, match="regularisation"):
        grid_sinkhorn(points, density, 8, reg=0.0)
    with pytest.raises(ConfigError, match="iterations"):
        grid_sinkhorn(points, density, 8, iterations=0)
    with pytest.raises(ConfigError, match="did you mean 'sparse'"):
        grid_sinkhorn(points, density, 8, solver="sparce")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="do not fit"):
        sinkhorn(torch.ones(2), torch.ones(3), torch.ones(3, 2))
    with pytest.raises(ConfigError, match="not sparse"):
        grid_sinkhorn(points, density, 8, create_cost("log-ggd", 16.0, 0.25), solver="sparse")


def test_what_is_no_number_is_refused_by_image() -> None:
    points, density = scene([3, 3])
    wrong = density.clone()
    wrong[1, 2, 2] = math.nan
    with pytest.raises(DataError, match="the density of image 1"):
        grid_sinkhorn(points, wrong, 8)
    with pytest.raises(DataError, match="a point of image 0"):
        grid_sinkhorn(PointBatch(points.xy.index_fill(1, torch.tensor(2), math.inf), points.valid), density, 8)
    half = torch.ones(2) / 2
    with pytest.raises(DataError, match="the cost of image 0"):
        sinkhorn(half, half, torch.tensor([[0.0, math.nan], [1.0, 0.0]]))
    with pytest.raises(DataError, match="b of image 0"):
        sinkhorn(half, half * math.inf, torch.zeros(2, 2))
    with pytest.raises(DataError, match="the cost of image 0"):
        sinkhorn(half, half, torch.tensor([[0.0, -math.inf], [1.0, 0.0]]))


def test_negative_mass_is_refused_by_image() -> None:
    points, density = scene([3, 3])
    density[1, 2, 2] = -0.1
    with pytest.raises(DataError, match=r"the density of image 1 .* negative"):
        grid_sinkhorn(points, density, 8)
    with pytest.raises(DataError, match=r"b of image 0 .* negative"):
        sinkhorn(torch.ones(2) / 2, torch.tensor([-1.0, 2.0]), torch.zeros(2, 2))


@pytest.mark.parametrize("solver", ["reference", "log"])
def test_forbidden_pairs_cost_nothing(solver: Solver) -> None:
    half = torch.ones(2) / 2
    result = sinkhorn(half, half, torch.tensor([[3.0, math.inf], [math.inf, 5.0]]), solver=solver)
    assert result.log_u.isfinite().all() and float(result.value) == pytest.approx(4, rel=1e-4)


def test_padding_may_hold_anything() -> None:
    points, density = scene([5, 2])
    odd = PointBatch(torch.where(points.valid[..., None], points.xy, math.nan), points.valid)
    for solver in ("auto", "reference", "log"):
        want = grid_sinkhorn(points, density, 8, "ggd-l2", solver=solver)
        assert torch.equal(grid_sinkhorn(odd, density, 8, "ggd-l2", solver=solver).potentials[1], want.potentials[1])
