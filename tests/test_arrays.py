"""In a notebook: arrays of numpy where the library has tensors, and one sentence for shapes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from papm import ggd, localize, matching, metrics, targets, transport
from papm.errors import PapmError
from papm.structures import PointBatch

RNG = np.random.default_rng(0)
XY = RNG.uniform(0, 64, (10, 2))
R2 = np.linspace(0.0, 100.0, 7)
COST = RNG.uniform(0, 10, (4, 5))
A, B = np.full(4, 0.25), np.full(5, 0.2)
MAP = RNG.uniform(0, 0.4, (8, 8))


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value)
    return [_tensors(v) for v in value] if isinstance(value, list) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return bool(a == b)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (ggd.exponent, (R2, 4.0, 8.0)),
        (ggd.kernel, (R2, 4.0, 8.0)),
        (ggd.transport_cost, (R2, 16.0, 2.0)),
        (ggd.pdf, (XY, 4.0, 1.0)),
        (targets.density_map, (XY, (64, 64))),
        (lambda *given: transport.sinkhorn(*given).plan(), (A, B, COST)),
        (lambda *given: transport.grid_sinkhorn(*given).plan(), ([XY], MAP[None], 8)),
        (matching.assign, (COST,)),
        (matching.assign_batch, ([COST, COST[:2]],)),
        (lambda costs: matching.assign_batch(costs).columns, (COST[None],)),
        (localize.peaks, (MAP, 8)),
        (localize.peaks_by_class, (MAP[None], 8)),
        (lambda a, b: metrics.within(a, b, 8.0).total.f1, ([XY], [XY])),
    ],
)
def test_an_array_does_as_well_as_a_tensor(function: Any, arguments: tuple[Any, ...]) -> None:
    assert _same(function(*arguments), function(*map(_tensors, arguments)))


def test_the_array_is_not_changed() -> None:
    before = R2.copy(), COST.copy(), MAP.copy()
    ggd.kernel(R2, 4.0, 8.0)
    transport.sinkhorn(A, B, COST)
    rows, columns = matching.assign(COST)
    localize.peaks(MAP, 8)
    assert all(np.array_equal(x, y) for x, y in zip(before, (R2, COST, MAP)))
    assert (rows.tolist(), columns.tolist()) == tuple(x.tolist() for x in linear_sum_assignment(COST))


def test_a_list_of_points_is_a_batch() -> None:
    other = torch.rand(3, 2) * 64
    density = torch.rand(2, 8, 8)
    batch = PointBatch.from_list([torch.as_tensor(XY).float(), other])
    made = transport.grid_sinkhorn([torch.as_tensor(XY).float(), other], density, 8)
    assert torch.equal(made.value, transport.grid_sinkhorn(batch, density, 8).value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: transport.sinkhorn(B, A, COST), r"do not fit together: \(1, 5\), \(1, 4\) and \(1, 4, 5\)"),
        (lambda: transport.grid_sinkhorn([XY.T], MAP[None], 8), r"points of image 0 of the batch must be \[n, 2\]"),
        (lambda: transport.grid_sinkhorn([XY, XY], MAP[None], 8), r"\(1, 8, 8\) and 2 images"),
        (lambda: matching.assign(COST[0]), r"has the shape \[n, m\], not \[5\]"),
        (lambda: matching.assign("cost"), r"is a tensor or array \[n, m\], not str"),  # type: ignore[arg-type]
        (lambda: localize.peaks(MAP[0], 8), r"a density map is \[h, w\] or \[C, h, w\]; got \[8\]"),
    ],
)
def test_shapes_that_do_not_fit(call: Any, words: str) -> None:
    with pytest.raises(PapmError, match=words):
        call()
