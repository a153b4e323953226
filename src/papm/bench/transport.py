"""How fast transport is: ours against POT and geomloss, where they are installed, on the same points and maps.

Every candidate starts from points and a density and ends with the potentials of the cells, costs included. POT's torch
backend is called image by image, as the published losses do. Neither library knows the dustbin, so each one's potentials
are compared with ours without it: POT's log-domain solver with our log solver at equal iterations, geomloss with our
annealed solver on the same schedule. Our fast path is compared with our float64 reference.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.bench.timing import Timing, compare
from papm.errors import ConfigError
from papm.structures import PointBatch
from papm.text import Brief
from papm.transport import Cost, create_cost, grid_sinkhorn, sinkhorn
from papm.transport.unbalanced import unbalanced
from papm.transport.windows import cell_centres

REG, TOP = 10.0, 800.0  # and the largest cost that others are given: float32 still holds exp(-TOP / REG)
STRIDE, ITERATIONS = 8, 100
DIFFERENCE = 1e-3  # relative, of the largest potential


@dataclass(frozen=True)
class Row:
    """One solver. `difference`: the largest of the cells' potentials, relative to the largest of them; see the module."""

    timing: Timing
    difference: float | None = None


@dataclass(frozen=True)
class Growth:
    """How long our solver takes at one size, from points and a density to the potentials of the cells."""

    points: int
    crop: int
    cells: int
    milliseconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Scene(Brief):
    """A batch of crops: their points, and a density with empty cells and a little background."""

    points: PointBatch
    density: Tensor  # [B, h, w]
    cost: Cost
    iterations: int

    @staticmethod
    def make(images: int, n: int, crop: int, cost: str, iterations: int = ITERATIONS, seed: int = 0) -> Scene:
        """Random, the same for the same numbers."""
        side = crop // STRIDE
        if min(images, n, side, iterations) < 1:
            raise ConfigError("a transport benchmark needs at least one image, point, cell and iteration")
        rng = torch.Generator().manual_seed(seed)
        xy = [torch.rand(n, 2, generator=rng) * crop for _ in range(images)]
        density = torch.rand(images, side, side, generator=rng) ** 4 + 0.002
        density = density * (torch.rand(images, side, side, generator=rng) > 0.3)
        density[:, 0, 0] += 0.002  # no map is empty, however small
        return Scene(PointBatch.from_list(xy), density, create_cost(cost), iterations)

    @property
    def cells(self) -> Tensor:
        """The centres of the cells, [m, 2]."""
        return cell_centres((self.density.shape[1], self.density.shape[2]), STRIDE, self.points.xy)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Those of the points [B, n] and of the cells [B, m], each of sum 1."""
        points = self.points.valid / self.points.counts[:, None]
        return points.to(self.density), self.density.flatten(1) / self.density.sum((1, 2))[:, None]

    def problem(self, image: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights a [n], b [m] and the capped cost [n, m] of one image, dense."""
        xy, z = self.points.xy[image], self.density[image].flatten()
        cost = self.cost.pairwise(xy, self.cells).clamp(max=TOP)
        return torch.full_like(xy[:, 0], 1 / len(xy)), z / z.sum(), cost


def papm_beta(scene: Scene, solver: str = "auto", double: bool = False) -> Tensor:
    """Our potentials of the cells, [B, m]."""
    points, density = scene.points, scene.density
    if double:
        points, density = PointBatch(points.xy.double(), points.valid), density.double()
    result = grid_sinkhorn(points, density, STRIDE, scene.cost, REG, scene.iterations, solver)  # type: ignore[arg-type]
    return result.potentials[1]


def pot_beta(scene: Scene, method: str = "sinkhorn", double: bool = False) -> Tensor:
    """POT's, image by image on its torch backend, exactly as many iterations, [B, m].

    Its plain solver stops at the first division by zero, which these kernels give at once: hence the capped cost.
    """
    ot = importlib.import_module("ot")
    how = {"method": method, "numItermax": scene.iterations, "stopThr": 0, "log": True, "warn": False}
    found = []
    for k in range(len(scene.points)):
        a, b, cost = _positive(*scene.problem(k)) if double else scene.problem(k)
        _, log = ot.sinkhorn(a, b, cost, REG, **how)
        found.append(REG * (log["log_v"] if "log_v" in log else log["v"].log()))
    return torch.stack(found)


def _positive(a: Tensor, b: Tensor, cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A problem in float64, without cells of no weight."""
    b = b.double() + 1e-9
    return a.double(), b / b.sum(), cost.double()


def geomloss_beta(scene: Scene) -> Tensor:
    """geomloss's, as many annealed steps as we have iterations, [B, m]: its tensorised log-domain solver, all at once."""
    geomloss = importlib.import_module("geomloss")
    loss = geomloss.SamplesLoss(
        "sinkhorn", p=1, blur=REG, scaling=_ratio(scene), diameter=TOP, debias=False, potentials=True,
        cost=lambda x, y: scene.cost(torch.cdist(x, y).square()).clamp(max=TOP), backend="tensorized",
    )  # fmt: skip
    (a, b), xy = scene.weights, scene.points.xy
    found: Tensor = loss(a, xy, b, scene.cells.expand(len(xy), -1, -1).contiguous())[1]
    return found.reshape(len(xy), -1)


def _ratio(scene: Scene) -> float:
    """From one step to the next of the schedule from the largest cost down to ε in `iterations` steps."""
    steps = max(2, scene.iterations - 2) - 0.5  # between whole numbers: rounding must not decide their number
    return math.exp(math.log(REG / TOP) / steps)


def _largest(got: Tensor, want: Tensor, free_constant: bool = False) -> float:
    got, want = got.double(), want.double()
    keep = torch.isfinite(got) & torch.isfinite(want)
    error = torch.where(keep, got - want, 0.0)
    if free_constant:  # balanced potentials are known up to one number per image
        count = keep.sum(-1, keepdim=True).clamp(min=1)
        error = torch.where(keep, error - error.sum(-1, keepdim=True) / count, 0.0)
    return float(error.abs().max() / torch.where(keep, want, 0.0).abs().max())


def papm_difference(scene: Scene, solver: str = "auto") -> float:
    """Our fast path against our float64 reference."""
    return _largest(papm_beta(scene, solver), papm_beta(scene, "reference", double=True))


def pot_difference(scene: Scene) -> float:
    """POT's log solver against ours without a dustbin, float64, equal iterations."""
    want = []
    for k in range(len(scene.points)):
        a, b, cost = _positive(*scene.problem(k))
        want.append(REG * sinkhorn(a, b, cost, REG, scene.iterations, "log", dustbin=math.inf).log_v[0])
    return _largest(pot_beta(scene, "sinkhorn_log", double=True), torch.stack(want), free_constant=True)


def geomloss_difference(scene: Scene) -> float:
    """geomloss against our annealed solver on the same schedule, float32."""
    (a, b), cost = scene.weights, scene.cost.pairwise(scene.points.xy, scene.cells).clamp(max=TOP)
    ours = unbalanced(a, b, cost, REG, math.inf, diameter=TOP, ratio=_ratio(scene))
    return _largest(geomloss_beta(scene), ours.g, free_constant=True)


# name → its potentials, how far they are off, and the library that it needs
WAYS: dict[str, tuple[Callable[[Scene], Tensor], Callable[[Scene], float], str]] = {
    "papm": (papm_beta, papm_difference, "torch"),
    "papm, torch alone": (
        functools.partial(papm_beta, solver="sparse"),
        functools.partial(papm_difference, solver="sparse"),
        "torch",
    ),
    "POT, torch, image by image": (pot_beta, pot_difference, "ot"),
    "geomloss, batched": (geomloss_beta, geomloss_difference, "geomloss"),
}


def run(
    images: int = 4,
    points: int = 200,
    crop: int = 256,
    cost: str = "ggd-l2",
    iterations: int = ITERATIONS,
    repeat: int = 5,
    warmup: int = 1,
) -> list[Row]:
    """Time each solver in turn on one batch; the first row is ours. Libraries that are not installed have no row."""
    scene = Scene.make(images, points, crop, cost, iterations)
    ways = {name: way for name, way in WAYS.items() if importlib.util.find_spec(way[2]) is not None}
    with torch.no_grad():
        timings = compare({name: functools.partial(way[0], scene) for name, way in ways.items()}, repeat, warmup)
        return [Row(timing, ways[timing.name][1](scene)) for timing in timings]


def agree(rows: Sequence[Row]) -> bool:
    """Whether every difference is within float32's reach."""
    return all(r.difference is not None and r.difference <= DIFFERENCE for r in rows)


def sweep(
    points: Sequence[int] = (20, 50, 100, 200, 500, 1000, 2000, 5000),
    crops: Sequence[int] = (256, 512),
    images: int = 4,
    cost: str = "ggd-l2",
    iterations: int = ITERATIONS,
    repeat: int = 3,
) -> list[Growth]:
    """Our solver over numbers of points and sizes of crop: how the time grows."""
    rows = []
    for crop, n in itertools.product(crops, points):
        scene = Scene.make(images, n, crop, cost, iterations)
        [timing] = compare({"papm": functools.partial(papm_beta, scene)}, repeat)
        rows.append(Growth(n, crop, scene.density[0].numel(), timing.median_ms))
    return rows
