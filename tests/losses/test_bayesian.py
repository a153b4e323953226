"""The Bayesian loss: posteriors are posteriors, sums are the formulas', crops follow BL's rule, trimming drops the worst."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import papm.losses as losses
from papm.errors import ConfigError, DataError
from papm.losses import LossContext, bayesian
from papm.losses.bayesian import RHO, BayesianLoss, best, overlap, posterior, squared_distances, targets
from papm.structures import PointBatch

S = 8


def scene(counts: tuple[int, ...] = (9, 0, 4), side: int = 64, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    density = torch.rand(len(counts), 1, side // S, side // S, generator=rng, dtype=torch.float64) / 4
    return density, [side * torch.rand(n, 2, generator=rng, dtype=torch.float64) for n in counts]


def by_hand(
    z: Tensor, points: Tensor, short: float, sigma: float, rho: float, form: str, trim: float = 0.0
) -> tuple[float, float]:
    """Both terms of one image, point by point and cell by cell."""
    h, w = z.shape
    sums, stray = [0.0] * len(points), 0.0
    for i in range(h):
        for j in range(w):
            d2 = [((j + 0.5) * S - float(x)) ** 2 + ((i + 0.5) * S - float(y)) ** 2 for x, y in points]
            if not d2:
                stray += float(z[i, j])
                continue
            d = math.sqrt(min(d2))
            pseudo = (rho * short - d) ** 2 if form == "paper" else (rho * short) ** 2 / (d * d + 1e-5)
            weights = [math.exp(-v / (2 * sigma**2)) for v in (*d2, pseudo)]
            for k, weight in enumerate(weights[:-1]):
                sums[k] += weight / sum(weights) * float(z[i, j])
            stray += weights[-1] / sum(weights) * float(z[i, j])
    residuals = sorted(abs(1 - s) for s in sums)
    return sum(residuals[: len(residuals) - math.floor(trim * len(residuals) + 1e-9)]), abs(stray)


@pytest.mark.parametrize("trim", [0.0, 0.3])
@pytest.mark.parametrize(("form", "rho"), [("paper", 0.15), ("released", 1.0), ("paper", 0.6)])
def test_equals_the_formula(form: str, rho: float, trim: float) -> None:
    density, points = scene()
    loss = losses.create("bl", stride=S, form=form, rho=rho, sigma=10.0, trim=trim)
    for context, short in ((None, 64.0), (LossContext(sizes=torch.tensor([[120.0, 300.0]] * 3)), 120.0)):
        out = loss(density, points, context=context)
        expected = [by_hand(density[b, 0], points[b], short, 10.0, rho, form, trim) for b in range(3)]
        assert float(out.terms["points"]) == pytest.approx(sum(e[0] for e in expected) / 3, rel=1e-9)
        assert float(out.terms["background"]) == pytest.approx(sum(e[1] for e in expected) / 3, rel=1e-9)


@pytest.mark.parametrize(("form", "rho"), [("paper", 0.15), ("released", 1.0)])
def test_a_cell_belongs_to_points_and_background_in_shares_of_one(form: bayesian.Form, rho: float) -> None:
    _, points = scene((9, 0, 300, 1), side=512)
    batch = PointBatch.from_list([p.float() for p in points])
    share, rest = posterior(batch, (64, 64), S, torch.full((4,), 512.0), rho=rho, form=form)
    assert share.shape == (4, 300, 64 * 64) and (share >= 0).all() and (rest >= 0).all()
    assert torch.allclose(share.sum(1) + rest, torch.ones(4, 64 * 64), atol=1e-5)
    assert not share[~batch.valid].any() and (rest[1] == 1).all()


@pytest.mark.parametrize("name", ["bl", "noisecc"])
def test_the_short_side_is_that_of_the_image_or_else_of_the_crop(name: str) -> None:
    density, points = scene((6, 3))
    density, points = density[..., :6], [p * p.new_tensor([0.75, 1.0]) for p in points]  # 64 × 48 pixels
    loss = losses.create(name)

    def with_image(height: float, width: float) -> float:
        return float(loss(density, points, context=LossContext(sizes=torch.tensor([[height, width]] * 2))).total)

    assert float(loss(density, points).total) == pytest.approx(with_image(64, 48))
    assert with_image(300, 200) == pytest.approx(with_image(200, 300)) == pytest.approx(with_image(200, 200))
    assert with_image(300, 300) != pytest.approx(with_image(200, 200), rel=1e-3)


def test_defaults_of_both_forms() -> None:
    assert losses.options("bl") == {"sigma": 8.0, "rho": None, "form": "paper", "border": "whole", "trim": 0.0}
    assert RHO == {"paper": 0.15, "released": 1.0}
    density, points = scene()
    for form, rho in RHO.items():
        one, other = (losses.create("bl", form=form, rho=r)(density, points).total for r in (None, rho))
        assert one == other
    assert losses.options("ial")["trim"] == 0.1


@pytest.mark.parametrize("form", ["paper", "released"])
def test_dots_at_points_far_apart_cost_nothing(form: str) -> None:
    """Isolated points in an image so large that its background begins far from them."""
    points = torch.tensor([[60.0, 60.0], [196.0, 60.0], [60.0, 196.0], [196.0, 196.0]])
    density = torch.zeros(1, 1, 32, 32)
    for x, y in points:
        density[0, 0, int(y // S), int(x // S)] = 1
    context = LossContext(sizes=torch.tensor([[2000.0, 2000.0]]))
    loss = losses.create("bl", form=form)
    assert float(loss(density, [points], context=context).total) < 1e-4
    assert float(loss(2 * density, [points], context=context).total) == pytest.approx(4, abs=1e-3)
    # Density that no point explains is background's: in the middle of the four, 96 px from each.
    stray = density.clone()
    stray[0, 0, 16, 16] = 3
    near = LossContext(sizes=torch.tensor([[400.0, 400.0]]))
    out = losses.create("bl")(stray, [points], context=near)
    assert float(out.terms["background"]) == pytest.approx(3, abs=1e-2)


def test_an_image_without_points_costs_its_count() -> None:
    density, _ = scene()
    for points in (
        [torch.zeros(0, 2)] * 3,
        PointBatch(torch.full((3, 5, 2), 7.0), torch.zeros(3, 5, dtype=torch.bool)),
    ):
        out = losses.create("bl")(density, points)
        assert float(out.terms["background"]) == pytest.approx(float(density.sum() / 3))
        assert float(out.terms["points"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("bl", {}), ("bl", {"form": "released"}), ("ial", {"trim": 0.25})])
def test_gradient(name: str, options: dict[str, object]) -> None:
    density, points = scene()
    loss = losses.create(name, stride=S, **options)
    assert torch.autograd.gradcheck(lambda d: loss(d, points).total, (density.requires_grad_(),))


def test_memory_is_bounded_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    density, points = scene((9, 0, 4, 20, 3))
    results = []
    for chunk in (1 << 25, 2 * 20 * 64, 1):
        monkeypatch.setattr(bayesian, "CHUNK", chunk)
        z = density.clone().requires_grad_()
        total = losses.create("bl")(z, points).total
        results.append((total.item(), torch.autograd.grad(total, z)[0]))
    for total, gradient in results[1:]:
        assert total == pytest.approx(results[0][0], rel=1e-12)
        assert torch.allclose(gradient, results[0][1])


# --- instance attention -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100, width=32), max_size=40), st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.integers(0, 5))
def test_best_leaves_out_the_largest(values: list[float], trim: float, padding: int) -> None:
    residuals = torch.tensor([*values, *[1e9] * padding]).reshape(1, -1)
    valid = torch.arange(residuals.shape[1])[None] < len(values)
    kept = best(residuals, valid, trim)
    dropped = math.floor(trim * len(values) + 1e-4)
    assert int(kept.sum()) == len(values) - dropped and not (kept & ~valid).any()
    assert float(residuals[kept].sum()) == pytest.approx(sum(sorted(values)[: len(values) - dropped]), rel=1e-5)


def test_a_point_that_is_left_out_pulls_no_density() -> None:
    """Ten far points, nine of them right: the tenth, which has no density, neither costs nor pulls."""
    points = torch.stack([torch.arange(10) * 96 + 4.0, torch.full((10,), 4.0)], -1)
    density = torch.zeros(1, 1, 1, 120)
    density[0, 0, 0, ::12] = 1
    density[0, 0, 0, 12 * 7] = 0
    context = LossContext(sizes=torch.tensor([[2000.0, 2000.0]]))
    z = density.requires_grad_()
    for name, cost in (("bl", 1.0), ("ial", 0.0)):
        out = losses.create(name)(z, [points], context=context)
        assert float(out.terms["points"]) == pytest.approx(cost, abs=1e-4)
        gradient = torch.autograd.grad(out.total, z)[0][0, 0, 0, 12 * 7]
        assert float(gradient) == pytest.approx(-cost, abs=1e-3)


# --- points at the border of a crop -----------------------------------------------------------------------------------


def test_overlap_of_boxes() -> None:
    points = PointBatch(
        torch.tensor([[[32.0, 32.0], [0.0, 32.0], [0.0, 0.0], [-10.0, 32.0], [63.0, 32.0]]]),
        torch.ones(1, 5, dtype=torch.bool),
        torch.tensor([[20.0, 20.0, 20.0, 20.0, 0.5]]),
    )
    found = overlap(points, torch.zeros(1, 2), torch.full((1, 2), 64.0))
    assert found[0].tolist() == pytest.approx([1, 0.5, 0.25, 0, 0.75])  # the last box has the smallest side, 4 px


def test_targets_at_the_border() -> None:
    """A point just outside comes in, one with less than 30 % of its box inside goes."""
    loss = losses.create("bl", border="ratio")
    assert isinstance(loss, BayesianLoss) and loss.halo == pytest.approx(25.6)
    inner = [torch.tensor([[30.0, 30.0], [1.0, 1.0]])]
    outer = PointBatch.from_list(
        [torch.tensor([[30.0, 30.0], [1.0, 1.0], [-2.0, 30.0], [-9.0, 30.0]])], extents=[torch.full((4,), 20.0)]
    )
    kept, target = targets((8, 8), PointBatch.from_list(inner), LossContext(halo=outer), S, "ratio")
    assert kept.valid.tolist() == [[True, True, True, False]]
    assert target[0].tolist() == pytest.approx([1, 0.55**2, 0.4, 0])
    # The part of the crop that counts is that of its mask.
    mask = torch.zeros(1, 64, 64, dtype=torch.bool)
    mask[:, 16:, 30:60] = True
    _, target = targets((8, 8), PointBatch.from_list(inner), LossContext(mask, halo=outer), S, "ratio")
    assert target[0].tolist() == pytest.approx([0.5, 0, 0, 0])
    # Its columns bound x and its rows y.
    aside = PointBatch.from_list([torch.tensor([[40.0, 20.0]])], extents=[torch.tensor([20.0])])
    mask = torch.zeros(1, 64, 64, dtype=torch.bool)
    mask[:, :24, 36:] = True
    _, target = targets((8, 8), aside, LossContext(mask, halo=aside), S, "ratio")
    assert target[0].tolist() == pytest.approx([0.7 * 0.7])
    out = loss(torch.rand(1, 1, 8, 8), outer, context=LossContext(halo=outer))
    assert torch.isfinite(out.total)
    with pytest.raises(ConfigError, match=r"border='ratio' .* needs the spacing"):
        loss(torch.rand(1, 1, 8, 8), inner)


# --- bad and degenerate input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "papre"}, "did you mean 'paper'"),
        ({"border": "box"}, "unknown border of loss 'bl'"),
        ({"sigma": 0.0}, "sigma of loss 'bl' must be positive"),
        ({"rho": -1.0}, "rho of loss 'bl' must be positive"),
        ({"trim": 1.0}, "trim .* is the share"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses.create("bl", **options)


def test_nan_and_several_maps_are_refused() -> None:
    density, points = scene()
    density[2, 0, 1, 1] = math.nan
    with pytest.raises(DataError, match="image 2"):
        losses.create("bl")(density, points)
    with pytest.raises(ConfigError, match="one map per image, the network gives 2"):
        losses.create("bl")(torch.zeros(1, 2, 4, 4), [torch.zeros(0, 2)])


def _degenerate(make: Callable[[], losses.CountingLoss], points: list[tuple[float, float]], scale: float) -> None:
    z = (scale * torch.rand(1, 1, 5, 7)).requires_grad_()
    out = make()(z, [torch.tensor(points).reshape(-1, 2)], context=LossContext(images=torch.zeros(1, 3, 40, 56)))
    (gradient,) = torch.autograd.grad(out.total, z)
    assert torch.isfinite(out.total) and torch.isfinite(gradient).all()


@settings(max_examples=25)
@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 4.0, 39.99, 56.0, -3.0, 5000.0])] * 2), max_size=6),
    st.sampled_from([0.0, 1e-6, 1.0, 1e4]),
    st.sampled_from(["paper", "released"]),
)
def test_finite_whatever_the_points(points: list[tuple[float, float]], scale: float, form: str) -> None:
    _degenerate(lambda: losses.create("bl", form=form, trim=0.1), points, scale)


def test_distances_are_to_cell_centres() -> None:
    batch = PointBatch.from_list([torch.tensor([[3.0, 5.0]]), torch.zeros(0, 2)])
    d2 = squared_distances(batch, (2, 3), 4)
    expected = [(x - 3) ** 2 + (y - 5) ** 2 for y in (2, 6) for x in (2, 6, 10)]
    assert d2[0, 0].tolist() == pytest.approx(expected) and torch.isinf(d2[1]).all()
