"""A training run from configuration to result: data, network, loss, the loop, final figure."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from papm import config as configuration
from papm import data
from papm.checkpoint import ModelSpec
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.fractions import require_pixels
from papm.data.splits import Splits, choose
from papm.engine import fallen, loop, oom, resumed, run_folder
from papm.engine.build import (
    build_loss,
    build_network,
    precision_of,
    settle_norms,
    with_bounds,
    with_classes,
)
from papm.engine.data import CountingData
from papm.engine.interrupts import Stop, interruptible
from papm.engine.keep import Keeper
from papm.engine.log import Clock, Log, Watcher
from papm.engine.ranks import is_first_process, join_started, launched, local_rank, processes_here
from papm.engine.result import Weights, finish
from papm.engine.training import Training
from papm.engine.watch import Watched
from papm.errors import ConfigError, PapmError, WriteError
from papm.models.base import Progress
from papm.predict.predictor import pick_device
from papm.text import n_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a run ended with; `result` is what result.json holds, None when it was interrupted."""

    folder: Path
    step: int
    interrupted: bool
    result: dict[str, Any] | None
    shown: Dataset | None = None  # what the result was measured on, for pictures


def say_what_is_left_out(dataset: Dataset) -> None:
    """Points outside their image teach nothing; many of them mean that something is wrong with the files.

    Points that are fractions of the image are refused.
    """
    require_pixels(dataset)
    outside = sum(int((~s.inside).sum()) for s in dataset)
    if outside:
        total = sum(s.count for s in dataset)
        log.warning(
            "%d of %d training points lie outside their image and are left out (papm data check)", outside, total
        )


def say_which_precision(config: TrainConfig, device: torch.device, begun: str | None) -> None:
    """Where it is not the one that was asked for, or not what a new run on this machine would take."""
    own, used = precision_of(config, device), precision_of(config, device, begun)
    if used != own:
        log.warning("the run goes on with precision=%s, as it began; a new run takes %s on this machine", used, own)
    elif config.precision not in ("auto", used):
        log.warning("precision=%s is for GPUs; this run uses %s", config.precision, used)


def own_device(config: TrainConfig) -> torch.device:
    """The device of this process: with several GPUs, the one of its rank."""
    device = pick_device(config.device)
    if device.type == "cuda":
        seen, here = torch.cuda.device_count(), processes_here(config.devices)
        if here > seen:
            raise ConfigError(
                f"devices={config.devices}{'' if here == config.devices else f', {here} of them on this machine'}, "
                f"and this process sees {n_of(seen, 'GPU')}; every process must "
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
    run starts again with half of it, and where its maps become empty, with a slower trunk; it says so.
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
    first, chosen, asked = is_first_process(), splits, config
    with run_folder.alone(folder) if first else nullcontext():
        if resume:
            config, asked = resumed.as_begun(folder, config)
        if first:
            run_folder.check(folder, config, resume, splits)
            say_what_is_left_out(splits.train)
        before = {p.name for p in folder.iterdir()} if folder.is_dir() else set[str]()
        if resume:
            before.discard("tensorboard")  # the run's own: of no use to one that restarts
        attempts, clock = itertools.count(), Clock()

        def attempt(config: TrainConfig) -> RunResult:
            again = next(attempts) > 0
            if again and first:
                run_folder.discard(folder, before)
            return _train(config, folder, chosen, again or not resume, watcher, on_image, on_download, asked, clock)

        try:
            return oom.with_memory(config, lambda c: fallen.with_live_maps(c, attempt))
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
    asked: TrainConfig,
    clock: Clock,
) -> RunResult:
    device = own_device(config)
    begun = None if fresh else resumed.precision_begun(folder)
    if is_first_process():
        say_which_precision(config, device, begun)
    training: Training | None = None
    with oom.kept(folder, lambda: not fresh or (training is not None and training.done > training.first)):
        goes_on = not fresh and (folder / "last.ckpt").exists()
        network = build_network(config, on_download, splits, goes_on)
        loss = build_loss(config, network.stride)
        counting = CountingData(splits, config, loss.halo, on_item=on_image)
        counting.load(device)
        watched = None if splits.monitor is None else Watched(splits.monitor, device)
        settle_norms(network, splits.train, device)
        weights = resumed.weights_used(folder, config, network) if goes_on else network.weights_sha256
        if fresh and is_first_process():
            run_folder.create(folder, config, asked, splits, weights, precision_of(config, device))
        if watcher is not None and is_first_process():
            watcher.on_start(splits.sizes)
        spec = ModelSpec(
            config.backbone,
            dict(config.network),
            config.method,
            configuration.to_mapping(config),
            inference=network.inference,
        )

        with launched(config.devices, device) as ranks:
            training = Training(config, network, loss, counting, device, ranks, begun)
            record = Log(folder, config.steps, watcher, clock, writes=ranks.first)
            keeper = Keeper(folder, spec, training.weights)
            if goes_on:
                loop.resume(keeper.last, training, record)
            ranks.share(training.network.state_dict().values())
            stop = Stop(ranks, config.steps)
            with stop.listening():
                loop.fit(training, watched, record, keeper, stop)

        interrupted = RunResult(folder, training.done, True, None)
        if stop.now() or (stop.heard and ranks.world == 1):  # several have agreed, or go on together
            return interrupted
        if not ranks.first:
            return RunResult(folder, training.done, False, None)
        if config.select == "last" or not record.best:
            keeper.write_best(training.done)
        keeper.settle(training.done)
        last = Weights(training.done, training.weights())
        try:
            with interruptible():
                result = finish(config, folder, splits, record, device, last, weights, asked, begun)
        except KeyboardInterrupt:
            return interrupted
        return RunResult(folder, training.done, False, result, splits.test or splits.monitor)
