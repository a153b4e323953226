"""What training changes (weights, optimiser, average, sums), one step of it, and how it is saved and resumed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from papm.config import TrainConfig
from papm.data.augment import Plan
from papm.engine.average import Average
from papm.engine.build import counting_precision, precision_of
from papm.engine.data import CountingData
from papm.engine.graphed import Step
from papm.engine.objective import Objective
from papm.engine.optimizer import build_optimizer, rate_factor
from papm.engine.ranks import Ranks
from papm.errors import PapmError
from papm.losses import CountingLoss
from papm.models import Network
from papm.structures import Batch

# Compiling takes most of a minute and saves about a quarter of a step of 5 to 15 ms (docs/speed.md).
COMPILE_PAYS = 5000
# Where a whole step cannot be captured: a CUDA graph for the forward pass and one for the backward pass.
COMPILE_MODE = "reduce-overhead"


class Training:
    """A network that learns: `take(item)` is one step; `done` says how many were taken, `first` how many before this part."""

    def __init__(
        self,
        config: TrainConfig,
        network: Network,
        loss: CountingLoss,
        data: CountingData,
        device: torch.device,
        ranks: Ranks | None = None,
        begun: str | None = None,  # the precision that the run began in, of one that goes on
    ) -> None:
        self.config, self.network, self.loss, self.data, self.device = config, network, loss, data, device
        self.ranks = ranks or Ranks()
        self.precision, self.counting = precision_of(config, device, begun), counting_precision(config, device, begun)
        self.objective = Objective(network, loss, self.precision)
        captured = can_capture(self)
        loss.to(device).train()
        network.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        if captured:
            loss.capturable = False  # all of the step is
        self.average = Average(network, config.ema) if config.ema else None
        if device.type == "cuda" and compiles(config):
            network.compile(mode=None if captured else COMPILE_MODE, dynamic=False)
            data.compile_crops()
        self.optimizer = build_optimizer(config, network, loss, device, half=self.precision == "16")
        norms = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        statistics = [t for m in norms for t in (m.running_mean, m.running_var) if t is not None]
        self.step = Step(self.forward, self.optimizer, device, captured, self.ranks, statistics)
        self.done = self.first = 0

    def forward(self, item: Plan | Batch) -> tuple[Tensor, Tensor]:
        """The loss of a plan, whose crops are cut here, or of a batch."""
        return self.objective(self.data.render(item) if isinstance(item, Plan) else item)

    def take(self, item: Plan | Batch) -> None:
        """One step: nothing of it waits for a GPU."""
        self.objective.prepare(self.done, self.config.steps, self.config.seed, self.ranks.rank)
        self.optimizer.set_rates(rate_factor(self.done, self.config))
        total = self.step(item, self.loss.phase)
        if self.device.type == "cpu" and not torch.isfinite(total):  # here looking costs nothing
            raise self._exploded(float(total), f"at step {self.done}", range(self.done, self.done + 1))
        self.done += 1
        if self.average is not None:
            self.average.update(self.done)

    def means(self) -> dict[str, float]:
        """What is logged: the means of the terms since the last call, and the learning rate of the next step."""
        values = dict(zip(self.objective.names, self.step.means()))
        if not all(torch.isfinite(torch.tensor(list(values.values())))):
            steps = range(max(0, self.done - self.config.log_every), self.done)
            raise self._exploded(values["loss"], f"before step {self.done}", steps)
        return {**values, "lr": rate_factor(self.done, self.config) * self.optimizer.groups[-1][1]}

    def _exploded(self, loss: float, when: str, steps: range) -> PapmError:
        names = self._broken_images(steps)
        where = f" (first with a crop of {', '.join(names)})" if names else ""
        return PapmError(f"the loss became {loss} {when}{where}; try a smaller lr, or clip=1")

    def _broken_images(self, steps: range) -> list[str]:
        """Names of the images whose crops, in the first of these steps that has any, give outputs that are not finite.

        Looked for when the loss is no longer a number: looking at every step would make the host wait for the device.
        """
        assert self.data.store is not None
        here = self.data.store.device.type == self.device.type
        for step in steps:
            plan = self.data.plan(step, self.ranks.rank, self.ranks.world)
            bad = self.objective.broken(self.data.render(plan.to(self.device) if here else plan).to(self.device))
            if bad.any():
                return [self.data.splits.train[int(k)].name for k in plan.rows[bad, 0].tolist()]
        return []

    @property
    def watched(self) -> Network:
        """The network that evaluations count with."""
        return self.average.network if self.average is not None and self.config.watch == "averaged" else self.network

    def weights(self) -> dict[str, Tensor]:
        """The (averaged) weights: what a run is for."""
        return (self.network if self.average is None else self.average.network).state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain types; what `weights` gives is saved beside it. All processes ask together."""
        state: dict[str, Any] = {
            "step": self.done,
            "optimizer": self.optimizer.state_dict(),
            "loss": self.loss.state_dict(),
        }
        if self.average is not None:
            state["network"] = self.network.state_dict()
        if self.step.sums is not None:  # so that the next row of the log is that of a run that was not stopped
            state |= {"sums": self.ranks.mean(self.step.sums.clone()), "summed": self.step.summed}
        return state

    def load_state_dict(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from what `state_dict` and `weights` gave."""
        self.network.load_state_dict(weights if self.average is None else state["network"])
        if self.average is not None:
            self.average.network.load_state_dict(weights)
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        if "sums" in state:
            self.step.sums, self.step.summed = state["sums"].to(self.device), int(state["summed"])
        self.done = self.first = int(state["step"])


def compiles(config: TrainConfig) -> bool:
    """Whether a run on a GPU is compiled: where it is asked for, or long enough to pay.

    >>> compiles(TrainConfig(steps=30_000)), compiles(TrainConfig(steps=300)), compiles(TrainConfig(compile="no"))
    (True, False, False)
    """
    return config.compile == "yes" or (config.compile == "auto" and config.steps >= COMPILE_PAYS)


def can_capture(training: Training) -> bool:
    """Whether a step can be one CUDA graph: images on the GPU, one process, no weights but the network's."""
    store = training.data.store
    return (
        training.config.graph == "auto"
        and store is not None
        and store.device.type == "cuda"
        and training.ranks.world == 1
        and training.precision != "16"
        and training.objective.capturable
    )
