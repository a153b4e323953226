"""What a run does when memory runs out: a smaller batch where that is still possible, else one sentence."""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from papm.config import TrainConfig
from papm.errors import PapmError

log = logging.getLogger(__name__)

T = TypeVar("T")


def with_memory(config: TrainConfig, attempt: Callable[[TrainConfig], T]) -> T:
    """A run with the largest batch, the configured one or a half, a quarter, … of it, that memory holds."""
    while True:
        try:
            return attempt(config)
        except (RuntimeError, ConnectionError, EOFError) as error:
            if lost_loader(error):
                raise PapmError(
                    "a loader process was ended by the system, most likely for want of memory or of /dev/shm; "
                    "use fewer workers (workers=0: none)"
                ) from None
            if not no_memory(error):
                raise
            if config.batch == 1:
                other = ", or cache=memory" if config.cache == "device" else ""
                raise PapmError(
                    f"one crop of {config.view} pixels does not fit in memory; use a smaller crop{other}"
                ) from None
            if config.devices > 1:  # the others wait for this process in the middle of a step
                raise PapmError(
                    f"the device's memory is too small for this batch; try batch={config.batch // 2}"
                ) from None
        config = dataclasses.replace(config, batch=config.batch // 2)
        log.warning("the device's memory is too small for this batch; going on with batch=%d", config.batch)
        release()


def release() -> None:
    """Give back the memory of an attempt that has ended: what its traceback held, and what the GPU keeps for reuse."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def kept(folder: Path, goes_on: Callable[[], bool]) -> Iterator[None]:
    """Other batches make another run: one that `goes_on`, with steps behind it, is never thrown away for want of memory."""
    try:
        yield
    except RuntimeError as error:
        if no_memory(error) and goes_on():
            raise PapmError(f"{folder}: the device's memory ran out; what was saved is kept, see --resume") from None
        raise


def lost_loader(error: Exception) -> bool:
    """Whether a process that cuts crops is gone: PyTorch says so in words, unless it was just receiving a crop.

    "DataLoader worker process 0" are the words for an error inside one that lives, which has its own message.
    """
    return isinstance(error, ConnectionError | EOFError) or "DataLoader worker (pid" in str(error)


def no_memory(error: Exception) -> bool:
    """Whether memory ran out: PyTorch has a kind of error for it on GPUs, and words on CPUs."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
