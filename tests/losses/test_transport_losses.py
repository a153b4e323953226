"""The transport losses: SC, DM-Count, AL-PAPM, GL, GL-PAPM, UOT."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.losses import LossContext, create
from papm.losses import unbalanced as module
from papm.losses.transport import PERSPECTIVE_SCALE, sum_pool
from papm.losses.unbalanced import UNIT, matched_kappa
from papm.structures import DensityOutput, PointBatch
from papm.transport import create_cost, grid_sinkhorn
from papm.transport.unbalanced import unbalanced
from papm.transport.windows import cell_centres

BALANCED = ["sc", "dm-count", "al-papm"]
ALL = [*BALANCED, "gl", "gl-papm", "uot"]


def scene(
    counts: list[int], side: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    density = (torch.rand(len(counts), 1, side, side, generator=rng, dtype=torch.float64) ** 4 * 0.5).to(dtype)
    return density, [(torch.rand(n, 2, generator=rng, dtype=torch.float64) * side * 8).to(dtype) for n in counts]


def gradient(loss: torch.nn.Module, density: Tensor, points: list[Tensor]) -> Tensor:
    z = density.clone().requires_grad_()
    loss(z, points).total.backward()
    assert z.grad is not None
    return z.grad


@pytest.mark.parametrize("name", ALL)
def test_total_is_the_weighted_sum_of_meaningful_terms(name: str) -> None:
    density, points = scene([20, 5, 0])
    out = create(name)(density.requires_grad_(), points)
    assert out.weights.keys() == out.terms.keys()
    total = sum(out.weights[k] * float(t) for k, t in out.terms.items())
    assert float(out.total.detach()) == pytest.approx(total, rel=1e-5)
    assert not any(t.requires_grad for t in out.terms.values())
    if name != "sc":
        assert float(out.terms["transport"]) > 0.01


@pytest.mark.parametrize("name", ALL)
def test_degenerate_images_have_finite_loss_and_gradient(name: str) -> None:
    spot = torch.tensor([[30.0, 30.0]])
    points = [torch.zeros(0, 2), spot, spot.repeat(5, 1), spot.repeat(3, 1), torch.zeros(0, 2)]
    density = torch.rand(5, 1, 12, 12)
    density[3:] = 0
    z = density.requires_grad_()
    out = create(name)(z, points)
    out.total.backward()
    assert torch.isfinite(out.total) and z.grad is not None and torch.isfinite(z.grad).all()
    empty = create(name)(torch.rand(2, 1, 8, 8), [torch.zeros(0, 2)] * 2)
    assert torch.isfinite(empty.total)


@pytest.mark.parametrize("name", ALL)
def test_nan_is_refused_by_image(name: str) -> None:
    density, points = scene([4, 4])
    bad = density.clone()
    bad[1, 0, 3, 3] = math.nan
    with pytest.raises(DataError, match="image 1"):
        create(name)(bad, points)
    points[0] = points[0].clone()
    points[0][2, 1] = math.inf
    with pytest.raises(DataError, match="image 0"):
        create(name)(density, points)
    with pytest.raises(DataError, match="image 0"):
        create(name)(density, PointBatch.from_list(points))


@pytest.mark.parametrize("name", ALL)
def test_every_accepted_form_gives_the_same(name: str) -> None:
    density, points = scene([7, 2])
    loss = create(name)
    want = float(loss(density, points).total)
    assert float(loss(DensityOutput(density, 8), points).total) == pytest.approx(want)
    assert float(loss(density, PointBatch.from_list(points, length=30)).total) == pytest.approx(want, rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert float(loss(density, points).total) == pytest.approx(want, rel=1e-5)


def test_published_weight() -> None:
    """0.1 summed over a batch of 10, whose other terms are averaged, is 1.0 in the mean."""
    density, points = scene([6 + k for k in range(10)])
    mean, published = create("dm-count"), create("dm-count", published=True)
    assert mean(density, points).weights == {"count": 1.0, "tv": 0.01, "transport": 1.0}
    assert published(density, points).weights["transport"] == 0.1
    assert float(mean(density, points).total) == pytest.approx(float(published(density, points).total), rel=1e-5)
    torch.testing.assert_close(gradient(mean, density, points), gradient(published, density, points))


def test_terms_are_the_formulas() -> None:
    density, points = scene([9, 3], dtype=torch.float64)
    out = create("al-papm")(density, points)
    z, n = density.flatten(1), torch.tensor([9.0, 3.0], dtype=torch.float64)
    assert float(out.terms["count"]) == pytest.approx(float((z.sum(1) - n).abs().mean()))
    tv = []
    for b, xy in enumerate(points):
        dots = torch.zeros(12, 12, dtype=torch.float64)
        for x, y in xy:
            dots[int(y // 8), int(x // 8)] += 1
        tv.append(n[b] * (z[b] / (z[b].sum() + 1e-6) - dots.flatten() / (n[b] + 1e-6)).abs().sum())
    assert float(out.terms["tv"]) == pytest.approx(float(torch.stack(tv).mean()))
    result = grid_sinkhorn(PointBatch.from_list(points), density[:, 0], 8, create_cost("ggd-l2", 16.0, 2.0))
    plan = result.plan()
    cost = result.problem.cost_matrix()
    assert float(out.terms["transport"]) == pytest.approx(float((plan * cost).sum((1, 2)).mean()), rel=1e-6)


def test_transport_gradient_is_danskins() -> None:
    density, points = scene([9, 3], dtype=torch.float64)
    with_ot, without = create("al-papm"), create("sc")
    got = (gradient(with_ot, density, points) - gradient(without, density, points)).flatten(1) * 2  # mean of two images
    z = density.flatten(1)
    beta = grid_sinkhorn(PointBatch.from_list(points), density[:, 0], 8, "ggd-l2", solver="reference").potentials[1]
    total = z.sum(1, keepdim=True)
    want = beta * total / (total**2 + 1e-8) - (z * beta).sum(1, keepdim=True) / (total**2 + 1e-8)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)
    assert ((z * got).sum(1).abs() < 1e-6 * (z * got).abs().sum(1)).all()


@pytest.mark.parametrize("name", ["dm-count", "al-papm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_cell_is_called_upon_only_where_an_object_is_missed(name: str, dtype: torch.dtype) -> None:
    """ε·ln v is −368 in every empty cell: a map that can rise from zero would be called upon everywhere, the sky included."""
    points = [torch.tensor([[44.0, 44.0], [204.0, 60.0], [180.0, 188.0]], dtype=dtype)]
    density = torch.zeros(1, 1, 32, 32, dtype=dtype)
    density[0, 0, 5, 5] = density[0, 0, 7, 25] = 1.0  # the third is missed
    transport = gradient(create(name, w_tv=0.0), density, points) - gradient(create("sc", w_tv=0.0), density, points)
    called = (transport[0, 0] < 0) & (density[0, 0] == 0)
    cells = (called.nonzero().flip(1) + 0.5) * 8
    assert called[23, 22] and float((cells - points[0][2]).norm(dim=1).max()) < 30
    # As when the cells hold a little: there the sign is that of the published gradient.
    little = gradient(create(name, w_tv=0.0), density + 1e-6, points) - gradient(
        create("sc", w_tv=0.0), density + 1e-6, points
    )
    assert float(little[0, 0, 23, 22]) < float(little[0, 0, 30, 30])
    assert float(transport[0, 0, 30, 30]) > 0


def test_a_map_of_zeros_has_a_finite_gradient_that_asks_for_more() -> None:
    density, points = torch.zeros(1, 1, 8, 8), [torch.tensor([[20.0, 20.0]])]
    found = gradient(create("al-papm"), density, points)
    assert found.isfinite().all() and float(found.sum()) < 0


def test_al_papm_with_a_wide_sigma_is_dm_count() -> None:
    density, points = scene([20], dtype=torch.float64)
    wide = gradient(create("al-papm", sigma=1e7), density, points)
    torch.testing.assert_close(wide, gradient(create("dm-count"), density, points), rtol=1e-8, atol=1e-10)


def test_mean_reduction_does_not_depend_on_the_batch() -> None:
    density, points = scene([9, 9])
    loss = create("al-papm")
    twice = loss(torch.cat([density, density]), points + points).total
    assert float(twice) == pytest.approx(float(loss(density, points).total), rel=1e-5)


@pytest.mark.parametrize("name", ["al-papm", "gl-papm"])
def test_ot_stride_pools_the_density(name: str) -> None:
    fine, points = scene([9, 4], side=48)
    coarse = sum_pool(fine, 4)
    torch.testing.assert_close(coarse.sum((1, 2, 3)), fine.sum((1, 2, 3)))
    points = [p / 4 for p in points]
    got = create(name, stride=2, ot_stride=8)(fine, points).terms["transport"]
    assert float(got) == pytest.approx(float(create(name, stride=8)(coarse, points).terms["transport"]), rel=1e-4)
    assert gradient(create(name, stride=2), fine, points).shape == fine.shape
    with pytest.raises(ConfigError, match="multiple"):
        create(name, stride=3)


def test_masked_cells_are_left_out() -> None:
    density, points = scene([5])
    inside = [torch.rand(5, 2) * 48]
    mask = torch.zeros(1, 96, 96, dtype=torch.bool)
    mask[:, :48, :48] = True
    z = density.requires_grad_()
    create("al-papm")(z, inside, context=LossContext(mask=mask)).total.backward()
    assert z.grad is not None
    assert (z.grad[:, :, 6:] == 0).all() and (z.grad[:, :, :, 6:] == 0).all() and (z.grad[:, :, :6, :6] != 0).any()
    assert len(points) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dm-count", "al-papm", "gl", "gl-papm", "uot"])
def test_descent_moves_the_density_onto_the_points(name: str) -> None:
    """From a flat map, descent gathers the mass around the points."""
    points = [torch.tensor([[20.0, 20.0], [76.0, 68.0]])]
    z = torch.full((1, 1, 12, 12), 3 / 144).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.01)
    cool = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.985)
    loss = create(name)
    first = float(loss(z.detach(), points).total)
    for _ in range(300):
        optimiser.zero_grad()
        loss(z, points).total.backward()
        optimiser.step()
        cool.step()
        with torch.no_grad():
            z.clamp_(min=0)
    final = z.detach()
    distance = torch.cdist(cell_centres((12, 12), 8, final), points[0]).amin(1)
    near = float(final.flatten()[distance < 24].sum())
    assert float(loss(final, points).total) < 0.5 * first
    assert near > 0.95 * float(final.sum())  # 0.39 of a flat map
    if name not in BALANCED:  # there the transport itself asks for one unit a point
        assert float(final.sum()) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("name", BALANCED)
@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_only_the_count_term_sees_the_scale(name: str, scale: float) -> None:
    """Along z → kz transport and variation do not change: ⟨z, ∂ℓ/∂z⟩ = Z·sign(Z - n), so nothing biases the count."""
    density, points = scene([30], dtype=torch.float64)
    z = density * scale * 30 / density.sum()
    slope = float((z * gradient(create(name), z, points)).sum())
    assert slope == pytest.approx(float(z.sum()) * math.copysign(1, scale - 1), rel=1e-3)


def test_perspective_in_dm_count_is_as_large_as_the_squared_distance_at_16_px() -> None:
    """At mid-height GL's cost is exp(16/(0.6·512)) - 1 there; the page of losses gives the factor."""
    cost = create_cost("perspective", scale=PERSPECTIVE_SCALE)
    middle = torch.tensor([[100.0, 128.0]]).double()
    found = cost.pairwise(middle, middle + torch.tensor([16.0, 0.0]), height=torch.tensor(256.0).double())
    assert float(found) == pytest.approx(256, rel=1e-3)
    assert pytest.approx(4785, abs=1) == PERSPECTIVE_SCALE
    assert pytest.approx(256 / math.expm1(16 / (0.6 * 512)), rel=1e-3) == PERSPECTIVE_SCALE


@pytest.mark.parametrize("stride", [2, 8, 16])
def test_total_variation_is_taken_at_the_stride_of_the_network(stride: int) -> None:
    """A map that is right in every cell of 16 px, its mass in a wrong corner of each, is wrong in all finer ones."""
    points = [torch.tensor([[3.0, 3.0], [35.0, 19.0]])]
    density = torch.zeros(1, 1, 48 // stride, 48 // stride)
    for x, y in ((15.9, 15.9), (47.9, 31.9)):
        density[0, 0, int(y // stride), int(x // stride)] += 1
    terms = create("sc", stride=stride)(density, points).terms
    assert float(terms["count"]) == 0 and float(terms["tv"]) == pytest.approx(0.0 if stride == 16 else 4.0, abs=1e-4)


def test_perspective_in_dm_count_can_refer_to_the_image() -> None:
    density, points = scene([6])
    crop = create("dm-count", cost="perspective")
    assert torch.isfinite(crop(density, points).total)
    whole = create("dm-count", cost="perspective", anchor="image")
    with pytest.raises(ConfigError, match="offset"):
        whole(density, points)
    context = LossContext(offsets=torch.tensor([[0.0, 0.0]]), sizes=torch.tensor([[96.0, 96.0]]))
    same = whole(density, points, context=context)
    assert float(same.total) == pytest.approx(float(crop(density, points).total), rel=1e-5)
    lower = LossContext(offsets=torch.tensor([[0.0, 904.0]]), sizes=torch.tensor([[1000.0, 1000.0]]))
    assert float(whole(density, points, context=lower).terms["transport"]) != pytest.approx(
        float(same.terms["transport"])
    )


@pytest.mark.parametrize("name", ["dm-count", "gl"])
def test_a_perspective_of_the_image_is_that_of_its_rows(name: str) -> None:
    """Where the crop lies across the image, and how wide that is, says nothing; how far down it lies does."""
    density, points = scene([6])
    density = torch.cat([density, density[..., :8]], -1)  # 96 × 160 pixels
    options = {"cost": "perspective"} if name == "dm-count" else {}
    crop, whole = create(name, **options), create(name, **options, anchor="image")
    want = float(crop(density, points).terms["transport"])

    def at(x: float, y: float, height: float, width: float) -> float:
        context = LossContext(offsets=torch.tensor([[x, y]]), sizes=torch.tensor([[height, width]]))
        return float(whole(density, points, context=context).terms["transport"])

    assert at(704, 0, 96, 1000) == pytest.approx(want, rel=1e-5)
    assert at(0, 704, 800, 96) != pytest.approx(at(0, 0, 800, 96), rel=0.02)  # η grows from ½ to 0.7 down the image


@pytest.mark.parametrize("name", ["dm-count", "al-papm"])
def test_an_image_without_points_has_no_transport(name: str) -> None:
    density, points = scene([9, 0])
    out = create(name)(density[1:], points[1:])
    assert float(out.terms["transport"]) == 0
    torch.testing.assert_close(
        gradient(create(name), density[1:], points[1:]), gradient(create("sc"), density[1:], points[1:])
    )


def test_gl_terms_are_the_formulas() -> None:
    density, points = scene([6], dtype=torch.float64)
    loss = create("gl")
    perspective = create_cost("perspective", unit=UNIT)
    z = density.clone().requires_grad_()
    out = loss(z, points)
    out.total.backward()
    cost = perspective.pairwise(
        points[0][None], cell_centres((12, 12), 8, density), height=torch.tensor([96.0]).double()
    )
    mass = density.flatten(1).clone().requires_grad_()
    r = unbalanced(torch.ones(1, 6, dtype=torch.float64), mass.detach(), cost, least=1e-8)
    plan = r.ratio() * mass[:, None]
    uot = (r.column_gradient * mass).sum()
    pixel = (plan.sum(1).detach() - mass).square().sum()
    point = (plan.sum(2) - 1).abs().sum()
    entropy = 0.01 * torch.xlogy(plan, plan).mean()
    assert float(out.terms["pixel"]) == pytest.approx(float(pixel.detach()))
    assert float(out.terms["point"]) == pytest.approx(float(point.detach()))
    assert float(out.terms["entropy"]) == pytest.approx(float(entropy.detach()))
    assert float(out.terms["transport"]) == pytest.approx(float(r.value))
    (uot + 0.1 * (pixel + point) + entropy).backward()
    assert z.grad is not None and mass.grad is not None
    torch.testing.assert_close(z.grad.flatten(1), mass.grad, rtol=1e-6, atol=1e-9)


def test_gl_counts_an_empty_image_three_times() -> None:
    density = torch.rand(1, 1, 8, 8)
    out = create("gl")(density, [torch.zeros(0, 2)])
    assert float(out.total) == pytest.approx(1.2 * float(density.sum()), rel=1e-5)


def test_gl_papm_units(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[Any] = []
    solve = module._unbalanced
    monkeypatch.setattr(module, "_unbalanced", lambda d, p, cost, *rest: costs.append(cost) or solve(d, p, cost, *rest))
    density, points = scene([3])
    for options in ({}, {"kappa": (16 / 512) ** 2}):
        create("gl-papm", **options)(density, points)
    at = torch.tensor([16.0, 32.0, 64.0]).square()
    torch.testing.assert_close(costs[1](at), torch.tensor([0.0016, 0.0289, 5.0]), rtol=0.02, atol=0)  # capped at 10ρ
    assert float(costs[0](at)[0]) == pytest.approx(math.expm1(16 / 512 / 0.6), rel=1e-5)
    assert matched_kappa(16.0, 2.0) == pytest.approx(0.0535 / math.exp(0.5), rel=1e-2)


def test_unbalanced_losses_bound_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    density, points = scene([9, 0, 4])
    want = create("gl-papm")(density, points).total
    monkeypatch.setattr(module, "CHUNK", 1)
    assert float(create("gl-papm")(density, points).total) == pytest.approx(float(want), rel=1e-5)


def test_sc_knows_only_count_and_variation() -> None:
    out = create("sc")(*scene([4]))
    assert set(out.terms) == {"count", "tv"}
    assert set(create("sc", w_tv=0.0)(*scene([4])).terms) == {"count"}


@pytest.mark.parametrize("name", ALL)
def test_padding_may_hold_anything(name: str) -> None:
    density, points = scene([7, 2, 0])
    batch = PointBatch.from_list(points)
    odd = PointBatch(torch.where(batch.valid[..., None], batch.xy, math.nan), batch.valid)
    assert float(create(name)(density, odd).total) == float(create(name)(density, batch).total)


@pytest.mark.parametrize("reach", [12.0, 22.0])
def test_gradient_at_another_reach(reach: float) -> None:
    """Beyond 20 px the dustbin is too dear for float32; the loss stays in the precision of the map."""
    density, points = scene([30])
    points[0][:, 1] *= 0.3
    out = create("dm-count", reach=reach)(density, points)
    assert out.total.dtype == torch.float32
    want = gradient(create("dm-count", reach=reach, solver="log"), density.double(), [p.double() for p in points])
    got = gradient(create("dm-count", reach=reach), density, points)
    assert float((got - want).abs().max()) < 1e-3 * float(want.abs().max())


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("al-papm", "reach", "far", "reach .* is a number, or null"),
        ("al-papm", "reach", -3.0, "reach .* must be positive"),
        ("al-papm", "dustbin", math.inf, "dustbin .* is a number"),
        ("al-papm", "reg", 0.0, "reg .* must be positive"),
        ("al-papm", "iterations", 0, "iterations .* ≥ 1"),
        ("al-papm", "iterations", 2.5, "iterations .* is a whole number"),
        ("al-papm", "solver", "sparce", "did you mean 'sparse'"),
        ("al-papm", "stretched", "yes", "stretched .* is true or false"),
        ("al-papm", "anchor", "frame", "anchor"),
        ("al-papm", "ot_stride", 0, "ot_stride"),
        ("gl", "ot_stride", -8, "ot_stride"),
        ("gl", "anchor", "frame", "anchor"),
        ("gl-papm", "kappa", "small", "kappa .* is a number, or null"),
    ],
)
def test_wrong_options_are_refused_when_the_loss_is_made(name: str, option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(name, **{option: value})
    with pytest.raises(ConfigError, match="either the dustbin's cost or its reach"):
        create("dm-count", reach=12.0, dustbin=100.0)


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sigma'"):
        create("al-papm", sigm=3.0)
    with pytest.raises(ConfigError, match=r"published .* is true or false"):
        create("al-papm", published="sum")


@pytest.mark.parametrize("total", [8.0, 64.0, 500.0])
def test_transport_weighs_with_the_mass_up_to_a_mass_and_as_published_above(total: float) -> None:
    density = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + 0.1
    density *= total / density.sum()
    points = [torch.tensor([[9.0, 9.0], [30.0, 20.0]])]
    plain, weighed = (create("al-papm", mass=m)(density, points).terms["transport"] for m in (0.0, 64.0))
    torch.testing.assert_close(weighed, plain * min(1.0, total / 64))


@pytest.mark.parametrize("name", ["dm-count", "al-papm"])
@pytest.mark.parametrize(
    "options", [{}, {"mass": 64.0}, {"mass": 8.0, "published": True}, {"w_ot": 0.3, "ot_stride": 16}]
)
def test_with_keeps_no_cell_is_asked_for_less_while_the_count_is_too_low(name: str, options: dict[str, Any]) -> None:
    density, points = scene([5, 3])
    density = density * (torch.tensor([2.0, 30.0]) / density.sum((1, 2, 3)))[:, None, None, None]  # too low, too high
    density[:, :, 3:5] = 0  # and empty cells
    plain, kept = (gradient(create(name, w_tv=0.0, keeps=k, **options), density, points) for k in (False, True))
    assert plain[0].max() > 0, "transport alone would take from a map that lacks three of five"
    assert kept[0].max() <= 1e-6
    wanted = plain[0] <= 0
    torch.testing.assert_close(kept[0][wanted], plain[0][wanted])  # what is called for is called for as before
    torch.testing.assert_close(kept[1], plain[1])  # and too much is taken away as before


def test_keeps_leaves_the_value_as_it_is() -> None:
    density, points = scene([5, 30])
    plain, kept = (create("al-papm", mass=64.0, keeps=k)(density, points) for k in (False, True))
    assert plain.total == kept.total and plain.terms == kept.terms
