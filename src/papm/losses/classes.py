"""Any loss on density maps for several kinds of objects: a map a class, each with the points of its class."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.losses.base import CountingLoss, LossContext, PointLoss, WrappingLoss
from papm.structures import LossOutput, PointBatch


def by_class(points: PointBatch, classes: int) -> PointBatch:
    """Points of B images with labels → points of B·classes maps, those of class c of image b in row b·classes + c.

    >>> labels = [torch.tensor([1, 0, 1])]
    >>> made = by_class(PointBatch.from_list([torch.tensor([[1.0, 1], [2, 2], [3, 3]])], labels=labels), 2)
    >>> [p[:, 0].tolist() for p in made.to_list()]
    [[2.0], [1.0, 3.0]]
    """
    if points.labels is None:
        raise DataError(f"a loss on maps of {classes} classes needs the class of each point (PointBatch.labels)")
    if not points.labels.is_cuda:  # looking would stop a GPU
        wrong = points.labels[points.valid & ((points.labels < 0) | (points.labels >= classes))]
        if wrong.numel():
            raise DataError(f"a point is labelled {int(wrong[0])}, but the network has classes 0 to {classes - 1}")
    kinds = torch.arange(classes, device=points.labels.device)
    mine = points.labels[:, None] == kinds[:, None]  # [B, classes, N]
    return points.repeat(classes).keep(mine.flatten(0, 1))


class ClassLoss(WrappingLoss):
    """`loss` on the map of every class: total = Σ over classes of what the loss of that map alone would be.

    Terms are means over images and classes, and their weights are `classes` times those of `loss`, so that every map gets
    the gradient it would get as the only one. Extents (the spacing of the points) are those of all classes together.
    """

    def __init__(self, loss: CountingLoss, classes: int) -> None:
        if classes < 1:
            raise ConfigError(f"a loss needs at least one class, not {classes}")
        if isinstance(loss, PointLoss):
            raise ConfigError("a loss on proposed points knows classes by itself; this is for density maps")
        if getattr(loss, "options", {}).get("published"):
            raise ConfigError("several classes need a loss that averages over images; leave loss.published at false")
        super().__init__(loss, classes)

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        k = self.maps
        output = self.inner(
            density.flatten(0, 1)[:, None],
            points if k == 1 else by_class(points, k),
            None if context is None else self._context(context),
        )
        return replace(output, total=output.total * k, weights={n: v * k for n, v in output.weights.items()})

    def _context(self, context: LossContext) -> LossContext:
        k = self.maps

        def each(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.repeat_interleave(k, 0)

        halo = context.halo if k == 1 or context.halo is None else by_class(context.halo, k)
        images = each(context.images) if self.needs_images else None
        return LossContext(each(context.mask), each(context.offsets), each(context.sizes), halo, images)
