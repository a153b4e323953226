"""What would this run take? A few real steps, timed."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from papm import data
from papm.config import TrainConfig
from papm.data.splits import choose
from papm.engine.data import CountingData
from papm.engine.evaluate import evaluate
from papm.engine.module import CountingModule
from papm.engine.train import average_weights, build_loss, build_network, make_trainer, place_on, precision_of
from papm.predict.predictor import pick_device


class _Clock(Callback):
    """Times steps after a warm-up, with the device's queue drained at both ends."""

    def __init__(self, warmup: int) -> None:
        self.warmup, self.start, self.stop = warmup, 0.0, 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in (self.warmup, trainer.max_steps):
            if pl_module.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            if trainer.global_step == self.warmup:
                self.start = now
            self.stop = now


def dry_run(config: TrainConfig, steps: int | None = None, warmup: int | None = None) -> dict[str, Any]:
    """Step time, memory and wall time of a run, measured on its own data and machine; nothing is kept."""
    device = pick_device(config.device)
    warmup = warmup or (20 if device.type == "cuda" else 2)
    steps = steps or (100 if device.type == "cuda" else 5)
    splits = choose(data.open_spec(config.data, **config.options), config.select, config.val_fraction, config.seed)
    short = dataclasses.replace(config, steps=warmup + steps)
    network = build_network(config)
    loss = build_loss(config, network.stride)
    began = time.perf_counter()
    counting = CountingData(splits, short, loss.halo)
    counting.load(device)
    loading = time.perf_counter() - began
    module = CountingModule(network, loss, short)
    place_on(device, module, counting, config)
    clock = _Clock(warmup)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [c for c in (average_weights(config, device), clock) if c is not None]
        make_trainer(short, Path(folder), device, callbacks, watch=False).fit(module, datamodule=counting)
    step = (clock.stop - clock.start) / steps
    watched = splits.monitor
    evaluation = 0.0
    if watched is not None:
        few = watched[: min(8, len(watched))]
        network.to(device)
        began = time.perf_counter()
        evaluate(network, few, precision=precision_of(config, device))
        evaluation = (time.perf_counter() - began) / len(few) * len(watched)
    evaluations = 0 if watched is None else config.steps // (config.eval_every or max(1, config.steps // 20)) + 1
    found: dict[str, Any] = {
        "step_ms": round(1e3 * step, 3),
        "images_per_second": round(config.batch / step, 1),
        "loading_s": round(loading, 1),
        "evaluation_s": round(evaluation, 1),
        "evaluations": evaluations,
        "wall_minutes": round((loading + step * config.steps + evaluation * evaluations) / 60, 1),
    }
    if device.type == "cuda":
        found["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return found
