"""Which predicted point is which annotated one: one-to-one pairing within a distance.

Two ways to pair, and they differ (by up to half a point of F1 on real prediction files):

- `greedy`: all pairs in order of distance, a pair is taken when both its ends are free;
- `maximum`: as many pairs as possible, distances only decide who may pair (maximum cardinality bipartite matching).

Points [n, 2] in, index arrays out. Results do not depend on the order of the points: they are put into one order first,
and ties go by it. Candidates come from a k-d tree, the maximum pairing from scipy.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.spatial import cKDTree

from papm.errors import DataError
from papm.metrics.arrays import Array as Array
from papm.metrics.arrays import Values, as_array

Indices = NDArray[np.int64]
Points = Values

MAX_PAIRS = 50_000_000  # candidates held at once, about 2 GB; a set of 200,000 points has a few million
_SLACK = 1e-9  # the tree compares squares; what it offers is compared again, by distance


def array(values: Points, *, columns: int | None = None, what: str = "points") -> Array:
    """Finite float64 [n], or [n, columns]; tensors come to the host."""
    try:
        made = as_array(values)
    except (TypeError, ValueError):  # text, or rows of unequal length
        raise DataError(f"{what} are numbers in a regular array") from None
    if columns is None:
        made = made.reshape(-1)
    elif made.size == 0:
        made = made.reshape(0, columns)
    elif made.ndim != 2 or made.shape[1] != columns:
        raise DataError(f"{what} are [n, {columns}], not {list(made.shape)}")
    if not np.isfinite(made).all():
        raise DataError(f"{what} hold a value that is not finite; leave such points out")
    return made


def canonical(points: Array, *more: Array) -> Indices:
    """The order by x, then y, then what else tells points apart [n]."""
    order: Indices = np.lexsort((*reversed(more), points[:, 1], points[:, 0]))
    return order


def candidates(predicted: Array, truth: Array, radius: float | Array) -> tuple[Indices, Indices, Array]:
    """Every pair with distance ≤ radius, one for all or one for each annotated point [m]: prediction, truth, distance.

    >>> candidates(np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([[3.0, 4.0]]), 5.0)
    (array([0]), array([0]), array([5.]))
    """
    limit = np.broadcast_to(np.asarray(radius, dtype=np.float64), len(truth))
    if not len(predicted) or not len(truth):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    tree = cKDTree(predicted)
    wide = limit * (1 + _SLACK) + _SLACK
    if len(predicted) * len(truth) > MAX_PAIRS:
        total = int(np.sum(tree.query_ball_point(truth, wide, return_length=True)))
        require_few(len(predicted), len(truth), total, MAX_PAIRS)
    lists = tree.query_ball_point(truth, wide, return_sorted=True)
    rows = np.fromiter(chain.from_iterable(lists), np.int64)
    columns = np.repeat(np.arange(len(truth)), [len(found) for found in lists])
    offset = predicted[rows] - truth[columns]
    distance = np.sqrt(offset[:, 0] ** 2 + offset[:, 1] ** 2)
    near = distance <= limit[columns]
    return rows[near], columns[near], distance[near]


def require_few(predicted: int, truth: int, pairs: int, most: int) -> None:
    """Refuse more candidates than memory should hold."""
    if pairs > most:
        raise DataError(
            f"{predicted} predictions and {truth} annotated points make {pairs} pairs within the distance "
            f"asked for, more than {most}; use a smaller distance, or look for points repeated thousands of times"
        )


def first_come(rows: Iterable[int], columns: Iterable[int]) -> Indices:
    """One pass over pairs in their order: the places of those taken, both ends being free.

    >>> first_come([0, 0, 1], [0, 1, 0]).tolist()
    [0]
    """
    row_taken: set[int] = set()
    column_taken: set[int] = set()
    taken = []
    for place, (row, column) in enumerate(zip(rows, columns)):
        if row not in row_taken and column not in column_taken:
            row_taken.add(row)
            column_taken.add(column)
            taken.append(place)
    return np.asarray(taken, dtype=np.int64)


def greedy(predicted: Array, truth: Array, radius: float) -> tuple[Indices, Indices, Array]:
    """Pairs taken in order of distance, up to `radius`: prediction, truth, distance, nearest first.

    Those with distance ≤ t are the greedy pairing at t, for every t ≤ radius.

    The radius grows in steps of two, and only points still free go on: all nearer pairs have lost an end by then. So the
    candidates stay few where a crowd has a thousand neighbours within 100 px.

    >>> greedy(np.array([[5.0, 0.0], [11.0, 0.0]]), np.array([[0.0, 0.0], [6.0, 0.0]]), 10.0)
    (array([0]), array([1]), array([1.]))
    """
    free_p, free_t = canonical(predicted), canonical(truth)
    found: list[tuple[Indices, Indices, Array]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for step in (64, 32, 16, 8, 4, 2, 1):
        rows, columns, distance = candidates(predicted[free_p], truth[free_t], radius / step)
        order = np.lexsort((columns, rows, distance))
        rows, columns, distance = rows[order], columns[order], distance[order]
        taken = first_come(rows.tolist(), columns.tolist())
        found.append((free_p[rows[taken]], free_t[columns[taken]], distance[taken]))
        free_p, free_t = np.delete(free_p, rows[taken]), np.delete(free_t, columns[taken])
        if not len(free_p) or not len(free_t):
            break
    rows, columns, distance = (np.concatenate(part) for part in zip(*found))
    return rows, columns, distance


def maximum(predicted: Array, truth: Array, radius: float | Array) -> Indices:
    """As many pairs as there are within `radius`, one or one for each annotated point [m]: for each its prediction, or -1.

    >>> maximum(np.array([[5.0, 0.0], [11.0, 0.0]]), np.array([[0.0, 0.0], [6.0, 0.0]]), 5.0).tolist()
    [0, 1]
    """
    rows, columns, distance = candidates(predicted, truth, radius)
    return largest(rows, columns, distance, (len(predicted), len(truth)))


def largest(rows: Indices, columns: Indices, distance: Array, sizes: tuple[int, int]) -> Indices:
    """`maximum` of known candidates between so many predictions and annotated points; the nearest are tried first."""
    order = np.lexsort((rows, distance, columns))
    near = csr_matrix((np.ones(len(rows), np.int8), (columns[order], rows[order])), shape=sizes[::-1])
    partner: Indices = maximum_bipartite_matching(near, perm_type="column").astype(np.int64)
    return partner
