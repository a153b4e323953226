"""From samples to batches on the device: where decoded images live, and the loader that Lightning iterates."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from papm import models
from papm.config import TrainConfig
from papm.data.augment import Augment, Plan, cut_crops, plan, render
from papm.data.base import Dataset
from papm.data.cache import ImageStore, build_store, decoded_bytes
from papm.data.disk_cache import DiskStore, open_store
from papm.data.splits import Splits
from papm.errors import PapmError
from papm.files import cache_root
from papm.points import displace, spacing
from papm.structures import Batch, PointBatch, Sample
from papm.targets import spacing_alone

log = logging.getLogger(__name__)

# Decoded training images may take this share of the device's free memory; the rest is for the network.
DEVICE_SHARE = 0.4
# ... and this share of the machine's memory when they stay on the host.
MEMORY_SHARE = 0.5

# Watched images are kept decoded, on the device, when they take less than this many bytes.
WATCHED_LIMIT = 2**30

TrainBatch = tuple[Batch, PointBatch]


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


class CountingData(pl.LightningDataModule):
    """Training batches by step number; evaluation images one by one."""

    def __init__(
        self,
        splits: Splits,
        config: TrainConfig,
        halo: float = 0.0,
        cache_folder: Path | None = None,
        on_item: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.splits, self.config = splits, config
        about = models.info(config.backbone)
        self.augment = Augment(
            crop=config.view,
            flip=config.flip,
            grey=config.grey,
            colour=config.colour,
            scale_min=config.scale_min,
            scale_max=config.scale_max,
            margin=config.frame,
            halo=halo,
            labelled=several_classes(config),
            mean=about.mean,
            std=about.std,
        )
        self.points = [training_points(s, config) for s in splits.train.samples]
        self.sizes = [s.size for s in splits.train.samples]
        self.cache_folder = cache_folder or cache_root() / "images"
        self.on_item = on_item
        self.store: ImageStore | DiskStore | None = None
        self.eval_images: list[torch.Tensor] | None = None
        self._truth: list[float] | None = None
        self._regions: dict[int, torch.Tensor | None] = {}
        self._cut = cut_crops
        self.keep_plans = False  # hand plans over as they are: the step cuts the crops itself

    # -- preparing ---------------------------------------------------------------------------------------------------

    def place(self, device: torch.device) -> str:
        """Where the training images go: device, memory or disk."""
        if self.config.cache != "auto":
            return self.config.cache
        need = decoded_bytes(self.splits.train.samples)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            # They are decoded on the host first, so they must fit there too.
            if need < DEVICE_SHARE * free and need < MEMORY_SHARE * available_memory():
                return "device"
        return "memory" if need < MEMORY_SHARE * available_memory() else "disk"

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
        if self.splits.monitor is not None and decoded_bytes(self.splits.monitor.samples) <= WATCHED_LIMIT:
            # Now rather than at the first evaluation: an unreadable image stops a run before it begins.
            self.eval_images = [s.to(device) for s in decode_all(self.splits.monitor)]
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

    # -- what Lightning asks for -------------------------------------------------------------------------------------

    def train_dataloader(self) -> StepLoader:
        assert self.trainer is not None
        return StepLoader(self)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if not isinstance(batch, Work) or (self.keep_plans and batch.plan is not None):
            return batch
        if batch.plan is not None:
            return self.render(batch.plan.to(device))
        assert batch.rendered is not None
        made, halo = batch.rendered
        return made.to(device), halo.to(device, non_blocking=True)

    def render(self, plan: Plan) -> TrainBatch:
        """The crops of a plan, on the device where plan and images live."""
        assert self.store is not None
        return render(self.store, plan, self.augment, self._cut)

    def val_dataloader(self) -> DataLoader[int]:
        """Indices of the watched images; each process gets its own, none twice."""
        assert self.trainer is not None
        count = 0 if self.splits.monitor is None else len(self.splits.monitor)
        mine = list(range(self.trainer.global_rank, count, self.trainer.world_size))
        return DataLoader(mine, batch_size=None)  # type: ignore[arg-type]

    def watched(self, index: int, device: torch.device) -> torch.Tensor:
        """Image `index` of the watched split on the device; decoded once when that takes little memory."""
        assert self.splits.monitor is not None
        if self.eval_images is None:
            return self.splits.monitor[index].image.to(device)
        return self.eval_images[index]

    def region(self, index: int) -> torch.Tensor | None:
        """Region of interest of image `index` of the watched split; decoded once where the images are."""
        assert self.splits.monitor is not None
        if self.eval_images is None:
            return self.splits.monitor[index].roi
        if index not in self._regions:
            self._regions[index] = self.splits.monitor[index].roi
        return self._regions[index]

    def truth(self, index: int) -> float:
        """Objects of image `index` of the watched split; read once, its region of interest may be a file."""
        assert self.splits.monitor is not None
        if self._truth is None:
            self._truth = [float(s.published.counted.sum()) for s in self.splits.monitor]
        return self._truth[index]

    def step_plan(self, step: int) -> Plan:
        """The plan of a step on this process."""
        assert self.trainer is not None
        return self.plan(step, self.trainer.global_rank, self.trainer.world_size)

    def plan(self, step: int, rank: int = 0, world: int = 1) -> Plan:
        """The plan of a step: a pure function of the seed, the step and the rank."""
        c = self.config
        return plan(step, self.augment, self.sizes, self.points, seed=c.seed, batch=c.batch, rank=rank, world=world)


class Work:
    """What the loader hands over: a plan to render on the device, or a batch that was rendered on the host.

    A plain class: Lightning walks into dataclasses and tuples at every step and cannot rebuild frozen ones.
    """

    __slots__ = ("plan", "rendered")

    def __init__(self, plan: Plan | None = None, rendered: TrainBatch | None = None) -> None:
        self.plan, self.rendered = plan, rendered

    def pin_memory(self) -> Work:
        """Page-locked, so that the copy to the device does not wait."""
        assert self.rendered is not None
        made, halo = self.rendered
        return Work(rendered=(made.pin_memory(), halo.pin_memory()))


def decode_all(dataset: Dataset) -> list[torch.Tensor]:
    """Every image of a dataset, uint8 [3, H, W]."""
    store = build_store(dataset.samples)
    return [store.image(k).contiguous() for k in range(len(store))]


class _Steps(IterableDataset[Any]):
    """Batches rendered in loader processes, for images that do not live on the device."""

    def __init__(self, data: CountingData, first: int, rank: int, world: int) -> None:
        self.data, self.first, self.rank, self.world = data, first, rank, world

    def __iter__(self) -> Iterator[Work | PapmError]:
        info = get_worker_info()
        offset, skip = (info.id, info.num_workers) if info is not None else (0, 1)
        assert self.data.store is not None
        for step in range(self.first + offset, self.data.config.steps, skip):
            torch.set_num_threads(1)
            made = self.data.plan(step, self.rank, self.world)
            try:
                yield Work(rendered=render(self.data.store, made, self.data.augment))
            except PapmError as error:  # as it is: a loader would wrap it in the traceback of its process
                yield error
                return


def _stay_behind(worker: int) -> None:
    """Ctrl-C, and the SIGTERM of a scheduler, reach a whole group of processes: loaders must outlive the last step."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()


def _received(loader: DataLoader[Work | PapmError]) -> Iterator[Work]:
    """What loader processes made; what they could not make is an error of this one."""
    for item in loader:
        if isinstance(item, PapmError):
            raise item
        yield item


class StepLoader:
    """The training batches from the trainer's current step to the last; resuming needs no other state.

    Lightning asks a loader for `state_dict` before it believes that it can resume in the middle of an epoch.
    """

    def __init__(self, data: CountingData) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.config.steps

    def __iter__(self) -> Iterator[Work]:
        data, trainer = self.data, self.data.trainer
        assert trainer is not None and data.store is not None
        first = trainer.global_step
        on_device = data.store.device.type == trainer.strategy.root_device.type
        workers = data.config.workers
        if workers < 0:  # a GPU that waits for crops wants them cut elsewhere; a CPU that trains has no core to spare
            workers = 0 if trainer.strategy.root_device.type == "cpu" else min(8, (os.cpu_count() or 2) - 1)
        if not on_device and workers:
            steps = _Steps(data, first, trainer.global_rank, trainer.world_size)
            pinned = trainer.strategy.root_device.type == "cuda"
            loader = DataLoader(
                steps,
                batch_size=None,
                num_workers=workers,
                prefetch_factor=4,
                pin_memory=pinned,
                worker_init_fn=_stay_behind,
            )
            yield from _received(loader)
            return
        pin = trainer.strategy.root_device.type == "cuda"
        for step in range(first, data.config.steps):
            made = data.step_plan(step)
            if on_device:
                yield Work(plan=made.pin_memory() if pin else made)
            else:
                yield Work(rendered=render(data.store, made, data.augment))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: the step says it all."""
