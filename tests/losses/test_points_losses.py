"""Losses on proposals: costs and closed forms, a slow reference with scipy's assignment, laws, and what must not happen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from papm import ggd, losses, matching, models
from papm.errors import ConfigError, DataError
from papm.losses import LossContext
from papm.losses.points import PointMatchingLoss, distance_cost, ggd_cost, l2_cost, match
from papm.structures import DensityOutput, PointBatch, PointProposals

NAMES = ("p2pnet", "p2p-papm", "p2p-papm-literal")


def proposals(
    xy: Any, scores: Any, reference: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> PointProposals:
    """Proposals of one image at `xy` with those scores of their only class."""
    points = torch.as_tensor(xy, dtype=dtype)[None]
    p = torch.as_tensor(scores, dtype=dtype)
    logits = torch.stack([torch.zeros_like(p), (p / (1 - p)).log()], -1)[None]
    return PointProposals(points, logits, points[0].clone() if reference is None else reference.to(dtype))


def scene(b: int = 3, m: int = 40, counts: tuple[int, ...] = (5, 0, 12), side: float = 64.0, seed: int = 0) -> Any:
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    reference = rand(m, 2) * side
    made = PointProposals(reference + 8 * rand(b, m, 2) - 4, 4 * rand(b, m, 2) - 2, reference)
    return made, [rand(n, 2) * side for n in counts]


def create(name: str, **options: Any) -> PointMatchingLoss:
    loss = losses.create(name, **options)
    assert isinstance(loss, PointMatchingLoss)
    return loss


def cost_of(name: str, **options: Any) -> Any:
    """What a loss makes of squared distances, at the end of training."""
    o = {**losses.options(name), **options}
    return l2_cost if name == "p2pnet" else distance_cost(*(o[k] for k in ("sigma", "shape", "tau", "kappa", "cap")))


def taken(loss: PointMatchingLoss, made: PointProposals, batch: PointBatch, monkeypatch: pytest.MonkeyPatch) -> int:
    """The proposal that a loss gives to the only point."""
    seen: list[Tensor] = []
    with monkeypatch.context() as patch:
        patch.setattr("papm.losses.points.match", lambda *given: seen.append(match(*given)) or seen[-1])
        loss(made, batch)
    return int(seen[0].item())


# --- costs ------------------------------------------------------------------------------------------------------------


def test_literal_costs_are_the_papers() -> None:
    r = torch.tensor([8.0, 16.0, 24.0, 32.0, 40.0, 45.0])
    found = cost_of("p2p-papm-literal")(r.square()[None, None])
    for value, expected, digits in zip(
        found[0, 0].tolist(), (0.0007, 0.004, 0.018, 0.076, 0.36, 1.06), (4, 3, 3, 3, 2, 2)
    ):
        assert round(value, digits) == expected
    assert l2_cost(torch.tensor([64.0, 400.0])).tolist() == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("sigma", [3.0, 16.0])
@pytest.mark.parametrize("tau", [1e-5, 1e-3])
def test_the_cost_is_finite_and_grows_with_distance(shape: float, sigma: float, tau: float) -> None:
    r = torch.cat([torch.linspace(0, 300, 2000), torch.tensor([1e3, 3e3, 1e4])])
    cost = ggd_cost(r**2, sigma, shape, tau)
    assert cost[0] == 0 and bool(cost.isfinite().all())
    assert bool((cost.diff() > 0).all())  # beyond the cap, too: of proposals that are all too far the nearest is taken
    exact = tau * r.double() ** 2 * torch.exp((r.double() ** 2 / (2 * sigma**2)) ** (shape / 2))
    low = exact < 9.9
    torch.testing.assert_close(cost[low].double(), exact[low], rtol=1e-3, atol=1e-9)
    assert bool((cost[exact > 10.1] > 10).all())


@pytest.mark.parametrize("shape", [1.0, 2.0, 8.0])
def test_without_tau_a_proposal_one_sigma_away_costs_kappa(shape: float) -> None:
    for sigma, kappa in ((3.0, 0.3), (16.0, 0.4)):
        cost = cost_of("p2p-papm", shape=shape, sigma=sigma, kappa=kappa)(torch.full((1, 4, 1), sigma**2))
        torch.testing.assert_close(cost, torch.full((1, 4, 1), kappa))


def test_a_given_tau_is_taken_as_it_is() -> None:
    cost = cost_of("p2p-papm", tau=1e-3)(torch.full((1, 2, 1), 64.0))
    expected = 1e-3 * float(ggd.transport_cost(torch.tensor(64.0), 16.0, 2.0))
    assert cost.flatten().tolist() == pytest.approx([expected] * 2)


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_one_point_and_two_proposals() -> None:
    made = proposals([[13.0, 14.0], [60.0, 60.0]], [0.8, 0.3])
    out = create("p2pnet")(made, [torch.tensor([[10.0, 10.0]])])
    entropy = (-math.log(0.8) - 0.5 * math.log(0.7)) / 1.5
    assert out.terms["classification"].item() == pytest.approx(entropy)
    assert out.terms["points"].item() == pytest.approx(25.0)
    assert out.terms["distance"].item() == pytest.approx(5.0)
    assert out.terms["surplus"].item() == 0
    assert out.total.item() == pytest.approx(entropy + 2e-4 * 25)
    printed = create("p2pnet", published=True)(made, [torch.tensor([[10.0, 10.0]])])
    assert printed.terms["classification"].item() == pytest.approx(entropy * 1.5 / 2)


def test_no_points_at_all() -> None:
    made = proposals([[1.0, 2.0], [3.0, 4.0]], [0.8, 0.3])
    made.logits.requires_grad_()
    made.points.requires_grad_()
    for name in NAMES:
        out = create(name)(made, [torch.zeros(0, 2)])
        assert out.total.item() == pytest.approx((-math.log(0.2) - math.log(0.7)) / 2)
        assert out.terms["points"] == out.terms["distance"] == out.terms["surplus"] == 0
        gradients = torch.autograd.grad(out.total, [made.logits, made.points])
        assert bool(gradients[0].any()) and not gradients[1].any()
        assert all(bool(g.isfinite().all()) for g in gradients)


def test_no_proposals_at_all() -> None:
    made = PointProposals(torch.zeros(2, 0, 2), torch.zeros(2, 0, 2), torch.zeros(0, 2))
    out = create("p2p-papm")(made, [torch.rand(3, 2), torch.zeros(0, 2)])
    assert out.total == 0 and out.terms["surplus"] == 1.5


def test_a_batch_of_no_images_is_refused() -> None:
    made = PointProposals(torch.zeros(0, 4, 2), torch.zeros(0, 4, 2), torch.zeros(4, 2))
    with pytest.raises(DataError, match="at least one image"):
        create("p2pnet")(made, [])


def test_more_points_than_proposals_leaves_the_costliest() -> None:
    made = proposals([[10.0, 10.0], [30.0, 30.0]], [0.5, 0.5])
    out = create("p2pnet")(made, [torch.tensor([[10.0, 11.0], [50.0, 50.0], [30.0, 32.0]])])
    assert out.terms["surplus"] == 1
    assert out.terms["points"].item() == pytest.approx((1 + 4) / 3)  # divided by all points, as published
    assert out.terms["distance"].item() == pytest.approx(1.5)
    assert out.terms["classification"].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", NAMES)
def test_total_is_the_weighted_sum_of_the_terms(name: str) -> None:
    made, points = scene()
    for options in ({}, {"point_weight": 0.0}, {"point_weight": 0.3, "background_weight": 0.1}):
        out = create(name, **options)(made, points)
        assert set(out.terms) == set(out.weights)
        assert out.total.item() == pytest.approx(sum(out.weights[k] * v.item() for k, v in out.terms.items()))


# --- a slow reference -------------------------------------------------------------------------------------------------


def slow(made: PointProposals, points: list[Tensor], cost: Any) -> tuple[float, float, list[np.ndarray]]:
    """Both terms in plain loops; `cost(r)`."""
    entropy = weight = squared = 0.0
    taken = []
    for b, xy in enumerate(points):
        probability = made.logits[b].softmax(-1).numpy()
        table = np.array(
            [[cost(math.dist(p, q)) - c[1] for q, c in zip(made.points[b].tolist(), probability)] for p in xy.tolist()]
        ).reshape(len(xy), made.points.shape[1])
        rows, columns = linear_sum_assignment(table)
        taken.append(columns)
        for j in range(made.points.shape[1]):
            w = 1.0 if j in columns else 0.5
            entropy -= w * math.log(probability[j, 1 if j in columns else 0])
            weight += w
        squared += float((made.points[b, columns] - xy[rows]).square().sum())
    return entropy / weight, squared / max(1, sum(map(len, points))), taken


def papm(r: float) -> float:
    c = 0.4 / (16**2 * math.exp(0.5)) * r**2 * math.exp(min(r**2 / (2 * 16**2), 80.0))
    return c if c <= 10 else 10 + 0.05 * r


COSTS = {
    "p2pnet": lambda r: 0.05 * r,
    "p2p-papm": papm,
    "p2p-papm-literal": lambda r: 1e-5 * r**2 * math.exp(r**2 / 512),
}


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=15)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 14), min_size=1, max_size=3))
def test_agrees_with_the_slow_reference(name: str, seed: int, counts: list[int]) -> None:
    made, points = scene(len(counts), 16, tuple(counts), 40.0, seed)
    out = create(name)(made, points)
    entropy, squared, _ = slow(made, points, COSTS[name])
    assert out.terms["classification"].item() == pytest.approx(entropy, rel=1e-6)
    assert out.terms["points"].item() == pytest.approx(squared, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_terms(name: str) -> None:
    made, points = scene()
    xy, logits = made.points.requires_grad_(), made.logits.requires_grad_()
    loss = create(name)
    out = loss(made, points)
    by_points, by_logits = torch.autograd.grad(out.total, [xy, logits])
    step = 1e-5
    for tensor, gradient in ((xy, by_points), (logits, by_logits)):
        largest = tuple(int(k) for k in np.unravel_index(int(gradient.abs().argmax()), gradient.shape))
        assert gradient[largest] != 0
        for index in [(0, 3, 0), (2, 7, 1), (1, 0, 0), largest]:
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    tensor[index] += sign * step
                    ends.append(loss(made, points).total.item())
                    tensor[index] -= sign * step
            assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-9)


# --- the point term really counts (the published code loses it by a mistyped key) ---------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_offsets_learn_from_the_point_term(name: str) -> None:
    made = proposals([[12.0, 10.0], [60.0, 60.0]], [0.8, 0.3])
    made.points.requires_grad_()
    point = torch.tensor([[10.0, 13.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(create(name)(made, [point]).total, made.points)
    expected = torch.zeros(1, 2, 2, dtype=torch.float64)
    expected[0, 0] = 2 * 2e-4 * (made.points[0, 0] - point[0])
    torch.testing.assert_close(gradient, expected.detach())
    (off,) = torch.autograd.grad(create(name, point_weight=0)(made, [point]).total, made.points)
    assert not off.any()


def test_every_weight_of_a_loss_names_one_of_its_terms() -> None:
    loss = create("p2p-papm")
    made, points = scene()
    out = loss(made, points)
    assert set(out.weights) == set(out.terms)


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_order_does_not_matter(name: str) -> None:
    made, points = scene()
    loss = create(name)
    expected = loss(made, points).total
    g = torch.Generator().manual_seed(5)
    order = torch.randperm(made.points.shape[1], generator=g)
    shuffled = PointProposals(made.points[:, order], made.logits[:, order], made.reference[order])
    mixed = [p[torch.randperm(len(p), generator=g)] for p in points]
    torch.testing.assert_close(loss(shuffled, mixed).total, expected)
    turned = PointProposals(made.points.flip(0), made.logits.flip(0), made.reference)
    torch.testing.assert_close(loss(turned, points[::-1]).total, expected)


@pytest.mark.parametrize("name", NAMES)
def test_moving_everything_padding_and_repeating_the_batch_change_nothing(name: str) -> None:
    made, points = scene()
    loss = create(name)
    expected = loss(made, points).total
    shift = torch.tensor([100.0, -7.0], dtype=torch.float64)
    moved = PointProposals(made.points + shift, made.logits, made.reference + shift)
    torch.testing.assert_close(loss(moved, [p + shift for p in points]).total, expected)
    torch.testing.assert_close(loss(made, PointBatch.from_list(points, length=64)).total, expected)
    twice = PointProposals(made.points.repeat(2, 1, 1), made.logits.repeat(2, 1, 1), made.reference)
    torch.testing.assert_close(loss(twice, points * 2).total, expected)


def test_wide_sigma_and_matched_tau_is_squared_distance() -> None:
    r2 = torch.linspace(0, 60, 50, dtype=torch.float64) ** 2
    torch.testing.assert_close(ggd_cost(r2, 1e6, 2.0, 1e-3), 1e-3 * r2, rtol=1e-8, atol=1e-12)


def test_the_cap_does_not_change_the_assignment_when_no_pair_is_far() -> None:
    made, points = scene(m=200, counts=(20, 3, 12), seed=3)
    batch = PointBatch.from_list(points)
    found = [match(made, batch, cost_of("p2p-papm-literal", cap=c)) for c in (2.0, 10.0, 1e3)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])


# --- what reaches the solver --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_solver_only_sees_finite_costs(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    solve = matching.assign_batch

    def watch(costs: Tensor, counts: Tensor | None = None) -> Any:
        seen.append(costs)
        return solve(costs, counts)

    monkeypatch.setattr(matching, "assign_batch", watch)
    xy = torch.tensor([[5.0, 5.0], [1e9, -1e9], [math.inf, 0.0], [math.nan, 1.0], [3e38, 3e38], [900.0, 900.0]])
    logits = torch.tensor([[0.0, 1.0], [1e4, -1e4], [math.nan, 0.0], [math.inf, 0.0], [0.0, 0.0], [0.0, math.inf]])
    made = PointProposals(xy[None].to(dtype), logits[None].to(dtype), torch.zeros(6, 2))
    loss = create(name)
    loss(made, [torch.tensor([[5.0, 6.0], [0.0, 0.0], [1e6, 1e6], [7.0, 7.0]])])
    assert len(seen) == 1 and bool(seen[0].isfinite().all())
    assert seen[0].dtype in (torch.float32, torch.float64)
    assert seen[0][0, 0].argmin() == 0  # the sound proposal is still preferred


def test_half_precision_is_computed_in_float32() -> None:
    made, points = scene()
    low = PointProposals(made.points.bfloat16(), made.logits.bfloat16(), made.reference.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = create("p2p-papm")(low, points)
    wide = PointProposals(low.points.float(), low.logits.float(), low.reference)
    assert out.total.dtype == torch.float32
    torch.testing.assert_close(out.total, create("p2p-papm")(wide, points).total)


# --- warm-up ------------------------------------------------------------------------------------------------------------


def test_l2_decides_until_the_warm_up_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # A poor proposal 2 px away or a good one 20 px away: distance says the first, the literal GGD cost the second.
    made = proposals([[12.0, 10.0], [30.0, 10.0]], [0.1, 0.9])
    batch = PointBatch.from_list([torch.tensor([[10.0, 10.0]])])
    loss = create("p2p-papm-literal", l2_warmup=0.3)
    assert loss.progress == 1.0 and taken(loss, made, batch, monkeypatch) == 1
    for progress, expected in ((0.0, 0), (0.29, 0), (0.3, 1), (1.0, 1)):
        loss.progress = progress
        assert taken(loss, made, batch, monkeypatch) == expected
    assert taken(create("p2pnet"), made, batch, monkeypatch) == 0
    assert losses.options("p2p-papm")["l2_warmup"] == 0.3


# --- masks, classes ----------------------------------------------------------------------------------------------


def grid(side: int = 32) -> Tensor:
    line = torch.arange(2.0, side, 4)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2).double()


def test_what_does_not_count_is_neither_taken_nor_background() -> None:
    reference = grid()
    made = PointProposals(reference[None].clone(), torch.zeros(1, 64, 2, dtype=torch.float64), reference)
    made.logits.requires_grad_()
    mask = torch.zeros(1, 32, 32, dtype=torch.bool)
    mask[:, :, :16] = True
    point = torch.tensor([[17.0, 6.0]], dtype=torch.float64)  # the nearest proposal, (18, 6), is outside the mask
    loss = create("p2pnet")
    out = loss(made, [point], context=LossContext(mask=mask))
    assert out.terms["distance"].item() == pytest.approx(3.0)
    (gradient,) = torch.autograd.grad(out.total, made.logits)
    assert torch.equal(gradient.abs().sum(-1)[0] > 0, reference[:, 0] < 16)
    nothing = loss(made, [torch.zeros(0, 2)], context=LossContext(mask=torch.zeros(1, 32, 32, dtype=torch.bool)))
    assert nothing.total == 0


def test_the_class_of_a_point_is_its_target_and_its_score() -> None:
    # Two proposals at one place; the first believes in class 0, the second in class 1.
    logits = torch.tensor([[[0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    made = PointProposals(torch.full((1, 2, 2), 5.0).double(), logits, torch.zeros(2, 2).double())
    for label in (0, 1):
        batch = PointBatch.from_list([torch.full((1, 2), 5.0)], labels=[torch.tensor([label])])
        for name in NAMES:
            loss = create(name)
            assert match(made, batch, cost_of(name)).item() == label
            out = loss(made, batch)
            sure, other = 3 - math.log(2 + math.exp(3)), -math.log(2 + math.exp(3))
            assert out.terms["classification"].item() == pytest.approx(-(sure + 0.5 * other) / 1.5)
            (gradient,) = torch.autograd.grad(out.total, logits)
            assert gradient[0, label].argmin() == 1 + label  # pushed up
            assert gradient[0, 1 - label].argmin() == 0


def test_labels_beyond_the_classes_are_refused_and_one_class_needs_none() -> None:
    batch = PointBatch.from_list([torch.zeros(1, 2)], labels=[torch.tensor([2])])
    made = PointProposals(torch.zeros(1, 2, 2), torch.zeros(1, 2, 3), torch.zeros(2, 2))
    with pytest.raises(DataError, match="class 2; the network knows classes 0 to 1"):
        create("p2pnet")(made, batch)
    one = PointProposals(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), torch.zeros(2, 2))
    assert create("p2pnet")(one, batch).total == create("p2pnet")(one, [torch.zeros(1, 2)]).total


# --- refusals -------------------------------------------------------------------------------------------------------------


def test_wrong_input_is_refused_in_one_sentence() -> None:
    made, points = scene()
    loss = create("p2pnet")
    with pytest.raises(ConfigError, match="a loss on proposed points; a density network needs another"):
        loss(torch.zeros(3, 1, 8, 8), points)
    with pytest.raises(ConfigError, match="density network"):
        loss(DensityOutput(torch.zeros(3, 1, 8, 8), 8), points)
    with pytest.raises(ConfigError, match="proposals of 3 images but points of 2"):
        loss(made, points[:2])
    with pytest.raises(ConfigError, match=r"points \[B, M, 2\]"):
        loss(PointProposals(made.points[:, :5], made.logits, made.reference), points)
    with pytest.raises(ConfigError, match="background column"):
        loss(PointProposals(made.points, made.logits[..., :1], made.reference), points)
    with pytest.raises(DataError, match="image 2 of the batch has a point that is not a finite number"):
        loss(made, [*points[:2], torch.tensor([[math.nan, 1.0]])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0}, "sigma .* must be positive"),
        ({"tau": -1.0}, "tau .* must be positive"),
        ({"tau": "small"}, "tau .* is a number"),
        ({"kappa": 0.0}, "kappa .* must be positive"),
        ({"point_weight": -1}, "point_weight .* must not be negative"),
        ({"l2_warmup": 1.5}, "between 0 and 1"),
        ({"published": "perhaps"}, "published .* is true or false"),
        ({"sgima": 3}, "did you mean 'sigma'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses.create("p2p-papm", **options)


def test_p2pnet_has_no_options_of_the_ggd() -> None:
    with pytest.raises(ConfigError, match="unknown option of loss 'p2pnet' 'sigma'"):
        losses.create("p2pnet", sigma=3.0)


# --- learning -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p2pnet", "p2p-papm"])
def test_a_small_network_learns_one_batch_by_heart(name: str) -> None:
    torch.manual_seed(0)
    network = models.create("p2pnet", trunk="tiny")
    g = torch.Generator().manual_seed(1)
    points = [torch.rand(n, 2, generator=g) * 56 + 4 for n in (6, 3)]
    images = 0.1 * torch.randn(2, 3, 64, 64, generator=g)
    for image, xy in zip(images, points):
        for x, y in xy.long().tolist():
            image[:, y - 2 : y + 3, x - 2 : x + 3] += 2.0
    loss = create(name)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    seen = []
    for step in range(90):
        loss.progress = step / 90
        out = loss(network(images), points)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        seen.append((out.total.item(), out.terms["distance"].item()))
    assert seen[-1][0] < 0.1 * seen[0][0]
    assert seen[-1][1] < 0.6 * seen[0][1]
    scores = network(images).logits.softmax(-1)[..., 1]
    assert (scores > 0.5).sum(1).tolist() == [6, 3]
