"""Counting errors as a torchmetrics metric: accumulates over batches, right under DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from papm.errors import DataError
from papm.metrics.counting import CountingScore, bootstrap, counting_errors


class CountingMetrics(Metric):
    """MAE, RMSE, NAE and bias over everything seen. The counts of single images are kept and gathered, so that
    `score`, `interval` and `counts` speak of all processes; those three are collective calls, as `compute` is.

    >>> metric = CountingMetrics()
    >>> metric.update(torch.tensor([12.0, 7.0]), torch.tensor([10.0, 10.0]))
    >>> metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    >>> round(metric.compute()["mae"].item(), 4), metric.score().n
    (2.0, 3)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    predicted: list[Tensor]
    truth: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("predicted", default=[], dist_reduce_fx="cat")
        self.add_state("truth", default=[], dist_reduce_fx="cat")

    def update(self, predicted: Tensor, truth: Tensor) -> None:
        """Add the counts of a batch, [B] each."""
        if predicted.numel() != truth.numel():
            raise DataError(f"{predicted.numel()} predicted counts for {truth.numel()} true ones")
        # one dtype for all: a process without images joins the gathering with an empty tensor of `self.dtype`
        self.predicted.append(predicted.detach().reshape(-1).to(self.dtype))
        self.truth.append(truth.detach().reshape(-1).to(self.dtype))

    def compute(self) -> dict[str, Tensor]:
        """The four errors as tensors of no dimension, ready for `log_dict`."""
        score = counting_errors(*self._vectors())
        return {k: torch.tensor(getattr(score, k), device=self.device) for k in ("mae", "rmse", "nae", "bias")}

    def counts(self) -> tuple[Tensor, Tensor]:
        """Predicted and true counts of every image of every process, in no particular order."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            predicted, truth = self._vectors()
        return predicted, truth

    def score(self) -> CountingScore:
        """The four errors as plain numbers."""
        return counting_errors(*self.counts())

    def interval(self, samples: int = 2000, level: float = 0.95, seed: int = 0) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals, see `counting.bootstrap`."""
        return bootstrap(*self.counts(), samples=samples, level=level, seed=seed)

    def _vectors(self) -> tuple[Tensor, Tensor]:
        # after a sync a state is one tensor, before it a list
        return _joined(self.predicted), _joined(self.truth)


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    if isinstance(state, list) and not state:
        return torch.zeros(0)
    joined: Tensor = dim_zero_cat(state)
    return joined
