"""A training step: crops, network, loss, gradient, clipping and the update; on a GPU captured as one CUDA graph.

At 8 × 256² the arithmetic of VGG19 takes 3 to 4 ms and launching its kernels one by one as long again. The step takes a plan
(`data.augment.Plan`, a few kilobytes) and touches nothing else of the host, so that all of it can be captured, once for each
padded length of the points. The first steps of a length run kernel by kernel: they are steps of the training too.

A batch whose loss or gradient is not finite changes no weight: the update is skipped on the device, and the sums that are
logged are no longer finite, which tells the host.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.data.augment import Plan
from papm.engine.optimizer import Optimizer
from papm.engine.ranks import Ranks
from papm.graphs import capture, new_pool
from papm.structures import Batch

log = logging.getLogger(__name__)

AFTER = 3  # steps of one shape before it is captured

# a plan or a batch on the device → (loss to minimise, values [k] to be summed for the log)
Forward = Callable[[Plan | Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Graph:
    """A captured step and the plan it reads."""

    replay: Callable[[], None]
    plan: Plan


class Step:
    """`step(item, phase)`: one step of training. `forward` computes the loss of a plan or a batch.

    `phase` names what the forward pass does apart from its tensors, where that changes during training. `together` are tensors
    that all processes average along with the gradients (running statistics).
    """

    def __init__(
        self,
        forward: Forward,
        optimizer: Optimizer,
        device: torch.device,
        capture: bool = False,
        ranks: Ranks | None = None,
        together: Sequence[Tensor] = (),
    ) -> None:
        self.forward, self.optimizer, self.device = forward, optimizer, device
        self.captures, self.ranks, self.together = capture, ranks or Ranks(), list(together)
        self.total = torch.zeros((), device=device)
        self.sums: Tensor | None = None  # of the values of `summed` steps
        self.summed = 0
        self.graphs: dict[Hashable, _Graph] = {}
        self.seen: Counter[Hashable] = Counter()
        self.pool = new_pool() if capture and device.type == "cuda" else None

    def __call__(self, item: Plan | Batch, phase: Hashable = None) -> Tensor:
        """Take the step; the loss, on the device, valid until the next one."""
        graph = self._graph(item, phase) if self.captures and isinstance(item, Plan) else None
        if graph is not None and isinstance(item, Plan):
            graph.plan.rows.copy_(item.rows, non_blocking=True)
            graph.plan.counts.copy_(item.counts, non_blocking=True)
            graph.replay()
        else:
            self._eager(item.to(self.device))
        self.summed += 1
        return self.total

    def means(self) -> list[float]:
        """Means of the values since the last call, over all processes: the only place where they reach the host."""
        if self.sums is None or not self.summed:
            return []
        found: list[float] = self.ranks.mean(self.sums / self.summed).tolist()
        self.sums.zero_()
        self.summed = 0
        return found

    def _graph(self, plan: Plan, phase: Hashable) -> _Graph | None:
        """The captured step of this shape, if there is one by now."""
        key = (*plan.rows.shape, phase)
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] > AFTER:
                self._capture(key, plan)
        return self.graphs.get(key)

    def _capture(self, key: Hashable, plan: Plan) -> None:
        static = Plan(plan.rows.to(self.device), plan.counts.to(self.device))
        try:  # warmed by real steps; it must not be one
            replay, _ = capture(lambda: self._run(static), warm=0, pool=self.pool)
        except RuntimeError as error:
            log.warning("a step cannot be captured as a CUDA graph, going on without: %s", str(error)[:300])
            self.captures = False
            return
        self.graphs[key] = _Graph(replay, static)

    def _eager(self, item: Plan | Batch) -> None:
        """A step that is not captured, or not yet. Where memory does not hold it beside the graphs, the graphs go."""
        try:
            self._run(item)
            return
        except torch.OutOfMemoryError:
            if not self.graphs:
                raise
        log.warning("the device's memory does not hold captured steps of this size; going on kernel by kernel")
        self.graphs.clear()
        self.captures = False
        torch.cuda.empty_cache()
        self._run(item)

    def _run(self, item: Plan | Batch) -> None:
        total, values = self.forward(item)
        gradients = self.optimizer.gradients(total)
        self.total.copy_(total.detach())
        self.ranks.mean_of([*gradients, *self.together, self.total])
        finite = self.optimizer(gradients, self.total)
        if self.sums is None or len(self.sums) != len(values):
            self.sums, self.summed = torch.zeros_like(values), 0
        self.sums += torch.where(finite, values, torch.nan)
