"""Back to the pixels of the image: sums stay, points move, maps cover the image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.predict.prediction import Prediction
from papm.predict.restore import _shares, restore

side = st.integers(1, 70)


@settings(max_examples=60, deadline=None)
@given(side, side, st.sampled_from([1, 2, 8]))
def test_shares_are_a_partition(n: int, m: int, stride: int) -> None:
    shares = _shares(n, m, stride)
    assert shares.shape == (-(-m // stride), -(-n // stride))
    assert (shares >= 0).all() and torch.allclose(shares.sum(0), torch.ones(shares.shape[1]), atol=1e-5)


@pytest.mark.parametrize("size", [(50, 70), (200, 280), (97, 131)])
def test_the_sum_stays_and_mass_stays_where_it_is(size: tuple[int, int]) -> None:
    density = torch.rand(1, 13, 18, generator=torch.Generator().manual_seed(0))
    made = Prediction(float(density.sum()), (100, 140), density, 8, torch.tensor([[70.0, 50.0]]), torch.ones(1))
    back = restore(made, size)
    assert back.size == size and back.density is not None and back.points is not None
    assert back.density.shape == (1, -(-size[0] // 8), -(-size[1] // 8)) and back.stride == 8
    assert float(back.density.sum()) == pytest.approx(made.count, rel=1e-5) and back.count == made.count
    assert torch.allclose(back.points, torch.tensor([[size[1] / 2, size[0] / 2]]))

    def centroid(d: torch.Tensor, of: tuple[int, int]) -> torch.Tensor:
        rows, columns = (torch.arange(n) * 8 + (s - torch.arange(n) * 8).clamp(max=8) / 2 for n, s in zip(d.shape, of))
        return torch.stack([(d.sum(0) * columns).sum() / of[1], (d.sum(1) * rows).sum() / of[0]]) / d.sum()

    assert torch.allclose(centroid(density[0], (100, 140)), centroid(back.density[0], size), atol=0.02)


def test_the_same_size_is_the_same() -> None:
    made = Prediction(1.0, (8, 8), torch.ones(1, 1, 1), 8)
    assert restore(made, (8, 8)) is made


def test_points_at_the_far_border_stay_inside() -> None:
    far = torch.tensor([[torch.nextafter(torch.tensor(10.0), torch.tensor(0.0)), 9.999999]])
    back = restore(Prediction(1.0, (10, 10), points=far), (30, 30))
    assert back.points is not None and (back.points < 30).all()
