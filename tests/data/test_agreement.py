"""Several people, one set of points: pairs are the best there are, means are means, disagreement is measured right."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from papm.data.agreement import ALONE, LEAST_REACH, agreement, choose, merge, pair, reach_of
from papm.errors import ConfigError, DataError
from papm.structures import Sample


def cloud(n: int, seed: int, side: float = 100.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((n, 2)) * side).float()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 99), st.floats(5, 60))
def test_pairs_are_the_cheapest(n: int, m: int, seed: int, reach: float) -> None:
    a, b = cloud(n, seed), cloud(m, seed + 1)
    rows, columns, distance = pair(a, b, reach)
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == len(rows)
    assert all(
        math.dist(a[i].tolist(), b[j].tolist()) == pytest.approx(d, abs=1e-4)
        for i, j, d in zip(rows, columns, distance)
    )
    assert (distance < reach).all()

    def cost(chosen: list[tuple[int, int]]) -> float:
        return sum(math.dist(a[i].tolist(), b[j].tolist()) for i, j in chosen) - reach * len(chosen)

    best = min(
        cost(list(zip(some, order)))
        for k in range(min(n, m) + 1)
        for some in itertools.combinations(range(n), k)
        for order in itertools.permutations(range(m), k)
    )
    assert cost(list(zip(rows.tolist(), columns.tolist()))) == pytest.approx(best, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 99), st.floats(1, 90))
def test_pairs_are_those_of_the_whole_matrix(n: int, m: int, seed: int, reach: float) -> None:
    """Candidates from a tree change nothing: most points have none, one, or many, as `reach` says."""
    a, b = cloud(n, seed), cloud(m, seed + 1)
    distance = cdist(a.double().numpy(), b.double().numpy()).reshape(n, m)
    rows, columns = linear_sum_assignment(np.minimum(distance, reach))
    near = distance[rows, columns] < reach
    found = pair(a, b, reach)
    assert found[0].tolist() == rows[near].tolist() and found[1].tolist() == columns[near].tolist()
    assert found[2] == pytest.approx(distance[rows, columns][near])


def test_large_crowds_are_merged_in_seconds() -> None:
    """A matrix of all pairs would be 3 GB."""
    truth = cloud(20_000, 0, 4000)
    rng = torch.Generator().manual_seed(0)
    people = {who: truth + 0.5 * torch.randn(truth.shape, generator=rng) for who in "abc"}
    start = time.process_time()
    merged = merge(people)
    assert time.process_time() - start < 10
    assert abs(len(merged) - 20_000) < 200
    near, _ = cKDTree(truth.numpy()).query(merged.numpy())
    assert np.median(near) < 0.5


def test_points_on_one_heap_are_a_sentence() -> None:
    heap = torch.full((3000, 2), 7.0)
    with pytest.raises(
        DataError, match="9,000,000 pairs of two people's points are nearer than 4 px; are points repeated"
    ):
        merge({"a": heap, "b": heap})
    with pytest.raises(DataError, match=r"^a: 9,000,000 pairs"):
        agreement([sample(a=heap, b=heap)])


def test_one_person_or_equal_people_change_nothing() -> None:
    points = cloud(30, 0, 500)
    assert torch.allclose(merge({"a": points}), points)
    assert torch.allclose(merge({"a": points, "b": points.clone(), "c": points.clone()}), points, atol=1e-4)
    assert merge({"a": torch.zeros(0, 2), "b": torch.zeros(0, 2)}).shape == (0, 2)


def test_the_mean_is_nearer_to_the_truth_than_each() -> None:
    grid = torch.stack(torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij"), -1).reshape(-1, 2) * 40
    rng = torch.Generator().manual_seed(0)
    people = {f"p{k}": grid + 3 * torch.randn(100, 2, generator=rng) for k in range(4)}
    merged = merge(people)
    assert len(merged) == 100

    def error(points: torch.Tensor) -> float:
        return float((points - grid).norm(dim=1).mean())

    assert error(merged) == pytest.approx(min(map(error, people.values())) / 2, rel=0.15), "errors fall as 1/√4"


def test_half_of_the_people_decide() -> None:
    a, b, c = (torch.tensor(p) for p in ([[0.0, 0.0], [100.0, 0.0]], [[1.0, 0.0]], [[2.0, 0.0], [200.0, 0.0]]))
    assert merge({"a": a, "b": b, "c": c}).tolist() == [[1.0, 0.0]], "one of three is too few"
    assert merge({"a": a, "b": b}).tolist() == [[0.5, 0.0], [100.0, 0.0]], "one of two is half"
    assert a.tolist() == [[0.0, 0.0], [100.0, 0.0]], "what is merged stays as it was"


def test_reach() -> None:
    assert reach_of([torch.zeros(0, 2), torch.zeros(1, 2)]) == ALONE
    assert reach_of([torch.zeros(5, 2)]) == LEAST_REACH, "coincident points"
    assert reach_of([torch.tensor([[0.0, 0.0], [0.0, 30.0]])]) == 15.0


def test_choosing() -> None:
    sets = {"anna": torch.zeros(1, 2), "ben": torch.ones(2, 2)}
    assert choose(sets, "ben") is sets["ben"] and len(choose(sets, "merge")) == 2
    with pytest.raises(ConfigError, match="marked by: anna, ben"):
        choose(sets, "carl")
    with pytest.raises(ConfigError):
        merge({})


def sample(**sets: torch.Tensor) -> Sample:
    return Sample("a", Path("a.jpg"), torch.zeros(0, 2), (400, 400), annotations=sets)


def test_disagreement_of_known_clicks() -> None:
    grid = torch.stack(torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij"), -1).reshape(-1, 2) * 60
    rng = torch.Generator().manual_seed(1)
    clicks = [grid + 2.0 * torch.randn(400, 2, generator=rng) for _ in range(2)]
    found = agreement([sample(a=clicks[0], b=clicks[1][:390]), sample(a=grid), sample()])
    assert found is not None and found["annotators"] == ["a", "b"] and found["images"] == 1
    assert found["click_error"] == pytest.approx(2.0, rel=0.06), "two errors of σ are σ√π apart on average"
    assert found["unpaired"] == pytest.approx(10 / 790) and found["count_difference"] == 10
    assert found["count_difference_relative"] == pytest.approx(10 / 395)
    assert agreement([sample(a=grid)]) is None and agreement([]) is None
    empty = agreement([sample(a=torch.zeros(0, 2), b=torch.zeros(0, 2))])
    assert empty is not None and empty["distance_mean"] is None and empty["unpaired"] == 0
