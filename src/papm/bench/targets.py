"""How fast a learning target is drawn: ours against the loop people write, and against a filtered dot map."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from papm import ggd
from papm.bench.timing import Timing, compare
from papm.errors import ConfigError
from papm.targets import TOLERANCE, density_map

Map = NDArray[np.float32]

DIFFERENCE = 1e-5  # float32: the kernel's peak is about 0.01, rounding of it 1e-9, and hundreds of kernels may overlap
SUM_ERROR = 1e-4  # the sum of a map is the count to this, for up to ...
SUM_POINTS = 3000  # ... so many points; beyond, float32 allows no more than the same share


@dataclass(frozen=True)
class Row:
    """One way to draw the target. `difference`: largest from ours, pixel by pixel; none where another map is drawn."""

    timing: Timing
    sum_error: float
    difference: float | None = None


def loop_map(points: NDArray[np.float32], size: tuple[int, int], sigma: float = 4.0, shape: float = 8.0) -> Map:
    """The target of points [n, 2] by a NumPy loop that adds one normalised kernel window a point.

    A fair opponent: only the window is evaluated, the same one as ours; pixel centres are made once; the exponents in use
    are reached by squaring; everything is float32.
    """
    out = np.zeros(size, dtype=np.float32)
    radius = math.floor(ggd.support_radius(sigma, shape, TOLERANCE) + 0.5)
    rows = np.arange(size[0], dtype=np.float32)[:, None] + np.float32(0.5)
    columns = np.arange(size[1], dtype=np.float32)[None, :] + np.float32(0.5)
    scale = np.float32(1 / (2 * sigma * sigma))
    squarings = int(math.log2(shape)) - 1 if shape in (2, 4, 8, 16) else None
    for x, y in points.tolist():
        if not (0 <= x < size[1] and 0 <= y < size[0]):
            continue
        i, j = int(y), int(x)
        window = slice(max(i - radius, 0), i + radius + 1), slice(max(j - radius, 0), j + radius + 1)
        t = (np.square(rows[window[0]] - np.float32(y)) + np.square(columns[:, window[1]] - np.float32(x))) * scale
        if squarings is None:
            t = t ** np.float32(shape / 2)
        else:
            for _ in range(squarings):
                t *= t
        k = np.exp(-t)
        out[window] += k / k.sum()
    return out


def filtered_map(points: NDArray[np.float32], size: tuple[int, int], sigma: float = 4.0) -> Map:
    """The Gaussian target as a filtered map of dots: points move to pixel centres, and borders reflect."""
    dots = np.zeros(size, dtype=np.float32)
    cells = np.floor(points).astype(np.int64)
    inside = (cells >= 0).all(1) & (cells[:, 0] < size[1]) & (cells[:, 1] < size[0])
    np.add.at(dots, (cells[inside, 1], cells[inside, 0]), 1.0)
    made: Map = gaussian_filter(dots, sigma, mode="reflect", truncate=math.sqrt(-2 * math.log(TOLERANCE)))
    return made


def scatter(n: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """n points uniform over an image (H, W), float32 [n, 2]."""
    rng = np.random.default_rng([seed, 17])
    limit = np.array([size[1], size[0]], dtype=np.float32)
    xy = (rng.uniform(0, 1, (n, 2)) * limit).astype(np.float32)
    return torch.from_numpy(np.minimum(xy, np.nextafter(limit, np.float32(0))))  # rounding may reach the border


def run(
    points: int = 3000,
    size: tuple[int, int] = (768, 1024),
    sigma: float = 4.0,
    shape: float = 8.0,
    repeat: int = 5,
) -> list[Row]:
    """Draw the target of random points on the CPU in each way, timed in turn; the first row is ours."""
    if points < 1 or min(size) < 1:
        raise ConfigError(f"a target needs at least one point and one pixel, not {points} points, size {size}")
    xy = scatter(points, size)
    array = xy.numpy()
    ways: dict[str, Callable[[], Any]] = {
        "papm ggd": lambda: density_map(xy, size, "ggd", sigma, shape).numpy(),
        "NumPy loop, ggd": lambda: loop_map(array, size, sigma, shape),
        "papm gaussian": lambda: density_map(xy, size, "gaussian", sigma).numpy(),
        "scipy.ndimage filter, gaussian": lambda: filtered_map(array, size, sigma),
    }
    timings = compare(ways, repeat)
    own: Map = ways["papm ggd"]()
    rows = []
    for timing in timings:
        made: Map = ways[timing.name]()
        difference = float(np.abs(made - own).max()) if timing.name.endswith("ggd") else None
        rows.append(Row(timing, abs(float(made.sum(dtype=np.float64)) - points), difference))
    return rows


def agree(rows: list[Row], points: int) -> bool:
    """Whether the ways that draw the same target do, and our sums are the count."""
    same = all(r.difference is None or r.difference <= DIFFERENCE for r in rows)
    bound = SUM_ERROR * max(1.0, points / SUM_POINTS)
    return same and all(r.sum_error <= bound for r in rows if r.timing.name.startswith("papm"))
