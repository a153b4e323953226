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
