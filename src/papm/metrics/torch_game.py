"""Grid average mean error as a torchmetrics metric: accumulates over images, right under DDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from papm.errors import DataError
from papm.metrics.game import LEVELS, game, game_points


class GridErrors(Metric):
    """GAME at each level: the mean over all images of all processes, see `papm.metrics.game`.

    >>> metric = GridErrors(levels=(0, 1))
    >>> metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 3.0]]), size=(8, 16), stride=8)
    >>> {k: v.item() for k, v in metric.compute().items()}
    {'game0': 0.0, 'game1': 2.0}
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    images: Tensor

    def __init__(self, levels: Sequence[int] = LEVELS, smooth: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.levels, self.smooth = tuple(levels), smooth
        self.add_state("total", default=torch.zeros(len(self.levels), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("images", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        density: Tensor | None,
        points: Tensor,
        *,
        size: tuple[int, int],
        stride: int = 1,
        roi: Tensor | None = None,
        predicted: Tensor | None = None,
        whole_cells: bool = False,
    ) -> None:
        """Add one image: a map, or with `density` None the `predicted` points, against the true points."""
        if density is not None:
            found = game(
                density,
                points,
                size=size,
                stride=stride,
                levels=self.levels,
                roi=roi,
                smooth=self.smooth,
                whole_cells=whole_cells,
            )
        elif predicted is not None:
            found = game_points(predicted, points, size=size, levels=self.levels, roi=roi, smooth=self.smooth)
        else:
            raise DataError("give a density map, or predicted points")
        self.total += torch.tensor([found[k] for k in self.levels], dtype=torch.float64, device=self.total.device)
        self.images += 1

    def compute(self) -> dict[str, Tensor]:
        """`game0`, `game1`, … as tensors of no dimension, ready for `log_dict`; NaN before the first image."""
        mean = self.total / self.images
        return {f"game{k}": mean[i] for i, k in enumerate(self.levels)}
