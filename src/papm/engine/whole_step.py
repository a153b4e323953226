"""A whole training step as one launch: crops, network, loss, gradient, clipping and the optimiser's update.

At 8 × 256² the arithmetic of VGG19 takes 3 to 4 ms and launching its kernels one by one as long again. The step takes a plan
(`data.augment.Plan`, a few kilobytes) and touches nothing else of the host, so that all of it can be recorded as a CUDA graph,
one for each padded length of the points. The first steps of a length run as usual: they are steps of the training too.

A batch whose loss, or whose gradient where it is clipped, is not finite changes no weight: the update is skipped on the device,
and the sums that are logged are no longer finite, which tells the host.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from papm.data.augment import Plan
from papm.graphs import capture, new_pool

log = logging.getLogger(__name__)

AFTER = 3  # steps of one shape before it is recorded

# a plan on the device → (loss to descend, values [k] to be summed for the log)
Forward = Callable[[Plan], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Record:
    """A recorded step and the tensors it reads."""

    again: Callable[[], None]
    plan: Plan


class WholeStep:
    """`step(plan, phase)`: one step of training. `forward` computes the loss, `optimizer` is AdamW or Adam.

    `phase` names what the forward pass does apart from its tensors, where that changes during training.
    """

    def __init__(
        self, forward: Forward, optimizer: torch.optim.Optimizer, clip: float, device: torch.device, record: bool = True
    ) -> None:
        self.forward, self.optimizer, self.clip, self.device = forward, optimizer, clip, device
        self.usable = record
        self.update = Update(optimizer, device)
        self.total = torch.zeros((), device=device)
        self.sums: Tensor | None = None
        self.records: dict[Hashable, _Record] = {}
        self.seen: Counter[Hashable] = Counter()
        self.pool = new_pool() if record and device.type == "cuda" else None

    def __call__(self, plan: Plan, phase: Hashable = None) -> Tensor:
        """Take the step; the loss, on the device, valid until the next one."""
        self.update.set_rates()
        key = (*plan.rows.shape, phase)
        if self.usable and key not in self.records:
            self.seen[key] += 1
            if self.seen[key] > AFTER:
                self._record(key, plan)
        if key in self.records:
            record = self.records[key]
            record.plan.rows.copy_(plan.rows, non_blocking=True)
            record.plan.counts.copy_(plan.counts, non_blocking=True)
            record.again()
        else:
            self._first(plan.to(self.device))
        return self.total

    def _first(self, plan: Plan) -> None:
        """A step that is not recorded, or not yet. Where memory does not hold it beside the graphs, the graphs go."""
        try:
            self._run(plan)
            return
        except torch.OutOfMemoryError:
            if not self.records:
                raise
        log.warning("the device's memory does not hold recorded steps of this size; going on kernel by kernel")
        self.records.clear()
        self.usable = False
        torch.cuda.empty_cache()
        self._run(plan)

    def _run(self, plan: Plan) -> None:
        total, values = self.forward(plan)
        parameters = self.update.parameters
        found = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        # The fused update walks through memory: a gradient must lie there as its parameter does.
        gradients = [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(found, parameters)]
        finite = torch.isfinite(total.detach())
        if self.clip:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            finite = finite & torch.isfinite(norm)
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.update(gradients, finite)
        if self.sums is None or len(self.sums) != len(values):
            self.sums = torch.zeros_like(values)
        self.sums += torch.where(finite, values, torch.nan)
        self.total.copy_(total.detach())

    def _record(self, key: Hashable, plan: Plan) -> None:
        static = Plan(plan.rows.to(self.device), plan.counts.to(self.device))
        try:
            again, _ = capture(
                lambda: self._run(static), warm=0, pool=self.pool
            )  # warmed by real steps; it must not be one
        except RuntimeError as error:
            log.warning("a step cannot be recorded as a CUDA graph, going on without: %s", str(error)[:300])
            self.usable = False
            return
        self.records[key] = _Record(again, static)


class Update:
    """The update of AdamW or Adam from tensors alone, so that it can be recorded: rates live on the device.

    State and hyper-parameters are those of the optimiser itself, which keeps saving and loading them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer = optimizer
        self.decoupled = isinstance(optimizer, torch.optim.AdamW)
        self.groups: list[list[nn.Parameter]] = [g["params"] for g in optimizer.param_groups]
        self.rates = [torch.zeros((), device=device) for _ in self.groups]
        for p in self.parameters:
            state = optimizer.state[p]
            # A state that was saved on another device may count its steps on the host, and lie otherwise in memory.
            state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32, device=device)
            for name in ("exp_avg", "exp_avg_sq"):
                made = torch.zeros_like(p, memory_format=torch.preserve_format)
                state[name] = made.copy_(state[name]) if name in state else made

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order of the groups."""
        return [p for group in self.groups for p in group]

    def set_rates(self) -> None:
        """Take over the rates that the schedule has set."""
        for rate, group in zip(self.rates, self.optimizer.param_groups):
            rate.fill_(group["lr"])

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor], finite: Tensor) -> None:
        """Change the weights; where `finite` is False nothing changes."""
        broken = (~finite).float()
        fused = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        left = list(gradients)
        for group, parameters, rate in zip(self.optimizer.param_groups, self.groups, self.rates):
            mine, left = left[: len(parameters)], left[len(parameters) :]
            state = [self.optimizer.state[p] for p in parameters]
            steps = [s["step"] for s in state]
            torch._foreach_add_(steps, 1)
            fused(
                list[Tensor](parameters),
                mine,
                [s["exp_avg"] for s in state],
                [s["exp_avg_sq"] for s in state],
                [],
                steps,
                lr=rate,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=None,
                found_inf=broken,
            )
            torch._foreach_sub_(steps, [broken] * len(steps))
