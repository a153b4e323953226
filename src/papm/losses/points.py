"""P2PNet and P2P-PAPM: proposals are matched one-to-one with the points, then classified and moved.

Matching cost of point i and proposal j at distance r, with ĉ the score of the point's class:

    p2pnet     0.05·r − ĉ                                 (P2PNet; the paper writes r², its baseline's code has r)
    p2p-papm   τ·r²·exp((r²/2σ²)^(s/2)) − ĉ               (the paper's GGD-L2)

    ℓ = CE(classes, background weighs ½) + 2e-4 · Σ‖p̂ − p‖² / n        (+ count_weight · |Σ chances − n|, off by default)

With the paper's τ = 1e-5 the cost stays below 0.36 inside 40 px: the score alone decides, a network chooses its own
positives, and its counts degenerate. `p2p-papm-literal` is that. `p2p-papm` sets τ = κ/C(σ), so that a proposal σ away
costs κ = 0.4 (P2PNet's cost at 8 px), and begins with P2PNet's cost. To bound σ by half the distance to the neighbours
(`bounded`) did harm on photographs as on drawn crowds (docs/results.md).
P2PNet's published code drops the second term by a mistyped key; here it counts, `point_weight=0` turns it off.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from papm import ggd, matching
from papm.config import BACKGROUND_WEIGHT
from papm.errors import ConfigError, DataError, unknown
from papm.losses.base import LossContext, PointLoss, register
from papm.points import batch_spacing
from papm.structures import LossOutput, PointBatch, PointProposals

SLOPE = 0.05  # P2PNet's cost of a pixel, in units of score
BLOCKED = (
    100.0  # added to the cost of proposals beyond the image or the region of interest: taken only if nothing is left
)
FARTHEST = 1e4  # px; distances beyond it count as this, so that no cost is infinite
COSTS = ("l2", "ggd")
NORMALIZERS = ("weighted", "n1")


def l2_cost(r2: Tensor) -> Tensor:
    """0.05·r, P2PNet's.

    >>> l2_cost(torch.tensor([64.0, 400.0]))
    tensor([0.4000, 1.0000])
    """
    return SLOPE * r2.sqrt()


def ggd_cost(
    r2: Tensor, sigma: float | Tensor, shape: float = 2.0, tau: float | Tensor = 1e-5, cap: float = 10.0
) -> Tensor:
    """τ·r²·exp((r²/2σ²)^(s/2)); where that exceeds `cap`, cap + 0.05·r: finite, and still growing with the distance.

    Scores differ by at most 1, so beyond a few units the cost only says "not this one"; how much it says so would cost
    the solver its precision. Where nothing else is left, the nearest is still the best.

    >>> ggd_cost(torch.tensor([8.0, 16.0, 32.0, 45.0]).square(), 16.0)
    tensor([7.2521e-04, 4.2207e-03, 7.5664e-02, 1.0570e+00])
    """
    cost = tau * ggd.transport_cost(r2, sigma, shape)
    return torch.where(cost <= cap, cost, cap + l2_cost(r2))


class PointMatchingLoss(PointLoss):
    """One-to-one matching, weighted cross-entropy of all proposals, squared distance of the matched ones.

    `tau=None` is κ/C(σ); `bounded` clips σ to half of each point's spacing, between `sigma_min` and `sigma`; `l2_warmup` is
    the part of training (`progress`) that begins with P2PNet's cost. `normalizer`: the cross-entropy is divided by its
    weights ("weighted", P2PNet's code) or by the number of proposals ("n1", its paper). Proposals whose reference lies
    within `ignore_border` px of a border that cuts the image are never called background: their object may have its
    point beyond it. Mind that a network then never learns what background looks like at a border; the training setting
    `margin`, which takes the loss away from borders and shows those of the image inside the crop, does not have that
    fault (synthetic crowds, small trunk: MAE 5.5 without either, 3.0 with a margin of 16, 298 with a band of 16).
    `count_weight` adds the error of the number to be expected, |Σ chances − n|, mean of the images: cross-entropy asks
    for it as well, but a crowded crop has no more say there than its proposals have.
    """

    def __init__(
        self,
        stride: int = 8,
        *,
        cost: str = "l2",
        sigma: float = 16.0,
        shape: float = 2.0,
        tau: float | None = None,
        kappa: float = 0.4,
        bounded: bool = False,
        sigma_min: float = 3.0,
        l2_warmup: float = 0.0,
        cap: float = 10.0,
        background_weight: float = BACKGROUND_WEIGHT,
        point_weight: float = 2e-4,
        normalizer: str = "weighted",
        ignore_border: float = 0.0,
        count_weight: float = 0.0,
    ) -> None:
        super().__init__(stride)
        if cost not in COSTS:
            raise unknown("matching cost", cost, COSTS)
        if normalizer not in NORMALIZERS:
            raise unknown("normalizer", normalizer, NORMALIZERS)
        if tau is not None and (isinstance(tau, bool) or not isinstance(tau, int | float)):
            raise ConfigError(f"tau of a point loss is a number, or null for kappa/C(sigma), not '{tau}'")
        if not isinstance(bounded, bool):
            raise ConfigError(f"bounded of a point loss is true or false, not '{bounded}'")
        positive = {"sigma": sigma, "shape": shape, "kappa": kappa, "sigma_min": sigma_min, "cap": cap}
        for name, value in {**positive, **({} if tau is None else {"tau": tau})}.items():
            if not 0 < value < torch.inf:
                raise ConfigError(f"{name} of a point loss must be positive, not {value}")
        others = {
            "background_weight": background_weight,
            "point_weight": point_weight,
            "ignore_border": ignore_border,
            "count_weight": count_weight,
        }
        for name, value in others.items():
            if not 0 <= value < torch.inf:
                raise ConfigError(f"{name} of a point loss must not be negative, but is {value}")
        if count_weight and not background_weight:
            raise ConfigError("count_weight needs a background_weight above 0: without background no chance is known")
        if not 0 <= l2_warmup <= 1:
            raise ConfigError(f"l2_warmup is a part of training between 0 and 1, not {l2_warmup}")
        self.cost, self.sigma, self.shape, self.tau, self.kappa = cost, float(sigma), float(shape), tau, float(kappa)
        self.bounded, self.sigma_min = bounded, min(float(sigma_min), float(sigma))
        self.l2_warmup, self.cap, self.normalizer = float(l2_warmup), float(cap), normalizer
        self.background_weight, self.ignore_border = float(background_weight), float(ignore_border)
        self.weights = {"classification": 1.0, "points": float(point_weight), "distance": 0.0, "surplus": 0.0}
        if count_weight:
            self.weights["count"] = float(count_weight)

    @property
    def phase(self) -> bool:
        """Whether distances still cost as P2PNet's do."""
        return self.progress < self.l2_warmup

    # -- matching ----------------------------------------------------------------------------------------------------

    def bandwidth(self, points: PointBatch) -> float | Tensor:
        """σ of the cost: one number, or one a point [B, N]."""
        if not self.bounded:
            return self.sigma
        spacing = batch_spacing(points.xy, points.valid) if points.extents is None else points.extents
        return (0.5 * spacing).clamp(self.sigma_min, self.sigma)

    def distance_cost(self, r2: Tensor, points: PointBatch) -> Tensor:
        """The cost of distance alone, [B, N, M] from squared distances of that shape."""
        r2 = r2.clamp(max=FARTHEST**2)
        if self.cost == "l2" or self.phase:
            return l2_cost(r2)
        sigma = self.bandwidth(points)
        tau: float | Tensor
        if self.tau is not None:
            tau = self.tau
        elif isinstance(sigma, Tensor):
            tau = (self.kappa / ggd.transport_cost(sigma**2, sigma, self.shape))[..., None]
        else:
            tau = self.kappa / (sigma**2 * math.exp(0.5 ** (self.shape / 2)))  # κ/C(σ)
        if isinstance(sigma, Tensor):
            sigma = sigma[..., None].to(r2)
        return ggd_cost(r2, sigma, self.shape, tau, self.cap)

    @torch.no_grad()
    def matching_cost(self, proposals: PointProposals, points: PointBatch, real: Tensor | None = None) -> Tensor:
        """[B, N, M], always finite; rows of padding mean nothing. `real` [B, M]: proposals that may be taken."""
        x, y = (points.xy.to(proposals.points)[..., None, k] - proposals.points[:, None, :, k] for k in (0, 1))
        scores = proposals.logits.softmax(-1)
        if scores.shape[-1] == 2:
            score = scores[:, None, :, 1]
        else:
            m = scores.shape[1]
            score = scores.mT.gather(1, (1 + self._labels(proposals, points))[..., None].expand(-1, -1, m))
        cost = self.distance_cost(x.square_().add_(y.square_()), points) - score
        if real is not None:
            cost = cost + BLOCKED * (~real[:, None]).to(cost)
        # A network that has gone astray must end in the trainer's message about the loss, not in the solver.
        return torch.nan_to_num(cost, nan=FARTHEST, posinf=FARTHEST, neginf=-FARTHEST)

    def match(self, proposals: PointProposals, points: PointBatch, real: Tensor | None = None) -> Tensor:
        """[B, N] int64: the proposal of each point, -1 for padding and where there are more points than proposals."""
        counts = points.valid.sum(1)
        return matching.assign_batch(self.matching_cost(proposals, points, real), counts).columns

    # -- the loss ----------------------------------------------------------------------------------------------------

    def compute_proposals(
        self, proposals: PointProposals, points: PointBatch, context: LossContext | None
    ) -> LossOutput:
        logits = proposals.logits
        b, m, columns = logits.shape
        if columns < 2:
            raise ConfigError(f"logits need a background column and one a class, not {columns} in all")
        if m == 0:  # an image of two pixels: it has no reference points
            none, missed = logits.sum() + proposals.points.sum(), points.valid.sum().to(logits) / max(1, b)
            terms = {**dict.fromkeys(self.weights, none.detach()), "surplus": missed}
            if "count" in self.weights:
                terms["count"] = missed
            return LossOutput(none + self.weights.get("count", 0.0) * missed, terms, dict(self.weights))
        real = _real(proposals.reference, context)
        chosen = self.match(proposals, points, real)
        matched = chosen >= 0

        # One column more than there are proposals takes what is not matched: no shape depends on the values.
        target = logits.new_zeros(b, m + 1, dtype=torch.int64)
        target.scatter_(1, torch.where(matched, chosen, m), 1 + self._labels(proposals, points))
        target = target[:, :-1]
        positive = target > 0
        counted = torch.ones_like(positive) if real is None else real
        if self.ignore_border:
            counted = counted & ~_cut_border(proposals.reference, self.ignore_border, context)
        weight = torch.where(positive, 1.0, self.background_weight * counted.to(logits))
        entropy = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(weight)
        divisor = weight.sum() if self.normalizer == "weighted" else (positive | counted).sum().to(weight)
        # Nothing to classify (all proposals left out): 0, not 0/0.
        classification = (weight * entropy).sum() / divisor.clamp(min=torch.finfo(weight.dtype).tiny)

        place = proposals.points.gather(1, chosen.clamp(min=0)[..., None].expand(-1, -1, 2))
        squared = torch.where(matched[..., None], place - points.xy.to(logits), 0.0).square().sum(-1)
        number, pairs = points.valid.sum(), matched.sum()
        regression = squared.sum() / number.clamp(min=1)
        terms = {
            "classification": classification,
            "points": regression,
            "distance": squared.detach().sqrt().sum() / pairs.clamp(min=1),  # px, mean of the matched pairs
            "surplus": (number - pairs).to(logits) / max(1, b),  # points an image that got no proposal
        }
        total = classification + self.weights["points"] * regression
        if "count" in self.weights:
            chances = replace(proposals, background=self.background_weight).chances.sum(-1)
            expected = (chances if real is None else chances * real).sum(1)
            terms["count"] = (expected - points.valid.sum(1)).abs().mean()
            total = total + self.weights["count"] * terms["count"]
        return LossOutput(total, {k: v.detach() for k, v in terms.items()}, dict(self.weights))

    def _labels(self, proposals: PointProposals, points: PointBatch) -> Tensor:
        """Class of each point from 0, [B, N]; all 0 for a network of one class, whatever the labels say."""
        classes = proposals.logits.shape[-1] - 1
        if points.labels is None or classes == 1:
            return torch.zeros_like(points.valid, dtype=torch.int64)
        if not points.labels.is_cuda:  # looking would stop a GPU
            wrong = points.labels[points.valid & ((points.labels < 0) | (points.labels >= classes))]
            if len(wrong):
                raise DataError(f"a point has the class {int(wrong[0])}; the network knows classes 0 to {classes - 1}")
        return points.labels.clamp(0, classes - 1)

    def extra_repr(self) -> str:
        if self.cost == "l2":
            return f"l2, {SLOPE}·r"
        return f"ggd, sigma={self.sigma}, shape={self.shape}, tau={self.tau}, bounded={self.bounded}"


def _real(reference: Tensor, context: LossContext | None) -> Tensor | None:
    """bool [B, M]: references on pixels that count; None when all do."""
    if context is None or context.mask is None:
        return None
    h, w = context.mask.shape[-2:]
    x, y = reference.long().unbind(-1)
    return context.mask[:, y.clamp(max=h - 1), x.clamp(max=w - 1)]


def _cut_border(reference: Tensor, band: float, context: LossContext | None) -> Tensor:
    """bool [1 or B, M]: references within `band` px of a side of the crop; sides that are the image's own do not count."""
    if not len(reference):
        return torch.zeros(1, 0, dtype=torch.bool, device=reference.device)
    size = reference.amax(0) + reference.amin(0)  # (W, H): references lie symmetrically in a crop of whole cells
    near = torch.cat([reference < band, reference > size - band], -1)  # [M, 4]: left, top, right, bottom
    if context is None or context.offsets is None or context.sizes is None:
        return near.any(-1)[None]
    corner = context.offsets.to(reference)
    cut = torch.cat([corner > 0, corner + size < context.sizes.to(reference).flip(-1)], -1)  # [B, 4]
    return (near[None] & cut[:, None]).any(-1)


def _p2pnet(  # without the options of the GGD, which would do nothing
    stride: int = 8,
    *,
    background_weight: float = BACKGROUND_WEIGHT,
    point_weight: float = 2e-4,
    normalizer: str = "weighted",
    ignore_border: float = 0.0,
    count_weight: float = 0.0,
) -> PointMatchingLoss:
    return PointMatchingLoss(
        stride,
        cost="l2",
        background_weight=background_weight,
        point_weight=point_weight,
        normalizer=normalizer,
        ignore_border=ignore_border,
        count_weight=count_weight,
    )


_p2p_papm = functools.partial(PointMatchingLoss, cost="ggd")

register("p2pnet", _p2pnet)
register("p2p-papm", functools.partial(_p2p_papm, l2_warmup=0.3))
register("p2p-papm-literal", functools.partial(_p2p_papm, tau=1e-5))
