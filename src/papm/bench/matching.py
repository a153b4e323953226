"""How fast points are assigned to proposals: ours against scipy, on the costs of P2PNet and P2P-PAPM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from papm import ggd
from papm.bench.timing import Timing, compare
from papm.errors import ConfigError, unknown
from papm.matching import assign_batch

STRIDE, REFERENCES = 8, 4  # P2PNet: 2 × 2 reference points in a cell of 8 px
PAIR = 1e-5  # what a pair may cost more than at the optimum
CAP = 1e3  # of the matching cost: beyond every score, and of a size that float32 still resolves beside one

Kind = Literal["l2", "ggd", "ggd-literal"]
TAU = {"ggd": 1e-3, "ggd-literal": 1e-5}  # σ=16, s=2; the paper's value, read literally, is the second


@dataclass(frozen=True)
class Row:
    """One way to assign. `excess`: the most that a pair of any problem costs above the optimum, on average over its pairs."""

    timing: Timing
    excess: float


def scene(
    kind: Kind, problems: int, points: int, crop: int = 128, clumped: bool = False, device: str = "cpu", seed: int = 0
) -> Tensor:
    """Costs [problems, points, (crop/8)²·4] between random points and the proposals of a network that has begun to learn.

    0.05·r − score (P2PNet), or τ·r²·exp(r²/2σ²) − score. Clumped: all points of a crop around its centre.
    """
    if kind not in get_args(Kind):
        raise unknown("matching cost", kind, get_args(Kind))
    side = crop // STRIDE
    if min(problems, points, side) < 1:
        raise ConfigError(
            f"a matching benchmark needs a problem, a point and {STRIDE} px, not {problems}, {points}, {crop}"
        )
    rng = torch.Generator().manual_seed(seed)
    centre = torch.arange(side) * STRIDE + STRIDE / 2
    cells = torch.cartesian_prod(centre, centre).flip(1)
    offsets = torch.cartesian_prod(*[torch.tensor([-2.0, 2.0])] * 2)
    reference = (cells[:, None] + offsets).reshape(-1, 2)
    proposals = reference + 2 * torch.randn(problems, len(reference), 2, generator=rng)
    scores = torch.sigmoid(2 * torch.randn(problems, 1, side * side * REFERENCES, generator=rng) - 1)
    if clumped:
        xy = (crop / 2 + 0.08 * crop * torch.randn(problems, points, 2, generator=rng)).clamp(0, crop)
    else:
        xy = torch.rand(problems, points, 2, generator=rng) * crop
    r2 = (xy[:, :, None] - proposals[:, None]).square().sum(-1)
    if kind == "l2":
        distance = 0.05 * r2.sqrt()
    else:
        distance = (TAU[kind] * ggd.transport_cost(r2, 16.0, 2.0)).clamp(max=CAP)
    return (distance - scores).to(device)


def optimum(costs: Tensor) -> Tensor:
    """The least total of each problem, by scipy in float64."""
    exact = costs.double().cpu().numpy()
    return torch.tensor([float(c[linear_sum_assignment(c)].sum()) for c in exact], dtype=torch.float64)


def excess(costs: Tensor, columns: Tensor, best: Tensor) -> float:
    """How much a pair costs above the optimum, in the worst problem; infinite if an assignment is not one to one."""
    found = columns.cpu()
    pairs = min(costs.shape[1:])
    for row in found:
        taken = row[row >= 0]
        if len(taken) != pairs or len(taken.unique()) != pairs:
            return float("inf")
    exact = costs.double().cpu().gather(2, found.clamp(min=0)[..., None]).squeeze(2)
    total = torch.where(found >= 0, exact, torch.zeros_like(exact)).sum(1)
    return float((total - best).max()) / pairs


def run(
    kind: Kind = "ggd",
    problems: int = 32,
    points: int = 100,
    crop: int = 128,
    clumped: bool = False,
    repeat: int = 5,
    warmup: int = 1,
) -> list[Row]:
    """Assign a batch on the CPU in each way, timed in turn; the first row is ours."""
    costs = scene(kind, problems, points, crop, clumped)
    arrays = costs.numpy()

    def one_by_one() -> Tensor:
        columns = torch.full(costs.shape[:2], -1, dtype=torch.int64)
        for k, cost in enumerate(arrays):
            i, j = linear_sum_assignment(cost)
            columns[k, torch.from_numpy(i)] = torch.from_numpy(j)
        return columns

    ways: dict[str, Callable[[], Any]] = {
        "papm": lambda: assign_batch(costs).columns,
        "papm, scipy on threads": lambda: assign_batch(costs, solver="scipy").columns,
        "scipy, one by one": one_by_one,
    }
    timings = compare(ways, repeat, warmup)
    best = optimum(costs)
    return [Row(timing, excess(costs, ways[timing.name](), best)) for timing in timings]


def agree(rows: Sequence[Row]) -> bool:
    """Whether every way found the optimum."""
    return all(r.excess <= PAIR for r in rows)
