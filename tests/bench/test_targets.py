"""The opponents of the target bench draw what they should: else beating them would mean nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from papm.bench import targets as bench
from papm.errors import ConfigError
from papm.targets import density_map


@pytest.mark.parametrize(("sigma", "shape"), [(4.0, 8.0), (2.0, 2.0), (3.0, 4.0), (5.0, 16.0), (3.0, 3.0)])
def test_loop_draws_our_target(sigma: float, shape: float) -> None:
    xy = bench.scatter(60, (50, 70), seed=1)
    made = bench.loop_map(xy.numpy(), (50, 70), sigma, shape)
    own = density_map(xy, (50, 70), "ggd", sigma, shape).numpy()
    assert np.abs(made - own).max() < 1e-6
    assert abs(made.sum(dtype=np.float64) - 60) < 1e-4


def test_loop_at_corners_and_outside() -> None:
    xy = torch.tensor([[0.0, 0.0], [69.99, 49.99], [-0.01, 5.0], [70.0, 5.0], [5.0, 50.0]])
    made = bench.loop_map(xy.numpy(), (50, 70))
    assert abs(made.sum(dtype=np.float64) - 2) < 1e-5
    assert np.abs(made - density_map(xy, (50, 70)).numpy()).max() < 1e-6


def test_filter_is_the_gaussian_away_from_borders() -> None:
    """At pixel centres, far from borders, filtering dots is the Gaussian target."""
    xy = torch.tensor([[60.5, 50.5], [70.5, 61.5], [70.5, 61.5]])
    made = bench.filtered_map(xy.numpy(), (120, 140), 4.0)
    assert np.abs(made - density_map(xy, (120, 140), "gaussian", 4.0).numpy()).max() < 1e-6
    everywhere = bench.scatter(100, (40, 60)).numpy()
    assert (
        abs(bench.filtered_map(everywhere, (40, 60)).sum(dtype=np.float64) - 100) < 1e-3
    )  # borders reflect: none is lost
    assert bench.filtered_map(np.array([[-1.0, 3.0], [60.0, 3.0]], dtype=np.float32), (40, 60)).sum() == 0


def test_scatter_is_seeded_and_inside() -> None:
    xy = bench.scatter(5000, (30, 40), seed=2)
    assert bool(((xy >= 0) & (xy < torch.tensor([40.0, 30.0]))).all()) and xy.dtype == torch.float32
    assert torch.equal(xy, bench.scatter(5000, (30, 40), seed=2)) and not torch.equal(xy, bench.scatter(5000, (30, 40)))


def test_run_agrees_with_itself() -> None:
    rows = bench.run(points=200, size=(96, 128), repeat=2)
    assert rows[0].timing.ratio == 1.0 and rows[0].difference == 0.0
    assert all(r.timing.median_ms > 0 and r.timing.min_ms > 0 for r in rows)
    assert [r.difference is None for r in rows] == [False, False, True, True]
    assert all(r.sum_error < 1e-3 for r in rows) and bench.agree(rows, 200)
    assert not bench.agree([rows[0], replace(rows[1], difference=1e-3)], 200)
    assert not bench.agree([replace(rows[0], sum_error=0.01)], 200)


def test_sum_of_the_full_size() -> None:
    """3000 points at 768 × 1024: the sum is the count to 1e-4."""
    made = density_map(bench.scatter(3000, (768, 1024)), (768, 1024))
    assert abs(float(made.double().sum()) - 3000) < bench.SUM_ERROR


def test_refuses_nothing_to_draw() -> None:
    with pytest.raises(ConfigError):
        bench.run(points=0)
