"""Localization as torchmetrics metrics: lists of points, batch by batch, right under DDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from papm.metrics.localization import (
    LEVELS,
    QNRF_THRESHOLDS,
    Matching,
    PointScore,
    QnrfScore,
    RadiusScore,
    qnrf,
    within,
)
from papm.metrics.normalized_ap import DELTAS, NapScore, nap_hits
from papm.metrics.pairing import array
from papm.metrics.precision_recall import average_precision


class RadiusLocalization(Metric):
    """Precision, recall and F1 of points within fixed radii, maximum matching, see `localization.within`.

    >>> metric = RadiusLocalization((2, 8))
    >>> metric.update([torch.tensor([[0.0, 3.0]])], [torch.tensor([[0.0, 0.0]])])
    >>> {k: v.item() for k, v in metric.compute().items() if k.startswith("f1")}
    {'f1_2': 0.0, 'f1_8': 1.0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    counts: Tensor  # [radii, 3]: tp, fp, fn

    def __init__(self, radii: Sequence[float] = (4.0, 8.0), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.radii = tuple(float(r) for r in radii)
        self.add_state("counts", torch.zeros(len(self.radii), 3, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
        """Add a batch: one tensor [n, 2] an image each."""
        for k, radius in enumerate(self.radii):
            self.counts[k] += _counts(within(predicted, truth, radius)).to(self.counts.device)

    def scores(self) -> list[PointScore]:
        """The score of each radius, over what this process holds (within `compute`: over all)."""
        return [PointScore(*map(int, row)) for row in self.counts.tolist()]

    def compute(self) -> dict[str, Tensor]:
        """precision_R, recall_R and f1_R for each radius R."""
        return _figures({f"{r:g}": s for r, s in zip(self.radii, self.scores())}, self.device)


class NwpuLocalization(Metric):
    """The protocol of NWPU-Crowd, see `localization.nwpu`.

    >>> metric = NwpuLocalization()
    >>> here = [torch.tensor([[5.0, 5.0]])]
    >>> metric.update(here, here, [torch.tensor([2.0])], [torch.tensor([4.0])], [torch.tensor([1])])
    >>> metric.compute()["f1_sigma_l"].item(), metric.compute()["recall_sigma_l_level_1"].item()
    (1.0, 1.0)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    counts: Tensor  # [2, 3]: of sigma_l and sigma_s; tp, fp, fn
    levels: Tensor  # [2, 6, 2]: found, objects

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(2, 3, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("levels", torch.zeros(2, LEVELS, 2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[Tensor],
        truth: Sequence[Tensor],
        sigma_s: Sequence[Tensor],
        sigma_l: Sequence[Tensor],
        levels: Sequence[Tensor] | None = None,
    ) -> None:
        """Add a batch: points [n, 2] and objects [m, 2] of each image, with σ_s, σ_l and level [m] of the objects."""
        for k, sigma in enumerate((sigma_l, sigma_s)):
            score = within(predicted, truth, sigma, levels)
            self.counts[k] += _counts(score).to(self.counts.device)
            if score.levels:
                self.levels[k] += torch.tensor(list(score.levels.values()), device=self.levels.device)

    def compute(self) -> dict[str, Tensor]:
        """precision, recall and f1 of sigma_l and sigma_s, and recall_…_level_K of the levels that have objects."""
        names = ("sigma_l", "sigma_s")
        made = _figures({n: PointScore(*map(int, row)) for n, row in zip(names, self.counts.tolist())}, self.device)
        for name, table in zip(names, self.levels.tolist()):
            for level, (found, objects) in enumerate(table):
                if objects:
                    made[f"recall_{name}_level_{level}"] = torch.tensor(found / objects, device=self.device)
        return made


class QnrfLocalization(Metric):
    """The protocol of UCF-QNRF, see `localization.qnrf`.

    >>> metric = QnrfLocalization()
    >>> metric.update([torch.tensor([[5.0, 5.0]])], [torch.tensor([[5.0, 5.0]])], [torch.tensor([0.9])])
    >>> {k: v.item() for k, v in metric.compute().items()}
    {'precision': 1.0, 'recall': 1.0, 'f1': 1.0, 'auc': 1.0, 'auc_threshold': 1.0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    pairs: Tensor  # [T]
    points: Tensor  # [2]: predicted, annotated
    ranks: list[Tensor]  # scores [n]
    distances: list[Tensor]  # [n] to the partner, infinite where there is none

    def __init__(
        self, thresholds: Sequence[float] = QNRF_THRESHOLDS, matching: Matching = "greedy", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.thresholds, self.matching = tuple(thresholds), matching
        self.add_state("pairs", torch.zeros(len(self.thresholds), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("points", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("ranks", default=[], dist_reduce_fx="cat")
        self.add_state("distances", default=[], dist_reduce_fx="cat")

    def update(
        self, predicted: Sequence[Tensor], truth: Sequence[Tensor], scores: Sequence[Tensor] | None = None
    ) -> None:
        """Add a batch: points [n, 2] and objects [m, 2] of each image, and scores [n] where there are some."""
        found = qnrf(predicted, truth, self.thresholds, self.matching, scores=scores)
        if found.scores is not None and found.distances is not None:
            self.ranks.append(torch.from_numpy(found.scores).to(self.device, self.dtype))
            self.distances.append(torch.from_numpy(found.distances).to(self.device, self.dtype))
        self.pairs += torch.from_numpy(found.pairs.sum(0)).to(self.pairs.device)
        self.points += torch.tensor([int(found.predicted.sum()), int(found.objects.sum())], device=self.points.device)

    def compute(self) -> dict[str, Tensor]:
        """Means of precision, recall and f1 over the thresholds, and the two areas; `auc` where all points had scores."""
        pairs, points = self.pairs.cpu().numpy(), self.points.cpu().numpy()
        limits = np.asarray(self.thresholds, dtype=np.float64)
        ranks, distances = (
            dim_zero_cat(part).cpu().double().numpy() if len(part) else np.zeros(0)
            for part in (self.ranks, self.distances)
        )
        scored = (ranks, distances) if len(ranks) == points[0] else (None, None)
        made = QnrfScore(limits, pairs[None], points[:1], points[1:], self.matching, *scored).to_dict()
        keys = ("precision", "recall", "f1", "auc", "auc_threshold")
        return {k: torch.tensor(made[k], device=self.device) for k in keys if made[k] is not None}


class NormalizedAP(Metric):
    """nAP of P2PNet, see `normalized_ap.nap`.

    >>> metric = NormalizedAP()
    >>> here = [torch.tensor([[5.0, 5.0], [9.0, 9.0]])]
    >>> metric.update(here, [torch.tensor([0.9, 0.8])], here)
    >>> metric.compute()["nap"].item()
    1.0
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    ranks: list[Tensor]  # scores [n]
    hits: list[Tensor]  # [n, deltas], 1.0 where a prediction is a hit
    objects: Tensor

    def __init__(self, deltas: Sequence[float] = DELTAS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deltas = tuple(deltas)
        self.add_state("ranks", default=[], dist_reduce_fx="cat")
        self.add_state("hits", default=[], dist_reduce_fx="cat")
        self.add_state("objects", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Sequence[Tensor], scores: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
        """Add a batch: points [n, 2] and scores [n] of each image, and its objects [m, 2]."""
        for p, s, t in zip(predicted, scores, truth, strict=True):
            ranks, hits = nap_hits(p, s, t, self.deltas)
            # one dtype for all: a process without images joins the gathering with an empty tensor of `self.dtype`
            self.ranks.append(torch.from_numpy(ranks).to(self.device, self.dtype))
            self.hits.append(torch.from_numpy(hits).to(self.device, self.dtype).flatten())
            self.objects += len(t)

    def compute(self) -> dict[str, Tensor]:
        """`nap`, and `ap_D` for each δ."""
        ranks = array(dim_zero_cat(self.ranks)) if len(self.ranks) else np.zeros(0)
        hits = array(dim_zero_cat(self.hits)) if len(self.hits) else np.zeros(0)
        table = hits.reshape(-1, len(self.deltas)) > 0
        score = NapScore(self.deltas, tuple(average_precision(ranks, h, int(self.objects)) for h in table.T))
        made = {f"ap_{d:.2f}": a for d, a in zip(score.deltas, score.ap)}
        return {k: torch.tensor(v, device=self.device) for k, v in {"nap": score.mean, **made}.items()}


def _counts(score: RadiusScore) -> Tensor:
    return torch.tensor([score.total.tp, score.total.fp, score.total.fn])


def _figures(scores: dict[str, PointScore], device: torch.device | str) -> dict[str, Tensor]:
    return {
        f"{figure}_{name}": torch.tensor(float(getattr(score, figure)), device=device)
        for name, score in scores.items()
        for figure in ("precision", "recall", "f1")
    }
