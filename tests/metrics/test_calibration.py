"""A factor for counts: what it is on residuals of a known kind, and how often it is taken where it is worth nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from papm.errors import DataError
from papm.metrics.calibration import calibrate, chance, factor, leave_one_out

Array = NDArray[np.float64]


def counted(n: int, bias: float, seed: int) -> tuple[Array, Array]:
    """Counts of a model that sees `bias` times the objects, off by three times the root of the count."""
    draw = np.random.default_rng(seed)
    truth = np.ceil(np.exp(draw.normal(5, 1, n)))
    return np.maximum(bias * truth + draw.normal(size=n) * np.sqrt(3 * truth), 0), truth


def test_the_factor_is_that_of_every_image_where_they_agree() -> None:
    truth = np.array([4.0, 90.0, 15.0, 0.0, 33.0])
    assert factor(truth / 1.7, truth) == pytest.approx(1.7)
    assert leave_one_out(truth / 1.7, truth) == pytest.approx(truth)
    assert factor([3.0, 0.0], [6, 500]) == 2.0  # where nothing was counted, no factor is right
    assert np.isnan(factor([0.0], [3]))


def test_one_wrong_image_moves_it_little() -> None:
    predicted, truth = counted(15, 0.8, 1)
    before, wrong = factor(predicted, truth), truth.copy()
    wrong[int(np.argmax(truth))] *= 10
    assert abs(factor(predicted, wrong) - before) < 0.05 < wrong.sum() / predicted.sum() - before


@pytest.mark.parametrize("bias", [0.5, 1.6])
def test_a_biased_model_is_set_right_and_the_interval_holds_the_factor(bias: float) -> None:
    held = 0
    for seed in range(20):
        found = calibrate(*counted(20, bias, seed), samples=200)
        assert found.scale == pytest.approx(1 / bias, rel=0.15) and found.images == 20
        assert found.mae_after < 0.8 * found.mae_before
        held += found.low <= 1 / bias <= found.high
    assert held >= 16  # 19 in the mean


@pytest.mark.parametrize("n", [5, 8, 20])
def test_a_model_without_bias_is_seldom_calibrated(n: int) -> None:
    taken = 0
    for seed in range(60):
        try:
            calibrate(*counted(n, 1.0, seed), samples=20)
            taken += 1
        except DataError as error:
            assert "more than chance: MAE" in str(error) and "p =" in str(error)
    assert taken <= 6  # three in the mean, at 5 %


def test_signs_by_chance_are_all_tried() -> None:
    gains = [3.0, -1.0, 2.0, 0.5, 4.0, -0.5]
    sums = [np.dot(signs, gains) for signs in product((-1, 1), repeat=6)]
    assert chance(gains) == np.mean([s >= sum(gains) - 1e-9 for s in sums])
    many = np.random.default_rng(0).normal(0.5, 1, 12)
    assert chance(many) == pytest.approx(chance([*many, 0.0]), abs=0.015)  # drawn signs, from 13 images on


def test_too_few_images_and_a_model_that_sees_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="5 checked images or more, not 4: check 1 more"):
        calibrate([1.0, 2.0, 3.0, 4.0], [2, 4, 6, 8])
    assert calibrate([1.0, 2.0, 3.0, 4.0, 5.0], [2, 4, 6, 8, 10]).scale == 2.0
    for predicted, truth in (([0.0] * 6, [5] * 6), ([5.0] * 6, [0] * 6), ([0.01] * 6, [5] * 6)):
        with pytest.raises(DataError, match="no factor makes up for that"):
            calibrate(predicted, truth)
