"""Maps: the sum is the count, a coarse map is the block sum of the fine one, a window is a window of the whole."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from papm import ggd, targets
from papm.errors import ConfigError, DataError
from papm.points import flip, inside, spacing
from papm.structures import PointBatch
from papm.targets import Domain, adaptive_sigma, density_map, density_maps, dot_maps, touched_cells

SHAPES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SIGMAS = (0.3, 2.0, 4.0, 8.0, 16.0, 32.0)
SIZE = (37, 53)  # odd on purpose

# Corners, borders, sub-pixel centres, a pixel's corner, a pixel's centre, and two duplicates.
HARD = torch.tensor(
    [[0.0, 0.0], [52.99, 36.99], [0.0, 20.25], [30.5, 0.0], [17.31, 22.77], [24.0, 24.0], [25.5, 24.5], [25.5, 24.5]]
)
OUTSIDE = torch.tensor([[-0.01, 5.0], [53.0, 5.0], [5.0, 37.0], [5.0, -40.0], [3338.0, 12.0]])


def reference(points: Tensor, size: tuple[int, int], sigma: float, shape: float, stride: int = 1) -> np.ndarray:
    """One kernel at a time in float64: evaluate on its square window, divide by its sum, add, block-sum."""
    h, w = size
    reach = min(ggd.support_radius(sigma, shape, targets.TOLERANCE), targets.MAX_RADIUS * sigma)
    radius = max(1, math.floor(reach + 0.5)) if shape != 2 else 10**6
    yy, xx = np.mgrid[:h, :w]
    out = np.zeros((-(-h // stride) * stride, -(-w // stride) * stride))
    for x, y in points.double().tolist():
        if not (0 <= x < w and 0 <= y < h):
            continue
        power = (((xx + 0.5 - x) ** 2 + (yy + 0.5 - y) ** 2) / (2 * sigma**2)) ** (shape / 2)
        far = (abs(xx - math.floor(x)) > radius) | (abs(yy - math.floor(y)) > radius)
        values = np.where(far, 0, np.exp(power.min() - power))
        out[:h, :w] += values / values.sum()
    return block_sum(out, stride)


def block_sum(fine: np.ndarray, stride: int) -> np.ndarray:
    h, w = fine.shape
    fine = np.pad(fine, ((0, -h % stride), (0, -w % stride)))
    return fine.reshape(fine.shape[0] // stride, stride, -1, stride).sum((1, 3))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_sum_is_the_count(sigma: float, shape: float) -> None:
    found = density_map(torch.cat([HARD, OUTSIDE]), SIZE, "ggd", sigma, shape)
    assert found.shape == SIZE and found.dtype == torch.float32
    assert (found >= 0).all()
    assert float(found.double().sum()) == pytest.approx(len(HARD), rel=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_equals_the_slow_reference(sigma: float, shape: float) -> None:
    for stride in (1, 8):
        found = density_map(HARD.double(), SIZE, "ggd", sigma, shape, stride)
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), reference(HARD, SIZE, sigma, shape, stride), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
@pytest.mark.parametrize("size", [(37, 53), (32, 48), (1, 1), (5, 200)])
def test_a_coarse_map_is_the_block_sum_of_the_fine_one(
    kernel: targets.Kernel, stride: int, size: tuple[int, int]
) -> None:
    points = torch.rand(20, 2, generator=torch.Generator().manual_seed(4)) * torch.tensor([size[1], size[0]])
    fine = density_map(points, size, kernel)
    coarse = density_map(points, size, kernel, stride=stride)
    assert coarse.shape == (-(-size[0] // stride), -(-size[1] // stride))
    np.testing.assert_allclose(coarse.numpy(), block_sum(fine.numpy(), stride), atol=2e-6)
    assert float(coarse.sum()) == pytest.approx(20, rel=1e-4)


def test_float32_agrees_with_float64() -> None:
    for shape, sigma in ((8.0, 4.0), (1.0, 2.0), (2.0, 16.0), (16.0, 0.3)):
        single, double = (
            density_map(HARD, SIZE, "ggd", sigma, shape),
            density_map(HARD.double(), SIZE, "ggd", sigma, shape),
        )
        assert torch.allclose(single.double(), double, atol=1e-5)


def test_shape_two_is_the_gaussian() -> None:
    """Two code paths, one kernel: near s = 2 windows are evaluated, at s = 2 rows and columns."""
    for sigma in (0.6, 3.0):
        exact = density_map(HARD.double(), SIZE, "gaussian", sigma)
        assert torch.equal(exact, density_map(HARD.double(), SIZE, "ggd", sigma, 2.0))
        near = density_map(HARD.double(), SIZE, "ggd", sigma, 2 + 1e-9)
        assert torch.allclose(exact, near, atol=1e-7)


def test_gaussian_ignores_the_shape() -> None:
    assert torch.equal(density_map(HARD, SIZE, "gaussian", 3.0, 8.0), density_map(HARD, SIZE, "gaussian", 3.0, 1.0))


def test_analytic_normaliser_in_the_middle_of_an_image() -> None:
    """K agrees with the discrete sum to 1e-5 for σ = 4, s = 8, and is 1 % off for σ = 2: pixels alias."""
    centre = torch.tensor([[32.5, 32.5]], dtype=torch.float64)
    wide, narrow = (float(density_map(centre, (65, 65), "ggd", s).max()) for s in (4.0, 2.0))
    assert wide == pytest.approx(ggd.normalizer(4.0, 8.0), rel=1e-4)
    assert 2e-3 < abs(narrow / ggd.normalizer(2.0, 8.0) - 1) < 0.05


@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
def test_no_points_one_point_and_only_outside_points(kernel: targets.Kernel) -> None:
    for points, count in ((torch.zeros(0, 2), 0), (torch.tensor([[3.2, 30.0]]), 1), (OUTSIDE, 0)):
        for stride in (1, 8):
            found = density_map(points, SIZE, kernel, stride=stride)
            assert torch.isfinite(found).all()
            assert float(found.sum()) == pytest.approx(count, abs=1e-5)


@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
def test_points_outside_change_nothing(kernel: targets.Kernel) -> None:
    """Also those that are no numbers: they are not inside."""
    odd = torch.tensor([[math.nan, 3.0], [math.inf, 3.0], [3.0, -math.inf], [1e30, 4.0]])
    clean = density_map(HARD, SIZE, kernel)
    assert torch.allclose(density_map(torch.cat([OUTSIDE, HARD, odd]), SIZE, kernel), clean, atol=1e-7)


@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
def test_integer_points(kernel: targets.Kernel) -> None:
    points = torch.tensor([[3, 4], [20, 30]])
    assert torch.equal(density_map(points, SIZE, kernel), density_map(points.float(), SIZE, kernel))


@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_points_give_the_float32_map(kernel: targets.Kernel, dtype: torch.dtype) -> None:
    points = torch.tensor([[10.0, 10.0], [20.0, 20.5], [20.0, 20.5]])
    made = density_map(points.to(dtype), (64, 64), kernel, stride=8)
    assert torch.equal(made, density_map(points, (64, 64), kernel, stride=8))


def test_points_may_be_an_array_or_a_list() -> None:
    wanted = density_map(torch.tensor([[3.0, 4.0]], dtype=torch.float64), (16, 16))
    assert torch.equal(density_map(np.array([[3.0, 4.0]]), (16, 16)), wanted)  # type: ignore[arg-type]
    assert torch.allclose(density_map([[3.0, 4.0]], (16, 16)), wanted.float())  # type: ignore[arg-type]
    assert not density_map([], (16, 16)).any()  # type: ignore[arg-type]


def test_rows_that_are_no_points_are_refused() -> None:
    """Four rows (x, y, class) are not six points."""
    with pytest.raises(DataError, match=r"must be \[n, 2\], not \[4, 3\]"):
        density_map(torch.rand(4, 3), (16, 16))


@pytest.mark.parametrize(
    ("sigma", "shape"), [(0.001, 2.0), (0.01, 8.0), (0.001, 16.0), (0.05, 0.5), (0.02, 1.0), (0.03, 3.0)]
)
def test_a_very_narrow_kernel_is_a_dot(sigma: float, shape: float) -> None:
    found = density_map(HARD, SIZE, "ggd", sigma, shape)
    assert float(found.sum()) == pytest.approx(len(HARD), rel=1e-4)
    if shape >= 2:
        assert found[24, 25] == pytest.approx(2)  # the duplicates
        assert found[23:25, 23:25].flatten().tolist() == pytest.approx([0.25] * 4)  # a dot on a corner belongs to four


def test_a_wide_heavy_kernel_stays_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = 32, s = 0.5 covers two thousand pixels per side; points are taken one at a time, and no further than the image."""
    sizes: list[int] = []
    kernels = targets._kernels

    def watch(d2: Tensor, sigma: float, shape: float) -> Tensor:
        made = kernels(d2, sigma, shape)
        sizes.append(made.numel())
        return made

    monkeypatch.setattr(targets, "_kernels", watch)
    density_map(100 * torch.rand(50, 2), (100, 300), "ggd", 32.0, 0.5)
    assert max(sizes) <= max(targets.CHUNK["cpu"], 601**2)


@given(
    points=st.lists(st.tuples(st.floats(-3, 45), st.floats(-3, 35)), max_size=10),
    sigma=st.floats(0.2, 12),
    shape=st.sampled_from((0.7, 1.0, 2.0, 3.0, 8.0)),
    stride=st.sampled_from((1, 3, 8)),
    size=st.tuples(st.integers(1, 32), st.integers(1, 40)),
)
def test_any_points_any_size(
    points: list[tuple[float, float]], sigma: float, shape: float, stride: int, size: tuple[int, int]
) -> None:
    xy = torch.tensor(points, dtype=torch.float32).reshape(-1, 2)
    found = density_map(xy, size, "ggd", sigma, shape, stride)
    count = int(inside(xy, size).sum())
    assert float(found.double().sum()) == pytest.approx(count, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(found.numpy(), reference(xy, size, sigma, shape, stride), atol=2e-5 * max(1, count))


@pytest.mark.parametrize(("kernel", "shape"), [("ggd", 8.0), ("ggd", 1.0), ("gaussian", 2.0)])
def test_moving_by_whole_pixels_moves_the_map(kernel: targets.Kernel, shape: float) -> None:
    points = torch.tensor([[30.3, 31.8], [33.0, 28.5]], dtype=torch.float64)
    here = density_map(points, (64, 64), kernel, 0.8, shape)
    there = density_map(points + torch.tensor([5.0, -4.0]), (64, 64), kernel, 0.8, shape)
    assert torch.allclose(there, here.roll((-4, 5), (0, 1)), atol=1e-8)


@pytest.mark.parametrize("kernel", ["ggd", "gaussian", "adaptive"])
@pytest.mark.parametrize("stride", [1, 4])
def test_flips_flip_the_map(kernel: targets.Kernel, stride: int) -> None:
    points = torch.tensor([[0.7, 3.0], [17.31, 22.77], [39.5, 1.2], [5.1, 30.9]], dtype=torch.float64)
    here = density_map(points, (32, 40), kernel, stride=stride)
    assert torch.allclose(density_map(flip(points, 40), (32, 40), kernel, stride=stride), here.flip(1), atol=1e-9)
    turned = density_map(points.flip(1), (40, 32), kernel, stride=stride)
    assert torch.allclose(turned, here.T, atol=1e-9)


def test_order_of_points_and_additivity() -> None:
    shuffled = HARD[torch.randperm(len(HARD), generator=torch.Generator().manual_seed(0))]
    whole = density_map(HARD, SIZE)
    assert torch.allclose(density_map(shuffled, SIZE), whole, atol=1e-6)
    assert torch.allclose(density_map(HARD[:3], SIZE) + density_map(HARD[3:], SIZE), whole, atol=1e-6)


def test_plateau() -> None:
    """Where the plateaus of two centres 4 px apart overlap (r < 0.8·σ√2 from both) GGD(4, 8) values differ little.

    In L1 over the whole map the flat disc moves *more* than the Gaussian of the same σ; that claim of the paper's figure is
    not a property of the target.
    """
    one, other = (torch.tensor([[32.5 + d, 32.5]], dtype=torch.float64) for d in (0.0, 4.0))
    y, x = torch.meshgrid(*[torch.arange(65) + 0.5] * 2, indexing="ij")
    r = 0.8 * 4 * math.sqrt(2)
    both = ((x - 32.5) ** 2 + (y - 32.5) ** 2 < r * r) & ((x - 36.5) ** 2 + (y - 32.5) ** 2 < r * r)
    assert both.sum() >= 9
    change, moved = {}, {}
    for kernel in ("ggd", "gaussian"):
        a, b = (density_map(p, (65, 65), kernel, 4.0, 8.0) for p in (one, other))
        change[kernel] = float(((a - b).abs() / torch.maximum(a, b))[both].mean())
        moved[kernel] = float((a - b).abs().sum())
    assert change["ggd"] < 0.05 < 3 * 0.05 < change["gaussian"]
    assert moved["ggd"] == pytest.approx(0.914, abs=0.02) and moved["gaussian"] == pytest.approx(0.768, abs=0.02)


# --- geometry-adaptive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 12])
def test_adaptive_with_few_points(n: int) -> None:
    points = torch.rand(n, 2, generator=torch.Generator().manual_seed(n)) * torch.tensor([53.0, 37.0])
    sigma = adaptive_sigma(points, SIZE)
    assert sigma.shape == (n,) and (sigma >= 1).all()
    if n == 1:
        assert sigma.tolist() == [(37 + 53) / 2 / 4]
    if n > 1:
        assert torch.allclose(sigma, (0.3 * spacing(points)).clamp(min=1))
    expected = sum((density_map(p[None], SIZE, "gaussian", float(s)) for p, s in zip(points, sigma)), torch.zeros(SIZE))
    assert torch.allclose(density_map(points, SIZE, "adaptive"), expected, atol=1e-6)


def test_adaptive_duplicates_keep_a_bandwidth() -> None:
    points = torch.tensor([[9.0, 9.0]] * 4)
    assert adaptive_sigma(points, SIZE).tolist() == [1.0] * 4
    assert float(density_map(points, SIZE, "adaptive").sum()) == pytest.approx(4)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "shape"), [("ggd", 8.0), ("ggd", 0.5), ("gaussian", 2.0)])
@pytest.mark.parametrize("stride", [1, 8])
def test_a_batch_is_a_loop(kernel: targets.Kernel, shape: float, stride: int) -> None:
    points = [HARD, torch.zeros(0, 2), OUTSIDE, HARD[:1], torch.cat([HARD, OUTSIDE])]
    found = density_maps(PointBatch.from_list(points, length=40), SIZE, kernel, 4.0, shape, stride)
    for one, p in zip(found, points):
        assert torch.allclose(one, density_map(p, SIZE, kernel, 4.0, shape, stride), atol=1e-6)


def test_an_empty_batch_and_images_without_points() -> None:
    for kernel in ("ggd", "gaussian"):
        assert density_maps(PointBatch.from_list([]), SIZE, kernel).shape == (0, *SIZE)
        assert not density_maps(PointBatch.from_list([torch.zeros(0, 2)] * 2), SIZE, kernel).any()


def test_one_bandwidth_a_point() -> None:
    batch = PointBatch.from_list([HARD, HARD[:2]])
    sigma = torch.linspace(1, 6, len(HARD)).repeat(2, 1)
    found = density_maps(batch, SIZE, "gaussian", sigma)
    expected = sum(density_map(p[None], SIZE, "gaussian", float(s)) for p, s in zip(HARD, sigma[0]))
    assert torch.allclose(found[0], expected, atol=1e-6)
    assert float(found[1].sum()) == pytest.approx(2, rel=1e-5)
    with pytest.raises(ConfigError, match="Gaussian kernel only"):
        density_maps(batch, SIZE, "ggd", sigma, 8.0)


def test_what_cannot_be_a_map_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gaussian'"):
        density_map(HARD, SIZE, "gausian")  # type: ignore[arg-type]
    for options in ({"sigma": 0.0}, {"sigma": math.nan}, {"shape": -1.0}):
        with pytest.raises(ConfigError, match="sigma > 0 and shape > 0"):
            density_map(HARD, SIZE, **options)
    for size, stride in (((0, 5), 1), ((5, 5), 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            density_map(HARD, size, stride=stride)


# --- windows of whole images ------------------------------------------------------------------------------------------

WHOLE = (72, 88)
CROWD = torch.cat(
    [
        torch.rand(60, 2, generator=torch.Generator().manual_seed(9)) * torch.tensor([88.0, 72.0]),
        torch.tensor([[0.0, 0.0], [87.99, 71.99], [0.0, 40.0], [24.0, 16.0], [23.99, 30.0], [56.0, 48.0]]),
    ]
)
WINDOWS = [(24, 16), (0, 0), (56, 40), (-8, -16), (72, 56)]  # inside, at corners, and beyond the image


def window(whole: Tensor, x: int, y: int, h: int, w: int) -> Tensor:
    big = torch.zeros(whole.shape[0] + 200, whole.shape[1] + 200, dtype=whole.dtype)
    big[100:-100, 100:-100] = whole
    return big[100 + y : 100 + y + h, 100 + x : 100 + x + w]


def windows_of(kernel: targets.Kernel, sigma: float | Tensor, shape: float, stride: int, dtype: torch.dtype) -> Tensor:
    corners = torch.tensor(WINDOWS, dtype=dtype)
    points = PointBatch.from_list([CROWD.to(dtype) - c for c in corners])
    domain = Domain(-corners, torch.tensor([88.0, 72.0], dtype=dtype) - corners)
    return density_maps(points, (32, 32), kernel, sigma, shape, stride, domain)


@pytest.mark.parametrize("stride", [1, 8])
@pytest.mark.parametrize(
    ("kernel", "sigma", "shape"),
    [("ggd", s, k) for s, k in itertools.product((0.5, 2.0, 4.0), (1.0, 8.0, 16.0))]
    + [("gaussian", s, 2.0) for s in (0.05, 0.3, 0.6, 1.0, 4.0, 16.0)],
)
def test_a_window_of_the_whole_image(kernel: targets.Kernel, sigma: float, shape: float, stride: int) -> None:
    """Points beyond the window reach into it, and the norm is that of the whole image; nothing lies outside the image."""
    whole = density_map(CROWD.double(), WHOLE, kernel, sigma, shape)
    found = windows_of(kernel, sigma, shape, stride, torch.float64)
    for one, (x, y) in zip(found, WINDOWS):
        expected = block_sum(window(whole, x, y, 32, 32).numpy(), stride)
        np.testing.assert_allclose(one.numpy(), expected, atol=1e-7 * float(whole.max()) * stride**2)
    single = windows_of(kernel, sigma, shape, stride, torch.float32)
    assert torch.allclose(single.double(), found, atol=2e-5)


def test_a_window_with_one_bandwidth_a_point_is_near_the_whole() -> None:
    """There the norm is an integral: exact to 1e-6 away from borders, to about 1 % at them."""
    sigma = adaptive_sigma(CROWD, WHOLE).double()
    whole = density_map(CROWD.double(), WHOLE, "adaptive")
    found = windows_of("gaussian", sigma[None].repeat(len(WINDOWS), 1), 2.0, 1, torch.float64)
    for one, (x, y) in zip(found, WINDOWS):
        expected = window(whole, x, y, 32, 32)
        assert (one - expected).abs().sum() < 0.01 * expected.sum()
        assert one.shape == (32, 32)


@pytest.mark.parametrize(("kernel", "sigma"), [("ggd", 4.0), ("gaussian", 4.0), ("gaussian", torch.full((1, 1), 4.0))])
def test_a_point_on_the_far_edge_of_the_image_is_outside_of_it(kernel: targets.Kernel, sigma: float | Tensor) -> None:
    """In a window as in the whole image, where `inside` decides."""
    domain = Domain(torch.tensor([[-4.0, -16.0]]), torch.tensor([[24.0, 40.0]]))
    for x, y, number in ((24.0, 10.0, 0), (10.0, 40.0, 0), (23.9, 39.9, 1), (-4.0, 10.0, 1)):
        found = density_maps(PointBatch.from_list([torch.tensor([[x, y]])]), (48, 48), kernel, sigma, 8.0, 1, domain)
        assert bool(found.any()) == bool(number)


def test_windows_that_tile_the_image_hold_every_point_once() -> None:
    corners = torch.tensor([(x, y) for y in range(0, 72, 24) for x in range(0, 88, 22)], dtype=torch.float32)
    points = PointBatch.from_list([CROWD - c for c in corners])
    domain = Domain(-corners, torch.tensor([88.0, 72.0]) - corners)
    for kernel, shape in (("ggd", 8.0), ("gaussian", 2.0), ("ggd", 1.0)):
        found = density_maps(points, (24, 22), kernel, 4.0, shape, 1, domain)
        assert float(found.sum()) == pytest.approx(len(CROWD), rel=1e-4)


# --- dots -------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    points=st.lists(st.tuples(st.floats(-9, 60), st.floats(-9, 60)), max_size=12),
    stride=st.sampled_from((1, 4, 8)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_dots_are_a_histogram(points: list[tuple[float, float]], stride: int, size: tuple[int, int]) -> None:
    xy = torch.tensor(points, dtype=torch.float32).reshape(-1, 2)
    found = dot_maps(PointBatch.from_list([xy, xy[:1]], length=15), size, stride)[0]
    expected = torch.zeros(-(-size[0] // stride), -(-size[1] // stride))
    for x, y in xy[inside(xy, size)].tolist():
        expected[math.floor(y / stride), math.floor(x / stride)] += 1
    assert torch.equal(found, expected)


def test_dots_of_points_that_are_no_numbers() -> None:
    batch = PointBatch.from_list([torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [2.0, 1.0]])])
    assert dot_maps(batch, (8, 8), 4).sum() == 1


# --- masks ------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    stride=st.sampled_from((1, 3, 8, 32)),
    share=st.sampled_from((0.0, 0.02, 0.5, 1.0)),
    seed=st.integers(0, 99),
)
def test_a_cell_is_touched_by_any_of_its_pixels(size: tuple[int, int], stride: int, share: float, seed: int) -> None:
    mask = torch.rand(2, *size, generator=torch.Generator().manual_seed(seed)) < share
    expected = torch.zeros(2, -(-size[0] // stride), -(-size[1] // stride), dtype=torch.bool)
    for b, y, x in mask.nonzero().tolist():
        expected[b, y // stride, x // stride] = True
    assert torch.equal(touched_cells(mask, stride), expected)
