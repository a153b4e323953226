"""The training step, read top to bottom: pixels → network → loss; sums stay on the device until they are logged."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from papm.config import TrainConfig
from papm.data.augment import Plan, render
from papm.engine.data import CountingData, TrainBatch, Work
from papm.engine.whole_step import WholeStep
from papm.errors import DataError, PapmError
from papm.losses import CountingLoss, LossContext
from papm.losses.base import masked
from papm.metrics.torch_counting import CountingMetrics
from papm.models import Network
from papm.predict.predictor import counts, objects
from papm.predict.tiling import infer
from papm.structures import LossOutput, PointProposals


class CountingModule(pl.LightningModule):
    """A network and a loss under Lightning."""

    def __init__(self, network: Network, loss: CountingLoss, config: TrainConfig) -> None:
        super().__init__()
        self.network, self.loss, self.config = network, loss, config
        self.metrics = CountingMetrics()
        self._sums: Tensor | None = None
        self._names: list[str] = []
        self._summed = 0
        self._benchmark = False
        self.stopping = False  # images that are left of an evaluation are not looked at,
        self.given_up = False  # and this says that there were some
        self.record = False  # whether steps are to be recorded whole
        self.whole_step: WholeStep | None = None
        self._random = any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0 for m in network.modules())

    @property
    def recordable(self) -> bool:
        """Whether a step depends on tensors alone: no images or weights of the loss's own.

        What dropout draws is new in every replay: a graph reads seed and offset of the device's generator when it starts.
        """
        return self.loss.recordable and not self.loss.needs_images and not any(True for _ in self.loss.parameters())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the sums since the last row of the log, so that the next row is that of a run that was not stopped."""
        if self._sums is not None:
            mean = self.trainer.strategy.reduce(self._sums.clone(), reduce_op="mean")
            checkpoint["sums"] = {"sums": mean, "steps": self._summed}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept = checkpoint.get("sums")
        if isinstance(kept, dict) and isinstance(kept.get("sums"), Tensor):  # older ones have none
            self._sums, self._summed = kept["sums"], int(kept["steps"])

    def on_train_start(self) -> None:
        if self._sums is not None:
            self._sums = self._sums.to(self.device)
        if self.record:
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            assert isinstance(data, CountingData)
            self.record_steps(data, "bf16" if "bf16" in str(self.trainer.precision) else "32")

    def on_train_batch_start(self, batch: TrainBatch, batch_idx: int) -> None:
        if self._random:  # what dropout draws belongs to the step, so that resuming repeats it, and to the process
            torch.manual_seed(hash((self.config.seed, self.global_step, self.global_rank)) & 0x7FFFFFFF)

    def training_step(self, batch: TrainBatch | Work, batch_idx: int) -> Tensor:
        self.loss.progress = self.global_step / self.config.steps
        if isinstance(batch, Work):  # a plan: cutting the crops is part of the step
            assert self.whole_step is not None and batch.plan is not None
            total = self.whole_step(batch.plan, self.loss.phase)
            if self.whole_step.sums is not self._sums:
                self._sums, self._summed = self.whole_step.sums, 0
        else:
            total, values = self.descend(batch)
            if self._sums is None or len(self._sums) != len(values):
                self._sums, self._summed = torch.zeros_like(values), 0
            self._sums += values
            if total.device.type == "cpu" and not torch.isfinite(total):  # here looking costs nothing
                raise PapmError(
                    f"the loss became {float(total.detach())} at step {self.global_step}; try a smaller lr, or clip=1"
                )
        self._summed += 1
        return total

    def descend(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """The loss to descend, and what is logged [k], on the device; `self._names` says what that is."""
        made, halo = batch
        seen = {"mask": made.real} if self.network.takes_mask else {}
        output = self.network(made.images, **seen)
        context = LossContext(mask=made.mask, offsets=made.offsets, sizes=made.sizes, halo=halo, images=made.images)
        try:
            result: LossOutput = self.loss(output, made.points, context=context)
        except DataError as error:  # points were checked when they were read, so it is the network that exploded
            raise PapmError(
                f"training fell apart at step {self.global_step} ({error}); try a smaller lr, or clip=1"
            ) from None
        extra = self.network.auxiliary_losses(output, made.points, made.mask)
        total = torch.stack([result.total, *extra.values()]).sum() if extra else result.total
        with torch.no_grad():
            terms = {"loss": total, "count_error": self._count_error(output, batch), **result.terms, **extra}
            values = torch.stack([v.detach().float().reshape(()) for v in terms.values()])
        self._names = list(terms)
        return total, values

    def record_steps(self, data: CountingData, precision: str) -> None:
        """From now on plans come instead of batches, and a step is one launch."""

        def forward(plan: Plan) -> tuple[Tensor, Tensor]:
            # Weights cast to half precision are not kept from step to step: they would be those of the recorded step.
            with torch.autocast(self.device.type, torch.bfloat16, precision == "bf16", cache_enabled=False):
                return self.descend(data.render(plan))

        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        self.loss.recordable = False  # the whole step is
        self.whole_step = WholeStep(forward, optimizer, self.config.clip, self.device, self.device.type == "cuda")
        self.whole_step.sums = self._sums

    # What Lightning does after `training_step`, where a whole step has done it all.

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.whole_step is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        if self.whole_step is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if self.whole_step is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip, and let no gradient that is not finite change a weight: a fused optimiser looks at a flag on the device.

        The gradients of all processes were added up, so that all of them skip the same step; the host hears of it when the
        loss is logged. A whole step has its own flag, fp16 its scaler, and on a CPU the loss was looked at.
        Lightning's own clipping refuses a fused optimiser in any mixed precision; bf16 scales no gradients, fp16 is not fused.
        """
        fused = optimizer.defaults.get("fused")
        if not (gradient_clip_val or fused):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradient_clip_val:
            norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if fused:
            optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]

    def _count_error(self, output: Any, batch: TrainBatch) -> Tensor:
        """Mean |count − n| of the crops, the plainest sign of learning."""
        made, _ = batch
        if isinstance(output, PointProposals):
            found = output.probabilities.sum(-1) if output.expected else objects(output)
            if made.mask is not None:
                x, y = output.reference.long().unbind(-1)
                found = found * made.mask[:, y, x]
            return (found.sum(1) - made.points.counts).abs().mean()
        density = masked(output.density, LossContext(mask=made.mask), output.stride)
        return (density.sum((1, 2, 3)) - made.points.counts).abs().mean()

    def flush(self) -> dict[str, float]:
        """Means of the terms since the last call, over all processes: the only place where they reach the host."""
        if self._sums is None or not self._summed:
            return {}
        means = self.trainer.strategy.reduce(self._sums / self._summed, reduce_op="mean").tolist()
        self._sums.zero_()
        self._summed = 0
        return dict(zip(self._names, means))

    @torch.no_grad()
    def broken_images(self, steps: range) -> list[str]:
        """Names of the images whose crops, in the first of these steps that has any, give outputs that are not finite.

        Looked for when the loss is no longer a number: looking at every step would make the host wait for the device. Weights
        that are not finite blame no image.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, CountingData) and data.store is not None
        if not all(torch.isfinite(p).all() for p in self.network.parameters()):
            return []
        for step in steps:
            plan = data.plan(step, self.trainer.global_rank, self.trainer.world_size)
            place = data.store.device if data.store.device.type == self.device.type else torch.device("cpu")
            images = render(data.store, plan.to(place), data.augment)[0].images.to(self.device)
            with self.trainer.precision_plugin.forward_context():
                output = self.network.forward(images)
            values = output.logits if isinstance(output, PointProposals) else output.density
            bad = ~torch.isfinite(values).flatten(1).all(1).cpu()
            if bad.any():
                return [data.splits.train[int(k)].name for k in plan.rows[bad, 0].tolist()]
        return []

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validation_step(self, index: int, batch_idx: int) -> None:
        if self.stopping:
            self.given_up = True
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, CountingData) and data.splits.monitor is not None
        image = data.watched(int(index), self.device)
        output = infer(self.network, image)
        truth = torch.tensor([data.truth(int(index))])
        self.metrics.update(counts(output, roi=data.region(int(index))), truth.to(self.device, non_blocking=True))

    def on_validation_start(self) -> None:
        # Every image has its own size: searching the fastest convolution for each costs more than it gives.
        self._benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        self.given_up = False

    def on_validation_end(self) -> None:
        torch.backends.cudnn.benchmark = self._benchmark

    # -- optimisation ------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        c = self.config
        groups = self.network.parameter_groups()
        rates = {"trunk": c.lr if c.trunk_lr is None else c.trunk_lr, "head": c.lr}
        parameters = [{"params": p, "lr": rates[k]} for k, p in groups.items() if p]
        own = [p for p in self.loss.parameters() if p.requires_grad]  # a loss may learn too (KDMG's kernels)
        if own:
            parameters.append({"params": own, "lr": c.lr if c.loss_lr is None else c.loss_lr})
        # The fused kernel has no host sync; with fp16 Lightning's gradient scaler needs the plain one.
        fused = self.device.type == "cuda" and c.precision != "16"
        kind = torch.optim.AdamW if c.optimizer == "adamw" else torch.optim.Adam
        optimizer = kind(parameters, weight_decay=c.weight_decay, fused=fused)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, c))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rate_factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine to one hundredth (or constant)."""
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant":
        return warm
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / config.steps))))
