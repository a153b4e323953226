from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.errors import DataError
from papm.metrics.game import TRANCOS_SIGMA, cuts, game, game_points, leaf_counts, leaf_points

sizes = st.tuples(st.integers(1, 45), st.integers(1, 45))


def upsampled(density: np.ndarray, stride: int, size: tuple[int, int]) -> np.ndarray:
    """Full resolution, each cell's mass spread over its pixels inside the image: the slow reference."""
    h, w = size
    full = np.zeros(size)
    for i in range(density.shape[0]):
        for j in range(density.shape[1]):
            block = full[i * stride : min((i + 1) * stride, h), j * stride : min((j + 1) * stride, w)]
            block += density[i, j] / block.size
    return full


def quarters(a: np.ndarray, b: np.ndarray, level: int) -> float:
    """The definition, recursively: |Σa − Σb| over leaves of floor-halved images."""
    if level == 0:
        return abs(a.sum() - b.sum())
    h, w = a.shape[0] // 2, a.shape[1] // 2
    parts = [np.s_[:h, :w], np.s_[:h, w:], np.s_[h:, :w], np.s_[h:, w:]]
    return sum(quarters(a[p], b[p], level - 1) for p in parts)


def problem(
    size: tuple[int, int], stride: int, seed: int, n: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    h, w = size
    density = generator.random((-(-h // stride), -(-w // stride)))
    points = generator.random((n, 2)) * [w * 1.1, h * 1.1] - [w * 0.05, h * 0.05]  # some outside
    roi = generator.random(size) < 0.6
    inside = (points >= 0).all(1) & (points[:, 0] < w) & (points[:, 1] < h)
    dots = np.zeros(size)
    np.add.at(dots, tuple(points[inside].astype(int).T[::-1]), 1)
    return density, points, roi, dots


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_equals_the_definition_at_full_resolution(size: tuple[int, int], stride: int, seed: int, mask: bool) -> None:
    density, points, roi, dots = problem(size, stride, seed)
    weight = roi if mask else np.ones(size)
    got = game(density, points, size=size, stride=stride, roi=roi if mask else None)
    full = upsampled(density, stride, size) * weight
    for level, value in got.items():
        assert value == pytest.approx(quarters(full, dots * weight, level), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(sizes, st.integers(1, 9), st.integers(0, 99))
def test_level_zero_is_the_error_and_levels_never_fall(size: tuple[int, int], stride: int, seed: int) -> None:
    density, points, _, dots = problem(size, stride, seed)
    values = list(game(density, points, size=size, stride=stride, levels=range(6)).values())
    assert values[0] == pytest.approx(abs(density.sum() - dots.sum()))
    assert all(b >= a - 1e-9 for a, b in pairwise(values))


def test_cuts_halve_at_the_floor() -> None:
    assert cuts(480, 3).tolist() == [0, 60, 120, 180, 240, 300, 360, 420, 480]
    assert cuts(7, 2).tolist() == [0, 1, 3, 5, 7]
    assert cuts(1, 2).tolist() == [0, 0, 0, 0, 1]


def test_a_cell_astride_a_cut_is_shared() -> None:
    # 640×480 at level 3: leaves of 60 rows are 7.5 cells of stride 8
    density = np.zeros((60, 80))
    density[7, 0] = 1.0  # rows 56 to 64
    leaves = leaf_counts(density, size=(480, 640), stride=8, level=3)
    assert leaves[0, 0] == pytest.approx(0.5)
    assert leaves[1, 0] == pytest.approx(0.5)


@settings(max_examples=25, deadline=None)
@given(sizes, st.integers(1, 9), st.integers(0, 5))
def test_mass_is_kept(size: tuple[int, int], stride: int, level: int) -> None:
    density, points, _, dots = problem(size, stride, 0)
    assert leaf_counts(density, size=size, stride=stride, level=level).sum() == pytest.approx(density.sum())
    assert leaf_points(points, size=size, level=level).sum() == dots.sum()


def test_points_against_themselves_score_nothing_and_misplaced_ones_twice() -> None:
    points = torch.tensor([[10.0, 10.0], [50.0, 40.0]])
    assert game_points(points, points, size=(64, 64)) == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    moved = torch.tensor([[10.0, 10.0], [10.0, 40.0]])
    assert game_points(moved, points, size=(64, 64), levels=(0, 1)) == {0: 0.0, 1: 2.0}


def test_a_point_on_a_cut_belongs_to_the_leaf_that_begins_there() -> None:
    """As a pixel does: the point (8, 4) lies in the pixel of column 8 and row 4."""
    points = [[8.0, 0.0], [0.0, 4.0], [8.0, 4.0], [7.99, 3.99]]
    assert leaf_points(points, size=(8, 16), level=1).tolist() == [[1, 1], [1, 1]]
    assert game_points(points, points[::-1], size=(8, 16), levels=(1,)) == {1: 0.0}


def test_weights_stay_with_their_points() -> None:
    """Those of points outside the image or the region go with them."""
    points, weights = [[-1.0, 2.0], [3.0, 2.0], [12.0, 2.0], [12.0, 6.0]], [0.5, 0.25, 0.125, 0.0625]
    assert leaf_points(points, size=(8, 16), level=1, weights=weights).tolist() == [[0.25, 0.125], [0.0, 0.0625]]
    roi = np.ones((8, 16), dtype=bool)
    roi[:, :8] = False
    assert game_points(points, [], size=(8, 16), levels=(0,), roi=roi, weights=weights) == {0: 0.1875}


def test_the_mask_hides_both_sides() -> None:
    roi = np.zeros((16, 16), dtype=bool)
    roi[:, :8] = True
    density = torch.tensor([[1.0, 5.0], [0.0, 0.0]])
    points = torch.tensor([[4.0, 4.0], [12.0, 4.0]])
    assert game(density, points, size=(16, 16), stride=8, roi=torch.from_numpy(roi)) == {
        0: pytest.approx(0),
        1: pytest.approx(0),
        2: pytest.approx(0.25 + 0.25 + 0.25 + 0.75),
        3: pytest.approx(15 / 16 + 15 / 16),
    }


def test_classes_are_summed() -> None:
    density = torch.rand(3, 4, 5)
    one = game(density.sum(0), [[3.0, 3.0]], size=(32, 40), stride=8)
    assert game(density, [[3.0, 3.0]], size=(32, 40), stride=8) == pytest.approx(one, abs=1e-5)


def test_smoothed_truth_keeps_the_count_and_forgives_the_place() -> None:
    generator = np.random.default_rng(0)
    points = generator.random((30, 2)) * [160, 120]
    empty = np.zeros((15, 20))
    smooth = game(empty, points, size=(120, 160), stride=8, smooth=TRANCOS_SIGMA)
    assert smooth[0] == pytest.approx(30)
    assert smooth[3] == pytest.approx(30)
    dot = np.zeros((15, 20))
    dot[7, 9] = 1.0
    beside = [[82.0, 59.0]]  # the next cell, across the middle
    raw = game(dot, beside, size=(120, 160), stride=8, levels=(1,))[1]
    forgiving = game(dot, beside, size=(120, 160), stride=8, levels=(1,), smooth=TRANCOS_SIGMA)[1]
    assert forgiving < raw


def test_the_mask_cuts_the_smoothed_truth() -> None:
    """Spread first, then masked, as the dataset's authors do: of a point at the region's edge half is left, outside or in."""
    half = np.zeros((64, 96), dtype=bool)
    half[:, :48] = True
    nothing = np.zeros((8, 12))

    def found(x: float) -> float:
        return game(nothing, [[x, 32.5]], size=(64, 96), stride=8, levels=(0,), roi=half, smooth=5.0)[0]

    assert found(47.5) == pytest.approx(0.5 + 0.5 * 0.0796, abs=1e-3)  # the pixel of the point itself lies inside
    assert found(48.5) == pytest.approx(0.5 - 0.5 * 0.0796, abs=1e-3)
    assert TRANCOS_SIGMA == 15  # of the evaluation that comes with TRANCOS


def test_no_points_and_no_density() -> None:
    assert game(np.zeros((2, 2)), np.zeros((0, 2)), size=(16, 16), stride=8) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert game(np.ones((2, 2)), torch.zeros(0, 2), size=(16, 16), stride=8)[3] == pytest.approx(4)


def test_faults_are_named() -> None:
    with pytest.raises(DataError, match="expected 2×3 cells"):
        game(np.zeros((3, 2)), [], size=(16, 24), stride=8)
    with pytest.raises(DataError, match="one size"):
        game(np.zeros((2, 2)), [], size=(16, 16), stride=8, roi=np.ones((8, 8)))
    with pytest.raises(DataError, match="levels"):
        game(np.zeros((2, 2)), [], size=(16, 16), stride=8, levels=())


def test_a_large_image_takes_milliseconds() -> None:
    density, points = np.random.default_rng(0).random((480, 640)), np.random.default_rng(1).random((5000, 2)) * 3000
    start = time.perf_counter()
    for _ in range(3):
        game(density, points, size=(3840, 5120), stride=8)
    assert (time.perf_counter() - start) / 3 < 0.2  # 10 ms measured; full resolution would take seconds


def spread_inside(density: np.ndarray, size: tuple[int, int], stride: int, roi: np.ndarray, whole: bool) -> np.ndarray:
    """Slow reference: the mass of each cell spread evenly over its pixels (inside the region, if `whole`)."""
    out = np.zeros(size)
    for i in range(density.shape[0]):
        for j in range(density.shape[1]):
            part = np.s_[i * stride : min((i + 1) * stride, size[0]), j * stride : min((j + 1) * stride, size[1])]
            inside = roi[part]
            if not whole:
                out[part] = density[i, j] / inside.size * inside
            elif inside.any():
                out[part] = density[i, j] / inside.sum() * inside
    return out


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("size", "stride"), [((61, 83), 8), ((48, 64), 16), ((30, 41), 1), ((60, 45), 7)])
def test_regions_against_a_loop_over_pixels(size: tuple[int, int], stride: int, whole: bool) -> None:
    rng = np.random.default_rng(size[0])
    density = rng.random((-(-size[0] // stride), -(-size[1] // stride)))
    roi = np.zeros(size, dtype=bool)
    roi[size[0] // 5 : -7, 11:-5] = True
    roi &= rng.random(size) < 0.9
    for level in range(4):
        pixels = spread_inside(density, size, stride, roi, whole)
        rows, columns = cuts(size[0], level), cuts(size[1], level)
        expected = [[pixels[a:b, c:d].sum() for c, d in pairwise(columns)] for a, b in pairwise(rows)]
        found = leaf_counts(density, size=size, stride=stride, level=level, roi=roi, whole_cells=whole)
        assert np.allclose(found, expected, atol=1e-9)


def test_with_whole_cells_level_zero_is_the_error_of_the_count() -> None:
    from papm.inference import Inference
    from papm.predict.predictor import counts
    from papm.structures import DensityOutput

    density = torch.rand(1, 1, 8, 11, generator=torch.Generator().manual_seed(0))
    roi = torch.zeros(61, 83, dtype=torch.bool)
    roi[13:40, 21:70] = True
    points = torch.tensor([[30.0, 20.0], [50.0, 30.0], [2.0, 2.0]])
    found = game(density[0], points, size=(61, 83), stride=8, roi=roi, whole_cells=True)
    assert found[0] == pytest.approx(abs(float(counts(DensityOutput(density, 8), Inference(), roi)) - 2), abs=1e-5)


def test_the_torchmetrics_class_is_the_mean_over_images_and_processes() -> None:
    pytest.importorskip("torchmetrics", reason="its classes need papm[train]")
    from papm.metrics import GridErrors

    rng = np.random.default_rng(1)
    images = [(torch.from_numpy(rng.random((6, 8))), torch.from_numpy(rng.random((9, 2)) * 40)) for _ in range(5)]
    expected = [game(d, p, size=(48, 64), stride=8) for d, p in images]
    parts = [GridErrors(), GridErrors()]
    for k, (d, p) in enumerate(images):
        parts[k % 2].update(d, p, size=(48, 64), stride=8)
    # what a gathering does with states that are summed
    for name in ("total", "images"):
        setattr(parts[0], name, getattr(parts[0], name) + getattr(parts[1], name))
    parts[0]._update_count = 1
    for level in range(4):
        mean = np.mean([e[level] for e in expected])
        assert float(parts[0].compute()[f"game{level}"]) == pytest.approx(mean)
    points = GridErrors(levels=(0, 1))
    points.update(None, torch.tensor([[1.0, 1.0]]), size=(8, 8), predicted=torch.tensor([[7.0, 7.0]]))
    assert {k: float(v) for k, v in points.compute().items()} == {"game0": 0.0, "game1": 2.0}
    with pytest.raises(DataError, match="density map"):
        points.update(None, torch.zeros(0, 2), size=(8, 8))
