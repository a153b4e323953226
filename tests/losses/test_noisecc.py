"""NoiseCC: moments against samples of the noise, the quadratic form against a dense inverse, limits and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import papm.losses as losses
from papm.errors import ConfigError, DataError
from papm.losses import LossContext
from papm.losses.noisecc import FLOOR, Noise, background_variance, covariance, moments
from papm.structures import PointBatch
from papm.transport.windows import cell_centres


def scene(
    counts: tuple[int, ...] = (9, 0, 4), side: int = 64, stride: int = 8, seed: int = 0
) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    cells = side // stride
    density = torch.rand(len(counts), 1, cells, cells, generator=rng, dtype=torch.float64) / 4
    return density, [side * torch.rand(n, 2, generator=rng, dtype=torch.float64) for n in counts]


def batch_of(points: list[Tensor]) -> PointBatch:
    return PointBatch.from_list([p.double() for p in points])


@pytest.mark.slow
@pytest.mark.parametrize(("stride", "alpha", "beta"), [(8, 64.0, 64.0), (4, 25.0, 100.0)])
def test_moments_are_those_of_sampled_noise(stride: int, alpha: float, beta: float) -> None:
    """True points drawn around the dots; what the cells then hold has the mean, variance and covariance of the formulas."""
    rng = np.random.default_rng(0)
    dots = np.array([[10.0, 14.0], [20.5, 15.0], [22.0, 33.0], [3.0, 30.0]])
    size = (40 // stride, 32 // stride)
    some = slice(None, None, 8 // stride)  # of the cells, to be quick
    centres = cell_centres(size, stride, torch.zeros(1, dtype=torch.float64)).numpy()[some]
    draws = 200_000
    held = np.zeros((draws, len(centres)), dtype=np.float32)
    for dot in dots:
        true = dot - math.sqrt(alpha) * rng.standard_normal((draws, 2))
        r2 = ((true[:, None, :] - centres[None]) ** 2).sum(-1)
        held += (stride**2 * np.exp(-r2 / (2 * beta)) / (2 * np.pi * beta)).astype(np.float32)
    batch = batch_of([torch.from_numpy(dots), torch.zeros(0, 2)])
    mean, variance = (t.flatten(1)[:, some] for t in moments(batch, size, stride, alpha, beta))
    cells = torch.from_numpy(centres)[None].expand(2, -1, -1)
    joint = covariance(batch, cells, stride, alpha, beta)
    sampled = np.cov(held.T)
    top = sampled.max()
    assert np.abs(mean[0].numpy() - held.mean(0, dtype=np.float64)).max() < 0.005 * held.mean(0).max()
    assert np.abs(joint[0].numpy() - sampled).max() < 0.015 * top
    assert torch.allclose(joint[0].diagonal(), variance[0], rtol=1e-9, atol=1e-15)
    assert joint[0].min() < -0.05 * top  # cells on two sides of a dot vary against each other
    assert not mean[1].any() and not joint[1].any()


def test_covariance_is_that_of_the_printed_formula() -> None:
    _, points = scene((3,))
    alpha, beta = 30.0, 50.0

    def gaussian(r: Tensor, variance: float) -> float:
        return math.exp(-float(r @ r) / (2 * variance)) / (2 * math.pi * variance)

    cells = cell_centres((2, 3), 8, points[0])
    expected = torch.zeros(6, 6, dtype=torch.float64)
    for i, x in enumerate(cells):
        for j, y in enumerate(cells):
            for p in points[0]:
                expected[i, j] += gaussian(x - y, 2 * beta) * gaussian((x + y) / 2 - p, alpha + beta / 2)
                expected[i, j] -= gaussian(x - p, alpha + beta) * gaussian(y - p, alpha + beta)
    found = covariance(batch_of(points), cells[None], 8, alpha, beta)[0]
    assert torch.allclose(found, 8**4 * expected, rtol=1e-9, atol=1e-15)


def test_the_mean_holds_the_mass_of_the_points_inside() -> None:
    for stride in (2, 4, 8):
        mean, _ = moments(batch_of([torch.tensor([[128.0, 120.0], [130.0, 131.5]])]), (256 // stride,) * 2, stride)
        assert float(mean.sum()) == pytest.approx(2, rel=1e-4)


def test_without_noise_nothing_varies() -> None:
    """α → 0: v → 0 for points, so that only the background and the floor are left."""
    batch = batch_of(scene((5,))[1])
    _, variance = moments(batch, (8, 8), 8, alpha=1e-9)
    assert float(variance.max()) < 1e-9
    loss = Noise(alpha=1e-10)
    short = torch.tensor([1e6]).double()  # an image so large that the background begins outside this crop
    _, variance, own = loss.distribution(batch, (8, 8), short, None)
    assert float(own.max()) < 1e-9 and float(variance.max()) < 1.01 * 8**4 * FLOOR + 1e-9


@pytest.mark.parametrize(("alpha", "beta"), [(64.0, 64.0), (25.0, 100.0)])
def test_the_background_is_the_expected_square_of_one_more_point(alpha: float, beta: float) -> None:
    """As drawn: a point at that distance from the cell, moved by the noise; μ has none of it, so no mean is subtracted."""
    rng = np.random.default_rng(0)
    short, stride = 160.0, 8
    nearest = torch.tensor([[1e8, 400.0, 100.0, 0.0]]).double()
    found = background_variance(nearest, torch.tensor([short]).double(), stride, alpha, beta, 0.15)[0]
    for d2, value in zip(nearest[0].tolist(), found.tolist()):
        away = 0.15 * short * math.exp(-math.sqrt(d2) / math.sqrt(alpha + beta))
        true = np.array([away, 0.0]) - math.sqrt(alpha) * rng.standard_normal((400_000, 2))
        held = stride**2 * np.exp(-(true**2).sum(1) / (2 * beta)) / (2 * np.pi * beta)
        assert value == pytest.approx(float((held**2).mean()), rel=0.02)


def test_far_from_all_points_the_variance_is_the_backgrounds() -> None:
    """1/(4πβ·2π(α + β/2)), S⁴ for a cell: with α = β four times the variance of a point at its own place. Near points none."""
    loss = Noise()
    dot = torch.tensor([[4.0, 4.0]])
    _, variance, own = loss.distribution(batch_of([dot]), (128, 128), torch.tensor([1024.0]).double(), None)
    far = 8**4 / (4 * math.pi * 64 * 2 * math.pi * 96)
    assert float(variance[0, -1]) == pytest.approx(far, rel=1e-6)
    assert float(own[0, -1]) < 1e-12 and float(own[0, 0]) == pytest.approx(far / 4, rel=1e-6)
    assert float(variance[0, 0]) == pytest.approx(far / 4, rel=1e-6)


def test_stray_density_costs_what_the_background_says() -> None:
    """Δ more in one far cell costs w·½Δ²/v there, whatever the dots are."""
    dots = [torch.tensor([[20.0, 24.0], [30.0, 10.0]])]
    loss = losses.create("noisecc")
    mean = moments(batch_of(dots), (128, 128), 8)[0][:, None]
    stray = mean * 2 / mean.sum()
    stray[..., 100, 100] += 0.01
    far = 8**4 / (4 * math.pi * 64 * 2 * math.pi * 96)
    factor = 2 / float(mean.sum())
    assert float(loss(stray, dots).total) == pytest.approx(0.01 * 0.5 * 0.01**2 / (far * factor**2), rel=1e-4)


def test_the_block_is_of_cells_near_points() -> None:
    """Ranked without the background: in a large sparse crop empty cells vary most, but not because of the points."""
    rng = torch.Generator().manual_seed(0)
    dots = 512 * torch.rand(10, 2, generator=rng, dtype=torch.float64)
    loss = Noise()
    batch = batch_of([dots])
    _, variance, own = loss.distribution(batch, (64, 64), torch.tensor([512.0]).double(), None)
    residual = torch.rand(1, 64 * 64, generator=rng, dtype=torch.float64)
    solved = loss.precision_times(residual, variance, own, batch, 64)
    changed = (solved - residual / variance).abs()[0] > 1e-6 * (residual / variance).abs()[0]
    near = torch.cdist(cell_centres((64, 64), 8, dots), dots).amin(1)
    assert 20 < int(changed.sum()) <= 100 and float(near[changed].max()) < 24


def dense(loss: Noise, z: Tensor, points: Tensor, short: float) -> float:
    """½(z - fμ)ᵀ(f²Σ)⁻¹(z - fμ) of one image with all of Σ written down."""
    h, w = z.shape
    batch = batch_of([points])
    mean, variance, own = (t[0] for t in loss.distribution(batch, (h, w), torch.tensor([short]).double(), None))
    cells = cell_centres((h, w), loss.stride, points.double())
    full = covariance(batch, cells[None], loss.stride, loss.alpha, loss.beta)[0]
    order = sorted(range(h * w), key=lambda k: -float(own[k]))
    members, reached = [], 0.0
    for k in order[: loss.rank]:
        if reached >= loss.share * float(own.sum()):
            break
        members.append(k)
        reached += float(own[k])
    sigma = torch.diag(variance)
    for i in members:
        for j in members:
            sigma[i, j] = full[i, j] if i != j else variance[i] * (1 + loss.jitter)
    factor = len(points) / mean.sum()
    r = z.flatten() - factor * mean
    return float(0.5 * r @ torch.linalg.solve(factor**2 * sigma, r))


@pytest.mark.parametrize(("rank", "share"), [(100, 0.6), (5, 0.6), (100, 1.0), (0, 0.6), (100, 0.0)])
def test_the_likelihood_is_the_dense_one(rank: int, share: float) -> None:
    """Batched with images of other lengths and an empty one, equal to each alone with the whole matrix inverted."""
    density, points = scene((9, 0, 30, 1))
    out = losses.create("noisecc", rank=rank, share=share)(density, points)
    expected = [dense(Noise(rank=rank, share=share), density[b, 0], points[b], 64.0) for b in (0, 2, 3)]
    assert float(out.terms["likelihood"]) == pytest.approx(sum(expected) / 4, rel=1e-6)
    assert float(out.terms["empty"]) == pytest.approx(float(density[1].sum()) / 4)
    assert out.weights == {"likelihood": 0.01, "empty": 1.0}


def test_the_block_is_symmetric_and_positive() -> None:
    _, points = scene((200, 3), side=128)
    points.append(points[0][:1].repeat(50, 1))  # one dot fifty times
    batch = batch_of(points)
    cells = cell_centres((16, 16), 8, batch.xy)[None].expand(3, -1, -1)
    joint = covariance(batch, cells, 8)
    assert torch.allclose(joint, joint.mT, rtol=1e-12, atol=1e-16)
    deviation = joint.diagonal(dim1=1, dim2=2).sqrt()
    correlation = joint / (deviation[:, :, None] * deviation[:, None])
    assert correlation.abs().max() < 1 + 1e-6
    unit = torch.eye(256, dtype=torch.float64)
    assert (torch.linalg.eigvalsh(correlation + 1e-3 * unit) > 5e-4).all()


def test_noise_of_the_kind_assumed_is_likelier_than_other_errors() -> None:
    """A map of the true points costs less than as large an error of independent cells, and about ½ a cell."""
    rng = torch.Generator().manual_seed(0)
    true = 32 + 192 * torch.rand(300, 2, generator=rng, dtype=torch.float64)
    dots = true + 8 * torch.randn(300, 2, generator=rng, dtype=torch.float64)
    cells = cell_centres((32, 32), 8, true)
    kernel = torch.exp(-(true[:, None] - cells).square().sum(-1) / 128) / (2 * math.pi * 64) * 64
    truth = kernel.sum(0).view(1, 1, 32, 32)
    loss = losses.create("noisecc")
    mean, _ = moments(batch_of([dots]), (32, 32), 8)
    error = truth[0, 0] - mean[0]
    shuffled = error.flatten()[torch.randperm(1024, generator=rng)].view(1, 1, 32, 32)
    likely = float(loss(truth, [dots]).terms["likelihood"])
    assert 0.2 < likely / 1024 < 0.6
    assert float(loss(mean[None] + shuffled, [dots]).terms["likelihood"]) > 1.5 * likely


@pytest.mark.slow
def test_gradient() -> None:
    density, points = scene()
    loss = losses.create("noisecc", rank=20)
    assert torch.autograd.gradcheck(lambda d: loss(d, points).total, (density.requires_grad_(),), rtol=1e-4)


def test_cells_that_do_not_count_take_no_part() -> None:
    """With a mask the mean is that of the rest, and its sum the number of points."""
    _, points = scene((6,), side=32)
    mask = torch.zeros(1, 64, 64, dtype=torch.bool)
    mask[:, :32, :32] = True
    loss = losses.create("noisecc")
    density = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    sizes = torch.tensor([[32.0, 32.0]])
    whole = loss(density, points, context=LossContext(mask, sizes=sizes)).total
    part = loss(density[..., :4, :4], points, context=LossContext(sizes=sizes)).total
    assert float(whole) == pytest.approx(float(part), rel=1e-9)


@pytest.mark.parametrize("option", ["noise", "sigma", "weight", "rho", "jitter"])
def test_wrong_options(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} of loss 'noisecc' must be positive"):
        losses.create("noisecc", **{option: 0.0})
    for key, value, message in (("rank", -1, "is a whole number ≥ 0"), ("share", 1.5, "is a share between 0 and 1")):
        with pytest.raises(ConfigError, match=f"{key} of loss 'noisecc' {message}"):
            losses.create("noisecc", **{key: value})


def test_nan_and_several_maps_are_refused() -> None:
    density, points = scene()
    density[2, 0, 1, 1] = math.nan
    with pytest.raises(DataError, match="image 2"):
        losses.create("noisecc")(density, points)
    with pytest.raises(ConfigError, match="one map per image, the network gives 2"):
        losses.create("noisecc")(torch.zeros(1, 2, 4, 4), [torch.zeros(0, 2)])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 4.0, 39.99, 56.0, -3.0, 5000.0])] * 2), max_size=6),
    st.sampled_from([0.0, 1e-6, 1.0, 1e4]),
    st.sampled_from([1e-3, 8.0, 200.0]),
)
def test_finite_whatever_the_points(points: list[tuple[float, float]], scale: float, noise: float) -> None:
    z = (scale * torch.rand(1, 1, 5, 7)).requires_grad_()
    out = losses.create("noisecc", noise=noise)(z, [torch.tensor(points).reshape(-1, 2)])
    (gradient,) = torch.autograd.grad(out.total, z)
    assert torch.isfinite(out.total) and torch.isfinite(gradient).all()
