"""Intervals of counts: they hold the truth of new images as often as they say, whatever the errors are like."""

from __future__ import annotations

import numpy as np
import pytest

from papm.errors import DataError
from papm.metrics.conformal import coverage, interval


@pytest.mark.parametrize(("n", "kind"), [(9, "normal"), (19, "normal"), (19, "heavy"), (40, "one-sided")])
def test_new_images_are_held_as_often_as_said(n: int, kind: str) -> None:
    draw = np.random.default_rng(n)
    held = []
    for _ in range(150):
        truth = np.ceil(np.exp(draw.normal(4, 1.5, n + 20)))
        noise = {
            "normal": draw.normal,
            "heavy": lambda size: draw.standard_t(1.5, size),
            "one-sided": draw.exponential,
        }[kind]
        predicted = np.maximum(truth + 2 * np.sqrt(truth) * noise(size=n + 20), 0)
        found = interval(predicted[:n], truth[:n])
        held.append(coverage([found.around(float(p)) for p in predicted[n:]], truth[n:]))
    # Of n images the k-th smallest error, k = ceil(0.9 (n + 1)), holds k / (n + 1) in the mean.
    exact = np.ceil(0.9 * (n + 1) - 1e-9) / (n + 1)
    assert np.mean(held) == pytest.approx(exact, abs=0.025)


def test_the_number_of_images_that_are_missing_is_said() -> None:
    with pytest.raises(DataError, match=r"needs 9 checked images .*, not 8: check 1 more image$"):
        interval([5.0] * 8, [5] * 8)
    with pytest.raises(DataError, match=r"needs 19 .* not 9"):
        interval([5.0] * 9, [5] * 9, level=0.95)
    assert interval([5.0] * 9, [5] * 9).width == 0


def test_the_width_is_an_error_in_units_of_the_spread() -> None:
    predicted = np.array([100.0, 25.0, 0.0, 4.0, 9.0, 16.0, 36.0, 49.0, 64.0])
    truth = predicted + np.sqrt(np.maximum(predicted, 1)) * np.array([3, 1, 0.5, 1, 2, 0, -1, -2, 1])
    assert interval(predicted, truth).width == pytest.approx(3)
