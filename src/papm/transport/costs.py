"""What it costs to move one unit of mass from an annotated point to a cell, by name, in pixels.

    l2            r²                                     DM-Count
    ggd-l2        r²·exp((r²/2σ²)^(s/2))                 AL-PAPM; `stretched=True` multiplies it by (σ₀/σ)²
    ggd-l1        r·exp((r²/2σ²)^(s/2))                  the paper's cost table
    log-ggd       (r/σ)^s                                the paper's cost table (its text has a typo)
    perspective   exp(d/η) - 1, η = ½ + ⅕·ȳ              GL: d in units of 512 px, ȳ the mean height of the two, in [0, 1]

Every cost is finite in float32 for every distance: it is bounded by `cap`. All but `perspective` depend on the distance
alone, which is what makes the sparse solvers possible.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from papm import ggd
from papm.errors import ConfigError, unknown

Anchor = Literal["crop", "image"]
CostName = Literal["l2", "ggd-l2", "ggd-l1", "log-ggd", "perspective"]
NAMES = get_args(CostName)
FARTHEST = 1e5  # pixels; no image is wider


@dataclass(frozen=True)
class Cost:
    """A named cost: `cost(r2)` at squared distances in px², times `scale`, at most `cap`.

    >>> Cost("ggd-l2", sigma=16.0, shape=2.0)(torch.tensor([0.0, 256.0])).round()
    tensor([  0., 422.])
    """

    name: str = "l2"
    sigma: float = 16.0
    shape: float = 2.0
    scale: float = 1.0
    cap: float = ggd.COST_CAP
    unit: float = 512.0  # perspective: pixels to one unit of distance (GL's crop)
    anchor: Anchor = "crop"  # perspective: heights relative to the crop (as published) or to the whole image

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise unknown("cost", self.name, NAMES)
        if self.anchor not in get_args(Anchor):
            raise unknown(f"anchor of cost '{self.name}'", self.anchor, get_args(Anchor))
        for key in ("sigma", "shape", "scale", "cap", "unit"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value > 0) and not (key == "sigma" and value == math.inf):
                raise ConfigError(f"the {key} of cost '{self.name}' must be a positive number, not {value}")

    @property
    def radial(self) -> bool:
        """Whether the cost depends on the distance alone."""
        return self.name != "perspective"

    @property
    def quadratic(self) -> float | None:
        """c when the cost is c·r² everywhere, so that its kernel factors into rows and columns; else None."""
        if self.cap < ggd.COST_CAP:
            return None
        if self.name == "l2":
            return self.scale
        return self.scale / self.sigma**2 if self.name == "log-ggd" and self.shape == 2 else None

    def __call__(self, r2: Tensor) -> Tensor:
        """Cost at squared distances `r2` (px²), any shape."""
        if self.name == "l2" or (self.name == "ggd-l2" and math.isinf(self.sigma)):
            cost = r2
        elif self.name == "ggd-l2":
            cost = ggd.transport_cost(r2, self.sigma, self.shape)
        elif self.name == "ggd-l1":
            cost = r2.sqrt() * ggd.inverse_kernel(r2, self.sigma, self.shape)
        elif self.name == "log-ggd":
            cost = (r2 / self.sigma**2).pow(self.shape / 2)
        else:
            raise ConfigError("the cost 'perspective' depends on heights too; call its `pairwise`")
        return (self.scale * cost).clamp(max=self.cap)

    def pairwise(
        self, points: Tensor, cells: Tensor, top: Tensor | None = None, height: Tensor | None = None
    ) -> Tensor:
        """Cost [..., n, m] between points [..., n, 2] and cells [m, 2], both (x, y) in pixels.

        `perspective` needs the height [...] of the frame it refers to and the y [...] of the crop's top edge in it.
        """
        cells = cells.to(points)
        dx, dy = (points[..., :, None, k] - cells[:, k] for k in (0, 1))
        r2 = torch.addcmul(dx.square(), dy, dy)
        if self.radial:
            return self(r2)
        if height is None:
            raise ConfigError("the cost 'perspective' needs the height of the crop or image it refers to")
        rows = 0.5 * points[..., 1] if top is None else 0.5 * points[..., 1] + top[..., None]
        # η in pixels as a sum over rows and columns, so that one pass makes it.
        rows, columns = ((0.25 + 0.2 * part / height[..., None]) * self.unit for part in (rows, 0.5 * cells[:, 1]))
        eta = (rows[..., :, None] + columns[..., None, :]).clamp(0.5 * self.unit, 0.7 * self.unit)
        exponent = (r2.sqrt() / eta).clamp(max=60.0)
        cost = torch.expm1(exponent)
        return (cost if self.scale == 1 else self.scale * cost).clamp(max=self.cap)


def create(
    name: str | Cost,
    sigma: float = 16.0,
    shape: float = 2.0,
    *,
    stretched: bool = False,
    reference_sigma: float = 16.0,
    scale: float = 1.0,
    cap: float = ggd.COST_CAP,
    unit: float = 512.0,
    anchor: Anchor = "crop",
) -> Cost:
    """A cost by name. `stretched` widens the reach of `ggd-l2` with σ: (σ₀/σ)²·r²·exp((r²/2σ²)^(s/2)).

    At a fixed regularisation a wider σ alone does next to nothing, since the cost is never below r².

    >>> wide = create("ggd-l2", sigma=32.0, stretched=True)
    >>> bool(torch.isclose(wide(torch.tensor(32.0**2)), create("ggd-l2", sigma=16.0)(torch.tensor(16.0**2))))
    True
    """
    if isinstance(name, Cost):
        return name
    if stretched:
        if name != "ggd-l2":
            raise ConfigError(f"only the cost 'ggd-l2' has a stretched form, not '{name}'")
        scale = scale * (reference_sigma / sigma) ** 2
    return Cost(name, sigma, shape, scale, cap, unit, anchor)


def _bisect(cost: Cost, level: float) -> float:
    """The largest distance in pixels whose cost is at most `level`; infinite when none in any image exceeds it."""

    def at(r: float) -> float:
        return float(cost(torch.tensor(r, dtype=torch.float64).square()))

    if at(FARTHEST) <= level:
        return math.inf
    low, high = 0.0, FARTHEST
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) <= level else (low, middle)
    return high


@functools.lru_cache(maxsize=256)
def kernel_radius(cost: Cost, reg: float, smallest: float = 2.0**-150) -> float:
    """Distance in pixels beyond which exp(-cost/reg) is at most `smallest` (by default: rounds to zero in float32).

    Found once by bisection on the host and kept. Infinite when the kernel never gets that small.

    >>> round(kernel_radius(Cost("l2"), 10.0), 1), round(kernel_radius(Cost("ggd-l2"), 10.0), 1)
    (32.2, 21.0)
    """
    return _bisect(cost, -reg * math.log(smallest))


@functools.lru_cache(maxsize=256)
def reach_of(cost: Cost, dustbin: float) -> float:
    """Distance in pixels at which moving mass costs as much as leaving it unmatched at cost `dustbin`.

    >>> round(reach_of(Cost("ggd-l2"), 368.41), 1), round(reach_of(Cost("l2"), 368.41), 1)
    (15.3, 19.2)
    """
    return _bisect(cost, dustbin)


def dustbin_for(cost: Cost, reach: float) -> float:
    """The dustbin cost that gives this reach in pixels: the cost at that distance."""
    return float(cost(torch.tensor(reach, dtype=torch.float64).square()))
