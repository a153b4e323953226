"""The sizes of maximum pairings at many distances against scipy, one distance at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from papm.errors import DataError
from papm.metrics import pairing, qnrf
from papm.metrics.pairing import Array
from papm.metrics.qnrf_protocol import maximum_sizes


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
    assert maximum_sizes(predicted, truth, at).tolist() == wanted
    assert maximum_sizes(truth, predicted, at).tolist() == wanted


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([30.0, 400.0, 5000.0]))
def test_sizes_in_crowds(seed: int, side: float) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random((300, 2)) * side
    predicted = np.concatenate([truth[:200] + rng.normal(0, 6, (200, 2)), rng.random((60, 2)) * side, [[9e4, -9e4]]])
    at = np.array([0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 100])
    assert maximum_sizes(predicted, truth, at).tolist() == scipy_sizes(predicted, truth, at)


def test_a_pair_exactly_at_the_limit_is_in() -> None:
    rng = np.random.default_rng(0)
    for p, t in rng.random((200, 2, 2)) * 1e3:
        limit = pairing.candidates(p[None], t[None], np.inf)[2][0]
        below = np.nextafter(limit, 0.0)
        assert maximum_sizes(p[None], t[None], np.array([below, limit])).tolist() == [0, 1]


def test_empty_sides_pair_nothing() -> None:
    none, one = np.zeros((0, 2)), np.zeros((1, 2))
    for p, t in ((none, one), (one, none), (none, none)):
        assert maximum_sizes(p, t, np.array([1.0, 2.0])).tolist() == [0, 0]


def test_too_many_candidates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PAIRS", 99)
    with pytest.raises(DataError, match="100 pairs within the distance asked for, more than 99"):
        qnrf([np.zeros((10, 2))], [np.zeros((10, 2))], matching="maximum")
