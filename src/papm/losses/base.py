"""What every loss shares: its call, its context, and what a loss on maps needs of both.

loss = papm.losses.create("hd-papm", stride=8)
out = loss(density, points)        # density [B, C, h, w], points: a list of [n, 2] tensors
out.total.backward()
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.losses.graphed import Graphs
from papm.losses.inputs import Points, accept_density, accept_proposals
from papm.structures import DensityOutput, LossOutput, PointBatch, PointProposals
from papm.structures import LossContext as LossContext
from papm.targets import touched_cells


class CountingLoss(nn.Module):
    """Base of the losses: checks both accepted forms of input, and calls `compute`.

    `halo` is the band around a crop, in pixels, whose points the loss wants to know (`LossContext.halo`). `progress` is
    the part of training that is done, 0 … 1: a training loop may set it before a step, for losses that change on the way.
    Left alone it is 1: the loss in its final form.
    """

    halo: float = 0.0
    needs_images: bool = False  # whether the loss cannot do without LossContext.images
    maps: int = 1  # maps per image that it takes: one for each class
    capturable: bool = True  # False: it has a host sync, or chooses its operations by values on the device
    progress: float = 1.0

    def __init__(self, stride: int = 8) -> None:
        super().__init__()
        if stride < 1:
            raise ConfigError(f"a loss needs the stride of the network's map, a whole number ≥ 1, not {stride}")
        self.stride = int(stride)
        self._graphs = Graphs()

    @property
    def phase(self) -> Hashable:
        """What the loss does at this point of training, where that depends on `progress`: each has its own CUDA graph."""
        return None

    def forward(
        self, prediction: Tensor | DensityOutput | PointProposals, points: Points, *, context: LossContext | None = None
    ) -> LossOutput:
        """The loss of a batch: `total` to call backward on, and the named terms it is made of."""
        given, batch = self.accept(prediction, points)
        with torch.autocast(batch.xy.device.type, enabled=False):
            if isinstance(given, Tensor) and self.captures(given):
                return self._graphs(self, given, batch, context)
            return self.compute(given, batch, context)

    def accept(self, prediction: Tensor | DensityOutput | PointProposals, points: Points) -> tuple[Any, PointBatch]:
        """Both inputs in the form that `compute` takes; an error where they do not fit."""
        return accept_density(prediction, points, self.stride, self.maps)

    def captures(self, density: Tensor) -> bool:
        """Whether this call may be one CUDA graph (`losses.graphed`): on CUDA, unless something larger is captured."""
        return (
            self.capturable
            and density.is_cuda
            and density.requires_grad
            and not self.needs_images
            and not torch.compiler.is_compiling()
            and not torch.cuda.is_current_stream_capturing()
            and not any(True for _ in self.parameters())  # a graph knows the gradient of the map only
        )

    def compute(self, prediction: Any, points: PointBatch, context: LossContext | None) -> LossOutput:
        """The loss itself, in float32 or better, of a density [B, C, h, w] (or of `PointProposals`)."""
        raise NotImplementedError


class PointLoss(CountingLoss):
    """Base of the losses on proposals."""

    def accept(
        self, prediction: Tensor | DensityOutput | PointProposals, points: Points
    ) -> tuple[PointProposals, PointBatch]:
        return accept_proposals(prediction, points)


class WrappingLoss(CountingLoss):
    """Base of the losses that call another one on parts of their input: what they ask for, and when, is what it asks for."""

    def __init__(self, loss: CountingLoss, maps: int) -> None:
        super().__init__(loss.stride)
        self.loss, self.maps = loss, maps
        self.halo, self.needs_images, self.capturable = loss.halo, loss.needs_images, loss.capturable

    def inner(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        """The loss inside, never captured by itself: all of it is captured at once."""
        return self.loss.compute(*self.loss.accept(density, points), context)

    @property
    def progress(self) -> float:
        """That of the loss inside, which alone may depend on it."""
        return self.loss.progress

    @progress.setter
    def progress(self, value: float) -> None:
        self.loss.progress = value

    @property
    def phase(self) -> Hashable:
        return self.loss.phase


def cell_mask(context: LossContext | None, density: Tensor, stride: int) -> Tensor | None:
    """float [B, 1, h, w], 1 where a cell holds at least one pixel that counts; None when all do."""
    if context is None or context.mask is None:
        return None
    cells = touched_cells(context.mask, stride)
    h, w = density.shape[-2:]
    if cells.shape[-2:] != (h, w):
        height, width = context.mask.shape[-2:]
        raise ConfigError(f"a mask of {height}×{width} pixels does not fit {h}×{w} cells of stride {stride}")
    return cells[:, None].float()


def masked(density: Tensor, context: LossContext | None, stride: int) -> Tensor:
    """The density where pixels count, zero elsewhere."""
    mask = cell_mask(context, density, stride)
    return density if mask is None else density * mask


def short_side(density: Tensor, context: LossContext | None, stride: int) -> Tensor:
    """[B] that of the whole image in pixels where it is known, else of the crop."""
    if context is not None and context.sizes is not None:
        return context.sizes.to(density).amin(1)
    return density.new_full((len(density),), float(min(density.shape[-2:]) * stride))


def with_gradient(value: Tensor, density: Tensor, gradient: Tensor) -> Tensor:
    """[B] numbers equal to `value` whose derivative by `density` is `gradient` (both [B, ...], taken as constants)."""
    surrogate = (density * gradient.detach()).flatten(1).sum(1)
    return value.detach() + surrogate - surrogate.detach()
