"""Assignments: hand-made cases, laws, and scipy as the judge of every total."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from papm import ggd
from papm.errors import ConfigError
from papm.matching import Assignment, assign, assign_batch, native

PAIR = 1e-5  # what a pair may cost more than at the optimum
SOLVERS = ["scipy", "native"] if native.available() else ["scipy"]
KINDS = ("uniform", "integers", "ties", "duplicates", "columns", "range", "ggd", "clump")


def optimum(cost: Tensor) -> float:
    """The least total, by scipy in float64."""
    exact = cost.double().numpy()
    return float(exact[linear_sum_assignment(exact)].sum())


def check(cost: Tensor, pairs: tuple[Tensor, Tensor]) -> None:
    """As many pairs as can be, none twice, sorted by row, at the least cost."""
    rows, columns = pairs
    n, m = cost.shape
    k = min(n, m)
    assert rows.dtype == columns.dtype == torch.int64 and len(rows) == len(columns) == k
    assert (rows.diff() > 0).all() and len(columns.unique()) == k
    if k:
        assert rows.min() >= 0 and rows.max() < n and columns.min() >= 0 and columns.max() < m
        total = float(cost.double()[rows, columns].sum())
        rounding = 1e-12 * float(cost.abs().max())  # float64 sums of costs up to 1e6
        assert total - optimum(cost) <= k * max(PAIR * 1e-3, rounding)


def make(kind: str, n: int, m: int, seed: int) -> Tensor:
    """A problem that is hard in one way."""
    rng = torch.Generator().manual_seed(seed)
    if kind == "integers":
        return torch.randint(-3, 4, (n, m), generator=rng).float()
    if kind == "ties":
        return torch.ones(n, m) * 0.3
    cost = torch.rand(n, m, generator=rng)
    if kind == "duplicates":  # the same row and the same column several times
        return cost[torch.arange(n) // 3][:, torch.arange(m) // 3]
    if kind == "columns":  # all rows want the same columns
        return cost[:1].expand(n, m) * 1.0 + 1e-4 * torch.rand(n, m, generator=rng)
    if kind == "range":
        return torch.pow(10.0, cost * 12 - 6)
    if kind in (
        "ggd",
        "clump",
    ):  # the cost of P2P-PAPM, in a crop or with every point in one spot: far pairs are forced
        points = torch.rand(n, 2, generator=rng) * (128 if kind == "ggd" else 4)
        r2 = (points[:, None] - torch.rand(m, 2, generator=rng) * 128).square().sum(-1)
        return (1e-5 * ggd.transport_cost(r2, 16.0, 2.0)).clamp(max=1e3) - torch.rand(m, generator=rng)
    return cost


problems = st.tuples(st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 60), st.integers(0, 10**6)).map(
    lambda p: make(*p)
)


@pytest.mark.parametrize("solver", SOLVERS)
def test_by_hand(solver: str) -> None:
    # Greedy takes 0 for the first row and pays 10 for the second.
    rows, columns = assign(torch.tensor([[0.0, 1.0], [2.0, 10.0]]), solver)  # type: ignore[arg-type]
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 0]
    assert [t.tolist() for t in assign(torch.tensor([[7.0]]), solver)] == [[0], [0]]  # type: ignore[arg-type]
    rows, columns = assign(torch.tensor([[3.0], [1.0], [2.0]]), solver)  # type: ignore[arg-type]
    assert (rows.tolist(), columns.tolist()) == ([1], [0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (12, 12), (30, 100), (40, 23), (0, 5), (5, 0), (0, 0)])
def test_kinds(solver: str, kind: str, size: tuple[int, int]) -> None:
    cost = make(kind, *size, seed=3)
    check(cost, assign(cost, solver))  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(problems)
def test_total_is_the_optimum(cost: Tensor) -> None:
    check(cost, assign(cost))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_problems_of_a_kind_in_one_call(kind: str) -> None:
    """Wider than high, higher than wide and empty ones side by side, as a batch on threads."""
    sizes = torch.randint(0, 40, (400, 2), generator=torch.Generator().manual_seed(5)).tolist()
    costs = [make(kind, n, m, seed) for seed, (n, m) in enumerate(sizes)]
    for cost, pairs in zip(costs, assign_batch(costs)):
        check(cost, pairs)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 20))
def test_duals_prove_it(cost: Tensor, rounds: int) -> None:
    """Feasible duals that are tight on every pair: a certificate that needs no second solver."""
    if not native.available():
        pytest.skip("no C compiler")
    if cost.shape[0] > cost.shape[1]:
        cost = cost.T
    solution = native.solve(cost, rounds)
    assert solution is not None
    n, m = cost.shape
    columns = solution.columns.long()
    slack = cost.double() - solution.u[:, None] - solution.v
    rounding = 1e-13 * max(1.0, float(cost.abs().max()) if cost.numel() else 0.0) * (n + 1)
    unused = torch.ones(m, dtype=torch.bool)
    unused[columns] = False
    assert (slack >= -rounding).all() and (slack[torch.arange(n), columns].abs() <= rounding).all()
    assert (solution.v <= rounding).all() and (solution.v[unused] == 0).all()


def test_shift_and_permutation_change_nothing() -> None:
    cost = make("uniform", 20, 50, seed=1)
    rows, columns = assign(cost)
    shifted = assign(cost + torch.arange(20.0)[:, None])[1]
    assert torch.equal(columns, shifted)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(order[assign(cost[:, order])[1]], columns)
    turned_rows, turned_columns = assign(cost.T)
    assert set(zip(turned_columns.tolist(), turned_rows.tolist())) == set(zip(rows.tolist(), columns.tolist()))


def test_list_and_padded_agree() -> None:
    sizes = [(5, 9), (0, 9), (7, 4), (6, 6), (3, 0)]
    costs = [make("uniform", n, m, seed=n) for n, m in sizes]
    padded = torch.full((5, 7, 9), float("nan"))  # padding is not read
    for to, cost in zip(padded, costs):
        to[: cost.shape[0], : cost.shape[1]] = cost
    listed, made = assign_batch(costs), assign_batch(padded, torch.tensor(sizes))
    for k, (one, two) in enumerate(zip(listed, made.pairs())):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]), k
        check(costs[k], one)
    assert made.surplus.tolist() == [0, 0, 3, 0, 3]
    assert made.matched.sum(1).tolist() == [5, 0, 4, 6, 0]


def test_row_counts_alone() -> None:
    costs = torch.rand(3, 6, 8)
    made = assign_batch(costs, torch.tensor([6, 0, 2]))
    assert isinstance(made, Assignment) and made.columns.shape == (3, 6)
    assert made.matched.sum(1).tolist() == [6, 0, 2] and made.counts[:, 1].tolist() == [8, 8, 8]
    assert torch.equal(assign_batch(costs).columns[0], made.columns[0])
    assert assign_batch([]) == [] and assign_batch(torch.zeros(0, 3, 4)).columns.shape == (0, 3)


def test_surplus_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="papm"):
        assign_batch([torch.rand(2, 3), torch.rand(5, 3), torch.rand(4, 3)])
    assert "3 rows stay without one in problems [1, 2]" in caplog.text


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_costs_that_are_not_finite_are_refused(solver: str, bad: float) -> None:
    costs = [torch.rand(3, 4), torch.rand(3, 4)]
    costs[1][2, 1] = bad
    with pytest.raises(ConfigError, match="problem 1 has values that are not finite"):
        assign_batch(costs, solver=solver)  # type: ignore[call-overload]


def test_wrong_input() -> None:
    with pytest.raises(ConfigError, match=r"problem 0 has the shape \[n, m\]"):
        assign(torch.rand(3))
    with pytest.raises(ConfigError, match=r"problem 0 is a tensor or array \[n, m\], not list"):
        assign([[1.0, 2.0]])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\[B, N, M\]"):
        assign_batch(torch.rand(3, 4))
    with pytest.raises(ConfigError, match="did you mean 'scipy'"):
        assign(torch.rand(2, 2), solver="scypi")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="costs on CUDA"):
        assign(torch.rand(2, 2), solver="cuda")
    for counts in (torch.tensor([1]), torch.tensor([0.5, 1.0])):
        with pytest.raises(ConfigError, match="whole numbers"):
            assign_batch(torch.rand(2, 3, 4), counts)
    for counts in (torch.tensor([4, 0]), torch.tensor([-1, 0]), torch.tensor([[3, 5], [0, 0]])):
        with pytest.raises(ConfigError, match="between 0 and the padded size 3 × 4"):
            assign_batch(torch.rand(2, 3, 4), counts)


def test_kinds_of_numbers() -> None:
    """Whole numbers and halves are exact; float64 keeps differences that float32 has not."""
    cost = torch.tensor([[4, 1, 2], [2, 0, 5]])
    for dtype in (torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert assign(cost.to(dtype))[1].tolist() == [2, 1]
    close = torch.tensor([[1.0, 1.0 - 1e-12], [1.0, 1.0 + 1e-12]], dtype=torch.float64)
    assert assign(close)[1].tolist() == [1, 0]
    large = torch.tensor([[2**24 + 1, 2**24], [2**24, 2**24]])  # float32 cannot tell them apart
    assert assign(large)[1].tolist() == [1, 0]
    with pytest.raises(ConfigError, match="can be ordered"):
        assign(torch.ones(2, 2, dtype=torch.bool))


def test_no_gradient_and_no_change_of_the_input() -> None:
    cost = torch.rand(4, 6, requires_grad=True)
    before = cost.detach().clone()
    assert not assign(cost)[1].requires_grad and torch.equal(cost.detach(), before)
    wide = torch.rand(6, 20)
    assert torch.equal(assign(wide[:, ::2])[1], assign(wide[:, ::2].contiguous())[1])
    assert torch.equal(assign(wide[::2])[1], assign(wide[::2].contiguous())[1])
