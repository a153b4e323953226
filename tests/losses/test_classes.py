"""A loss map by map: one class changes nothing, several are as many losses of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from papm import losses
from papm.errors import ConfigError, DataError
from papm.losses.base import CountingLoss, LossContext
from papm.losses.classes import ClassLoss, by_class
from papm.methods import METHODS
from papm.structures import DensityOutput, PointBatch

STRIDE, CELLS = 8, 6
NAMES = sorted(set(losses.names()) - {m.loss for m in map(METHODS.get, METHODS) if m.network == "points"})


def scene(classes: int, seed: int = 0) -> tuple[Tensor, PointBatch, LossContext]:
    """Two crops of 48 px with points of several classes, one image without points of the last class."""
    g = torch.Generator().manual_seed(seed)
    density = 0.2 * torch.rand(2, classes, CELLS, CELLS, generator=g)
    side = STRIDE * CELLS
    numbers = [7, 5]
    xy = [side * torch.rand(n, 2, generator=g) for n in numbers]
    labels = [torch.arange(n) % classes for n in numbers]
    labels[1] = labels[1].clamp(max=max(0, classes - 2))
    extents = [4 + 10 * torch.rand(n, generator=g) for n in numbers]
    points = PointBatch.from_list(xy, extents=extents, labels=labels)
    mask = torch.ones(2, side, side, dtype=torch.bool)
    mask[0, :, 40:] = False
    sizes, corner = torch.tensor([[90.0, 120.0]] * 2), torch.tensor([[0.0, 0.0], [40.0, 30.0]])
    return density, points, LossContext(mask, corner, sizes, points, torch.randn(2, 3, side, side, generator=g))


def build(name: str) -> CountingLoss:
    torch.manual_seed(0)  # kdmg has weights
    return losses.create(name, stride=STRIDE)


def value_and_gradient(loss: CountingLoss, density: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    z = density.clone().requires_grad_()
    points, context = rest
    out = loss(DensityOutput(z, STRIDE), points, context=context)
    weighted = torch.stack([out.weights[k] * v for k, v in out.terms.items()]).sum()
    torch.testing.assert_close(out.total.detach(), weighted.detach(), rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(out.total, z)
    return out.total.detach(), gradient


@pytest.mark.parametrize("name", NAMES)
def test_one_class_is_the_plain_loss(name: str) -> None:
    density, points, context = scene(1)
    plain, wrapped = build(name), ClassLoss(build(name), 1)
    assert (wrapped.halo, wrapped.needs_images, wrapped.maps) == (plain.halo, plain.needs_images, 1)
    for own, other in zip(*(value_and_gradient(x, density, points, context) for x in (plain, wrapped))):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", NAMES)
def test_several_classes_are_so_many_losses(name: str) -> None:
    classes = 3
    density, points, context = scene(classes)
    total, gradient = value_and_gradient(ClassLoss(build(name), classes), density, points, context)
    apart: list[tuple[Tensor, Tensor]] = []
    for k in range(classes):
        assert points.labels is not None and points.extents is not None
        kept = [points.valid[b] & (points.labels[b] == k) for b in range(2)]
        own = PointBatch.from_list(
            [points.xy[b][kept[b]] for b in range(2)], extents=[points.extents[b][kept[b]] for b in range(2)]
        )
        alone = LossContext(context.mask, context.offsets, context.sizes, own, context.images)
        apart.append(value_and_gradient(build(name), density[:, k : k + 1], own, alone))
    torch.testing.assert_close(total, torch.stack([t for t, _ in apart]).sum(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, torch.cat([g for _, g in apart], 1), rtol=1e-3, atol=1e-5)


def test_points_go_to_their_maps_with_padding_at_the_end() -> None:
    _, points, _ = scene(3)
    made = by_class(points, 3)
    assert len(made) == 6 and made.labels is not None and made.extents is not None
    assert not (made.valid[:, 1:] & ~made.valid[:, :-1]).any() and not made.xy[~made.valid].any()
    assert made.valid.sum() == points.valid.sum()
    for row in range(6):
        assert (made.labels[row][made.valid[row]] == row % 3).all()
    assert made.valid[5].sum() == 0  # the second image has nothing of the last class


def test_what_does_not_fit_is_refused() -> None:
    density, points, _ = scene(2)
    loss = ClassLoss(losses.create("sc", stride=STRIDE), 2)
    with pytest.raises(DataError, match="needs the class of each point"):
        loss(density, points.to_list())
    with pytest.raises(ConfigError, match="needs 2 maps per image, the network gives 1"):
        loss(density[:, :1], points)
    with pytest.raises(ConfigError, match="needs one map per image, the network gives 2"):
        losses.create("sc", stride=STRIDE)(density, points)
    assert points.labels is not None
    points.labels[0, 0] = 2
    with pytest.raises(DataError, match="labelled 2, but the network has classes 0 to 1"):
        loss(density, points)
    with pytest.raises(ConfigError, match="knows classes by itself"):
        ClassLoss(losses.create("p2pnet"), 2)
    with pytest.raises(ConfigError, match=r"leave loss\.published at false"):
        ClassLoss(losses.create("dm-count", published=True), 2)
    with pytest.raises(ConfigError, match="at least one class"):
        ClassLoss(losses.create("sc"), 0)
