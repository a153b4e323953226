"""The metrics as torchmetrics classes: batch by batch, right under DDP.

Sums are summed over processes. What needs every image (intervals, curves over scores) is kept in lists that are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from papm.errors import DataError
from papm.metrics import counting
from papm.metrics.counting import CountingScore, counting_errors
from papm.metrics.game import LEVELS as GAME_LEVELS
from papm.metrics.game import game, game_points
from papm.metrics.localization import LEVELS, PointScore, RadiusScore, within
from papm.metrics.normalized_ap import DELTAS, NapScore, nap_hits
from papm.metrics.pairing import Array
from papm.metrics.precision_recall import average_precision
from papm.metrics.qnrf_protocol import QNRF_THRESHOLDS, Matching, QnrfScore, qnrf


class _Accumulated(Metric):
    """States that start at zero and are summed, and lists of numbers that are joined."""

    is_differentiable = False
    full_state_update = False

    def _add_sum(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _add_lists(self, *names: str) -> None:
        for name in names:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _keep(self, name: str, values: Tensor | Array) -> None:
        # One dtype for all: a process without images joins the gathering with an empty tensor of `self.dtype`.
        getattr(self, name).append(torch.as_tensor(values).detach().flatten().to(self.device, self.dtype))

    def _kept(self, name: str) -> Array:
        state = getattr(self, name)  # after a sync one tensor, before it a list
        return dim_zero_cat(state).cpu().double().numpy() if len(state) else np.zeros(0)

    def _tensors(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        return {k: torch.tensor(float(v), device=self.device) for k, v in values.items()}

    def _figures(self, scores: Mapping[str, PointScore]) -> dict[str, Tensor]:
        figures = ("precision", "recall", "f1")
        return self._tensors({f"{f}_{name}": getattr(s, f) for name, s in scores.items() for f in figures})


class CountingMetrics(_Accumulated):
    """MAE, RMSE, NAE and bias over everything seen. The counts of single images are kept and gathered, so that
    `score`, `interval` and `counts` speak of all processes; those three are collective calls, as `compute` is.

    >>> metric = CountingMetrics()
    >>> metric.update(torch.tensor([12.0, 7.0]), torch.tensor([10.0, 10.0]))
    >>> metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    >>> round(metric.compute()["mae"].item(), 4), metric.score().n
    (2.0, 3)
    """

    higher_is_better = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._add_lists("predicted", "truth")

    def update(self, predicted: Tensor, truth: Tensor) -> None:
        """Add the counts of a batch, [B] each."""
        if predicted.numel() != truth.numel():
            raise DataError(f"{predicted.numel()} predicted counts for {truth.numel()} true ones")
        self._keep("predicted", predicted)
        self._keep("truth", truth)

    def compute(self) -> dict[str, Tensor]:
        """The four errors as tensors of no dimension, ready for `log_dict`."""
        score = counting_errors(self._kept("predicted"), self._kept("truth"))
        return self._tensors({k: getattr(score, k) for k in ("mae", "rmse", "nae", "bias")})

    def counts(self) -> tuple[Array, Array]:
        """Predicted and true counts of every image of every process, in no particular order."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            return self._kept("predicted"), self._kept("truth")

    def score(self) -> CountingScore:
        """The four errors as plain numbers."""
        return counting_errors(*self.counts())

    def interval(self, samples: int = 2000, level: float = 0.95, seed: int = 0) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals, see `counting.bootstrap`."""
        return counting.bootstrap(*self.counts(), samples=samples, level=level, seed=seed)


class GridErrors(_Accumulated):
    """GAME at each level: the mean over all images of all processes, see `papm.metrics.game`.

    >>> metric = GridErrors(levels=(0, 1))
    >>> metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 3.0]]), size=(8, 16), stride=8)
    >>> {k: v.item() for k, v in metric.compute().items()}
    {'game0': 0.0, 'game1': 2.0}
    """

    higher_is_better = False
    total: Tensor  # [levels]
    images: Tensor

    def __init__(self, levels: Sequence[int] = GAME_LEVELS, smooth: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.levels, self.smooth = tuple(levels), smooth
        self._add_sum("total", len(self.levels), dtype=torch.float64)
        self._add_sum("images", dtype=torch.float64)

    def update(self, density: Tensor | None, points: Tensor, *, predicted: Tensor | None = None, **image: Any) -> None:
        """Add one image: a map, or with `density` None the `predicted` points, against the true points.

        `image` is `size`, `stride`, `roi` and `whole_cells` of `game.game`, or `size` and `roi` of `game.game_points`.
        """
        how: dict[str, Any] = {"levels": self.levels, "smooth": self.smooth, **image}
        if density is None and predicted is None:
            raise DataError("give a density map, or predicted points")
        found = game_points(predicted, points, **how) if density is None else game(density, points, **how)  # type: ignore[arg-type]
        self.total += torch.tensor([found[k] for k in self.levels], dtype=torch.float64, device=self.total.device)
        self.images += 1

    def compute(self) -> dict[str, Tensor]:
        """`game0`, `game1`, … as tensors of no dimension, ready for `log_dict`; NaN before the first image."""
        return {f"game{k}": mean for k, mean in zip(self.levels, self.total / self.images)}


class RadiusLocalization(_Accumulated):
    """Precision, recall and F1 of points within fixed radii, maximum matching, see `localization.within`.

    >>> metric = RadiusLocalization((2, 8))
    >>> metric.update([torch.tensor([[0.0, 3.0]])], [torch.tensor([[0.0, 0.0]])])
    >>> {k: v.item() for k, v in metric.compute().items() if k.startswith("f1")}
    {'f1_2': 0.0, 'f1_8': 1.0}
    """

    higher_is_better = True
    sums: Tensor  # [radii, 3]: tp, fp, fn

    def __init__(self, radii: Sequence[float] = (4.0, 8.0), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.radii = tuple(float(r) for r in radii)
        self._add_sum("sums", len(self.radii), 3)

    def update(self, predicted: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
        """Add a batch: one tensor [n, 2] per image each."""
        for k, radius in enumerate(self.radii):
            self.sums[k] += _counts(within(predicted, truth, radius)).to(self.sums.device)

    def compute(self) -> dict[str, Tensor]:
        """precision_R, recall_R and f1_R for each radius R."""
        return self._figures({f"{r:g}": s for r, s in zip(self.radii, _scores(self.sums))})


class NwpuLocalization(_Accumulated):
    """The protocol of NWPU-Crowd, see `localization.nwpu`.

    >>> metric = NwpuLocalization()
    >>> here = [torch.tensor([[5.0, 5.0]])]
    >>> metric.update(here, here, [torch.tensor([2.0])], [torch.tensor([4.0])], [torch.tensor([1])])
    >>> metric.compute()["f1_sigma_l"].item(), metric.compute()["recall_sigma_l_level_1"].item()
    (1.0, 1.0)
    """

    higher_is_better = True
    sums: Tensor  # [2, 3]: of sigma_l and sigma_s; tp, fp, fn
    levels: Tensor  # [2, 6, 2]: found, objects

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._add_sum("sums", 2, 3)
        self._add_sum("levels", 2, LEVELS, 2)

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
            self.sums[k] += _counts(score).to(self.sums.device)
            if score.levels:
                self.levels[k] += torch.tensor(list(score.levels.values()), device=self.levels.device)

    def compute(self) -> dict[str, Tensor]:
        """precision, recall and f1 of sigma_l and sigma_s, and recall_…_level_K of the levels that have objects."""
        names = ("sigma_l", "sigma_s")
        by_level = {
            f"recall_{name}_level_{level}": found / objects
            for name, table in zip(names, self.levels.tolist())
            for level, (found, objects) in enumerate(table)
            if objects
        }
        return {**self._figures(dict(zip(names, _scores(self.sums)))), **self._tensors(by_level)}


class QnrfLocalization(_Accumulated):
    """The protocol of UCF-QNRF, see `papm.metrics.qnrf`.

    >>> metric = QnrfLocalization()
    >>> metric.update([torch.tensor([[5.0, 5.0]])], [torch.tensor([[5.0, 5.0]])], [torch.tensor([0.9])])
    >>> {k: v.item() for k, v in metric.compute().items()}
    {'precision': 1.0, 'recall': 1.0, 'f1': 1.0, 'auc': 1.0, 'auc_threshold': 1.0}
    """

    higher_is_better = True
    pairs: Tensor  # [T]
    points: Tensor  # [2]: predicted, annotated

    def __init__(
        self, thresholds: Sequence[float] = QNRF_THRESHOLDS, matching: Matching = "greedy", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.thresholds, self.matching = tuple(thresholds), matching
        self._add_sum("pairs", len(self.thresholds))
        self._add_sum("points", 2)
        self._add_lists("ranks", "distances")  # score of each prediction; distance to its partner, infinite without one

    def update(
        self, predicted: Sequence[Tensor], truth: Sequence[Tensor], scores: Sequence[Tensor] | None = None
    ) -> None:
        """Add a batch: points [n, 2] and objects [m, 2] of each image, and scores [n] where there are some."""
        found = qnrf(predicted, truth, self.thresholds, self.matching, scores=scores)
        if found.scores is not None and found.distances is not None:
            self._keep("ranks", found.scores)
            self._keep("distances", found.distances)
        self.pairs += torch.from_numpy(found.pairs.sum(0)).to(self.pairs.device)
        self.points += torch.tensor([int(found.predicted.sum()), int(found.objects.sum())], device=self.points.device)

    def compute(self) -> dict[str, Tensor]:
        """Means of precision, recall and f1 over the thresholds, and the two areas; `auc` where all points had scores."""
        pairs, points = self.pairs.cpu().numpy(), self.points.cpu().numpy()
        ranks, distances = self._kept("ranks"), self._kept("distances")
        scored = (ranks, distances) if len(ranks) == points[0] else (None, None)
        limits = np.asarray(self.thresholds, dtype=np.float64)
        made = QnrfScore(limits, pairs[None], points[:1], points[1:], self.matching, *scored).to_dict()
        keys = ("precision", "recall", "f1", "auc", "auc_threshold")
        return self._tensors({k: made[k] for k in keys if made[k] is not None})


class NormalizedAP(_Accumulated):
    """nAP of P2PNet, see `normalized_ap.nap`.

    >>> metric = NormalizedAP()
    >>> here = [torch.tensor([[5.0, 5.0], [9.0, 9.0]])]
    >>> metric.update(here, [torch.tensor([0.9, 0.8])], here)
    >>> metric.compute()["nap"].item()
    1.0
    """

    higher_is_better = True
    objects: Tensor

    def __init__(self, deltas: Sequence[float] = DELTAS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deltas = tuple(deltas)
        self._add_lists("ranks", "hits")  # score of each prediction; 1 where it is a hit, for each δ
        self._add_sum("objects")

    def update(self, predicted: Sequence[Tensor], scores: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
        """Add a batch: points [n, 2] and scores [n] of each image, and its objects [m, 2]."""
        for p, s, t in zip(predicted, scores, truth, strict=True):
            ranks, hits = nap_hits(p, s, t, self.deltas)
            self._keep("ranks", ranks)
            self._keep("hits", torch.from_numpy(hits))
            self.objects += len(t)

    def compute(self) -> dict[str, Tensor]:
        """`nap`, and `ap_D` for each δ."""
        ranks, table = self._kept("ranks"), self._kept("hits").reshape(-1, len(self.deltas)) > 0
        score = NapScore(self.deltas, tuple(average_precision(ranks, h, int(self.objects)) for h in table.T))
        return self._tensors({"nap": score.mean, **{f"ap_{d:.2f}": a for d, a in zip(score.deltas, score.ap)}})


def _counts(score: RadiusScore) -> Tensor:
    return torch.tensor([score.total.tp, score.total.fp, score.total.fn])


def _scores(sums: Tensor) -> list[PointScore]:
    return [PointScore(*map(int, row)) for row in sums.tolist()]
