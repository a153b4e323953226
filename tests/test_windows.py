"""The compiled windows draw what torch draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from papm import targets, windows
from papm.structures import PointBatch
from papm.targets import Domain, density_maps

pytestmark = pytest.mark.skipif(not windows.usable(torch.zeros(1, 2), 8.0, 8), reason="there is no C compiler here")


def both(
    points: PointBatch, size: tuple[int, int], sigma: float, shape: float, stride: int, domain: Domain | None
) -> tuple:
    compiled = density_maps(points, size, "ggd", sigma, shape, stride, domain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets.windows, "usable", lambda *_: False)
        return compiled, density_maps(points, size, "ggd", sigma, shape, stride, domain)


coordinate = st.floats(-9, 60, width=32)


@given(
    lists=st.lists(st.lists(st.tuples(coordinate, coordinate), max_size=6), min_size=1, max_size=3),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    sigma=st.floats(0.75, 12),
    shape=st.sampled_from([4.0, 8.0, 16.0]),
    stride=st.sampled_from([1, 2, 8]),
    whole=st.none() | st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)),
)
def test_both_paths_agree(lists, size, sigma, shape, stride, whole) -> None:  # type: ignore[no-untyped-def]
    points = PointBatch.from_list([torch.tensor(p, dtype=torch.float32).reshape(-1, 2) for p in lists])
    domain = None
    if whole is not None:
        left, top, right, bottom = whole
        lower = torch.tensor([[-left, -top]], dtype=torch.float32).expand(len(lists), 2)
        upper = torch.tensor([[size[1] + right, size[0] + bottom]], dtype=torch.float32).expand(len(lists), 2)
        domain = Domain(lower, upper)
    compiled, torch_made = both(points, size, sigma, shape, stride, domain)
    torch.testing.assert_close(compiled, torch_made, rtol=2e-5, atol=1e-7)


def test_points_that_are_not_numbers_are_left_out() -> None:
    points = PointBatch.from_list([torch.tensor([[float("nan"), 3.0], [1e30, 3.0], [4.0, 4.0]])])
    compiled, torch_made = both(points, (20, 20), 4.0, 8.0, 1, None)
    assert float(compiled.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(compiled, torch_made, rtol=2e-5, atol=1e-7)


def test_the_paths_share_the_work() -> None:
    assert windows.usable(torch.zeros(1, 2), 8.0, 8)
    assert not windows.usable(torch.zeros(1, 2, dtype=torch.float64), 8.0, 8)
    assert not windows.usable(torch.zeros(1, 2), 3.0, 8)
    assert not windows.usable(torch.zeros(1, 2), 8.0, windows.MOST + 1)
