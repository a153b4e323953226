"""The forward pass of a training step, top to bottom: crops → network → loss, and what is logged of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from papm.errors import DataError, PapmError
from papm.inference import Inference
from papm.losses import CountingLoss
from papm.losses.base import masked
from papm.models import Network
from papm.predict.outputs import tally
from papm.predict.tiling import HALVES
from papm.structures import Batch, LossOutput, PointProposals


class Objective:
    """`total, values = objective(batch)`: the loss to minimise, and what is logged [k], whose `names` are known afterwards."""

    def __init__(self, network: Network, loss: CountingLoss, precision: str = "32") -> None:
        self.network, self.loss, self.half = network, loss, HALVES.get(precision)
        self.names: list[str] = []
        self._random = any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0 for m in network.modules())

    @property
    def capturable(self) -> bool:
        """Whether a step depends on tensors alone: no images or weights of the loss's own.

        What dropout draws is new in every replay: a graph reads seed and offset of the device's generator when it starts.
        """
        return self.loss.capturable and not self.loss.needs_images and not any(True for _ in self.loss.parameters())

    def prepare(self, step: int, steps: int, seed: int, rank: int) -> None:
        """Before a step: how far training is, and what dropout draws, so that a resumed run repeats it."""
        self.loss.progress = step / steps
        if self._random:
            torch.manual_seed(hash((seed, step, rank)) & 0x7FFFFFFF)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        # Weights cast to half precision are not cached: in a CUDA graph they would be those of the captured step.
        with torch.autocast(batch.images.device.type, self.half, self.half is not None, cache_enabled=False):
            return self._forward(batch)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        seen = {"mask": batch.real} if self.network.takes_mask else {}
        output = self.network(batch.images, **seen)
        try:
            result: LossOutput = self.loss(output, batch.points, context=batch)
        except DataError as error:  # points were checked when they were read, so it is the network that exploded
            raise PapmError(f"training fell apart ({error}); try a smaller lr, or clip=1") from None
        extra = self.network.auxiliary_losses(output, batch.points, batch.mask)
        total = torch.stack([result.total, *extra.values()]).sum() if extra else result.total
        with torch.no_grad():
            wrong = count_error(output, batch, self.network.inference)
            terms = {"loss": total, "count_error": wrong, **result.terms, **extra}
            values = torch.stack([v.detach().float().reshape(()) for v in terms.values()])
        self.names = list(terms)
        return total, values

    @torch.no_grad()
    def broken(self, batch: Batch) -> Tensor:
        """bool [B]: which crops give an output that is not finite; none where the weights themselves are not."""
        if not all(bool(torch.isfinite(p).all()) for p in self.network.parameters()):
            return torch.zeros(len(batch.images), dtype=torch.bool)
        with torch.autocast(batch.images.device.type, self.half, self.half is not None):
            output = self.network.forward(batch.images)
        values = output.logits if isinstance(output, PointProposals) else output.density
        return ~torch.isfinite(values).flatten(1).all(1).cpu()


def count_error(output: Any, batch: Batch, contract: Inference) -> Tensor:
    """Mean |count − n| of the crops, the plainest sign of learning."""
    if isinstance(output, PointProposals):
        found = tally(output, contract).sum(-1)
        if batch.mask is not None:
            x, y = output.reference.long().unbind(-1)
            found = found * batch.mask[:, y, x]
        return (found.sum(1) - batch.points.counts).abs().mean()
    density = masked(output.density, batch, output.stride)
    return (density.sum((1, 2, 3)) - batch.points.counts).abs().mean()
