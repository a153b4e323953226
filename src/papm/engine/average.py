"""The exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from papm.models import Network


class Average:
    """A second network whose weights follow those of the first: one fused update per step on its device, no host sync."""

    def __init__(self, network: Network, decay: float) -> None:
        self.network, self.decay = copy.deepcopy(network).requires_grad_(False), decay
        (self._average, self._counters), (self._now, self._counted) = _state(self.network), _state(network)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, the first of which is 1."""
        # A young average follows quickly, else it would remember the random start for 1/(1 − decay) steps.
        decay = min(self.decay, (1 + step) / (10 + step))
        # Running statistics are those of the last ten batches and of other weights: they are averaged like the weights.
        torch._foreach_lerp_(self._average, self._now, 1 - decay)
        if self._counters:
            torch._foreach_copy_(self._counters, self._counted)


def _state(module: torch.nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What has an average (weights, running statistics), and what has none (counters)."""
    tensors = [*(p.detach() for p in module.parameters()), *module.buffers()]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]
