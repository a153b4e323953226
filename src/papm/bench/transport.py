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

REG = 10.0
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
    stride: int
    cost: Cost
    iterations: int

    @staticmethod
    def make(
        images: int, n: int, crop: int, stride: int, cost: Cost, iterations: int, device: str = "cpu", seed: int = 0
    ) -> Scene:
        """Random, the same for the same numbers."""
        if min(images, n, crop // stride, iterations) < 1:
            raise ConfigError("a transport benchmark needs at least one image, point, cell and iteration")
        rng = torch.Generator().manual_seed(seed)
        side = crop // stride
        xy = [torch.rand(n, 2, generator=rng) * crop for _ in range(images)]
        density = torch.rand(images, side, side, generator=rng) ** 4 + 0.002
        density = density * (torch.rand(images, side, side, generator=rng) > 0.3)
        density[:, 0, 0] += 0.002  # no map is empty, however small
        return Scene(PointBatch.from_list(xy, device), density.to(device), stride, cost, iterations)

    def problem(self, image: int) -> tuple[Tensor, Tensor, Tensor]:
        """Weights a [n], b [m] and cost [n, m] of one image, dense."""
        xy, z = self.points.xy[image], self.density[image].flatten()
        size = (self.density.shape[1], self.density.shape[2])
        cost = self.cost.pairwise(xy, cell_centres(size, self.stride, xy))
        return torch.full_like(xy[:, 0], 1 / len(xy)), z / z.sum(), cost


def papm_beta(scene: Scene, solver: str = "auto", double: bool = False) -> Tensor:
    """Our potentials of the cells, [B, m]."""
    points, density = scene.points, scene.density
    if double:
        points, density = PointBatch(points.xy.double(), points.valid), density.double()
    result = grid_sinkhorn(
        points, density, scene.stride, scene.cost, REG, scene.iterations, solver  # type: ignore[arg-type]
    )  # fmt: skip
    return result.potentials[1]


def pot_beta(scene: Scene, method: str = "sinkhorn", double: bool = False) -> Tensor:
    """POT's, image by image on its torch backend, exactly as many iterations, [B, m].

    Its plain solver stops at the first division by zero, which these kernels give at once: the cost is capped where
    float32 still holds the kernel.
    """
    ot = importlib.import_module("ot")
    found = []
    for k in range(len(scene.points)):
        a, b, cost = scene.problem(k)
        cost = cost.clamp(max=80 * REG)
        if double:
            a, b, cost = a.double(), b.double() + 1e-9, cost.double()
            b = b / b.sum()
        _, log = ot.sinkhorn(
            a, b, cost, REG, method=method, numItermax=scene.iterations, stopThr=0, log=True, warn=False
        )
        found.append(REG * (log["log_v"] if "log_v" in log else log["v"].log()))
    return torch.stack(found)


def geomloss_beta(scene: Scene) -> Tensor:
    """geomloss's, as many annealed steps as we have iterations, [B, m]: its tensorised log-domain solver, all at once."""
    geomloss = importlib.import_module("geomloss")
    xy, cells, diameter, ratio = _annealing(scene)
    loss = geomloss.SamplesLoss(
        "sinkhorn", p=1, blur=REG, scaling=ratio, diameter=diameter, debias=False, potentials=True,
        cost=lambda x, y: scene.cost(torch.cdist(x, y).square()).clamp(max=80 * REG), backend="tensorized",
    )  # fmt: skip
    a = scene.points.valid / scene.points.counts[:, None]
    b = scene.density.flatten(1) / scene.density.sum((1, 2))[:, None]
    found: Tensor = loss(a.to(xy), xy, b, cells.expand(len(xy), -1, -1).contiguous())[1]
    return found.reshape(len(xy), -1)


def _annealing(scene: Scene) -> tuple[Tensor, Tensor, float, float]:
    """Points, cells, and the schedule from the largest cost down to ε in `iterations` steps."""
    size = (scene.density.shape[1], scene.density.shape[2])
    top = 80 * REG
    steps = max(2, scene.iterations - 2) - 0.5  # between whole numbers: rounding must not decide their number
    return (
        scene.points.xy,
        cell_centres(size, scene.stride, scene.points.xy),
        top,
        math.exp(math.log(REG / top) / steps),
    )


def _largest(got: Tensor, want: Tensor, free_constant: bool = False) -> float:
    got, want = got.double(), want.double()
    keep = torch.isfinite(got) & torch.isfinite(want)
    error = torch.where(keep, got - want, 0.0)
    if free_constant:  # balanced potentials are known up to one number per image
        count = keep.sum(-1, keepdim=True).clamp(min=1)
        error = torch.where(keep, error - error.sum(-1, keepdim=True) / count, 0.0)
    return float(error.abs().max() / torch.where(keep, want, 0.0).abs().max())


def pot_difference(scene: Scene) -> float:
    """POT's log solver against ours without a dustbin, float64, equal iterations."""
    got = pot_beta(scene, "sinkhorn_log", double=True)
    want = []
    for k in range(len(scene.points)):
        a, b, cost = (t.double() for t in scene.problem(k))
        b = (b + 1e-9) / (b + 1e-9).sum()
        solved = sinkhorn(a, b, cost.clamp(max=80 * REG), REG, scene.iterations, "log", dustbin=math.inf)
        want.append(REG * solved.log_v[0])
    return _largest(got, torch.stack(want), free_constant=True)


def geomloss_difference(scene: Scene) -> float:
    """geomloss against our annealed solver on the same schedule, float32."""
    xy, cells, diameter, ratio = _annealing(scene)
    a = (scene.points.valid / scene.points.counts[:, None]).to(xy)
    b = scene.density.flatten(1) / scene.density.sum((1, 2))[:, None]
    cost = scene.cost.pairwise(xy, cells).clamp(max=80 * REG)
    ours = unbalanced(a, b, cost, REG, math.inf, diameter=diameter, ratio=ratio)
    return _largest(geomloss_beta(scene), ours.g, free_constant=True)


def run(
    images: int = 4,
    points: int = 200,
    crop: int = 256,
    stride: int = 8,
    cost: str = "ggd-l2",
    iterations: int = 100,
    device: str = "cpu",
    repeat: int = 5,
    warmup: int = 1,
    seed: int = 0,
) -> list[Row]:
    """Time each solver in turn on one batch; the first row is ours. Libraries that are not installed have no row."""
    scene = Scene.make(images, points, crop, stride, create_cost(cost), iterations, device, seed)
    ways: dict[str, Callable[[], Tensor]] = {
        "papm": functools.partial(papm_beta, scene),
        "papm, torch alone": functools.partial(papm_beta, scene, "graph" if device != "cpu" else "sparse"),
    }
    if importlib.util.find_spec("ot") is not None:
        ways["POT, torch, image by image"] = functools.partial(pot_beta, scene)
    if importlib.util.find_spec("geomloss") is not None:
        ways["geomloss, batched"] = functools.partial(geomloss_beta, scene)
    with torch.no_grad():
        timings = compare(ways, repeat, warmup)
        exact = papm_beta(scene, "reference", double=True)
        differences: dict[str, Callable[[], float]] = {
            "papm": lambda: _largest(ways["papm"](), exact),
            "papm, torch alone": lambda: _largest(ways["papm, torch alone"](), exact),
            "POT, torch, image by image": lambda: pot_difference(scene),
            "geomloss, batched": lambda: geomloss_difference(scene),
        }
        return [Row(timing, differences[timing.name]()) for timing in timings]


def agree(rows: Sequence[Row]) -> bool:
    """Whether every difference is within float32's reach."""
    return all(r.difference is not None and r.difference <= DIFFERENCE for r in rows)


def sweep(
    points: Sequence[int] = (20, 50, 100, 200, 500, 1000, 2000, 5000),
    crops: Sequence[int] = (256, 512),
    images: int = 4,
    stride: int = 8,
    cost: str = "ggd-l2",
    iterations: int = 100,
    device: str = "cpu",
    repeat: int = 3,
    seed: int = 0,
) -> list[Growth]:
    """Our solver over numbers of points and sizes of crop: how the time grows."""
    rows = []
    for crop in crops:
        for n in points:
            scene = Scene.make(images, n, crop, stride, create_cost(cost), iterations, device, seed)
            [timing] = compare({"papm": functools.partial(papm_beta, scene)}, repeat)
            rows.append(Growth(n, crop, scene.density[0].numel(), timing.median_ms))
    return rows
