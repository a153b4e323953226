"""The one update of all ways to train: AdamW or Adam, clipped, and skipped where the gradient is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from papm.config import TrainConfig
from papm.losses import CountingLoss
from papm.models import Network

SCALE, GROWTH = (
    2.0**16,
    2000,
)  # of the loss in fp16: where it begins, and steps until it is doubled (torch.amp.GradScaler's)

Group = tuple[list[nn.Parameter], float]  # parameters and their learning rate


class Optimizer:
    """`optimizer(gradients, total)`: one update by PyTorch's fused kernels, from tensors alone.

    There is no host sync in it, so that it can be captured in a CUDA graph; learning rates live on the device.
    """

    def __init__(
        self, groups: Sequence[Group], device: torch.device, *, decoupled: bool = True, weight_decay: float = 0.0,
        clip: float = 0.0, half: bool = False,
    ) -> None:  # fmt: skip
        self.groups = [(list(parameters), lr) for parameters, lr in groups]
        self.decoupled, self.weight_decay, self.clip = decoupled, weight_decay, clip
        self.rates = [torch.tensor(lr, device=device) for _, lr in self.groups]
        self.parameters = [p for parameters, _ in self.groups for p in parameters]
        self.means = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.taken = torch.zeros((), device=device)  # updates that were not skipped
        self.scale = torch.tensor(SCALE, device=device) if half else None
        self.growth = torch.zeros((), dtype=torch.int32, device=device)

    def set_rates(self, factor: float) -> None:
        """What the schedule makes of the learning rates."""
        for rate, (_, lr) in zip(self.rates, self.groups):
            rate.fill_(factor * lr)

    def gradients(self, total: Tensor) -> list[Tensor]:
        """Of all parameters, in memory as their parameter lies there: the fused kernels walk through both."""
        scaled = total if self.scale is None else total * self.scale
        found = torch.autograd.grad(scaled, self.parameters, allow_unused=True, materialize_grads=True)
        return [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for g, p in zip(found, self.parameters)]

    @torch.no_grad()
    def __call__(self, gradients: list[Tensor], total: Tensor) -> Tensor:
        """Change the weights, or nothing where loss or gradient is not finite; whether they are, on the device.

        In fp16 a gradient that is not finite only says that the loss was scaled too high.
        """
        if self.scale is not None:
            torch._foreach_mul_(gradients, 1 / self.scale)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        finite = torch.isfinite(total) & torch.isfinite(norm)
        if self.clip:
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        skipped = (~finite).float()
        self._update(gradients, skipped)
        if self.scale is None:
            return finite
        torch._amp_update_scale_(self.scale, self.growth, skipped, 2.0, 0.5, GROWTH)
        return torch.isfinite(total)

    def _update(self, gradients: list[Tensor], skipped: Tensor) -> None:
        fused = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        self.taken += 1
        first = 0
        for (parameters, _), rate in zip(self.groups, self.rates):
            part = slice(first, first := first + len(parameters))
            fused(
                list[Tensor](parameters), gradients[part], self.means[part], self.squares[part], [],
                [self.taken] * len(parameters), lr=rate, beta1=0.9, beta2=0.999, weight_decay=self.weight_decay, eps=1e-8,
                amsgrad=False, maximize=False, grad_scale=None, found_inf=skipped,
            )  # fmt: skip
        self.taken -= skipped

    def state_dict(self) -> dict[str, Any]:
        """Tensors, by name."""
        state: dict[str, Any] = {"means": self.means, "squares": self.squares, "taken": self.taken}
        return state | ({} if self.scale is None else {"scale": self.scale, "growth": self.growth})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave, here or on another device, where weights may lie otherwise in memory."""
        own = [*self.means, *self.squares, self.taken]
        for to, value in zip(own, [*state["means"], *state["squares"], state["taken"]], strict=True):
            if value.shape != to.shape:
                raise ValueError(f"a state of {list(value.shape)} for a parameter of {list(to.shape)}")
            to.copy_(value)
        if self.scale is not None and "scale" in state:  # the part before may have trained in another precision
            self.scale.copy_(state["scale"])
            self.growth.copy_(state["growth"])


def build_optimizer(
    config: TrainConfig, network: Network, loss: CountingLoss, device: torch.device, half: bool
) -> Optimizer:
    """That of a configuration: trunk, head and what the loss itself learns (KDMG's kernels) have their own rates."""
    rates = {"trunk": config.rate_of_trunk, "head": config.lr}
    groups: list[Group] = [(p, rates[k]) for k, p in network.parameter_groups().items()]
    groups.append((list(loss.parameters()), config.lr if config.loss_lr is None else config.loss_lr))
    trained = [([p for p in parameters if p.requires_grad], lr) for parameters, lr in groups]
    return Optimizer(
        [g for g in trained if g[0]], device, decoupled=config.optimizer == "adamw", weight_decay=config.weight_decay,
        clip=config.clip, half=half,
    )  # fmt: skip


def rate_factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to one hundredth (or constant)."""
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant":
        return warm
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / config.steps))))
