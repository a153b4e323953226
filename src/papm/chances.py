"""Points of a point network that is counted by chances: one for every object's worth of chance.

Where a network is not sure which of several proposals an object is, it divides one chance among them. The best scores would
then be two or three proposals of the objects it is surest of, and none of others.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.structures import PointProposals

REACH = 16.0  # px around a proposal from which it collects chance: two cells of the network
LEAST = 0.005  # a proposal with less is no place to begin


def gather(
    proposals: PointProposals, index: int, number: int, roi: Tensor | None = None, reach: float = REACH
) -> tuple[Tensor, Tensor, Tensor]:
    """`number` points of image `index` -> points [n, 2], scores [n], labels [n], best first, on the CPU.

    The proposal with the largest chance collects one unit of it from the nearest proposals, itself first, and its point is the
    centre of what it collected; then the one with the largest chance left, and so on. Score and label are that proposal's.
    Where nothing is left to collect, the best scores not used yet follow. Fewer only where there are fewer proposals.
    A centre beyond the region `roi`, bool [H, W], which its proposals lie in, gives way to the proposal itself.
    """
    # Doubles are made on the CPU: some devices have none.
    place = proposals.points[index].detach().cpu().double().numpy()
    scores, labels = (t.cpu() for t in proposals.logits[index].detach().float().softmax(-1)[:, 1:].max(-1))
    left = proposals.chances[index].detach().sum(-1).cpu().double().numpy()
    usable = np.isfinite(place).all(-1) & np.isfinite(left)
    seeds, points = _collect(place, np.where(usable, left, 0.0), number, reach)
    if roi is not None:
        points = np.where(_within(points, roi)[:, None], points, place[seeds])
    if len(seeds) < number:
        spare = scores.numpy().copy()
        spare[seeds] = -1.0
        more = np.argsort(-spare, kind="stable")[: min(number, len(place)) - len(seeds)]
        seeds, points = np.concatenate([seeds, more]), np.concatenate([points, place[more]])
    chosen = torch.from_numpy(seeds)
    order = scores[chosen].argsort(descending=True, stable=True)
    chosen, made = chosen[order], torch.from_numpy(points)[order]
    return made.to(proposals.points.dtype), scores[chosen], labels[chosen]


def _within(points: NDArray[np.float64], roi: Tensor) -> NDArray[np.bool_]:
    region = roi.cpu().numpy()
    column, row = (np.floor(points[:, k]).astype(int).clip(0, region.shape[1 - k] - 1) for k in (0, 1))
    inside: NDArray[np.bool_] = region[row, column].astype(bool)
    return inside


def _collect(
    place: NDArray[np.float64], left: NDArray[np.float64], number: int, reach: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Proposals that began, in order, and the centres of what each collected; `left` is used up."""
    from scipy.spatial import cKDTree

    known = np.flatnonzero(left > LEAST)
    tree = cKDTree(place[known]) if len(known) else None
    queue = [(-left[k], int(k)) for k in known]
    heapq.heapify(queue)
    seeds: list[int] = []
    points: list[NDArray[np.float64]] = []
    while queue and len(seeds) < number:
        chance, k = heapq.heappop(queue)
        if -chance > left[k]:  # some of it was collected since
            if left[k] > LEAST:
                heapq.heappush(queue, (-left[k], k))
            continue
        assert tree is not None
        near = known[np.sort(tree.query_ball_point(place[k], reach))]
        near = near[np.argsort(((place[near] - place[k]) ** 2).sum(-1), kind="stable")]
        before = np.cumsum(left[near]) - left[near]
        taken = np.minimum(left[near], np.maximum(0.0, 1.0 - before))
        left[near] -= taken
        seeds.append(k)
        points.append(taken @ place[near] / taken.sum())
    return np.array(seeds, dtype=np.int64), np.array(points).reshape(-1, 2)
