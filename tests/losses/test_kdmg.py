"""KDMG: kernels sum to one and stay in the map, the target follows image and parameters, both sides learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import papm.losses as losses
from papm.errors import ConfigError, DataError
from papm.losses import LossContext
from papm.losses.kdmg import KernelLoss, kernels, normalized, place, target
from papm.structures import PointBatch

S = 8


def make(**options: object) -> KernelLoss:
    torch.manual_seed(0)
    loss = losses.create("kdmg", stride=S, **options)
    assert isinstance(loss, KernelLoss)
    return loss


def target_of(loss: KernelLoss, density: Tensor, points: PointBatch, context: LossContext | None) -> Tensor:
    return target(density, points, context, S, loss.generator)


def scene(
    counts: tuple[int, ...] = (9, 0, 4), side: int = 64, seed: int = 0
) -> tuple[Tensor, list[Tensor], LossContext]:
    rng = torch.Generator().manual_seed(seed)
    density = torch.rand(len(counts), 1, side // S, side // S, generator=rng, dtype=torch.float64) / 4
    points = [side * torch.rand(n, 2, generator=rng) for n in counts]
    return density, points, LossContext(images=torch.randn(len(counts), 3, side, side, generator=rng))


def test_a_kernel_is_placed_around_the_cell_of_its_point() -> None:
    kernel = torch.arange(1.0, 10.0)
    batch = PointBatch.from_list([torch.tensor([[17.0, 31.9]])])
    found = place(batch, kernel.expand(1, 1, 9) / 45, (6, 5), S)
    expected = torch.zeros(6, 5)
    expected[2:5, 1:4] = kernel.view(3, 3) / 45  # the cell is row 3, column 2
    assert torch.allclose(found[0], expected)


def test_what_the_border_cuts_off_is_kept_inside() -> None:
    kernel = torch.arange(1.0, 10.0)
    batch = PointBatch.from_list([torch.tensor([[0.0, 0.0]])])
    found = place(batch, kernel.expand(1, 1, 9) / 45, (3, 3), S)[0]
    inner = torch.tensor([[5.0, 6.0], [8.0, 9.0]])
    assert torch.allclose(found[:2, :2], inner / inner.sum()) and float(found.sum()) == pytest.approx(1)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(-20, 60, width=32), st.floats(-20, 80, width=32)), max_size=8),
    st.sampled_from([1, 3, 5]),
    st.integers(0, 3),
)
def test_the_sum_is_the_number_of_points_inside(points: list[tuple[float, float]], side: int, seed: int) -> None:
    """Kernels of one cell and of more than the map; points outside are left out; batch equals a loop over points."""
    xy = torch.tensor(points, dtype=torch.float32).reshape(-1, 2)
    batch = PointBatch.from_list([xy, xy.flip(0)], length=9)
    rng = torch.Generator().manual_seed(seed)
    kernels = normalized(torch.randn(2, 9, side**2, generator=rng))
    found = place(batch, kernels, (7, 5), S)
    assert (found >= 0).all()
    expected = torch.zeros(7 + 2 * side, 5 + 2 * side)
    inside = 0
    for k, (x, y) in enumerate(points):
        i, j = math.floor(y / S), math.floor(x / S)
        if not (0 <= i < 7 and 0 <= j < 5):
            continue
        inside += 1
        one = torch.zeros_like(expected)
        row, column = i + side - side // 2, j + side - side // 2
        one[row : row + side, column : column + side] = kernels[0, k].view(side, side)
        one = one[side : side + 7, side : side + 5]
        expected[side : side + 7, side : side + 5] += one / one.sum()
    assert torch.allclose(found[0], expected[side : side + 7, side : side + 5], atol=1e-5)
    assert found.sum((1, 2)).tolist() == pytest.approx([inside] * 2, abs=1e-4)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=25))
def test_normalised_kernels_are_positive_with_sum_one(values: list[float]) -> None:
    found = normalized(torch.tensor(values))
    assert (found > 0).all() and float(found.sum()) == pytest.approx(1, rel=1e-5)
    assert found[torch.tensor(values).argmax()] == found.max()


def test_equals_the_formula() -> None:
    density, points, context = scene()
    loss = make()
    target = target_of(loss, density, PointBatch.from_list(points), context).double()
    out = loss(density, points, context=context)
    squares, angles = 0.0, 0.0
    for z, t in zip(density, target.detach()):
        squares += float((z - t).square().sum())
        if t.any():
            angles += 1 - float((z * t).sum() / (z.norm() * t.norm()))
    assert out.total.item() == pytest.approx((squares + 10 * angles) / 3, rel=1e-5)
    assert float(out.terms["density"]) == pytest.approx(squares / 6, rel=1e-5)
    assert target.sum((1, 2, 3)).tolist() == pytest.approx([9, 0, 4], rel=1e-5)


def test_the_target_itself_costs_nothing() -> None:
    density, points, context = scene()
    loss = make()
    target = target_of(loss, density.float(), PointBatch.from_list(points), context).detach()
    assert float(loss(target, points, context=context).total.detach()) == pytest.approx(0, abs=1e-5)


def test_the_generator_is_the_published_one() -> None:
    """3×3 convolutions 3 → 32 → 64 → 128 → 128 → s², LeakyReLU 0.01 and a max-pool after each but the last; N(0, 0.01)."""
    layers = list(make(side=7).generator.layers)
    convolutions = [m for m in layers if isinstance(m, torch.nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [
        (3, 32),
        (32, 64),
        (64, 128),
        (128, 128),
        (128, 49),
    ]
    assert all((c.kernel_size, c.stride, c.padding) == ((3, 3), (1, 1), (1, 1)) for c in convolutions)
    kinds = [type(m).__name__ for m in layers]
    assert kinds == ["Conv2d", "LeakyReLU", "MaxPool2d"] * 4 + ["Conv2d"] and layers[1].negative_slope == 0.01
    for c in convolutions:
        assert c.bias is not None and not c.bias.any()
        weight = c.weight.detach()
        assert float(weight.std()) == pytest.approx(0.01, rel=0.1) and abs(float(weight.mean())) < 1e-3


def test_the_map_of_kernels_by_hand() -> None:
    """What convolutions, slopes and pools written one by one give, at a size that is and one that is not a multiple of 16."""
    loss, rng = make(channels=3), torch.Generator().manual_seed(1)
    c = [m for m in loss.generator.layers if isinstance(m, torch.nn.Conv2d)]
    for size, cells in (((48, 32), (3, 2)), ((40, 33), (3, 3))):
        x = torch.randn(2, 3, *size, generator=rng)
        made = loss.generator(x)
        for layer in c[:-1]:
            x = torch.nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
            x = torch.where(x > 0, x, 0.01 * x)
            x = torch.nn.functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), value=-torch.inf)
            x = x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
        x = torch.nn.functional.conv2d(x, c[-1].weight, c[-1].bias, padding=1)
        assert made.shape[-2:] == cells and torch.allclose(made, x, atol=1e-9)


def test_kernels_follow_the_image() -> None:
    density, points, context = scene()
    loss = make()
    batch = PointBatch.from_list(points)
    assert context.images is not None
    own = kernels(loss.generator, context.images, batch)[0]
    assert own.sum(1).tolist() == pytest.approx([1] * len(own))
    other = target_of(loss, density, batch, LossContext(images=-context.images))
    assert not torch.allclose(other, target_of(loss, density, batch, context), atol=1e-7)
    first = loss(density[:1], points[:1], context=LossContext(images=context.images[:1])).total
    swapped = loss(density[:1], points[:1], context=LossContext(images=context.images[1:2])).total
    assert float(first.detach()) != float(swapped.detach())  # each map has the kernels of its own image


def test_a_point_has_the_kernel_of_its_place_in_the_image() -> None:
    """The generator's map has a cell for 16 × 16 pixels; the image is no square, so that rows are not columns."""
    loss, rng = make(), torch.Generator().manual_seed(3)
    images = 3 * torch.randn(1, 3, 48, 80, generator=rng)
    xy = torch.tensor([[75.0, 10.0], [17.0, 33.0], [15.9, 47.0], [79.9, 47.9]])
    with torch.no_grad():
        made = loss.generator(images)[0]
        found = kernels(loss.generator, images, PointBatch.from_list([xy]))[0]
    assert made.shape == (25, 3, 5)
    expected = torch.stack([normalized(made[:, row, column]) for row, column in ((0, 4), (2, 1), (2, 0), (2, 4))])
    assert torch.allclose(found, expected, atol=1e-7)
    assert torch.pdist(expected).min() > 1e-4


def test_nothing_is_asked_of_cells_that_do_not_count() -> None:
    loss = make()
    density, context = torch.zeros(1, 1, 8, 8), scene((1,))[2]
    points = [torch.tensor([[30.0, 20.0], [10.0, 50.0]])]
    with torch.no_grad():
        target = target_of(loss, density, PointBatch.from_list(points), context)
    mask = torch.zeros(1, 64, 64, dtype=torch.bool)
    mask[:, :, :32] = True
    assert float(target[..., 4:].sum()) > 0.1
    seen = torch.cat([target[..., :4], density[..., 4:]], -1)
    out = loss(seen, points, context=LossContext(mask=mask, images=context.images))
    assert float(out.total.detach()) == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_gradients_of_both_sides() -> None:
    density, points, context = scene((3, 0), side=32)
    loss = make(side=3, channels=1).double()
    parameters = list(loss.parameters())
    assert parameters and context.images is not None
    with torch.no_grad():
        for p in parameters:  # activations of about one: steps of finite differences must not change who wins a pool
            p.mul_(40)
    context = LossContext(images=context.images.double())

    def total(z: Tensor, *_: Tensor) -> Tensor:
        value: Tensor = loss(z, points, context=context).total
        return value

    assert torch.autograd.gradcheck(total, (density[..., :4, :4].clone().requires_grad_(), *parameters))


@pytest.mark.slow
def test_counter_and_generator_learn_together_and_keep_the_count() -> None:
    density, points, context = scene((6, 11))
    loss = make(channels=8)  # to be quick
    z = density.float().clone().requires_grad_()
    before = kernels(loss.generator, context.images, PointBatch.from_list(points)).detach()  # type: ignore[arg-type]
    optimizer = torch.optim.Adam([{"params": [z], "lr": 0.02}, {"params": loss.parameters(), "lr": 1e-3}])
    values = []
    for _ in range(60):
        optimizer.zero_grad()
        out = loss(z, points, context=context)
        out.total.backward()
        optimizer.step()
        values.append(out.total.item())
    assert values[-1] < 0.1 * values[0]
    batch = PointBatch.from_list(points)
    after = kernels(loss.generator, context.images, batch).detach()  # type: ignore[arg-type]
    assert (after - before).abs().max() > 1e-3
    assert target_of(loss, z, batch, context).sum((1, 2, 3)).tolist() == pytest.approx([6, 11], rel=1e-4)
    # With the map held fixed the generator alone lowers the loss: the kernels come to meet it.
    fixed = density.float()
    alone = make(channels=8)
    optimizer = torch.optim.Adam(alone.parameters(), lr=3e-3)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        total = alone(fixed, points, context=context).total
        total.backward()
        optimizer.step()
        values.append(total.item())
    assert values[-1] < 0.97 * values[0]


def test_without_images_one_kernel_is_learned() -> None:
    density, points, _ = scene()
    loss = make()
    assert loss.needs_images and not losses.create("hd-papm").needs_images
    grey = LossContext(images=torch.zeros(3, 3, 64, 64))
    for given_ in (None, LossContext()):
        made = loss(density.requires_grad_(), points, context=given_)
        torch.testing.assert_close(made.total, loss(density, points, context=grey).total)
    made.total.backward()
    assert density.grad is not None and all(p.grad is not None for p in loss.parameters())
    target = target_of(loss, density, PointBatch.from_list(points), None)
    torch.testing.assert_close(target.sum((1, 2, 3)), torch.tensor([9.0, 0.0, 4.0]))


def test_images_must_fit_the_map() -> None:
    density, points, context = scene()
    loss = make()
    assert context.images is not None
    with pytest.raises(ConfigError, match="do not fit 8×8 cells of stride 8"):
        loss(density, points, context=LossContext(images=context.images[..., :32, :]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 4}, "odd number of cells"),
        ({"side": 0}, "odd number of cells"),
        ({"channels": 0}, "whole number ≥ 1"),
        ({"w_density": 0.0, "w_cosine": 0.0}, "must not be zero"),
        ({"w_cosine": -1.0}, "must not be negative"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses.create("kdmg", **options)


def test_nan_and_several_maps_are_refused() -> None:
    density, points, context = scene()
    density[2, 0, 1, 1] = math.nan
    with pytest.raises(DataError, match="image 2"):
        make()(density, points, context=context)
    with pytest.raises(ConfigError, match="one map per image, the network gives 2"):
        make()(torch.zeros(1, 2, 4, 4), [torch.zeros(0, 2)])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 4.0, 39.99, 56.0, -3.0, 5000.0])] * 2), max_size=6),
    st.sampled_from([0.0, 1e-6, 1.0, 1e4]),
    st.sampled_from([(40, 56), (33, 49)]),
)
def test_finite_whatever_the_points(points: list[tuple[float, float]], scale: float, size: tuple[int, int]) -> None:
    loss = make()
    z = (scale * torch.rand(1, 1, 5, 7)).requires_grad_()
    context = LossContext(images=torch.zeros(1, 3, *size))
    out = loss(z, [torch.tensor(points).reshape(-1, 2)], context=context)
    gradients = torch.autograd.grad(out.total, [z, *loss.parameters()])
    assert torch.isfinite(out.total) and all(torch.isfinite(g).all() for g in gradients)
