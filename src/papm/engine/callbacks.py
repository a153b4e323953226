"""What happens around the steps: averaged weights, logging, checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, Checkpoint, WeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from papm import checkpoint as checkpoints
from papm.checkpoint import ModelSpec
from papm.engine.module import CountingModule
from papm.engine.run_folder import MetricsFile
from papm.errors import CheckpointError, PapmError
from papm.files import write_atomic

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Who wants to hear how training goes (the command line draws a progress bar from it)."""

    def on_start(self, sizes: dict[str, int]) -> None: ...

    def on_step(self, step: int, total: int, values: dict[str, float]) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, renames; reads without running code of the file."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        check_finite(checkpoint, Path(path), checkpoint["global_step"])
        write_atomic(Path(path), lambda stream: checkpoints.write(checkpoint, stream))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        values = checkpoints.read(Path(path))
        parts = {"optimizer_states": list, "lr_schedulers": list, "loops": dict, "callbacks": dict}
        for name, kind in parts.items():
            if not values.get(name) or not isinstance(values[name], kind):
                raise not_resumable(path, f"it has no {name}")
        return values


def not_resumable(path: Any, reason: str) -> CheckpointError:
    """The error for a last.ckpt that was altered: a run that goes on from half of it would be another run."""
    advice = "start again with another --out, or from its weights with --init"
    return CheckpointError(f"{path}: a run cannot go on from this file ({reason}); {advice}")


def check_finite(values: Any, path: Path, step: int) -> None:
    """Refuse what no training could go on from. Asked only where a checkpoint is written, which waits for the device anyway."""
    if all(bool(torch.isfinite(t).all()) for t in _tensors(values)):
        return
    before = path.with_name("last.ckpt").exists()
    advice = "start again"
    if before:
        advice = "--resume goes on from the last.ckpt before that; if it happens again, start a new run"
    raise CheckpointError(
        f"{path}: not written, for the weights, the optimiser's state or the loss are not finite at step {step}; {advice} "
        "with a smaller lr, or clip=1"
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested dictionaries and lists."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _tensors(value)


class EventFiles(TensorBoardLogger):
    """TensorBoard's files; a disk that is full ends them, not the run."""

    _ended = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if not self._ended:
            self._try(lambda: super(EventFiles, self).log_metrics(metrics, step))

    @rank_zero_only
    def save(self) -> None:
        if not self._ended:
            self._try(super().save)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if not self._ended:
            self._try(lambda: super(EventFiles, self).finalize(status))

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, ValueError):  # ValueError: how Lightning passes on whatever its writer said
            self._ended = True
            log.warning("%s: cannot be written; TensorBoard's events end here", self.log_dir)


def _state(module: torch.nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What has an average (weights, running statistics), and what has none (counters)."""
    tensors = [*(p.detach() for p in module.parameters()), *module.buffers()]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]


class AveragedWeights(WeightAveraging):
    """Exponential moving average on the training device: one fused update a step and no host sync.

    Evaluations look at it, or, where it is not `watched`, at the weights as they are.
    """

    def __init__(self, decay: float, device: torch.device, watched: bool = True) -> None:
        super().__init__(device=device, use_buffers=False)
        self.decay, self.watched = decay, watched

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if "averaging_state" not in checkpoint or "current_model_state" not in checkpoint:
            raise not_resumable(trainer.ckpt_path, "it has no averaged weights")
        super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watched:
            super().on_validation_epoch_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.watched:
            super().on_validation_epoch_end(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step <= self._latest_update_step:
            return
        assert self._average_model is not None
        # A young average follows quickly, else it would remember the random start for 1/(1 − decay) steps.
        decay = min(self.decay, (1 + step) / (10 + step))
        # Running statistics are those of the last ten batches and of other weights: they are averaged like the weights.
        (average, counters), (now, counted) = (_state(m) for m in (self._average_model.module, pl_module))
        torch._foreach_lerp_(average, now, 1 - decay)
        if counters:
            torch._foreach_copy_(counters, counted)
        self._latest_update_step = step

    def network_state(self) -> dict[str, Tensor]:
        """The averaged weights of the network."""
        assert self._average_model is not None
        network: torch.nn.Module = self._average_model.module.network  # type: ignore[assignment]
        return network.state_dict()


class Logbook(Callback):
    """metrics.csv, TensorBoard and the watcher; keeps the best evaluation seen."""

    def __init__(self, folder: Path, config_log_every: int, watcher: Watcher | None) -> None:
        self.file = MetricsFile(folder / "metrics.csv")
        self.every, self.watcher = config_log_every, watcher
        self.best: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.seconds = 0.0
        self._started = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "latest": self.latest, "seconds": self.elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.latest = dict(state_dict["best"]), dict(state_dict["latest"])
        self.seconds = float(state_dict["seconds"])

    @property
    def began(self) -> bool:
        """Whether all that a run goes on from was read, and steps are taken."""
        return self._started > 0

    def elapsed(self) -> float:
        """Seconds of training so far, over all parts of a resumed run."""
        return self.seconds + (time.monotonic() - self._started if self._started else 0.0)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.monotonic()
        if trainer.is_global_zero:
            self.file.truncate_after(trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step % self.every and step != trainer.max_steps:
            return
        assert isinstance(pl_module, CountingModule)
        values = pl_module.flush()
        if not all(torch.isfinite(torch.tensor(list(values.values())))):
            names = pl_module.broken_images(range(max(0, step - self.every), step))
            where = f" (first with a crop of {', '.join(names)})" if names else ""
            raise PapmError(f"the loss became {values['loss']} before step {step}{where}; try a smaller lr, or clip=1")
        values["lr"] = trainer.optimizers[0].param_groups[-1]["lr"]
        self._write(trainer, step, values)
        if self.watcher is not None and trainer.is_global_zero:
            self.watcher.on_step(step, trainer.max_steps, values)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CountingModule)
        if trainer.strategy.reduce_boolean_decision(pl_module.given_up, all=False):
            pl_module.metrics.reset()
            return
        score = pl_module.metrics.score().to_dict()
        pl_module.metrics.reset()
        values = {k: float(v) for k, v in score.items() if v is not None and k != "n"}
        step = trainer.global_step
        if "mae" not in values:
            raise PapmError(f"the counts are no longer finite at step {step}; try a smaller lr, or clip=1")
        self.latest = {"step": step, **values}
        if not self.best or values["mae"] < self.best["mae"]:
            self.best = dict(self.latest)
        self._write(trainer, step, values)
        if self.watcher is not None and trainer.is_global_zero:
            self.watcher.on_evaluation(step, values)

    def _write(self, trainer: pl.Trainer, step: int, values: dict[str, float]) -> None:
        if not trainer.is_global_zero:
            return
        self.file.append({"step": step, "seconds": self.elapsed(), **values})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)


class Keeper(Checkpoint):
    """last.ckpt every so many steps, at the end and on Ctrl-C; best.ckpt whenever the watched images say so.

    Where a step is evaluated, last.ckpt is written after that: a run that was killed in between evaluates the step again. One
    that was stopped in between has written it, and begins with the evaluation that it owes.

    On a full disk a run without any last.ckpt ends: there is nothing to go on from. Later the one before is kept, and training
    goes on. Best weights that found no room wait in memory, and last.ckpt waits for them: it knows which step was the best.
    """

    def __init__(
        self,
        folder: Path,
        every: int,
        spec: ModelSpec,
        logbook: Logbook,
        state: Callable[[], dict[str, Tensor]],
        choose: bool,
        evaluations: int = 0,
    ) -> None:
        self.folder, self.every, self.spec, self.logbook, self.state, self.choose = (
            folder,
            every,
            spec,
            logbook,
            state,
            choose,
        )
        self.evaluations = evaluations  # steps from one to the next, 0: none
        self._saved = -1
        self._behind = False  # whether the latest write of last.ckpt failed
        self._waiting: tuple[int, dict[str, Tensor]] | None = None

    @property
    def last(self) -> Path:
        return self.folder / "last.ckpt"

    def owes(self, trainer: pl.Trainer) -> bool:
        """Whether the present step is to be evaluated and is not."""
        return self._evaluated(trainer.global_step) and self.logbook.latest.get("step") != trainer.global_step

    def _evaluated(self, step: int) -> bool:
        return step > 0 and self.evaluations > 0 and step % self.evaluations == 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.owes(trainer):
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting = False  # begin with the first image
            trainer.validating = True  # as Lightning does between steps
            loop.run()
            trainer.training = True
            if not self.owes(trainer):
                self.save(trainer)

    def save(self, trainer: pl.Trainer) -> None:
        """Write last.ckpt; when that fails (a full disk) the previous one is kept, and training goes on, unless it is asked to
        stop, or the other processes wait for this one: going on alone would hang."""
        if trainer.global_step == self._saved:
            return
        try:
            self._write_waiting()
            trainer.save_checkpoint(self.last)
            self._saved, self._behind = trainer.global_step, False
        except PapmError as error:
            self._behind = True
            self._failed(error, end=trainer.should_stop or trainer.world_size > 1)

    def _failed(self, error: PapmError, end: bool = False) -> None:
        """Go on without a checkpoint where there is an earlier one, and the weights are good."""
        if end or isinstance(error, CheckpointError) or not self.last.exists():
            raise error
        log.warning("%s", error)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["papm"] = self._spec(trainer.global_step).to_mapping()

    def _spec(self, step: int) -> ModelSpec:
        return replace(self.spec, step=step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.should_stop or (self._due(trainer) and not self._evaluated(trainer.global_step)):
            self.save(trainer)

    def _due(self, trainer: pl.Trainer) -> bool:
        step = trainer.global_step
        return step % self.every == 0 or step == trainer.max_steps or trainer.should_stop

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.choose and trainer.is_global_zero and self.logbook.best.get("step") == trainer.global_step:
            self.write_best(trainer.global_step)
        if self._due(trainer):
            self.save(trainer)

    def write_best(self, step: int) -> None:
        """The present (averaged) weights become the run's result."""
        self._waiting = step, self.state()
        try:
            self._write_waiting()
        except PapmError as error:
            self._waiting = step, {k: v.detach().cpu().clone() for k, v in self.state().items()}  # these will change
            self._failed(error)

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            step, state = self._waiting
            check_finite(state, self.folder / "best.ckpt", step)
            checkpoints.save(self.folder / "best.ckpt", self._spec(step), state)
            self._waiting = None

    def settle(self, step: int) -> None:
        """At the end of a run: the best weights must be on disk; last.ckpt may be of an earlier step."""
        self._write_waiting()
        if self._behind:
            log.warning("%s: is of an earlier step; make room, and --resume brings it to step %d", self.last, step)


class FirstStep(Callback):
    """Knows whether a run has taken a step."""

    def __init__(self) -> None:
        self.done = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.done = True
