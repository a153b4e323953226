"""Grid average mean error: is the count right, and in the right place?

GAME(L) of an image cuts it into 4^L leaves and sums the absolute errors of the leaves,

    GAME(L) = Σ_leaves |predicted mass in leaf − objects in leaf|,

so GAME(0) is the absolute counting error, and GAME never falls as L grows. The figure of a dataset is the mean over its
images. Leaves come from halving height and width L times at floor(length / 2), as the authors of TRANCOS do; both sides
are masked by the region of interest first.

A map of stride S is taken as constant inside each cell and integrated exactly over the leaves: cells that straddle a
cut are shared by area. (On the raw grid they could not be: at L=3 a leaf of a 640×480 image is 10×7.5 cells of stride 8.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from papm.errors import DataError
from papm.metrics.arrays import Array, Values, as_array

LEVELS = (0, 1, 2, 3)  # what papers on TRANCOS report
TRANCOS_SIGMA = 15.0  # the smoothing of the ground truth in the dataset authors' own evaluation


def game(
    density: Values,
    points: Values,
    *,
    size: tuple[int, int],
    stride: int = 1,
    levels: Sequence[int] = LEVELS,
    roi: Values | None = None,
    smooth: float = 0.0,
    whole_cells: bool = False,
) -> dict[int, float]:
    """GAME at each level of one image: `density` [h, w] or [C, h, w] (classes summed) against `points` [n, 2].

    `size` is (H, W) of the image, `roi` bool [H, W]. Points outside the image or the region belong to no leaf and do
    not count. `smooth` > 0 spreads each true point with a Gaussian of that many pixels before masking, as the dataset's
    authors do (`TRANCOS_SIGMA`); 0 compares with the raw points. `whole_cells`: see `leaf_counts`.

    >>> game([[0.0, 1.0]], [[2.0, 3.0]], size=(8, 16), stride=8, levels=(0, 1))
    {0: 0.0, 1: 2.0}
    """
    deepest = _deepest(levels)
    predicted = leaf_counts(density, size=size, stride=stride, level=deepest, roi=roi, whole_cells=whole_cells)
    return _game(predicted, _truth(points, size, deepest, roi, smooth), levels)


def game_points(
    predicted: Values,
    points: Values,
    *,
    size: tuple[int, int],
    levels: Sequence[int] = LEVELS,
    roi: Values | None = None,
    smooth: float = 0.0,
    weights: Values | None = None,
) -> dict[int, float]:
    """GAME at each level of one image whose prediction is points [m, 2] instead of a map; `weights` [m]: see `leaf_points`.

    >>> game_points([[1.0, 1.0]], [[1.5, 1.0], [9.0, 1.0]], size=(8, 16), levels=(0, 1))
    {0: 1.0, 1: 1.0}
    """
    deepest = _deepest(levels)
    leaves = leaf_points(predicted, size=size, level=deepest, roi=roi, weights=weights)
    return _game(leaves, _truth(points, size, deepest, roi, smooth), levels)


def cuts(length: int, level: int) -> NDArray[np.int64]:
    """The 2^level + 1 borders of the leaves along a side, by repeated halving at the floor.

    >>> cuts(15, 2).tolist()
    [0, 3, 7, 11, 15]
    """
    borders = np.array([0, length], dtype=np.int64)
    for _ in range(level):
        middles = borders[:-1] + np.diff(borders) // 2
        borders = np.insert(borders, np.arange(1, len(borders)), middles)
    return borders


def leaf_counts(
    density: Values,
    *,
    size: tuple[int, int],
    stride: int,
    level: int,
    roi: Values | None = None,
    whole_cells: bool = False,
) -> Array:
    """Mass of a density map in each leaf, [2^level, 2^level]: the exact integral of the piecewise constant map.

    The borders of cells and of leaves together make a grid (at most (h + 2^level) × (w + 2^level) patches) on which
    everything is constant but the mask, of which only the area in a patch matters; a summed-area table over the patches
    then gives every leaf.

    A cell that the border of the region cuts counts by the share of it that lies inside; with `whole_cells` its whole mass
    lies inside, as training and counting take it, so that GAME(0) is the error of the count.

    >>> leaf_counts([[1.0, 3.0]], size=(4, 12), stride=8, level=1)
    array([[0.375, 1.625],
           [0.375, 1.625]])
    """
    values = as_array(density)
    values = values.sum(0) if values.ndim == 3 else values
    h, w = size
    if values.ndim != 2 or values.shape != (-(-h // stride), -(-w // stride)):
        raise DataError(
            f"a density of shape {list(values.shape)} does not cover a {h}×{w} image at stride {stride}: "
            f"expected {-(-h // stride)}×{-(-w // stride)} cells"
        )
    rows, row_cell, row_cuts = _patches(h, stride, cuts(h, level))
    columns, column_cell, column_cuts = _patches(w, stride, cuts(w, level))
    area = np.outer(np.diff(rows), np.diff(columns)).astype(np.float64)
    if roi is not None:
        mask = _mask(roi, size).astype(np.float64)
        area = np.add.reduceat(np.add.reduceat(mask, rows[:-1], axis=0), columns[:-1], axis=1)
    # a cell at the border shows only part of its square, and its whole mass lies there
    visible = np.outer(_visible(h, stride), _visible(w, stride))
    if roi is not None and whole_cells:
        visible = np.zeros_like(values)
        np.add.at(visible, (row_cell[:, None], column_cell[None, :]), area)
        visible[visible == 0] = 1.0  # no part inside: its patches have no area either
    mass = (values / visible)[row_cell[:, None], column_cell[None, :]] * area
    return _integrate(mass, row_cuts, column_cuts)


def leaf_points(
    points: Values,
    *,
    size: tuple[int, int],
    level: int,
    roi: Values | None = None,
    weights: Values | None = None,
) -> Array:
    """Number of points in each leaf, [2^level, 2^level]; points outside the image or the region are left out.

    With `weights` [n] a point counts for its own: the chance of a proposal to be an object.

    >>> leaf_points([[1.0, 1.0], [9.0, 1.0]], size=(8, 16), level=0, weights=[0.5, 0.25])
    array([[0.75]])
    """
    xy = as_array(points).reshape(-1, 2)
    kept = _contained(xy, size, roi)
    xy, mass = xy[kept], None if weights is None else as_array(weights).reshape(-1)[kept]
    h, w = size
    row = np.searchsorted(cuts(h, level), xy[:, 1], side="right") - 1
    column = np.searchsorted(cuts(w, level), xy[:, 0], side="right") - 1
    side = 2**level
    return np.bincount(row * side + column, mass, side * side).reshape(side, side).astype(np.float64)


def _truth(points: Values, size: tuple[int, int], level: int, roi: Values | None, smooth: float) -> Array:
    if smooth <= 0:
        return leaf_points(points, size=size, level=level, roi=roi)
    from scipy.ndimage import gaussian_filter

    h, w = size
    xy = as_array(points).reshape(-1, 2)
    x, y = xy[_contained(xy, size, None)].astype(np.int64).T
    dots = np.bincount(y * w + x, minlength=h * w).reshape(h, w).astype(np.float64)
    # reflecting at the border keeps the mass of every point inside the image
    spread = gaussian_filter(dots, smooth, mode="reflect")
    if roi is not None:
        spread = spread * _mask(roi, size)
    return _integrate(spread, cuts(h, level), cuts(w, level))


def _game(predicted: Array, truth: Array, levels: Sequence[int]) -> dict[int, float]:
    """Cuts of a level are also cuts of the next: coarser leaves are blocks of the finest."""
    error = predicted - truth
    result = {}
    for level in levels:
        side = 2**level
        block = len(error) // side
        result[level] = float(np.abs(error.reshape(side, block, side, block).sum((1, 3))).sum())
    return result


def _patches(length: int, stride: int, borders: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Borders of the patches along a side, the cell each patch lies in, and where the leaf borders are among them."""
    edges = np.unique(np.concatenate([np.arange(0, length, stride), borders]))
    return edges, edges[:-1] // stride, np.searchsorted(edges, borders)


def _visible(length: int, stride: int) -> Array:
    """Pixels of each cell along a side that lie in the image."""
    starts = np.arange(0, length, stride)
    return (np.minimum(starts + stride, length) - starts).astype(np.float64)


def _integrate(mass: Array, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Array:
    """Sums of `mass` between the given borders, by a summed-area table; a leaf without width holds nothing."""
    table = np.zeros((mass.shape[0] + 1, mass.shape[1] + 1))
    np.cumsum(np.cumsum(mass, axis=0), axis=1, out=table[1:, 1:])
    corners: Array = table[np.ix_(rows, columns)]
    return np.diff(np.diff(corners, axis=0), axis=1)


def _contained(xy: Array, size: tuple[int, int], roi: Values | None) -> NDArray[np.bool_]:
    h, w = size
    inside: NDArray[np.bool_] = (xy[:, 0] >= 0) & (xy[:, 0] < w) & (xy[:, 1] >= 0) & (xy[:, 1] < h)
    if roi is not None:
        pixel = xy[inside].astype(np.int64)
        inside[inside] = _mask(roi, size)[pixel[:, 1], pixel[:, 0]]
    return inside


def _mask(roi: Values, size: tuple[int, int]) -> NDArray[np.bool_]:
    mask = as_array(roi).astype(bool)
    if mask.shape != tuple(size):
        raise DataError(f"the region of interest is {list(mask.shape)} and the image {list(size)}: give one size")
    return mask


def _deepest(levels: Sequence[int]) -> int:
    if not levels or min(levels) < 0:
        raise DataError(f"levels of GAME are 0, 1, 2 …; got {list(levels)}")
    return max(levels)
