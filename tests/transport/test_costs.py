"""Costs: closed forms, limits, finiteness over the paper's sweeps, and the radii derived from them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from papm.errors import ConfigError
from papm.transport import Cost, create_cost, dustbin_for, kernel_radius, reach_of
from papm.transport.windows import cell_centres, window_for

FAR = torch.cat([torch.zeros(1), torch.logspace(-3, math.log10(5000), 400)]).square()
SWEEP = [(4.0, s) for s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)] + [(s, 2.0) for s in (2.0, 4.0, 8.0, 16.0, 32.0)]


@pytest.mark.parametrize("name", ["l2", "ggd-l2", "ggd-l1", "log-ggd"])
@pytest.mark.parametrize(("sigma", "shape"), SWEEP)
def test_finite_and_growing_in_float32(name: str, sigma: float, shape: float) -> None:
    cost = create_cost(name, sigma, shape)(FAR)
    assert cost.dtype == torch.float32 and torch.isfinite(cost).all()
    assert cost[0] == 0
    assert (cost.diff() >= 0).all()


def test_closed_forms() -> None:
    r2 = torch.tensor([64.0, 256.0, 1024.0], dtype=torch.float64)
    r = r2.sqrt()
    torch.testing.assert_close(create_cost("l2")(r2), r2)
    torch.testing.assert_close(create_cost("ggd-l2")(r2), r2 * torch.exp(r2 / 512))
    torch.testing.assert_close(create_cost("ggd-l1")(r2), r * torch.exp(r2 / 512))
    torch.testing.assert_close(create_cost("log-ggd", 16.0, 4.0)(r2), (r / 16) ** 4)
    torch.testing.assert_close(create_cost("ggd-l2", 8.0, 4.0)(r2[:2]), r2[:2] * torch.exp((r2[:2] / 128) ** 2))


def test_ggd_grows_faster_for_smaller_sigma_and_tends_to_l2() -> None:
    r2 = torch.arange(1, 40).double().square()
    costs = [create_cost("ggd-l2", s)(r2) for s in (4.0, 8.0, 16.0, 32.0)]
    assert all((a >= b).all() for a, b in itertools.pairwise(costs))
    assert (costs[-1] >= r2).all()
    torch.testing.assert_close(create_cost("ggd-l2", 1e6)(r2), r2, rtol=1e-8, atol=0)
    torch.testing.assert_close(create_cost("ggd-l2", math.inf)(r2), r2, rtol=0, atol=0)


def test_stretched_cost_is_the_same_curve_in_units_of_sigma() -> None:
    x = torch.linspace(0, 3, 20, dtype=torch.float64)
    wide = create_cost("ggd-l2", 48.0, stretched=True)((48 * x).square())
    torch.testing.assert_close(wide, create_cost("ggd-l2", 16.0)((16 * x).square()))
    with pytest.raises(ConfigError, match="stretched"):
        create_cost("l2", stretched=True)


def test_reach_hardly_moves_with_sigma_but_does_when_stretched() -> None:
    dustbin = 10 * math.log(1e16)
    reach = [reach_of(create_cost("ggd-l2", s), dustbin) for s in (16.0, 32.0, 64.0, math.inf)]
    assert [round(r, 1) for r in reach] == [15.3, 17.8, 18.8, 19.2]
    assert reach_of(create_cost("ggd-l2", 32.0, stretched=True), dustbin) == pytest.approx(2 * reach[0])
    assert dustbin_for(create_cost("ggd-l2"), reach[0]) == pytest.approx(dustbin, rel=1e-6)


@pytest.mark.parametrize("name", ["l2", "ggd-l2", "ggd-l1"])
def test_kernel_is_exactly_zero_beyond_its_radius_and_not_before(name: str) -> None:
    cost = create_cost(name)
    radius = kernel_radius(cost, 10.0)
    inside, outside = torch.tensor([radius - 0.1, radius + 0.1], dtype=torch.float64).square()
    kernel = lambda r2: torch.exp(-cost(r2) / 10.0).float()  # noqa: E731
    assert kernel(inside) > 0 and kernel(outside) == 0


def test_a_kernel_that_never_vanishes_has_no_window() -> None:
    assert kernel_radius(create_cost("log-ggd", 16.0, 0.25), 10.0) == math.inf
    assert window_for(create_cost("log-ggd", 16.0, 0.25), 10.0, 8, 1e-16, torch.float32) is None


def test_windows_of_the_published_setting() -> None:
    small = window_for(create_cost("ggd-l2"), 10.0, 8, 1e-16, torch.float32)
    large = window_for(create_cost("l2"), 10.0, 8, 1e-16, torch.float32)
    assert small is not None and small.half == (2, 2, 2, 2, 2) and small.entries == 25
    assert large is not None and large.half == (1, 3, 3, 4, 4, 4, 3, 3, 1) and large.entries == 61


def test_perspective_is_gl_cost_without_the_grid_shift() -> None:
    cost = create_cost("perspective")
    cells = cell_centres((64, 64), 8, torch.zeros(1))
    assert cells[0].tolist() == [4.0, 4.0]  # GL's code puts it at (8, 8)
    points = torch.tensor([[[100.0, 256.0]]])
    height = torch.tensor([512.0])
    there = torch.tensor([[116.0, 256.0]])
    assert float(cost.pairwise(points, there, height=height)) == pytest.approx(math.expm1(16 / 512 / 0.6), rel=1e-5)
    near, deep = (
        cost.pairwise(torch.tensor([[[0.0, y]]]), torch.tensor([[16.0, y]]), height=height) for y in (500.0, 10.0)
    )
    assert near < deep  # lower in the picture: closer to the camera, distances count less
    moved = cost.pairwise(points, there, top=torch.tensor([512.0]), height=torch.tensor([1024.0]))
    assert float(moved) == pytest.approx(math.expm1(16 / 512 / (0.5 + 0.2 * 0.75)), rel=1e-5)
    # Points beyond the frame count as points at its edge: η stays between ½ and 0.7.
    for y, eta in ((-200.0, 0.5), (900.0, 0.7)):
        beyond = cost.pairwise(torch.tensor([[[100.0, y]]]), torch.tensor([[116.0, y]]), height=height)
        assert float(beyond) == pytest.approx(math.expm1(16 / 512 / eta), rel=1e-5)
    with pytest.raises(ConfigError, match="height"):
        cost.pairwise(points, there)
    assert torch.isfinite(
        cost.pairwise(torch.tensor([[[0.0, 0.0]]]), torch.tensor([[5000.0, 0.0]]), height=height)
    ).all()


def test_bad_options_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ggd-l2'"):
        create_cost("ggd-l3")
    with pytest.raises(ConfigError, match="sigma"):
        Cost("ggd-l2", sigma=-1.0)
    with pytest.raises(ConfigError, match="anchor"):
        create_cost("perspective", anchor="frame")  # type: ignore[arg-type]
