"""Shards on Ray: actors that hold the model, on the cores of this machine or on those of a cluster.

Ray counts a shard again when its worker dies, which is harmless: it writes the same file (`manifest`). A Ray that papm starts
answers on 127.0.0.1 only, to whoever has its token, has no dashboard, reports nothing to anybody, and leaves no files.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from papm.errors import ConfigError, PapmError
from papm.predict.scaleout.shard import Job, ShardCounter

STORE = 128 * 2**20  # bytes of Ray's object store: only the numbers of shards travel through it
PREFIX = "papm-ray-"  # short: Ray makes sockets below, whose whole paths have at most 107 bytes
LOOPBACK = "127.0.0.1"


def ray_module() -> Any:
    """Ray with Ray Data, or a sentence that says what to install."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConfigError("--engine ray needs Ray Data: pip install 'papm[ray]'") from None
    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__module__.startswith("ray."):  # others listen there too, and to everybody
            handler.setLevel(logging.ERROR)
    return ray


@contextlib.contextmanager
def connected(address: str | None, workers: int | None, device: str) -> Iterator[Any]:
    """Ray: the one this program uses already, the cluster at an address, or one of our own that ends with the block."""
    with _environment(address is None):
        ray = ray_module()
        if ray.is_initialized():
            yield ray
            return
        folder = None if address is not None else _own_folder()
        try:
            if folder is not None:
                _start(ray, folder, workers, device)
            else:
                _join(ray, str(address))
            yield ray
        finally:
            ray.shutdown()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def counted(
    ray: Any, job: Job, shards: Sequence[int], workers: int | None, threads: int = 1
) -> Iterator[dict[str, Any]]:
    """Count shards with actors, and give what their parts say of themselves, as they are done."""
    gpu = job.device.startswith("cuda") or (job.device == "auto" and ray.cluster_resources().get("GPU", 0) >= 1)
    there = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 1) // (1 if gpu else threads))
    number = max(1, min(workers or there, there, len(shards)))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = -1  # a shard of large images takes as long as it takes
    # A block for each shard: Ray hands them out one by one, and repeats no more than one.
    listed = ray.data.from_items([{"shard": k} for k in shards], override_num_blocks=len(shards))
    done = listed.map(
        Worker,
        fn_constructor_kwargs={"job": job, "threads": threads},
        compute=ray.data.ActorPoolStrategy(size=number, max_tasks_in_flight_per_actor=2),
        num_cpus=threads,
        num_gpus=1 if gpu else 0,
    )
    for row in done.iter_rows():
        if row["error"]:
            raise PapmError(row["error"])
        yield row


class Worker:
    """What a Ray actor does. An error that a user can mend travels as a value: Ray would try again, and bury it."""

    def __init__(self, job: Job, threads: int = 1) -> None:
        import torch

        torch.set_num_threads(threads)
        self.job = job
        self.counter: ShardCounter | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Count the shard of a row."""
        try:
            if self.counter is None:
                self.counter = ShardCounter(self.job)
            return {"error": "", **self.counter(int(row["shard"]))}
        except PapmError as error:
            return {"error": str(error), "key": "", "shard": int(row["shard"]), "images": 0, "failed": 0, "total": 0.0}


def _join(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or ["no answer"])[0][:200]
        raise ConfigError(f"--ray-address {address}: no Ray cluster can be joined there ({first})") from None


def _start(ray: Any, folder: Path, workers: int | None, device: str) -> None:
    with _no_native_output():
        ray.init(
            address="local",
            num_cpus=workers or os.cpu_count() or 1,
            num_gpus=0 if device == "cpu" else None,
            include_dashboard=False,
            object_store_memory=STORE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
    if any(node["NodeManagerAddress"] != LOOPBACK for node in ray.nodes()):  # another release, another switch
        raise ConfigError(f"Ray {ray.__version__} does not keep to {LOOPBACK}; install the release of constraints.txt")


@contextlib.contextmanager
def _environment(own: bool) -> Iterator[None]:
    """What a Ray of our own, and every process that it starts, finds in the environment; gone after the block."""
    values = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        # Whatever its name says: without it Ray listens on the address that other machines see.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_TOKEN": _token(),  # else Ray writes one into the home folder
    }
    before = {key: os.environ.get(key) for key in (*values, "RAY_AUTH_MODE")}  # which Ray sets
    os.environ.update(values if own else {})
    try:
        with _clusters_off() if own else contextlib.nullcontext():
            yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@functools.cache
def _token() -> str:
    """One for this process: Ray reads it once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _clusters_off() -> Iterator[None]:
    """The same switch for a Ray that was imported before, and had read its environment."""
    ray_module()
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _no_native_output() -> Iterator[None]:
    """What C++ writes to standard error is dropped (Ray says there that it was told to say little); Python still writes."""
    usual, kept = sys.stderr, os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nothing, os.fdopen(os.dup(2), "w", buffering=1, errors="replace") as stream:
            os.dup2(nothing.fileno(), 2)
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream of somebody else's
                sys.stderr = stream if usual.fileno() == 2 else usual
            try:
                yield
            finally:
                sys.stderr = usual
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _own_folder() -> Path:
    """A new folder for Ray's sockets and logs; those of processes that were killed go."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > 40:  # sockets would have no room below it
        base = Path("/tmp")
    for old in base.glob(f"{PREFIX}*-*"):
        with contextlib.suppress(ValueError, OSError):
            pid = int(old.name.removeprefix(PREFIX).partition("-")[0])
            if old.stat().st_uid == os.geteuid() and not _runs(pid):
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))


def _runs(pid: int) -> bool:
    """
    >>> _runs(os.getpid())
    True
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
