"""The compiled loop against the NumPy way and scipy: the same sizes at every distance, whatever the points."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from papm.errors import DataError
from papm.metrics import pair_sizes, pairing, qnrf, qnrf_protocol
from papm.metrics.pairing import Array

pytestmark = pytest.mark.skipif(not pair_sizes.available(), reason="no C compiler")
MOST = 10**6


def scipy_sizes(predicted: Array, truth: Array, limits: Array) -> list[int]:
    distance = np.sqrt(((truth[:, None] - predicted[None]) ** 2).sum(-1))
    return [int((maximum_bipartite_matching(csr_matrix(distance <= limit)) >= 0).sum()) for limit in limits]


def whole_points(most: int) -> st.SearchStrategy[Array]:
    """Few distinct whole coordinates: duplicates and distances exactly at a limit come by themselves."""
    return hnp.arrays(np.float64, st.tuples(st.integers(1, most), st.just(2)), elements=st.integers(0, 9).map(float))


@settings(max_examples=40)
@given(whole_points(12), whole_points(12), st.lists(st.integers(0, 13), min_size=1, max_size=8, unique=True))
def test_sizes_are_scipys(predicted: Array, truth: Array, limits: list[int]) -> None:
    at = np.array(sorted(limits), dtype=np.float64)
    wanted = scipy_sizes(predicted, truth, at)
    assert pair_sizes.sizes(predicted, truth, at, MOST).tolist() == wanted
    assert pair_sizes.sizes(truth, predicted, at, MOST).tolist() == wanted
    assert qnrf_protocol._bisected_counts(predicted, truth, at).tolist() == wanted


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([30.0, 400.0, 5000.0]))
def test_sizes_in_crowds(seed: int, side: float) -> None:
    """Sparse to packed; some predictions far outside, so that the grid has empty squares and clamped ones."""
    rng = np.random.default_rng(seed)
    truth = rng.random((300, 2)) * side
    predicted = np.concatenate([truth[:200] + rng.normal(0, 6, (200, 2)), rng.random((60, 2)) * side, [[9e4, -9e4]]])
    at = np.array([0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 100])
    assert pair_sizes.sizes(predicted, truth, at, MOST).tolist() == scipy_sizes(predicted, truth, at)


def test_a_pair_exactly_at_the_limit_is_in() -> None:
    rng = np.random.default_rng(0)
    for p, t in rng.random((200, 2, 2)) * 1e3:
        limit = pairing.candidates(p[None], t[None], np.inf)[2][0]
        below = np.nextafter(limit, 0.0)
        assert pair_sizes.sizes(p[None], t[None], np.array([below, limit]), MOST).tolist() == [0, 1]


def test_a_chain_needs_no_recursion() -> None:
    """Truth at 0, 2, 4 …, predictions at 1, 3, 5 …, all paired to the right at first; one more on the left shifts them all."""
    n = 30 * sys.getrecursionlimit()
    x = np.arange(n) * 2.0
    predicted, truth = np.stack([np.r_[-1.001, x[:-1] + 1.0], np.zeros(n)], 1), np.stack([x, np.zeros(n)], 1)
    assert pair_sizes.sizes(predicted, truth, np.array([0.5, 1.0, 1.001]), MOST).tolist() == [0, n - 1, n]


def test_empty_sides_pair_nothing() -> None:
    none, one = np.zeros((0, 2)), np.zeros((1, 2))
    for p, t in ((none, one), (one, none), (none, none)):
        assert pair_sizes.sizes(p, t, np.array([1.0, 2.0]), MOST).tolist() == [0, 0]


def test_far_flung_points_do_not_blow_up_the_grid() -> None:
    predicted = np.array([[0.0, 0.0], [1e300, -1e300], [3.0, 4.0]])
    assert pair_sizes.sizes(predicted, np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([0.0, 5.0]), MOST).tolist() == [
        1,
        2,
    ]


def test_too_many_candidates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_sizes, "MOST", 99)
    with pytest.raises(DataError, match="100 pairs within the distance asked for, more than 99"):
        qnrf([np.zeros((10, 2))], [np.zeros((10, 2))], matching="maximum")


def test_once_all_are_paired_nobody_looks_farther() -> None:
    line = np.stack([np.arange(20.0), np.zeros(20)], 1)
    limits = np.array([0.1, 0.5, 100.0])
    assert pair_sizes.sizes(line, line, limits, 20).tolist() == [20, 20, 20]
    with pytest.raises(DataError, match="400 pairs within"):  # one stays alone: the last limit has to be tried
        pair_sizes.sizes(line, np.concatenate([line[:-1], [[19.9, 0.0]]]), limits, 20)


def test_without_a_compiler_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    truth = [rng.random((80, 2)) * 200 for _ in range(3)]
    predicted = [t + rng.normal(0, 9, t.shape) for t in truth]
    fast = qnrf(predicted, truth, matching="maximum")
    monkeypatch.setattr(pair_sizes, "_library", lambda: None)
    assert (qnrf(predicted, truth, matching="maximum").pairs == fast.pairs).all()


def test_no_limits_no_sizes() -> None:
    assert pair_sizes.sizes(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(0), 10).shape == (0,)
