"""Points from the proposals of a point network: those with a good score, or as many as the expected count says.

Where a network is not sure which of several proposals an object is, it divides the probability among them. The best scores
would then be two or three proposals of the objects it is surest of, and none of others.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm.structures import PointProposals

RADIUS = 16.0  # px around a proposal from which it collects probability: two cells of the network
LEAST = 0.005  # a proposal with less is no place to begin


def from_proposals(proposals: PointProposals, index: int, threshold: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals of image `index` whose best class scores above `threshold` -> points [n, 2], scores [n], labels [n].

    The score is the softmax over the classes and the background (column 0), labels count from 0.
    """
    points = proposals.points[index].detach()
    scores, labels = proposals.logits[index].detach().float().softmax(-1)[:, 1:].max(-1)
    kept = (scores > threshold).nonzero()[:, 0]
    order = kept[scores[kept].argsort(descending=True, stable=True)]
    return points[order], scores[order], labels[order]


def expected_points(
    proposals: PointProposals,
    index: int,
    number: int,
    background: float,
    roi: Tensor | None = None,
    radius: float = RADIUS,
) -> tuple[Tensor, Tensor, Tensor]:
    """`number` points of image `index` -> points [n, 2], scores [n], labels [n], best first, on the CPU; `background` is its
    weight in the loss that the scores were learned with.

    The proposal with the largest probability collects one object's worth from the nearest proposals, itself first, and its
    point is the centre of what it collected; then the one with the largest probability left, and so on. Score and label are
    that proposal's.
    Where nothing is left to collect, the best scores not used yet follow. Fewer only where there are fewer proposals.
    A centre beyond the region `roi`, bool [H, W], which its proposals lie in, gives way to the proposal itself.
    """
    # Doubles are made on the CPU: some devices have none.
    place = proposals.points[index].detach().cpu().double().numpy()
    scores, labels = (t.cpu() for t in proposals.logits[index].detach().float().softmax(-1)[:, 1:].max(-1))
    left = proposals.probabilities(background)[index].detach().sum(-1).cpu().double().numpy()
    usable = np.isfinite(place).all(-1) & np.isfinite(left)
    seeds, points = _collect(place, np.where(usable, left, 0.0), number, radius)
    if roi is not None:
        points = np.where(_within(points, roi)[:, None], points, place[seeds])
    if len(seeds) < number:
        spare = scores.numpy().copy()
        spare[seeds] = -1.0
        more = np.argsort(-spare, kind="stable")[: min(number, len(place)) - len(seeds)]
        seeds, points = np.concatenate([seeds, more]), np.concatenate([points, place[more]])
    chosen = torch.from_numpy(seeds)
    order = scores[chosen].argsort(descending=True, stable=True)
    chosen, place_of = chosen[order], torch.from_numpy(points)[order]
    return place_of.to(proposals.points.dtype), scores[chosen], labels[chosen]


def _within(points: NDArray[np.float64], roi: Tensor) -> NDArray[np.bool_]:
    region = roi.cpu().numpy()
    column, row = (np.floor(points[:, k]).astype(int).clip(0, region.shape[1 - k] - 1) for k in (0, 1))
    inside: NDArray[np.bool_] = region[row, column].astype(bool)
    return inside


def _collect(
    place: NDArray[np.float64], left: NDArray[np.float64], number: int, radius: float
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
        worth, k = heapq.heappop(queue)
        if -worth > left[k]:  # some of it was collected since
            if left[k] > LEAST:
                heapq.heappush(queue, (-left[k], k))
            continue
        assert tree is not None
        near = known[np.sort(tree.query_ball_point(place[k], radius))]
        near = near[np.argsort(((place[near] - place[k]) ** 2).sum(-1), kind="stable")]
        before = np.cumsum(left[near]) - left[near]
        taken = np.minimum(left[near], np.maximum(0.0, 1.0 - before))
        left[near] -= taken
        seeds.append(k)
        points.append(taken @ place[near] / taken.sum())
    return np.array(seeds, dtype=np.int64), np.array(points).reshape(-1, 2)
