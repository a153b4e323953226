"""The fast paths of drawing, C and torch, are `ggd.kernel`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from papm import _kernel_maps, ggd, targets
from papm.structures import PointBatch
from papm.targets import Domain, density_maps

pytestmark = pytest.mark.skipif(
    not _kernel_maps.usable(torch.zeros(1, 2), 8.0, 8), reason="there is no C compiler here"
)


def both(
    points: PointBatch, size: tuple[int, int], sigma: float, shape: float, stride: int, domain: Domain | None
) -> tuple:
    compiled = density_maps(points, size, "ggd", sigma, shape, stride, domain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets._kernel_maps, "usable", lambda *_: False)
        return compiled, density_maps(points, size, "ggd", sigma, shape, stride, domain)


@pytest.mark.parametrize("shape", [2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_both_paths_are_the_kernel(sigma: float, shape: float) -> None:
    """Its values at the pixels' centres, divided by their sum, point by point."""
    points = torch.tensor([[10.3, 7.8], [0.2, 39.9], [25.0, 20.0]])
    y, x = torch.meshgrid(torch.arange(40) + 0.5, torch.arange(30) + 0.5, indexing="ij")
    expected = torch.zeros(40, 30)
    for px, py in points:
        k = ggd.kernel((x - px) ** 2 + (y - py) ** 2, sigma, shape)
        expected += k / k.sum()
    for drawn in both(PointBatch.from_list([points]), (40, 30), sigma, shape, 1, None):
        torch.testing.assert_close(drawn[0], expected, rtol=1e-4, atol=1e-7)


def test_windows_in_torch_are_the_kernel() -> None:
    d2 = torch.rand(2, 5, 7) * 9
    for sigma, shape in ((1.5, 8.0), (2.0, 3.0)):
        wanted = ggd.kernel(d2[1, :, :, None] + d2[0, :, None, :], sigma, shape)
        torch.testing.assert_close(targets._kernels(d2, sigma, shape), wanted)


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
    assert _kernel_maps.usable(torch.zeros(1, 2), 8.0, 8)
    assert not _kernel_maps.usable(torch.zeros(1, 2, dtype=torch.float64), 8.0, 8)
    assert not _kernel_maps.usable(torch.zeros(1, 2), 3.0, 8)
    assert not _kernel_maps.usable(torch.zeros(1, 2), 8.0, _kernel_maps.MOST + 1)
