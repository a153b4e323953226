"""From samples to what a step takes: where decoded images live, and the plan or the batch of every step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from papm import models
from papm.config import TrainConfig
from papm.data.augment import Augment, Plan, plan
from papm.data.cache import ImageStore, build_store, decoded_bytes
from papm.data.crops import Crops, cut_crops, render
from papm.data.disk_cache import DiskStore, open_store
from papm.data.several import turns
from papm.data.splits import Splits
from papm.engine.ranks import processes_here
from papm.errors import PapmError
from papm.files import cache_root
from papm.points import blunder, displace, spacing
from papm.structures import Batch, Sample
from papm.targets import spacing_alone

log = logging.getLogger(__name__)

# Decoded training images may take this share of the device's free memory; the rest is for the network.
DEVICE_SHARE = 0.4
# ... and this share of the machine's memory when they stay on the host.
MEMORY_SHARE = 0.5


def training_points(sample: Sample, config: TrainConfig) -> np.ndarray:
    """Points a network learns from, [n, 3]: x, y inside the image and its region, and the spacing to the neighbours.

    Of several classes [n, 4], with the label. Deterministic in the seed and the sample's name, whatever the order of the
    images.
    """
    used = sample.inside & sample.counted
    xy = sample.points[used]
    labels = torch.zeros(len(xy), dtype=torch.int64) if sample.labels is None else sample.labels[used]
    if config.noise > 0:
        rng = np.random.default_rng([config.seed, 4, *sample.name.encode()])
        if config.noise_kind == "missed" or config.noise_kind == "doubled":
            xy, kept = blunder(xy, sample.size, config.noise, config.noise_kind, rng)
        else:
            xy, kept = displace(xy, sample.size, config.noise, config.noise_kind, rng, edge=config.noise_edge)
        still = replace(sample, points=xy).counted
        xy, labels = xy[still], labels[kept][still]
    alone = spacing_alone(sample.size)
    columns = [xy.numpy(), spacing(xy, alone=alone).numpy()[:, None]]
    if several_classes(config):
        columns.append(labels.numpy()[:, None])
    return np.concatenate(columns, 1).astype(np.float32)


def several_classes(config: TrainConfig) -> bool:
    """Whether points need their labels: the network has a map, or a score, for each of several classes."""
    return int(config.network.get("num_classes", 1)) > 1


def available_memory() -> int:
    """Bytes the machine can still give, caches it would drop included."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 4 * 2**30


class CountingData:
    """Training batches by step number."""

    def __init__(
        self,
        splits: Splits,
        config: TrainConfig,
        halo: float = 0.0,
        cache_folder: Path | None = None,
        on_item: Callable[[], None] | None = None,
    ) -> None:
        self.splits, self.config = splits, config
        about = models.info(config.backbone)
        self.augment = Augment(
            crop=config.view,
            flip=config.flip,
            turn=config.turn,
            grey=config.grey,
            colour=config.colour,
            scale_min=config.scale_min,
            scale_max=config.scale_max,
            scale_share=config.scale_share,
            positions=config.positions,
            margin=config.frame,
            halo=halo,
            labelled=several_classes(config),
            mean=about.mean,
            std=about.std,
        )
        self.points = [training_points(s, config) for s in splits.train.samples]
        self.sizes = [s.size for s in splits.train.samples]
        self.turns = turns(splits.train.samples)
        self.cache_folder = cache_folder or cache_root() / "images"
        self.on_item = on_item
        self.store: ImageStore | DiskStore | None = None
        self._cut: Callable[[ImageStore, torch.Tensor, Augment], Crops] | None = None  # compiled

    def place(self, device: torch.device) -> str:
        """Where the training images go: device, memory or disk."""
        if self.config.cache != "auto":
            return self.config.cache
        # Every process of a machine holds its own.
        need, shared = (
            decoded_bytes(self.splits.train.samples),
            available_memory() / processes_here(self.config.devices),
        )
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            # They are decoded on the host first, so they must fit there too.
            if need < DEVICE_SHARE * free and need < MEMORY_SHARE * shared:
                return "device"
        return "memory" if need < MEMORY_SHARE * shared else "disk"

    def load(self, device: torch.device) -> None:
        """Decode the training images, once."""
        if self.store is not None:
            return
        where = self.place(device)
        samples = self.splits.train.samples
        if where == "disk":
            self.store = open_store(samples, self.cache_folder, self.on_item)
        else:
            decoded = build_store(samples, self.on_item)
            self.store = self._on(device, decoded) if where == "device" else decoded
        log.info("training images live in: %s (%.0f MB)", where, self.store.nbytes / 1e6)

    @staticmethod
    def _on(device: torch.device, images: ImageStore) -> ImageStore:
        try:
            return images.to(device)
        except torch.OutOfMemoryError:  # a smaller batch would not help
            size = images.nbytes / 2**30
            raise PapmError(
                f"the training images ({size:.1f} GiB) do not fit on the device; use cache=memory"
            ) from None

    def compile_crops(self) -> None:
        """One kernel for cropping, resizing, flipping, greying and normalising the whole batch."""
        self._cut = torch.compile(cut_crops, dynamic=False)

    def render(self, plan: Plan) -> Batch:
        """The crops of a plan, on the device where plan and images live."""
        assert self.store is not None
        return render(self.store, plan, self.augment, self._cut if plan.rows.is_cuda else None)

    def plan(self, step: int, rank: int = 0, world: int = 1) -> Plan:
        """The plan of a step: a pure function of the seed, the step and the rank."""
        c = self.config
        who: dict[str, Any] = {"rank": rank, "world": world, "turns": self.turns}
        return plan(step, self.augment, self.sizes, self.points, seed=c.seed, batch=c.batch, **who)

    def items(self, first: int, device: torch.device, rank: int = 0, world: int = 1) -> Iterator[Plan | Batch]:
        """What the steps from `first` to the last take: a plan where the images live on the device that trains, and the step
        cuts the crops itself; else a batch that was cut on the host, by loader processes where there are any."""
        assert self.store is not None
        gpu = device.type == "cuda"
        workers = self.config.workers
        if workers < 0:  # a GPU that waits for crops wants them cut elsewhere; a CPU that trains has no core to spare
            workers = min(8, (os.cpu_count() or 2) - 1) if gpu else 0
        on_device = self.store.device.type == device.type
        if not on_device and workers:
            yield from _received(_Steps(self, first, rank, world), workers, pin_memory=gpu)
            return
        for step in range(first, self.config.steps):
            made = self.plan(step, rank, world)
            if on_device:
                yield made.pin_memory() if gpu else made
            else:
                yield render(self.store, made, self.augment)


class _Steps(IterableDataset[Any]):
    """Batches rendered in loader processes, for images that do not live on the device."""

    def __init__(self, data: CountingData, first: int, rank: int, world: int) -> None:
        self.data, self.first, self.rank, self.world = data, first, rank, world

    def __iter__(self) -> Iterator[Batch | PapmError]:
        info = get_worker_info()
        offset, skip = (info.id, info.num_workers) if info is not None else (0, 1)
        assert self.data.store is not None
        for step in range(self.first + offset, self.data.config.steps, skip):
            torch.set_num_threads(1)
            made = self.data.plan(step, self.rank, self.world)
            try:
                yield render(self.data.store, made, self.data.augment)
            except PapmError as error:  # as it is: a loader would wrap it in the traceback of its process
                yield error
                return


def _received(steps: _Steps, workers: int, pin_memory: bool) -> Iterator[Batch]:
    """What loader processes made; what they could not make is an error of this one."""
    loader = DataLoader(
        steps,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4,
        pin_memory=pin_memory,
        worker_init_fn=_stay_behind,
    )
    for item in loader:
        if isinstance(item, PapmError):
            raise item
        yield item


def _stay_behind(worker: int) -> None:
    """Ctrl-C, and the SIGTERM of a scheduler, reach a whole group of processes: loaders must outlive the last step."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
