"""Laws that every registered loss obeys, and the regression of a map against its formula."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import papm.losses as losses
from papm.errors import ConfigError, DataError
from papm.losses import LossContext, register
from papm.losses.base import cell_mask
from papm.losses.density import hd_papm, target
from papm.losses.registry import LOSSES, FunctionLoss
from papm.methods import METHODS
from papm.structures import DensityOutput, PointBatch, PointProposals
from papm.targets import density_map

STRIDE, SIDE = 8, 64


# Losses of point networks have tests of their own.
NAMES = sorted(set(losses.names()) - {m.loss for m in map(METHODS.get, METHODS) if m.network == "points"})


def make(name: str) -> losses.CountingLoss:
    """A registered loss with its defaults."""
    made = losses.create(name, stride=STRIDE)
    if made.needs_images:
        made.register_forward_pre_hook(give_images, with_kwargs=True)
    return made


def give_images(
    loss: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The context with the same picture for every map, for losses that cannot do without."""
    density = getattr(given[0], "density", given[0])
    if isinstance(density, Tensor) and density.dim() == 4:
        size = (STRIDE * density.shape[-2], STRIDE * density.shape[-1])
        picture = torch.linspace(-2, 2, 3 * size[0] * size[1]).sin().view(1, 3, *size).expand(len(density), -1, -1, -1)
        named = {**named, "context": dataclasses.replace(named.get("context") or LossContext(), images=picture)}
    return given, named


def scene(seed: int = 0, batch: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
    """A density near the truth, and points; the second image is empty."""
    generator = torch.Generator().manual_seed(seed)
    points = [SIDE * torch.rand(n, 2, generator=generator) for n in (7, 0, 12, 1)[:batch]]
    cells = SIDE // STRIDE
    density = 0.3 * torch.rand(batch, 1, cells, cells, generator=generator, dtype=torch.float64)
    return density.to(dtype), points


def target_of(loss: losses.CountingLoss, density: Tensor, points: PointBatch, context: LossContext | None) -> Tensor:
    """What a regression asks for."""
    assert isinstance(loss, FunctionLoss)
    return target(density, points, context, loss.stride, loss.options.get("sigma"), loss.options.get("shape", 2.0))


@pytest.fixture(params=NAMES)
def loss(request: pytest.FixtureRequest) -> losses.CountingLoss:
    return make(request.param)


def test_total_is_the_weighted_sum_of_the_terms(loss: losses.CountingLoss) -> None:
    density, points = scene()
    out = loss(density.requires_grad_(), points)
    assert out.total.dim() == 0 and out.total.requires_grad
    assert set(out.weights) == set(out.terms) and out.terms
    assert all(not t.requires_grad for t in out.terms.values())
    expected = sum(out.weights[k] * t for k, t in out.terms.items())
    assert out.total.item() == pytest.approx(float(expected), rel=1e-5)
    assert out.total.item() != 0


def test_a_batch_is_the_mean_of_its_images(loss: losses.CountingLoss) -> None:
    """Empty images included: the loss and its gradient do not depend on how images are batched."""
    density, points = scene(dtype=torch.float64)
    density.requires_grad_()
    whole = loss(density, points)
    (together,) = torch.autograd.grad(whole.total, density)
    parts, gradients = [], []
    for b in range(len(points)):
        alone = density[b : b + 1].detach().requires_grad_()
        out = loss(alone, points[b : b + 1])
        parts.append(out.total.item())
        gradients.append(torch.autograd.grad(out.total, alone)[0] / len(points))
    assert whole.total.item() == pytest.approx(sum(parts) / len(parts), rel=1e-4)
    apart = torch.cat(gradients)
    assert torch.allclose(together, apart, rtol=1e-3, atol=1e-3 * float(apart.abs().max()))


def test_both_forms_of_points_and_of_the_map(loss: losses.CountingLoss) -> None:
    density, points = scene()
    first = loss(density, points)
    batch = PointBatch.from_list(points, length=32)
    for prediction, given in (
        (density, batch),
        (DensityOutput(density, STRIDE), points),
        (density, tuple(points)),
    ):
        assert float(loss(prediction, given).total) == pytest.approx(first.total.item(), rel=1e-5)


def test_padding_of_a_batch_may_hold_anything(loss: losses.CountingLoss) -> None:
    density, points = scene()
    clean = PointBatch.from_list(points, length=16)
    dirty = dataclasses.replace(clean, xy=torch.where(clean.valid[..., None], clean.xy, 17.0))
    assert float(loss(density, dirty).total) == pytest.approx(float(loss(density, clean).total), rel=1e-5)


def test_autocast_gives_a_float32_loss(loss: losses.CountingLoss) -> None:
    density, points = scene()
    plain = loss(density, points)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = loss(density, points)
        rounded = loss(density.bfloat16(), points)
    assert cast.total.dtype == torch.float32 and rounded.total.dtype == torch.float32
    assert cast.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    assert rounded.total.item() == pytest.approx(plain.total.item(), rel=0.1)


def test_what_is_masked_does_not_matter(loss: losses.CountingLoss) -> None:
    """Cells without a pixel that counts: neither value nor gradient depends on the density there."""
    density, _ = scene()
    points = [torch.tensor([[3.0, 4.0], [20.0, 30.0]])] * 3
    mask = torch.zeros(3, SIDE, SIDE, dtype=torch.bool)
    mask[:, :48, :40] = True
    context = LossContext(mask=mask)
    first = loss(density, points, context=context)
    other = density.clone()
    other[..., 6:, :] += 5
    other[..., :, 5:] += 5
    other.requires_grad_()
    second = loss(other, points, context=context)
    assert second.total.item() == pytest.approx(first.total.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(second.total, other)
    assert not gradient[..., 6:, :].any() and not gradient[..., :, 5:].any() and gradient.any()


def test_bad_input_is_named(loss: losses.CountingLoss) -> None:
    density, points = scene()
    loss(density, points)
    with pytest.raises(ConfigError, match="stride is 4, the loss was made for 8"):
        loss(DensityOutput(density, 4), points)
    with pytest.raises(ConfigError, match=r"must be \[B, C, h, w\]"):
        loss(density[0], points)
    with pytest.raises(ConfigError, match="3 maps but points of 2 images"):
        loss(density, points[:2])
    with pytest.raises(ConfigError, match="3 maps but points of 2 images"):
        loss(density, PointBatch.from_list(points[:2]))
    for value in (math.nan, math.inf):
        with pytest.raises(DataError, match="image 2 of the batch"):
            loss(density, [*points[:2], torch.tensor([[value, 1.0]])])
    for shape in ((4, 3), (2,), (1, 2, 2)):
        with pytest.raises(DataError, match=r"image 1 of the batch must be \[n, 2\]"):
            loss(density, [points[0], torch.zeros(shape), points[2]])
    proposals = PointProposals(torch.zeros(3, 4, 2), torch.zeros(3, 4, 2), torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="point network"):
        loss(proposals, points)
    with pytest.raises(ConfigError, match="does not fit"):
        loss(density, points, context=LossContext(mask=torch.ones(3, 32, 64, dtype=torch.bool)))


def test_a_batch_of_no_images_is_refused(loss: losses.CountingLoss) -> None:
    with pytest.raises(DataError, match="at least one image"):
        loss(torch.zeros(0, 1, 8, 8), [])


def test_what_is_no_count_is_refused_by_image(loss: losses.CountingLoss) -> None:
    """Its square would be infinite, and infinity times zero NaN."""
    density, points = scene()
    for value in (math.nan, math.inf, 1e30, -1e30):
        other = density.clone()
        other[1, 0, 2, 3] = value
        with pytest.raises(DataError, match="density of image 1 of the batch"):
            loss(other, points)
    large = torch.full((1, 1, 8, 8), 1e15, requires_grad=True)
    out = loss(large, points[:1])
    (gradient,) = torch.autograd.grad(out.total, large)
    assert out.total.isfinite() and gradient.isfinite().all()


# --- the registry -----------------------------------------------------------------------------------------------------


def test_registry_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hd-papm'"):
        losses.create("hd-pamp")
    with pytest.raises(ConfigError, match="option of loss 'hd-papm' 'sigme'; did you mean 'sigma'"):
        losses.create("hd-papm", sigme=2.0)
    assert losses.options("gaussian-16")["sigma"] == 16.0
    assert "stride" not in losses.options("hd-papm")
    with pytest.raises(ConfigError, match="whole number ≥ 1"):
        losses.create("hd-papm", stride=0)


def test_every_loss_and_option_is_described() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|.*$", text, flags=re.M))))
    assert set(losses.names()) <= described
    assert {option for name in losses.names() for option in losses.options(name)} <= described


@pytest.mark.parametrize("value", ["wide", math.nan, math.inf, True, None, [4.0]])
def test_options_of_the_wrong_kind(value: object) -> None:
    with pytest.raises(ConfigError, match="sigma of loss 'hd-papm' is a finite number"):
        losses.create("hd-papm", sigma=value)


@pytest.mark.parametrize(("option", "value"), [("sigma", 0), ("sigma", -4.0), ("shape", 0.0), ("scale", -1)])
def test_options_out_of_range_are_refused_before_training(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{option} of loss 'hd-papm' must be positive"):
        losses.create("hd-papm", **{option: value})


def test_adding_a_loss_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_items", dict(LOSSES._items))
    register("mine", functools.partial(hd_papm, sigma=3.0, shape=2.0))
    assert "mine" in losses.names() and losses.options("mine") == {"sigma": 3.0, "shape": 2.0, "scale": 1.0}
    assert losses.create("mine", stride=4, sigma=2.0).stride == 4
    density, points = scene()
    plain = losses.create("gaussian", sigma=3.0)(density, points).total
    assert losses.create("mine")(density, points).total == plain


# --- regression of a map ----------------------------------------------------------------------------------------------

DENSITY_LOSSES = ("gaussian", "gaussian-16", "gaussian-adaptive", "hd-papm")


@pytest.mark.parametrize("stride", [2, 8])
@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(
    ("name", "kernel", "sigma"),
    [
        ("gaussian", "gaussian", 4.0),
        ("gaussian-16", "gaussian", 16.0),
        ("hd-papm", "ggd", 4.0),
        ("gaussian-adaptive", "adaptive", 4.0),
    ],
)
def test_equals_the_formula(name: str, kernel: str, sigma: float, scale: float, stride: int) -> None:
    """1/2B Σ_b Σ_cells (scale·A_est - scale·A_gt)²."""
    _, points = scene()
    density = torch.rand(3, 1, SIDE // stride, SIDE // stride, dtype=torch.float64)
    target = torch.stack([density_map(p, (SIDE, SIDE), kernel, sigma, 8.0, stride) for p in points])[:, None]
    expected = ((scale * density - scale * target.double()) ** 2).sum() / (2 * 3)
    out = losses.create(name, stride=stride, scale=scale)(density, points)
    assert out.total.item() == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", DENSITY_LOSSES)
def test_gradient(name: str) -> None:
    density, points = scene(dtype=torch.float64)
    loss = losses.create(name, stride=STRIDE)
    assert torch.autograd.gradcheck(lambda d: loss(d, points).total, (density.requires_grad_(),))


@pytest.mark.parametrize("name", DENSITY_LOSSES)
def test_the_target_itself_costs_nothing_and_sums_to_the_count(name: str) -> None:
    density, points = scene()
    loss = losses.create(name, stride=STRIDE)
    target = target_of(loss, density, PointBatch.from_list(points), None)
    assert target.sum((1, 2, 3)).tolist() == pytest.approx([7, 0, 12], rel=1e-4)
    assert float(loss(target, points).total) == pytest.approx(0, abs=1e-10)


def test_several_maps_are_refused() -> None:
    with pytest.raises(ConfigError, match="one map per image, the network gives 2"):
        losses.create("hd-papm")(torch.zeros(1, 2, 4, 4), [torch.zeros(0, 2)])


def whole_image(
    name: str, sigma: float | None = None, shape: float | None = None
) -> tuple[losses.CountingLoss, LossContext, Tensor, list[Tensor]]:
    """Two windows of one image, one of them beyond its corner, with the context a training loop gives."""
    given = {k: v for k, v in (("sigma", sigma), ("shape", shape)) if v is not None}
    loss = losses.create(name, stride=STRIDE, **given)
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(80, 2, generator=generator) * torch.tensor([160.0, 120.0])
    offsets = torch.tensor([[48.0, 32.0], [112.0, 80.0]])
    inner, outer = [], []
    for corner in offsets:
        xy = points - corner
        inner.append(xy[((xy >= 0) & (xy < SIDE)).all(1)])
        outer.append(xy[((xy >= -loss.halo) & (xy < SIDE + loss.halo)).all(1)])
    context = LossContext(offsets=offsets, sizes=torch.tensor([[120.0, 160.0]] * 2), halo=PointBatch.from_list(outer))
    return loss, context, points, inner


@pytest.mark.parametrize(
    ("name", "sigma", "shape", "tolerance"),
    [
        ("hd-papm", 4.0, 8.0, 1e-5),
        ("hd-papm", 2.0, 16.0, 1e-5),
        ("hd-papm", 4.0, 4.0, 1e-5),
        ("hd-papm", 2.0, 1.0, 0.02),
        ("gaussian", 4.0, None, 0.01),
    ],
)
def test_with_its_surroundings_the_target_is_the_window_of_the_whole(
    name: str, sigma: float, shape: float | None, tolerance: float
) -> None:
    """What the halo leaves out is nothing for a flat kernel, and the tail beyond 3σ for a Gaussian."""
    loss, context, points, inner = whole_image(name, sigma, shape)
    whole = torch.zeros(200, 200)
    whole[:120, :160] = density_map(points, (120, 160), "ggd", sigma, shape or 2.0)
    expected = torch.stack([whole[y : y + SIDE, x : x + SIDE] for x, y in ((48, 32), (112, 80))])
    expected = expected.reshape(2, 1, 8, STRIDE, 8, STRIDE).sum((3, 5))
    density = torch.zeros(2, 1, 8, 8)
    target = target_of(loss, density, PointBatch.from_list(inner), context)
    assert (target - expected).abs().sum() <= tolerance * expected.sum()
    out = loss(density, inner, context=context)
    assert out.total.item() == pytest.approx(float(expected.square().sum() / 4), rel=2 * tolerance)
    without = target_of(loss, density, PointBatch.from_list(inner), None)
    assert (without - expected).abs().sum() > 5 * tolerance * expected.sum()


def test_adaptive_takes_the_spacing_measured_in_the_whole_image() -> None:
    loss = losses.create("gaussian-adaptive", stride=STRIDE)
    spacing = torch.full((2, 3), 20.0)
    few = PointBatch(
        torch.tensor([[[20.0, 20.0], [40.0, 9.0], [33.0, 50.0]]] * 2), torch.ones(2, 3, dtype=torch.bool), spacing
    )
    target = target_of(loss, torch.zeros(2, 1, 8, 8), few, None)
    expected = density_map(few.xy[0], (SIDE, SIDE), "gaussian", 6.0, stride=8)
    assert torch.allclose(target[0, 0], expected, atol=1e-6)


def test_adaptive_takes_a_quarter_of_the_side_for_a_point_alone() -> None:
    """Of the side in pixels, not in cells."""
    loss = losses.create("gaussian-adaptive", stride=STRIDE)
    target = target_of(loss, torch.zeros(1, 1, 8, 8), PointBatch.from_list([torch.tensor([[20.0, 36.0]])]), None)
    expected = density_map(torch.tensor([[20.0, 36.0]]), (SIDE, SIDE), "gaussian", SIDE / 4, stride=STRIDE)
    assert torch.allclose(target[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "halo"),
    [
        ("gaussian", {"sigma": 4.0}, 12.14),  # the kernel is 0.01 there
        ("hd-papm", {}, 12.0),  # 3σ: all of a flat kernel
        ("hd-papm", {"shape": 1.0}, 26.05),
        ("hd-papm", {"shape": 0.5}, 119.97),
        ("gaussian-adaptive", {}, 64.0),
    ],
)
def test_how_far_around_a_crop_points_are_asked_for(name: str, options: dict[str, float], halo: float) -> None:
    assert losses.create(name, **options).halo == pytest.approx(halo, abs=0.01)


def test_context_without_a_halo_is_the_crop_alone() -> None:
    loss, context, _, inner = whole_image("hd-papm")
    density = torch.rand(2, 1, 8, 8)
    plain = loss(density, inner).total
    assert loss(density, inner, context=dataclasses.replace(context, halo=None)).total == plain
    assert loss(density, inner, context=LossContext()).total == plain


# --- the mask of cells ------------------------------------------------------------------------------------------------


def test_a_cell_counts_when_one_of_its_pixels_does() -> None:
    mask = torch.zeros(2, 13, 20, dtype=torch.bool)
    mask[0, 12, 19] = True
    mask[1, 7, 8] = True
    cells = cell_mask(LossContext(mask=mask), torch.zeros(2, 1, 2, 3), 8)
    assert cells is not None
    assert cells[:, 0].nonzero().tolist() == [[0, 1, 2], [1, 0, 1]]
    assert (
        cell_mask(LossContext(), torch.zeros(2, 1, 2, 3), 8) is None
        and cell_mask(None, torch.zeros(1, 1, 1, 1), 8) is None
    )


@pytest.mark.parametrize("name", DENSITY_LOSSES)
def test_nothing_is_asked_of_cells_that_do_not_count(name: str) -> None:
    """The part of a kernel that reaches into them is missing from the target, so the rest of it costs nothing."""
    points = [torch.tensor([[31.0, 20.0], [10.0, 30.0]])]
    mask = torch.zeros(1, SIDE, SIDE, dtype=torch.bool)
    mask[:, :, :32] = True
    loss = losses.create(name, stride=STRIDE)
    target = target_of(loss, torch.zeros(1, 1, 8, 8), PointBatch.from_list(points), None)
    assert float(target[..., 4:].sum()) > 0.1
    seen = torch.cat([target[..., :4], torch.zeros(1, 1, 8, 4)], -1)
    out = loss(seen, points, context=LossContext(mask=mask))
    assert float(out.terms["density"]) == pytest.approx(0, abs=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", (*DENSITY_LOSSES, "bl", "ial", "noisecc"))
def test_on_a_gpu_the_same_without_waiting_for_it(name: str) -> None:
    """With points, halo and mask already there, forward and backward contain no host sync."""
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(2, 30, 2, generator=generator) * SIDE
    batch = PointBatch(points, torch.rand(2, 30, generator=generator) < 0.8, torch.full((2, 30), 12.0))
    context = LossContext(torch.rand(2, SIDE, SIDE) < 0.9, torch.zeros(2, 2), torch.full((2, 2), float(SIDE)), batch)
    density = torch.rand(2, 1, 8, 8, generator=generator)
    loss = losses.create(name, stride=STRIDE)
    expected = loss(density, batch, context=context).total.item()
    there = density.cuda().requires_grad_()
    given = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
    moved = LossContext(**{k: None if v is None else v.to("cuda") for k, v in given.items()})
    on_device = batch.to("cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = loss(there, on_device, context=moved)
        out.total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out.total.item() == pytest.approx(expected, rel=1e-4)


def test_points_as_people_have_them() -> None:
    loss = losses.create("hd-papm", stride=8)
    density = torch.rand(2, 1, 4, 4)
    expected = float(loss(density, [torch.tensor([[3.0, 4.0]]), torch.zeros(0, 2)]).total)
    for points in ([np.array([[3.0, 4.0]]), np.zeros((0, 2))], [[[3, 4]], []]):
        assert float(loss(density, points).total) == pytest.approx(expected)
    with pytest.raises(DataError, match="the points of image 1 must be a tensor or array"):
        loss(density, [torch.zeros(0, 2), "here"])
    with pytest.raises(ConfigError, match="a density must be a tensor"):
        loss(density.numpy(), [torch.zeros(0, 2)] * 2)
