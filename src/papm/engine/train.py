"""A training run from configuration to result: data, network, loss, Lightning, final figure."""

from __future__ import annotations

import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from papm import config as configuration
from papm import data
from papm.checkpoint import ModelSpec
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.splits import Splits, choose
from papm.engine import run_folder
from papm.engine.build import (
    build_loss,
    build_network,
    precision_of,
    settle_norms,
    with_bounds,
    with_classes,
)
from papm.engine.callbacks import (
    AtomicCheckpointIO,
    AveragedWeights,
    EventFiles,
    FirstStep,
    Keeper,
    Logbook,
    Watcher,
    not_resumable,
)
from papm.engine.data import CountingData
from papm.engine.interrupts import StopOnInterrupt, interruptible
from papm.engine.memory import no_memory, with_memory
from papm.engine.module import CountingModule
from papm.engine.processes import is_first_process, join_started, local_rank
from papm.engine.result import Weights, finish
from papm.errors import ConfigError, PapmError, WriteError
from papm.models.base import Progress
from papm.predict.predictor import pick_device
from papm.text import n_of
from papm.untrusted import brief

log = logging.getLogger(__name__)

# Compiling takes most of a minute and saves about a quarter of a step of 5 to 15 ms (docs/results.md).
COMPILE_PAYS = 5000
# What Lightning raises of a checkpoint that lacks something, or has it in another shape.
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
# Where a whole step cannot be recorded: a CUDA graph for the forward pass and one for the backward pass.
COMPILE_MODE = "reduce-overhead"


@dataclass(frozen=True)
class RunResult:
    """What a run ended with; `result` is what result.json holds, None when it was interrupted."""

    folder: Path
    step: int
    interrupted: bool
    result: dict[str, Any] | None
    shown: Dataset | None = None  # what the result was measured on, for pictures


def say_what_is_left_out(dataset: Dataset) -> None:
    """Points outside their image teach nothing; many of them mean that something is wrong with the files."""
    outside = sum(int((~s.inside).sum()) for s in dataset)
    if outside:
        total = sum(s.count for s in dataset)
        log.warning(
            "%d of %d training points lie outside their image and are left out (papm data check)", outside, total
        )


def own_device(config: TrainConfig) -> torch.device:
    """The device of this process: with several GPUs, the one of its rank."""
    device = pick_device(config.device)
    if device.type == "cuda":
        seen = torch.cuda.device_count()
        if config.devices > seen:
            raise ConfigError(
                f"devices={config.devices}, and this process sees {n_of(seen, 'GPU')}; every process must "
                "see all of them (srun: --gpus-per-node in place of --gpus-per-task)"
            )
        device = torch.device("cuda", local_rank())
        torch.cuda.set_device(device)
    return device


def train(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    on_image: Callable[[], None] | None = None,
    on_download: Progress | None = None,
    splits: Splits | None = None,
) -> RunResult:
    """Train, evaluate, write the run folder; everything wrong with the request is found before anything is written.

    A run that fails before it could save itself leaves nothing behind. Where the device's memory does not hold a batch, the
    run starts again with half of it, and says so.
    """
    config = with_bounds(config)
    join_started(config.devices)
    if splits is None:
        splits = choose(data.open_spec(config.data, **config.options), config.select, config.val_fraction, config.seed)
    config = with_classes(config, splits)
    if splits.monitor is not None and 0 < len(splits.monitor) < config.devices:
        few = len(splits.monitor)
        raise ConfigError(
            f"{config.devices} processes have only {n_of(few, 'image')} to watch; "
            f"use devices={few}, a larger val_fraction, or select=last"
        )
    first, chosen = is_first_process(), splits
    with run_folder.alone(folder) if first else nullcontext():
        if resume:
            config = run_folder.with_reduced_batch(folder, config)
        if first:
            run_folder.check(folder, config, resume)
            say_what_is_left_out(splits.train)
        before = {p.name for p in folder.iterdir()} if folder.is_dir() else set[str]()

        asked = config.batch

        def attempt(config: TrainConfig, started: FirstStep) -> RunResult:
            return _train(config, folder, chosen, not resume, watcher, on_image, on_download, started, asked)

        try:
            return with_memory(config, attempt, folder, fresh=not resume)
        except PapmError as error:
            saved = (folder / "last.ckpt").exists()
            if first and not resume and not saved:
                run_folder.discard(folder, before)
            if isinstance(error, WriteError):
                then = "--resume goes on from last.ckpt" if saved else "give the same command again"
                raise WriteError(f"{error}; make room, and {then}") from None
            raise


def _train(
    config: TrainConfig,
    folder: Path,
    splits: Splits,
    fresh: bool,
    watcher: Watcher | None,
    on_image: Callable[[], None] | None,
    on_download: Progress | None,
    first_step: FirstStep,
    asked: int,
) -> RunResult:
    started = time.monotonic()
    device = own_device(config)
    if config.precision != "auto" and config.precision != precision_of(config, device) and is_first_process():
        log.warning("precision=%s is for GPUs; this run uses %s", config.precision, precision_of(config, device))
    network = build_network(config, on_download, splits)
    loss = build_loss(config, network.stride)
    module = CountingModule(network, loss, config)
    counting = CountingData(splits, config, loss.halo, on_item=on_image)
    counting.load(device)
    settle_norms(network, splits.train, device)
    place_on(device, module, counting, config)
    if fresh and is_first_process():
        run_folder.create(folder, config, asked)
    if watcher is not None and is_first_process():
        watcher.on_start(splits.sizes)

    spec = ModelSpec(
        config.backbone,
        dict(config.network),
        config.method,
        configuration.to_mapping(config),
        inference=network.inference,
    )
    logbook = Logbook(folder, config.log_every, watcher)
    average = average_weights(config, device)
    state = average.network_state if average is not None else network.state_dict
    watched = splits.monitor is not None
    evaluations = evaluate_every(config) if watched else 0
    keeper = Keeper(folder, config.save_every, spec, logbook, state, config.select != "last", evaluations)
    stop = StopOnInterrupt()
    callbacks = [c for c in (average, logbook, stop, first_step, keeper) if c is not None]
    trainer = make_trainer(config, folder, device, callbacks, watch=watched)
    fit(trainer, module, counting, folder / "last.ckpt" if (folder / "last.ckpt").exists() and not fresh else None)
    if keeper.owes(trainer) and not trainer.should_stop:  # the evaluation after the last step
        with without_known_warnings():
            trainer.validate(module, datamodule=counting, verbose=False)
    interrupted = RunResult(folder, trainer.global_step, True, None)
    if trainer.should_stop or (stop.interrupted and trainer.world_size == 1):  # several have agreed, or go on together
        return interrupted
    if not trainer.is_global_zero:
        return RunResult(folder, trainer.global_step, False, None)
    if config.select == "last" or not logbook.best:
        keeper.write_best(trainer.global_step)
    keeper.settle(trainer.global_step)
    last = Weights(trainer.global_step, state())
    try:
        with interruptible():
            result = finish(config, folder, splits, logbook, device, last, started, network.weights_sha256)
    except KeyboardInterrupt:
        return interrupted
    return RunResult(folder, trainer.global_step, False, result, splits.test or splits.monitor)


def fit(trainer: pl.Trainer, module: CountingModule, counting: CountingData, known: Path | None = None) -> None:
    """Lightning's part of a run, from a checkpoint that is `known` or from the beginning."""
    with without_known_warnings():
        try:
            trainer.fit(module, datamodule=counting, ckpt_path=known, weights_only=True)
        except BaseException as error:
            end_others(trainer)
            began = any(isinstance(c, Logbook) and c.began for c in trainer.callbacks)  # type: ignore[attr-defined]
            if known is None or began or not isinstance(error, UNREADABLE) or no_memory(error):
                raise
            missing = isinstance(error, KeyError) and f"it has no {brief(str(error))}"
            raise not_resumable(known, missing or "its weights or its version are not those of this run") from None


def end_others(trainer: pl.Trainer) -> None:
    """After a failure of the first process: the others would wait for it, on GPUs for half an hour, and hold their memory."""
    launcher = trainer.strategy.launcher
    if launcher is not None:
        launcher.kill(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has the other


@contextmanager
def without_known_warnings() -> Iterator[None]:
    """Without what is said at every run and true of every run here: loaders are not processes, steps are one long epoch.

    Nor what the thread that writes TensorBoard's files says before it ends: `EventFiles` says it in a sentence.
    """
    before = threading.excepthook

    def others(raised: threading.ExceptHookArgs) -> None:
        if not type(raised.thread).__module__.startswith("tensorboard"):
            before(raised)

    threading.excepthook = others
    try:
        with warnings.catch_warnings():
            for said in ("does not have many workers", "LeafSpec", "lr_scheduler.step"):
                warnings.filterwarnings("ignore", message=f".*{said}.*")
            yield
    finally:
        threading.excepthook = before


def place_on(device: torch.device, module: CountingModule, counting: CountingData, config: TrainConfig) -> None:
    """Memory layout and compilation that suit the device."""
    whole = records_whole_steps(device, module, counting, config)
    if whole:
        counting.keep_plans = module.record = True
    network = module.network
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if device.type != "cuda":
        return
    if config.compile == "yes" or (config.compile == "auto" and config.steps >= COMPILE_PAYS):
        network.compile(mode=None if whole else COMPILE_MODE, dynamic=False)
        counting.compile_crops()


def records_whole_steps(
    device: torch.device, module: CountingModule, counting: CountingData, config: TrainConfig
) -> bool:
    """Whether a step can be one CUDA graph: images on the GPU, one process, no weights but the network's."""
    return (
        config.graph == "auto"
        and counting.store is not None
        and counting.store.device.type == "cuda"
        and config.devices == 1
        and precision_of(config, device) != "16"
        and module.recordable
    )


def average_weights(config: TrainConfig, device: torch.device) -> AveragedWeights | None:
    """The running average of the weights, if the configuration wants one."""
    return AveragedWeights(config.ema, device, config.watch == "averaged") if config.ema else None


def evaluate_every(config: TrainConfig) -> int:
    """Steps from one evaluation of the watched images to the next."""
    return config.eval_every or max(1, config.steps // 20)


def make_trainer(
    config: TrainConfig, folder: Path, device: torch.device, callbacks: list[Any], watch: bool
) -> pl.Trainer:
    """Lightning, kept out of the way: one long epoch, nothing logged or drawn by it at each step."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=config.devices,
        strategy="auto" if config.devices == 1 else "ddp",
        precision={"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[precision_of(config, device)],  # type: ignore[arg-type]
        max_steps=config.steps,
        max_epochs=-1,
        val_check_interval=evaluate_every(config),
        check_val_every_n_epoch=None,
        limit_val_batches=1.0 if watch else 0,
        num_sanity_val_steps=0,
        log_every_n_steps=min(config.log_every, config.steps),
        benchmark=device.type == "cuda",
        gradient_clip_val=config.clip or None,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO(), LightningEnvironment()],  # not what it finds of a scheduler: see `processes`
        logger=EventFiles(str(folder), name="", version="tensorboard"),
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=True,
        use_distributed_sampler=False,
    )
