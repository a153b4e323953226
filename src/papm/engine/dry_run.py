"""What would this run take? A few real steps, timed."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from papm import data
from papm.config import TrainConfig
from papm.data.fractions import require_pixels
from papm.data.splits import Splits, choose
from papm.engine import run_folder
from papm.engine.build import build_loss, build_network, with_classes
from papm.engine.data import CountingData
from papm.engine.evaluate import evaluate
from papm.engine.loop import evaluate_every
from papm.engine.meeting import PATIENCE
from papm.engine.oom import with_memory
from papm.engine.ranks import Ranks, join_started, launched, machines
from papm.engine.resumed import as_begun, precision_begun, steps_done
from papm.engine.train import own_device
from papm.engine.training import Training, compiles
from papm.errors import ConfigError
from papm.text import n_of


def dry_run(
    config: TrainConfig,
    steps: int | None = None,
    warmup: int | None = None,
    splits: Splits | None = None,
    resumed: Path | None = None,
) -> dict[str, Any]:
    """Step time, memory and wall time of a run, measured on its own data and machine; nothing is kept.

    Where memory does not hold a batch, it is that of the smaller one which the run would go on with. Of a run that is
    `resumed` from its folder, it is what is left.
    """
    join_started(config.devices)
    device = own_device(config)
    # On a GPU the first steps of each padded length of the points are captured: those are not what a step takes.
    warmup = warmup or (150 if device.type == "cuda" else 2)
    steps = steps or (200 if device.type == "cuda" else 5)
    if splits is None:
        splits = choose(data.open_spec(config.data, **config.options), config.select, config.val_fraction, config.seed)
    chosen = splits
    require_pixels(chosen.train)
    config, done, begun = with_classes(config, chosen), 0, None
    if resumed is not None:
        config, _ = as_begun(resumed, config)
        run_folder.require_same(resumed, config, chosen)
        done, begun = steps_done(resumed), precision_begun(resumed)
    return with_memory(config, lambda config: _measure(config, chosen, device, steps, warmup, done, begun))


def _measure(
    config: TrainConfig,
    splits: Splits,
    device: torch.device,
    steps: int,
    warmup: int,
    done: int,
    begun: str | None,
) -> dict[str, Any]:
    # Compiled or not as the whole run would be, not as one of so few steps.
    short = dataclasses.replace(config, steps=warmup + steps, compile="yes" if compiles(config) else "no")
    network = build_network(config, goes_on=done > 0)
    loss = build_loss(config, network.stride)
    began = time.perf_counter()
    counting = CountingData(splits, short, loss.halo)
    counting.load(device)
    loading = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with connected(config.devices, device) as ranks:
        training = Training(short, network, loss, counting, device, ranks, begun)
        for item in counting.items(0, device, ranks.rank, ranks.world):
            training.take(item)
            if training.done in (warmup, short.steps):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began, before = time.perf_counter(), began
    step = (began - before) / steps
    watched = splits.monitor
    evaluation = 0.0
    if watched is not None:
        few = watched[: min(8, len(watched))]
        began = time.perf_counter()
        evaluate(network, few, precision=training.counting)
        evaluation = (time.perf_counter() - began) / len(few) * len(watched)
    shorter = training.precision != training.counting
    every = 0 if watched is None else evaluate_every(config, watched, shorter)
    evaluations = config.steps // every - done // every + 1 if every else 0
    if every and config.steps % every and config.select != "last":
        evaluations += 1  # of the last step
    left = config.steps - done
    found: dict[str, Any] = {
        "batch": config.batch,
        "steps": left,
        "step_ms": round(1e3 * step, 3),
        "images_per_second": round(config.batch * config.devices / step, 1),
        "loading_s": round(loading, 1),
        "evaluation_s": round(evaluation, 1),
        "evaluations": evaluations,
        "wall_minutes": round((loading + step * left + evaluation * evaluations) / 60, 1),
    }
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else resident_bytes()
    if peak:
        found["peak_memory_gb"] = round(peak / 1e9, 2)
    return found


@contextmanager
def connected(devices: int, device: torch.device) -> Iterator[Ranks]:
    """`launched`, with less patience, and a sentence where the processes of several machines do not come together."""
    if machines(devices) == 1:
        with launched(devices, device) as ranks:
            yield ranks
        return
    try:
        with launched(devices, device, PATIENCE) as ranks:
            ranks.any(False)
            yield ranks
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        name = "NCCL" if device.type == "cuda" else "GLOO"
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise ConfigError(
            f"the processes meet, but cannot train together ({first}); is {name}_SOCKET_IFNAME the network between them?"
        ) from error


def resident_bytes() -> int:
    """The most memory this process has had; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def in_words(found: dict[str, Any], config: TrainConfig) -> str:
    """The estimate as two sentences.

    >>> print(in_words({"step_ms": 41.2, "images_per_second": 194.2, "loading_s": 1.0, "evaluation_s": 2.0, "evaluations": 21,
    ...                 "wall_minutes": 1.8, "peak_memory_gb": 0.93}, TrainConfig(steps=1500, batch=8, crop=128)))
    A step of 8 crops of 128 px takes 41 ms (194 crops per second); memory: 0.9 GB.
    1,500 steps and 21 evaluations of 2.0 s: about 2 minutes in all.
    """
    step, minutes = found["step_ms"], found["wall_minutes"]
    took = f"{step / 1e3:.1f} s" if step >= 1000 else f"{step:.0f} ms" if step >= 10 else f"{step:.1f} ms"
    rate = (
        f"{found['images_per_second']:.0f}" if found["images_per_second"] >= 10 else f"{found['images_per_second']:g}"
    )
    memory = f"; memory: {found['peak_memory_gb']:.1f} GB" if "peak_memory_gb" in found else ""
    times = f" and {found['evaluations']} evaluations of {found['evaluation_s']:.1f} s" if found["evaluations"] else ""
    whole = f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes" if minutes >= 1.5 else "a minute"
    whole = f"about {whole}" if minutes >= 0.5 else "less than a minute"
    crops = config.devices * int(found.get("batch", config.batch))
    left = found.get("steps", config.steps)
    of = f"{left:,} steps" if left == config.steps else f"The {n_of(left, 'step')} left of {config.steps:,}"
    return (
        f"A step of {crops} crops of {config.view} px takes {took} ({rate} crops per second)"
        f"{memory}.\n{of}{times}: {whole} in all."
    )
