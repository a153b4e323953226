"""P2PNet and P2P-PAPM: proposals are matched one-to-one with the points, then classified and moved.

Matching cost of point i and proposal j at distance r, with ĉ the score of the point's class:

    p2pnet     0.05·r − ĉ                                 (P2PNet; the paper writes r², its baseline's code has r)
    p2p-papm   τ·r²·exp((r²/2σ²)^(s/2)) − ĉ               (the paper's GGD-L2)

    ℓ = CE(classes, background weighs ½) + 2e-4 · Σ‖p̂ − p‖² / n

With the paper's τ = 1e-5 the cost stays below 0.36 inside 40 px: the score alone decides, a network chooses its own
positives, and its counts degenerate. `p2p-papm-literal` is that. `p2p-papm` sets τ = κ/C(σ), so that a proposal σ away
costs κ = 0.4 (P2PNet's cost at 8 px), and begins with P2PNet's cost.
P2PNet's published code drops the second term by a mistyped key; here it counts, `point_weight=0` turns it off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from papm import ggd, matching
from papm.config import BACKGROUND_WEIGHT
from papm.errors import ConfigError, DataError
from papm.losses.base import LossContext, PointLoss
from papm.losses.registry import FunctionLoss, register
from papm.registry import AtLeastOne, NonNegative, Positive, Share
from papm.structures import LossOutput, PointBatch, PointProposals

SLOPE = 0.05  # P2PNet's cost of a pixel, in units of score
BLOCKED = 100.0  # added to the cost of proposals beyond the image or region of interest: taken only if nothing is left
FARTHEST = 1e4  # px; distances beyond it count as this, so that no cost is infinite

DistanceCost = Callable[[Tensor], Tensor]  # of squared distances


def l2_cost(r2: Tensor) -> Tensor:
    """0.05·r, P2PNet's.

    >>> l2_cost(torch.tensor([64.0, 400.0]))
    tensor([0.4000, 1.0000])
    """
    return SLOPE * r2.sqrt()


def ggd_cost(r2: Tensor, sigma: float, shape: float = 2.0, tau: float = 1e-5, cap: float = 10.0) -> Tensor:
    """τ·r²·exp((r²/2σ²)^(s/2)); where that exceeds `cap`, cap + 0.05·r: finite, and still growing with the distance.

    Scores differ by at most 1, so beyond a few units the cost only says "not this one"; how much it says so would cost
    the solver its precision. Where nothing else is left, the nearest is still the best.

    >>> ggd_cost(torch.tensor([8.0, 16.0, 32.0, 45.0]).square(), 16.0)
    tensor([7.2521e-04, 4.2207e-03, 7.5664e-02, 1.0570e+00])
    """
    cost = tau * ggd.transport_cost(r2, sigma, shape)
    return torch.where(cost <= cap, cost, cap + l2_cost(r2))


def p2pnet(
    proposals: PointProposals,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    background_weight: NonNegative = BACKGROUND_WEIGHT,
    point_weight: NonNegative = 2e-4,
    published: bool = False,
    context: LossContext | None = None,
) -> LossOutput:
    """P2PNet: cross-entropy + point_weight·Σ‖p̂ − p‖²/n of proposals matched at the cost 0.05·r − ĉ (Song et al. 2021).

    `PointProposals` of M points per image, points B × [n, 2]. The cross-entropy is divided by the sum of its weights, as in
    the authors' code; `published` divides it by the number of proposals, as their paper has it.

    >>> from papm.losses import functional
    >>> xy = torch.tensor([[8.0, 8.0], [24.0, 8.0]])
    >>> functional.p2pnet(PointProposals(xy[None], torch.zeros(1, 2, 2), xy), [torch.tensor([[8.0, 8.0]])])
    tensor(0.6931)
    """
    return _matched(proposals, points, l2_cost, background_weight, point_weight, published, context)


def p2p_papm(
    proposals: PointProposals,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 16.0,
    shape: Positive = 2.0,
    tau: Positive | None = None,
    kappa: Positive = 0.4,
    l2_warmup: Share = 0.3,
    cap: Positive = 10.0,
    background_weight: NonNegative = BACKGROUND_WEIGHT,
    point_weight: NonNegative = 2e-4,
    published: bool = False,
    progress: float = 1.0,
    context: LossContext | None = None,
) -> LossOutput:
    """P2P-PAPM: `p2pnet` matched at the cost τ·r²·exp((r²/2σ²)^(s/2)) − ĉ (paper, section on P2PNet).

    `tau=None` is κ/C(σ). Where `progress`, the part of training that is done, is below `l2_warmup`, the cost is P2PNet's.

    >>> from papm.losses import functional
    >>> xy = torch.tensor([[8.0, 8.0], [24.0, 8.0]])
    >>> functional.p2p_papm(PointProposals(xy[None], torch.zeros(1, 2, 2), xy), [torch.tensor([[8.0, 8.0]])])
    tensor(0.6931)
    """
    cost = distance_cost(sigma, shape, tau, kappa, cap) if progress >= l2_warmup else l2_cost
    return _matched(proposals, points, cost, background_weight, point_weight, published, context)


@functools.lru_cache(maxsize=64)
def distance_cost(sigma: float, shape: float, tau: float | None, kappa: float, cap: float = 10.0) -> DistanceCost:
    """The GGD cost with its factor τ, or κ/C(σ) where that is None.

    >>> distance_cost(16.0, 2.0, None, 0.4)(torch.tensor([256.0]))
    tensor([0.4000])
    """
    if tau is None:
        tau = kappa / float(ggd.transport_cost(np.float64(sigma**2), sigma, shape))
    return functools.partial(ggd_cost, sigma=sigma, shape=shape, tau=tau, cap=cap)


# --- matching -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def matching_cost(
    proposals: PointProposals, points: PointBatch, cost: DistanceCost, real: Tensor | None = None
) -> Tensor:
    """[B, N, M], always finite; rows of padding mean nothing. `real` [B, M]: proposals that may be taken."""
    x, y = (points.xy.to(proposals.points)[..., None, k] - proposals.points[:, None, :, k] for k in (0, 1))
    scores = proposals.logits.softmax(-1)
    if scores.shape[-1] == 2:
        score = scores[:, None, :, 1]
    else:
        m = scores.shape[1]
        score = scores.mT.gather(1, (1 + _labels(proposals, points))[..., None].expand(-1, -1, m))
    table = cost(x.square_().add_(y.square_()).clamp(max=FARTHEST**2)) - score
    if real is not None:
        table = table + BLOCKED * (~real[:, None]).to(table)
    # A network that has gone astray must end in the trainer's message about the loss, not in the solver.
    return torch.nan_to_num(table, nan=FARTHEST, posinf=FARTHEST, neginf=-FARTHEST)


def match(proposals: PointProposals, points: PointBatch, cost: DistanceCost, real: Tensor | None = None) -> Tensor:
    """[B, N] int64: the proposal of each point, -1 for padding and where there are more points than proposals."""
    return matching.assign_batch(matching_cost(proposals, points, cost, real), points.valid.sum(1)).columns


# --- the loss -----------------------------------------------------------------------------------------------------------


def _matched(
    proposals: PointProposals,
    points: PointBatch,
    cost: DistanceCost,
    background_weight: float,
    point_weight: float,
    published: bool,
    context: LossContext | None,
) -> LossOutput:
    logits = proposals.logits
    b, m, columns = logits.shape
    weights = {"classification": 1.0, "points": float(point_weight), "distance": 0.0, "surplus": 0.0}
    if columns < 2:
        raise ConfigError(f"logits need a background column and one a class, not {columns} in all")
    if m == 0:  # an image of two pixels: it has no reference points
        none, missed = logits.sum() + proposals.points.sum(), points.valid.sum().to(logits) / max(1, b)
        return LossOutput.of({**dict.fromkeys(weights, none), "surplus": missed}, weights)
    real = _real(proposals.reference, context)
    chosen = match(proposals, points, cost, real)
    matched = chosen >= 0

    # One column more than there are proposals takes what is not matched: no shape depends on the values.
    target = logits.new_zeros(b, m + 1, dtype=torch.int64)
    target.scatter_(1, torch.where(matched, chosen, m), 1 + _labels(proposals, points))
    target = target[:, :-1]
    positive = target > 0
    counted = torch.ones_like(positive) if real is None else real
    weight = torch.where(positive, 1.0, background_weight * counted.to(logits))
    entropy = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(weight)
    divisor = (positive | counted).sum().to(weight) if published else weight.sum()

    place = proposals.points.gather(1, chosen.clamp(min=0)[..., None].expand(-1, -1, 2))
    squared = torch.where(matched[..., None], place - points.xy.to(logits), 0.0).square().sum(-1)
    number, pairs = points.valid.sum(), matched.sum()
    terms = {
        # Nothing to classify (all proposals left out): 0, not 0/0.
        "classification": (weight * entropy).sum() / divisor.clamp(min=torch.finfo(weight.dtype).tiny),
        "points": squared.sum() / number.clamp(min=1),
        "distance": squared.detach().sqrt().sum() / pairs.clamp(min=1),  # px, mean of the matched pairs
        "surplus": (number - pairs).to(logits) / max(1, b),  # points per image that got no proposal
    }
    return LossOutput.of(terms, weights)


def _labels(proposals: PointProposals, points: PointBatch) -> Tensor:
    """Class of each point from 0, [B, N]; all 0 for a network of one class, whatever the labels say."""
    classes = proposals.logits.shape[-1] - 1
    if points.labels is None or classes == 1:
        return torch.zeros_like(points.valid, dtype=torch.int64)
    if not points.labels.is_cuda:  # on a GPU this would be a host sync
        wrong = points.labels[points.valid & ((points.labels < 0) | (points.labels >= classes))]
        if len(wrong):
            raise DataError(f"a point has the class {int(wrong[0])}; the network knows classes 0 to {classes - 1}")
    return points.labels.clamp(0, classes - 1)


def _real(reference: Tensor, context: LossContext | None) -> Tensor | None:
    """bool [B, M]: references on pixels that count; None when all do."""
    if context is None or context.mask is None:
        return None
    h, w = context.mask.shape[-2:]
    x, y = reference.long().unbind(-1)
    return context.mask[:, y.clamp(max=h - 1), x.clamp(max=w - 1)]


class PointMatchingLoss(FunctionLoss, PointLoss):
    """The module: it knows how far training is."""

    @property
    def phase(self) -> bool:
        """Whether distances still cost as P2PNet's do."""
        return bool(self.progress < self.options.get("l2_warmup", 0.0))

    def compute(self, prediction: Any, points: PointBatch, context: LossContext | None) -> LossOutput:
        progress = {"progress": self.progress} if "l2_warmup" in self.options else {}
        given = {"stride": self.stride, "context": context, **progress}
        return self.function(prediction, points, **given, **self.options)


register("p2pnet", p2pnet, PointMatchingLoss)
register("p2p-papm", p2p_papm, PointMatchingLoss)
register("p2p-papm-literal", functools.partial(p2p_papm, tau=1e-5, l2_warmup=0.0), PointMatchingLoss)
