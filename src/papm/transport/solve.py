"""Solving: choosing a solver; `sinkhorn` for any cost and `grid_sinkhorn` for points on maps.

Exactly the asked number of iterations runs, from u = a, in float32 with autocast off: at 100 iterations the published losses
are not converged, and converging further is another loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from papm.compiled import shared_limit
from papm.errors import ConfigError, DataError, unknown
from papm.graphs import round_up
from papm.structures import PointBatch, as_tensor
from papm.transport import costs as cost_names
from papm.transport import cuda, graphs, native, reference
from papm.transport.costs import Cost
from papm.transport.problem import DenseProblem, Problem, SeparableProblem
from papm.transport.result import TransportResult
from papm.transport.windows import Window, WindowProblem, cell_centres, far_value, window_for

Solver = Literal["auto", "reference", "log", "separable", "sparse", "graph", "compiled", "cuda"]
# Smaller floors are beyond the scaling form: u and v can reach 1/δ, so that kernel values below the smallest normal number,
# which are taken as zero, would still count: float32 potentials are off by up to 1e-4 of the largest at 1e-18, 4e-3 at 1e-19.
MIN_FLOOR = {torch.float32: 1e-18, torch.float64: 1e-150}

# (u, v), and ⟨C, T⟩ where the solver finds it on the way.
Backend = Callable[[WindowProblem, Tensor, Tensor, Tensor, float, int], tuple[Tensor, ...]]
BACKENDS: dict[str, Backend] = {
    "sparse": reference.scaling,
    "graph": graphs.solve,
    "compiled": native.solve,
    "cuda": cuda.solve,
}


def dustbin_cost(
    reg: float, cost: Cost | None = None, dustbin: float | None = None, reach: float | None = None
) -> float:
    """The cost of leaving mass unmatched: given, or the cost at a `reach` in pixels, or the published ε·ln(1e16).

    >>> round(dustbin_cost(10.0), 1)
    368.4
    """
    if dustbin is not None and reach is not None:
        raise ConfigError("give either the dustbin's cost or its reach in pixels, not both")
    if reach is not None:
        if cost is None or not cost.radial:
            raise ConfigError(
                "a reach in pixels needs a cost that depends on the distance alone; give the dustbin's cost"
            )
        if not (math.isfinite(reach) and reach > 0):
            raise ConfigError(f"a reach must be a positive number of pixels, not {reach}")
        dustbin = cost_names.dustbin_for(cost, reach)
    if dustbin is None:
        return reg * math.log(1 / reference.FLOOR)
    if not dustbin > 0:
        raise ConfigError(f"the dustbin's cost must be positive, not {dustbin}")
    return dustbin


def check_settings(reg: float, iterations: int, solver: str = "auto") -> None:
    """Refuse what no problem can be solved with."""
    if not (math.isfinite(reg) and reg > 0):
        raise ConfigError(f"the regularisation must be a positive number, not {reg}")
    if iterations < 1:
        raise ConfigError(f"the number of iterations must be at least 1, not {iterations}")
    if solver not in get_args(Solver):
        raise unknown("solver", solver, get_args(Solver))


def _require_numbers(what: str, values: Tensor, where: Tensor | None = None, infinite: bool = False) -> None:
    """Refuse NaN, and infinity unless it has a meaning, naming the image. Not on a GPU: looking would wait for the device."""
    if values.is_cuda:
        return
    wrong = ~(values > -math.inf) if infinite else ~values.isfinite()
    wrong = wrong if where is None else wrong & where[..., None]
    _refuse(wrong, f"{what} of image {{}} of the batch holds NaN or infinity")


def _require_mass(what: str, values: Tensor) -> None:
    """Numbers, and none below zero: the logarithm of such a mass would be NaN."""
    _require_numbers(what, values)
    if not values.is_cuda:
        _refuse(values < 0, f"{what} of image {{}} of the batch holds a negative mass")


def _refuse(wrong: Tensor, message: str) -> None:
    """Raise, with the number of the first image that has something wrong in the message."""
    images = wrong.flatten(1).any(1)
    if images.any():
        raise DataError(message.format(int(images.nonzero()[0])))


def sinkhorn(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    cost: Tensor | ArrayLike,
    reg: float = 10.0,
    iterations: int = 100,
    solver: Solver = "auto",
    *,
    dustbin: float | None = None,
) -> TransportResult:
    """Entropic transport between weights a [n] and b [m] at cost [n, m]; or batched [B, n], [B, m], [B, n, m].

    Arrays of numpy do as well as tensors. `plan()` of the result is what goes from where to where, `value` what it costs.

    `dustbin` is the cost of leaving mass unmatched (infinite: none may be; then use the log solver). A hundred iterations
    are not convergence: `marginal_errors` of the result says how far it is.

    >>> r = sinkhorn(torch.ones(2) / 2, torch.ones(2) / 2, torch.tensor([[0.0, 100.0], [100.0, 0.0]]), reg=1.0)
    >>> r.plan().round(decimals=3)
    tensor([[0.5000, 0.0000], [0.0000, 0.5000]])
    """
    check_settings(reg, iterations)
    a, b, cost = as_tensor(a), as_tensor(b), as_tensor(cost)
    batched = cost.dim() == 3
    if not batched:
        a, b, cost = a[None], b[None], cost[None]
    if cost.dim() != 3 or a.shape != cost.shape[:2] or b.shape != (cost.shape[0], cost.shape[2]):
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)} and {tuple(cost.shape)}"
        raise ConfigError(f"weights [n] and [m] and a cost [n, m] do not fit together: {shapes}")
    dtype = torch.float64 if cost.dtype == torch.float64 else torch.float32
    a, b, cost = (t.detach().to(dtype) for t in (a, b, cost))
    _require_mass("a", a)
    _require_mass("b", b)
    _require_numbers("the cost", cost, infinite=True)
    bin_cost = dustbin_cost(reg, dustbin=dustbin)
    if solver == "auto":
        solver = "log" if math.exp(-bin_cost / reg) < MIN_FLOOR[dtype] else "reference"
    if solver not in ("reference", "log"):
        raise unknown("solver for a dense cost", solver, ("auto", "reference", "log"))
    with torch.no_grad(), torch.autocast(cost.device.type, enabled=False):
        problem = DenseProblem.build(cost, reg)
        return _dense(problem, a, b, bin_cost, iterations, solver, batched)


def _dense(
    problem: Problem, a: Tensor, b: Tensor, dustbin: float, iterations: int, solver: str, batched: bool = True
) -> TransportResult:
    """The reference, log and separable solvers on a stored problem."""
    reg = problem.reg
    if solver == "log":
        log_u, log_v = reference.log_domain(problem.cost_matrix(), reg, a, b, a.log(), -dustbin / reg, iterations)
    else:
        u, v = reference.scaling(problem, a, b, a, math.exp(-dustbin / reg), iterations)
        log_u, log_v = u.log(), v.log()
    return TransportResult(log_u, log_v, a, b, reg, dustbin, iterations, problem, solver, batched)


def choose(window: Window | None, size: tuple[int, int], cost: Cost, reg: float, floor: float, like: Tensor) -> str:
    """The fastest solver that can do this problem here."""
    if floor < MIN_FLOOR[like.dtype]:
        return "log"
    if window is None or 2 * window.entries > size[0] * size[1]:
        return "separable" if cost.quadratic is not None else "reference"
    no_far = not far_value(cost, reg, window.smallest)
    if like.is_cuda and like.dtype in cuda.DTYPES and no_far:
        shared = cuda.shared_bytes(window, size, round_up(like.shape[1]), like.dtype)
        if cuda.available(like.device) and shared <= shared_limit(like.device):
            return "cuda"
    if like.is_cuda:
        return "graph"
    return "compiled" if like.device.type == "cpu" and native.usable(window) else "sparse"


def _one_image(points: Tensor | ArrayLike, index: int) -> Tensor:
    """The points of one image of a list, [n, 2]."""
    xy = as_tensor(points)
    if xy.dim() != 2 or xy.shape[1] != 2:
        raise ConfigError(f"the points of image {index} of the batch must be [n, 2], not {list(xy.shape)}")
    return xy


def grid_sinkhorn(
    points: PointBatch | Sequence[Tensor | ArrayLike],
    density: Tensor | ArrayLike,
    stride: int,
    cost: str | Cost = "l2",
    reg: float = 10.0,
    iterations: int = 100,
    solver: Solver = "auto",
    *,
    dustbin: float | None = None,
    reach: float | None = None,
    top: Tensor | None = None,
    height: Tensor | None = None,
) -> TransportResult:
    """Entropic transport between the points of B images, also a list of [n, 2], and their density maps [B, h, w].

    Each point of an image weighs 1/n, each cell z/(Σz + 1e-6) (DM-Count's). An image without points or without mass gives
    a plan of zeros. `reach` sets the dustbin's cost as the distance in pixels at which moving costs as much as leaving.
    A dustbin too dear for float32 (above 414 at ε = 10) is solved, and the result given, in float64. `top` and `height` [B]
    are for the perspective cost only. There is no host sync, and nothing is differentiated: the gradient of the losses is
    Danskin's.

    >>> dots = PointBatch.from_list([torch.tensor([[4.0, 4.0]])])
    >>> r = grid_sinkhorn(dots, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), stride=8)
    >>> round(float(r.value), 1), r.plan().shape
    (64.0, torch.Size([1, 1, 4]))
    """
    check_settings(reg, iterations, solver)
    density = as_tensor(density)
    if not isinstance(points, PointBatch):
        points = PointBatch.from_list([_one_image(p, k) for k, p in enumerate(points)], density.device)
    if density.dim() != 3 or len(points) != len(density):
        raise ConfigError(
            f"transport takes a density [B, h, w] and the points of B images, not {tuple(density.shape)} "
            f"and {len(points)} images"
        )
    _require_mass("the density", density)
    _require_numbers("a point", points.xy, points.valid)
    cost = cost_names.create(cost)
    size = (density.shape[1], density.shape[2])
    bin_cost = dustbin_cost(reg, cost, dustbin, reach)
    floor = math.exp(-bin_cost / reg)
    dtype = torch.float64 if density.dtype == torch.float64 else torch.float32
    if solver == "auto" and floor < MIN_FLOOR[torch.float32]:
        dtype = torch.float64  # down to 1e-150 still sparse, and far faster than the log solver
    if solver not in ("auto", "log") and floor < MIN_FLOOR[dtype]:
        raise ConfigError(f"a dustbin of cost {bin_cost:.4g} is too dear for the '{solver}' solver; use 'auto'")
    with torch.no_grad(), torch.autocast(density.device.type, enabled=False):
        valid, xy = points.valid.to(density.device), points.xy.detach().to(density.device, dtype)
        xy = torch.where(valid[..., None], xy, 0.0)  # padding may hold anything
        a = valid.to(dtype) / valid.sum(1, keepdim=True).clamp(min=1)
        z = density.detach().to(dtype).flatten(1)
        b = z / (z.sum(1, keepdim=True) + 1e-6)
        window = window_for(cost, reg, stride, floor, dtype, max(size))
        if solver == "auto":
            solver = choose(window, size, cost, reg, floor, xy)  # type: ignore[assignment]
        if solver == "separable":
            if cost.quadratic is None:
                raise ConfigError(f"the separable solver needs a cost c·r², not '{cost.name}'")
            separable = SeparableProblem.build(xy, size, stride, cost.quadratic, reg)
            return _dense(separable, a, b, bin_cost, iterations, solver)
        if solver in ("reference", "log"):
            dense = DenseProblem.build(cost.pairwise(xy, cell_centres(size, stride, xy), top, height), reg)
            return _dense(dense, a, b, bin_cost, iterations, solver)
        if window is None:
            raise ConfigError(
                f"the kernel of cost '{cost.name}' at regularisation {reg} is not sparse; use 'reference'"
            )
        problem = WindowProblem(xy, size, stride, cost, reg, window)
        u, v, *value = BACKENDS[solver](problem, a, b, a, floor, iterations)
        known = value[0] if value else None
        return TransportResult(u.log(), v.log(), a, b, reg, bin_cost, iterations, problem, solver, known_value=known)
