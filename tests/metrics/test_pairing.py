from __future__ import annotations

import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from papm.errors import DataError
from papm.metrics import pairing
from papm.metrics.pairing import Array, array, candidates, greedy, maximum


def points(most: int) -> st.SearchStrategy[Array]:
    """Few distinct whole coordinates: ties, duplicates and distances exactly at the limit come by themselves."""
    return hnp.arrays(np.float64, st.tuples(st.integers(0, most), st.just(2)), elements=st.integers(0, 9).map(float))


def dense(predicted: Array, truth: Array) -> Array:
    return np.sqrt(((predicted[:, None] - truth[None]) ** 2).sum(-1))


def slow_greedy(predicted: Array, truth: Array, radius: float) -> list[float]:
    """All pairs in order of distance, then of coordinates, one pass."""
    pairs = sorted(
        (float(np.sqrt(((p - t) ** 2).sum())), *p, *t, i, j)
        for i, p in enumerate(predicted)
        for j, t in enumerate(truth)
    )
    rows, columns, taken = set(), set(), []
    for d, _, _, _, _, i, j in pairs:
        if d <= radius and i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            taken.append(d)
    return taken


def brute_force(allowed: np.ndarray) -> int:
    """The largest pairing, by trying every order of the longer side."""
    table = allowed if allowed.shape[0] <= allowed.shape[1] else allowed.T
    n, m = table.shape
    return max(sum(bool(table[i, p]) for i, p in enumerate(order)) for order in permutations(range(m), n))


@given(points(8), points(8), hnp.arrays(np.float64, 8, elements=st.integers(0, 7).map(float)))
def test_candidates_are_the_pairs_of_the_full_table(predicted: Array, truth: Array, radii: Array) -> None:
    radius = radii[: len(truth)]
    rows, columns, distance = candidates(predicted, truth, radius)
    table = dense(predicted, truth)
    wanted = {(i, j) for i, j in zip(*np.nonzero(table <= radius))}
    assert set(zip(rows.tolist(), columns.tolist())) == wanted and len(rows) == len(wanted)
    assert (distance == table[rows, columns]).all()


@given(points(9), points(9), st.integers(0, 13))
def test_greedy_is_one_pass_over_all_pairs(predicted: Array, truth: Array, radius: int) -> None:
    rows, columns, distance = greedy(predicted, truth, float(radius))
    assert distance.tolist() == slow_greedy(predicted, truth, radius)
    assert len(set(rows.tolist())) == len(rows) and len(set(columns.tolist())) == len(columns)
    assert (distance == dense(predicted, truth)[rows, columns]).all()


@given(points(6), points(6), hnp.arrays(np.float64, 6, elements=st.integers(0, 7).map(float)))
def test_maximum_is_the_largest_of_all_pairings(predicted: Array, truth: Array, radii: Array) -> None:
    radius = radii[: len(truth)]
    partner = maximum(predicted, truth, radius)
    held = np.flatnonzero(partner >= 0)
    table = dense(predicted, truth)
    assert (table[partner[held], held] <= radius[held]).all() and len(set(partner[held].tolist())) == len(held)
    assert len(held) == brute_force(table <= radius)


def test_long_chains_need_no_recursion() -> None:
    """Truth, prediction, truth, prediction … in a row, nearer to each other to the right but for the last: greedy pairs
    every prediction with the truth to its right, and the one augmenting path goes through the whole row."""
    n = 3 * sys.getrecursionlimit()
    x = np.cumsum(1 + np.arange(2 * n)[::-1] * 1e-6)
    x[-1] += 0.3
    truth, predicted = np.stack([x[::2], 0 * x[::2]], 1), np.stack([x[1::2], 0 * x[1::2]], 1)
    assert len(greedy(predicted, truth, 1.5)[2]) == n - 1
    assert (maximum(predicted, truth, 1.5) == np.arange(n)).all()


def test_too_many_candidates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PAIRS", 99)
    here = np.zeros((10, 2))
    with pytest.raises(DataError, match="100 pairs within the distance asked for, more than 99"):
        candidates(here, here, 1.0)
    spread = np.stack([np.arange(10.0), np.zeros(10)], 1)
    assert len(candidates(spread, spread, 0.5)[0]) == 10


def test_what_is_no_list_of_points_is_refused() -> None:
    assert array([], columns=2).shape == (0, 2) and array(torch.zeros(0, 2), columns=2).shape == (0, 2)
    assert array(torch.ones(1, 2, requires_grad=True), columns=2).dtype == np.float64
    with pytest.raises(DataError, match=r"points are \[n, 2\], not \[4\]"):
        array([1.0, 2.0, 3.0, 4.0], columns=2)
    with pytest.raises(DataError, match="not finite"):
        array([[1.0, np.nan]], columns=2)
    for odd in ([["a", "b"]], [[1.0, 2.0], [3.0]]):
        with pytest.raises(DataError, match="points are numbers in a regular array"):
            array(odd, columns=2)
