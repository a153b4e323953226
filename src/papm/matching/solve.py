"""One-to-one assignment of least total cost, one problem or a batch of them.

    min Σ cost[i, column(i)]   over all ways to give min(n, m) rows a column of their own

Exact on every path. On the CPU a compiled solver (threads over problems), else scipy; on CUDA a kernel that keeps the batch
on the device, else the CPU. No gradient flows: what is assigned is a discrete choice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from papm.compiled import on_threads
from papm.errors import ConfigError, unknown
from papm.matching import cuda, native
from papm.matching.problem import Assignment, Pairs, prepare, refuse

log = logging.getLogger(__name__)
Solver = Literal["auto", "scipy", "native", "cuda"]
THREAD_WORK = 40_000  # costs in a batch below which starting threads takes longer than it saves


def assign(cost: Tensor | NDArray[Any], solver: Solver = "auto") -> Pairs:
    """Rows and columns (int64, sorted by row, on the cost's device) of the min(n, m) pairs of least total cost [n, m].

    >>> rows, columns = assign(torch.tensor([[4.0, 1.0, 2.0], [2.0, 0.0, 5.0]]))
    >>> rows.tolist(), columns.tolist()
    ([0, 1], [2, 1])
    """
    return assign_batch([cost], solver=solver)[0]


@overload
def assign_batch(costs: Tensor | NDArray[Any], counts: Tensor | None = None, solver: Solver = "auto") -> Assignment:
    """A padded batch."""


@overload
def assign_batch(costs: Sequence[Tensor | NDArray[Any]], counts: None = None, solver: Solver = "auto") -> list[Pairs]:
    """Problems of any sizes."""


def assign_batch(
    costs: Tensor | NDArray[Any] | Sequence[Tensor | NDArray[Any]],
    counts: Tensor | None = None,
    solver: Solver = "auto",
) -> Assignment | list[Pairs]:
    """Assign many problems at once.

    A list of costs [n_i, m_i] gives a list of (rows, columns) as `assign` does. A padded tensor [B, N, M] gives an
    `Assignment` with columns [B, N]; `counts` says what is real in it: rows [B], or rows and columns [B, 2]. On CUDA the
    padded form does not wait for the device (float32, up to 8192 columns; else the host does the work).

    >>> padded = torch.tensor([[[4.0, 1.0], [2.0, 0.0]], [[1.0, 0.0], [9.0, 9.0]]])
    >>> assign_batch(padded, counts=torch.tensor([2, 1])).columns.tolist()
    [[1, 0], [1, -1]]
    """
    if solver not in get_args(Solver):
        raise unknown("assignment solver", solver, get_args(Solver))
    if isinstance(costs, np.ndarray):
        costs = torch.as_tensor(costs)
    if isinstance(costs, Tensor):
        return _padded(costs, counts, solver)
    if counts is not None:
        raise ConfigError("counts are for a padded batch; a list of costs has its own")
    return _listed([torch.as_tensor(c) if isinstance(c, np.ndarray) else c for c in costs], solver)


def _padded(costs: Tensor, counts: Tensor | None, solver: Solver) -> Assignment:
    if costs.dim() != 3:
        raise ConfigError(f"a padded batch of costs has the shape [B, N, M], not {list(costs.shape)}")
    costs = prepare(costs, "costs")
    real = _counts(costs, counts)
    if costs.is_cuda and solver in ("auto", "cuda"):
        if solver == "cuda" or _on_device(costs):
            return Assignment(cuda.solve(costs.float(), real)[0], real)
        log.debug("assigning on the CPU: the kernel is not available, or %s too large", list(costs.shape[1:]))
    host = costs.cpu()
    sizes = real.cpu().tolist()
    found = _on_host([host[k, :n, :m] for k, (n, m) in enumerate(sizes)], solver)
    columns = torch.full(costs.shape[:2], -1, dtype=torch.int64)
    for k, (rows, chosen) in enumerate(found):
        columns[k, rows] = chosen
    return Assignment(columns.to(costs.device, non_blocking=True), real)


def _counts(costs: Tensor, counts: Tensor | None) -> Tensor:
    """[B, 2] int32 on the costs' device, bounded by the padded size."""
    problems, n, m = costs.shape
    if counts is None:  # filled there: a copy from the host could not be captured in a CUDA graph
        counts = torch.full((problems,), n, dtype=torch.int32, device=costs.device)
    if counts.shape not in ((problems,), (problems, 2)) or counts.is_floating_point():
        raise ConfigError(f"counts are whole numbers [{problems}] or [{problems}, 2], not {list(counts.shape)}")
    real = counts.to(costs.device, torch.int32, non_blocking=True)
    if real.dim() == 1:
        real = torch.stack([real, torch.full_like(real, m)], 1)
    if not real.is_cuda and real.numel() and (int(real.min()) < 0 or bool((real > torch.tensor([n, m])).any())):
        raise ConfigError(f"counts must lie between 0 and the padded size {n} × {m}")
    return real


def _on_device(costs: Tensor) -> bool:
    fits = cuda.fits(costs.shape[1], costs.shape[2], costs.device)
    return fits and costs.dtype == torch.float32 and cuda.available(costs.device)


def _listed(costs: list[Tensor], solver: Solver) -> list[Pairs]:
    for k, cost in enumerate(costs):
        if not isinstance(cost, Tensor):
            raise ConfigError(f"the cost of problem {k} is a tensor or array [n, m], not {type(cost).__name__}")
        if cost.dim() != 2:
            raise ConfigError(f"the cost of problem {k} has the shape [n, m], not {list(cost.shape)}")
    if not costs:
        return []
    ready = [prepare(cost, f"the cost of problem {k}") for k, cost in enumerate(costs)]
    device = ready[0].device
    if any(cost.device != device for cost in ready):
        raise ConfigError("the costs of one batch must be on one device")
    surplus = {k: len(c) - c.shape[1] for k, c in enumerate(ready) if len(c) > c.shape[1]}
    if surplus:
        left = sum(surplus.values())
        log.info("more rows than columns: %s rows stay without one in problems %s", left, list(surplus))
    if device.type != "cuda" or solver not in ("auto", "cuda"):
        return [(rows.to(device), columns.to(device)) for rows, columns in _on_host([c.cpu() for c in ready], solver)]
    sizes = torch.tensor([list(c.shape) for c in ready], dtype=torch.int32)
    n, m = (int(k) for k in sizes.max(0).values)
    dtype = torch.float64 if any(c.dtype == torch.float64 for c in ready) else torch.float32
    padded = torch.zeros(len(ready), n, m, dtype=dtype, device=device)
    for to, cost in zip(padded, ready):
        to[: cost.shape[0], : cost.shape[1]] = cost
    made = _padded(padded, sizes, solver).columns
    found = []
    for columns, cost in zip(made, ready):
        rows, columns = torch.arange(len(cost), device=device), columns[: len(cost)]
        if len(cost) > cost.shape[1]:  # which rows is known to the device only
            rows = (columns >= 0).nonzero().flatten()
            columns = columns[rows]
        found.append((rows, columns))
    return found


def _on_host(costs: list[Tensor], solver: Solver) -> list[Pairs]:
    """Each problem on a thread, where that pays; both solvers release the interpreter's lock."""
    if solver == "cuda":
        raise ConfigError("the cuda assignment takes costs on CUDA; use solver 'auto'")
    if solver == "native" and not native.available():
        raise ConfigError("the compiled assignment needs a C compiler; use solver 'scipy' or 'auto'")
    compiled = solver == "native" or (solver == "auto" and native.available())

    def one(k: int) -> Pairs:
        cost = costs[k]
        turned = cost.shape[0] > cost.shape[1]
        upright = cost.T if turned else cost
        exact = cost.dtype == torch.float64 and solver == "auto"  # the compiled solver would round these costs
        found = (_native if compiled and not exact else _scipy)(upright, k)
        rows = torch.arange(len(found))
        if not turned:
            return rows, found
        order = found.argsort()
        return found[order], rows[order]

    return on_threads(one, len(costs), pays=sum(c.numel() for c in costs) >= THREAD_WORK)


def _native(cost: Tensor, problem: int) -> Tensor:
    solution = native.solve(cost.float().contiguous() if cost.dtype != torch.float32 else cost)
    if solution is None:
        raise refuse(problem)
    return solution.columns.long()


def _scipy(cost: Tensor, problem: int) -> Tensor:
    if not bool(torch.isfinite(cost).all()):
        raise refuse(problem)
    return torch.from_numpy(linear_sum_assignment(cost.numpy())[1]).long()
