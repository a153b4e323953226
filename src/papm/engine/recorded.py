"""A loss and its gradient recorded as one CUDA graph.

A loss is some fifty small kernels; launching them one by one takes longer than the network itself at 8 × 256². Recorded
once for each shape of the batch, they are launched as one. Works for every loss that neither waits for the device nor
chooses its operations by looking at values; a loss that does is noticed while recording and then computed as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from papm.engine.data import TrainBatch
from papm.structures import Batch, DensityOutput, PointBatch

log = logging.getLogger(__name__)

# (network output, batch with its halo) → (total, names of the values, values [k])
LossStep = Callable[[Any, TrainBatch], tuple[Tensor, list[str], Tensor]]
KEPT = 16  # graphs; crops come in at most seven paddings of their points, so this is never reached in practice


class _KnownGradient(torch.autograd.Function):
    """A number that was computed elsewhere together with its gradient."""

    @staticmethod
    def forward(ctx: Any, density: Tensor, total: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None


@dataclass(frozen=True)
class _Record:
    """A graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]
    total: Tensor
    values: Tensor
    gradient: Tensor


class RecordedLoss:
    """`step` (network output, batch) → (total, names, values), recorded; anything but density maps on CUDA passes through."""

    def __init__(self, step: LossStep) -> None:
        self.step = step
        self.records: dict[tuple[int, ...], _Record] = {}
        self.usable = True

    def __call__(self, output: Any, batch: TrainBatch) -> tuple[Tensor, list[str], Tensor]:
        if not self.usable or not isinstance(output, DensityOutput) or not output.density.is_cuda or output.aux:
            return self.step(output, batch)
        inputs = _inputs(output, batch)
        key = (*output.density.shape, batch[0].points.xy.shape[1])
        if key not in self.records:
            if len(self.records) >= KEPT:
                return self.step(output, batch)
            try:
                self.records[key] = self._record(output, batch, inputs)
            except RuntimeError as error:
                log.warning("this loss cannot be recorded as a CUDA graph, going on without: %s", str(error)[:200])
                self.usable = False
                return self.step(output, batch)
        record = self.records[key]
        torch._foreach_copy_(record.inputs, inputs)
        record.graph.replay()
        total: Tensor = _KnownGradient.apply(output.density, record.total, record.gradient)  # type: ignore[no-untyped-call]
        return total, record.names, record.values

    def _record(self, output: DensityOutput, batch: TrainBatch, inputs: list[Tensor]) -> _Record:
        static = [t.detach().clone() for t in inputs]
        static[0].requires_grad_()

        def run() -> tuple[list[str], Tensor, Tensor, Tensor]:
            total, names, values = self.step(*_rebuild(static, output.stride))
            (gradient,) = torch.autograd.grad(total, static[0])
            return names, total.detach(), values, gradient

        # Kernels are built and workspaces allocated before recording, on a stream of their own as recording asks.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            names, total, values, gradient = run()
        static[0].requires_grad_(False)
        return _Record(graph, static, names, total, values, gradient)


def _inputs(output: DensityOutput, batch: TrainBatch) -> list[Tensor]:
    """What a loss may look at, flat; the points of the halo are those of the crop and more, so they travel once."""
    made, halo = batch
    assert halo.extents is not None and made.mask is not None and made.offsets is not None and made.sizes is not None
    return [
        output.density.detach(),
        halo.xy,
        halo.extents,
        halo.valid,
        made.points.valid,
        made.mask,
        made.offsets,
        made.sizes,
    ]


def _rebuild(flat: list[Tensor], stride: int) -> tuple[DensityOutput, TrainBatch]:
    density, xy, extents, valid, inside, mask, offsets, sizes = flat
    images = density.new_empty(0)
    made = Batch(images, PointBatch(xy, inside, extents), mask, offsets, sizes)
    return DensityOutput(density, stride), (made, PointBatch(xy, valid, extents))
