"""Which predicted point is which annotated one: one-to-one pairing within a distance.

Two ways to pair, and they differ (by up to half a point of F1 on real prediction files):

- `greedy`: all pairs in order of distance, a pair is taken when both its ends are free;
- `maximum`: as many pairs as possible, distances only decide who may pair (maximum cardinality bipartite matching).

Points [n, 2] in, index arrays out. Results do not depend on the order of the points: they are put into one order first,
and ties go by it. Neither way recurses, and candidates come from a k-d tree.

(scipy.sparse.csgraph has a maximum matching too, which the tests compare with. It starts from nothing: within 100 px in a
crowd of 7,600 it takes 5 s where starting from the greedy pairs takes 0.2 s.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from papm.errors import DataError
from papm.text import Brief

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Points = ArrayLike | Tensor

MAX_PAIRS = 50_000_000  # candidates held at once, about 2 GB; a set of 200,000 points has a few million
_SLACK = 1e-9  # the tree compares squares; what it offers is compared again, by distance


def array(values: Points, *, columns: int | None = None, what: str = "points") -> Array:
    """Finite float64 [n], or [n, columns]; tensors come to the host."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    try:
        made = np.asarray(values, dtype=np.float64)
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
    reach = np.broadcast_to(np.asarray(radius, dtype=np.float64), len(truth))
    if not len(predicted) or not len(truth):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    tree = cKDTree(predicted)
    wide = reach * (1 + _SLACK) + _SLACK
    if len(predicted) * len(truth) > MAX_PAIRS:
        total = int(np.sum(tree.query_ball_point(truth, wide, return_length=True)))
        require_few(len(predicted), len(truth), total, MAX_PAIRS)
    lists = tree.query_ball_point(truth, wide, return_sorted=True)
    rows = np.fromiter(chain.from_iterable(lists), np.int64)
    columns = np.repeat(np.arange(len(truth)), [len(found) for found in lists])
    offset = predicted[rows] - truth[columns]
    distance = np.sqrt(offset[:, 0] ** 2 + offset[:, 1] ** 2)
    near = distance <= reach[columns]
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


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Brief):
    """Who may pair with whom: the predictions near each annotated point, nearest first."""

    rows: Indices  # [pairs] predictions, those of truth 0 first
    columns: Indices  # [pairs] annotated points, rising
    distance: Array  # [pairs]
    starts: Indices  # [m + 1] where the neighbours of each annotated point begin
    size: int  # number of predictions

    @staticmethod
    def near(predicted: Array, truth: Array, radius: float | Array) -> Graph:
        """The graph of all pairs with distance ≤ radius."""
        rows, columns, distance = candidates(predicted, truth, radius)
        order = np.lexsort((rows, distance, columns))
        starts = np.zeros(len(truth) + 1, np.int64)
        np.cumsum(np.bincount(columns, minlength=len(truth)), out=starts[1:])
        return Graph(rows[order], columns[order], distance[order], starts, len(predicted))

    def start(self) -> Indices:
        """A greedy pairing to begin with [m]: for each annotated point its prediction, or -1."""
        order = np.lexsort((self.columns, self.rows, self.distance))
        taken = order[first_come(self.rows[order].tolist(), self.columns[order].tolist())]
        partner = np.full(len(self.starts) - 1, -1, dtype=np.int64)
        partner[self.columns[taken]] = self.rows[taken]
        return partner


def maximum(
    graph: Graph, threshold: float = np.inf, start: Indices | None = None, enough: int | None = None
) -> Indices:
    """As many pairs as the graph has within `threshold`: for each annotated point [m] its prediction, or -1.

    Grows a given pairing (which must lie within the threshold) along augmenting paths: a breadth-first forest from all
    free annotated points at once, one path from each tree that meets a free prediction, until no tree meets one; then
    no pairing is larger (Berge). Stops early at `enough` pairs, where the caller knows that there are no more.

    >>> graph = Graph.near(np.array([[5.0, 0.0], [11.0, 0.0]]), np.array([[0.0, 0.0], [6.0, 0.0]]), 5.0)
    >>> graph.start().tolist(), maximum(graph).tolist()
    ([-1, 0], [0, 1])
    """
    row_of = graph.start() if start is None else start.copy()
    column_of = np.full(graph.size, -1, dtype=np.int64)
    column_of[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    lengths = np.diff(graph.starts)
    if np.isfinite(threshold):
        lengths = np.bincount(graph.columns[graph.distance <= threshold], minlength=len(lengths))
    limit = min(len(row_of), graph.size) if enough is None else enough
    while (row_of >= 0).sum() < limit:
        parent, ends = _forest(graph, lengths, row_of, column_of)
        if not ends:
            break
        for end in ends:
            row = end
            while row >= 0:  # the free column at the root had no row
                column = parent[row]
                row_of[column], column_of[row], row = row, column, row_of[column]
    return row_of


def _forest(graph: Graph, lengths: Indices, row_of: Indices, column_of: Indices) -> tuple[Indices, list[int]]:
    """For each row the column it was reached from [n] or -1, and one free row of each tree that has one."""
    frontier = np.flatnonzero((row_of < 0) & (lengths > 0))
    root = np.full(len(row_of), -1, dtype=np.int64)
    root[frontier] = frontier
    ended = np.zeros(len(row_of), dtype=bool)
    parent = np.full(graph.size, -1, dtype=np.int64)
    last = np.zeros(graph.size, dtype=np.int64)
    ends: list[int] = []
    while len(frontier):
        length = lengths[frontier]
        place = np.arange(length.sum()) + np.repeat(graph.starts[frontier] - (np.cumsum(length) - length), length)
        rows, source = graph.rows[place], np.repeat(frontier, length)
        new = parent[rows] < 0
        rows, source = rows[new], source[new]
        turn = np.arange(len(rows))
        last[rows] = turn  # of several columns that reach a row, the last has it
        only = last[rows] == turn
        rows, source = rows[only], source[only]
        parent[rows] = source
        frontier = column_of[rows]
        free = frontier < 0
        if free.any():
            trees, first = np.unique(root[source[free]], return_index=True)
            ends += rows[free][first].tolist()
            ended[trees] = True
            frontier, source = frontier[~free], source[~free]
        root[frontier] = root[source]
        if ends:
            frontier = frontier[~ended[root[frontier]]]
    return parent, ends
