"""Before a run on several machines: do its processes meet, and do they see the same code, data and run folder?

Every process says what it sees over the store that the scheduler's variables name (`torch.distributed`), and all of them come
to the same list of faults. What a queue would tell an hour later, or never, is told in a minute.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch.distributed.rendezvous import rendezvous

from papm.config import TrainConfig, to_mapping
from papm.data.cache import decoded_bytes
from papm.data.spec import open_spec
from papm.data.splits import Splits, choose
from papm.engine.data import available_memory
from papm.engine.ranks import join_started, local_rank, node_rank, processes_here, started_processes
from papm.errors import ConfigError, PapmError
from papm.version import __version__

PATIENCE = 60.0  # seconds that processes wait for each other
SEEN_WITHIN = 10.0  # seconds in which a shared folder shows another machine a new file
SPARE = 2**30  # bytes of memory beside the images, for each process


class Looked(Protocol):
    """What was found when the data was looked at."""

    @property
    def config(self) -> TrainConfig: ...
    @property
    def splits(self) -> Splits | None: ...


L = TypeVar("L", bound=Looked)


class Disagreement(ConfigError):
    """Faults that every process knows: one of them says it for all."""


@dataclass(frozen=True)
class Facts:
    """What one process sees, in JSON types."""

    rank: int
    host: str
    papm: str = __version__
    torch: str = str(torch.__version__)
    python: str = ".".join(platform.python_version_tuple()[:2])
    backend: str = "gloo"
    error: str = ""  # why it cannot train, in a sentence
    settings: str = ""  # hash
    data: str = ""  # hash of the images, their sizes and points
    images: int = 0
    memory: int = 0  # bytes that the machine can give each of its processes
    needed: int = 0  # bytes that one needs; 0 where images would go to the disk
    token: str = ""  # the file that the first process wrote into the run folder
    sees_folder: bool = True

    @property
    def who(self) -> str:
        """
        >>> Facts(3, "gpu07").who
        'rank 3 on gpu07'
        """
        return f"rank {self.rank} on {self.host}"


def met(look: Callable[[], L], folder: Path, patience: float = PATIENCE) -> L:
    """What `look` gives, once all processes that a scheduler started agree on it; else PapmError, a line for each fault.

    One process alone has nobody to agree with.
    """
    world = started_processes()
    if world == 1:
        return look()
    found: L | None = None
    splits: Splits | None = None
    error = ""
    try:
        found = look()
        splits = found.splits or _opened(found.config)
        join_started(found.config.devices)
    except PapmError as fault:
        error = str(fault)
        with contextlib.suppress(PapmError):  # it may still be able to say so to the others
            join_started(world)
    rank = node_rank() * processes_here(world) + local_rank()
    with _mark(folder if rank == 0 else None) as mark:
        own = _facts(rank, world, found.config if found else None, splits, error or mark.error, mark.name)
        everyone = _exchange(own, world, folder, patience)
    if faults := compare(everyone):
        raise Disagreement("\n".join(faults))
    assert found is not None
    return found


def _opened(config: TrainConfig) -> Splits:
    """The data, where all settings were given and nobody had to look at it."""
    return choose(open_spec(config.data, **config.options), config.select, config.val_fraction, config.seed)


def _facts(rank: int, world: int, config: TrainConfig | None, splits: Splits | None, error: str, token: str) -> Facts:
    here = processes_here(world)
    facts = Facts(rank, socket.gethostname(), error=error, token=token, memory=available_memory() // here)
    if config is None:
        return facts
    gpu = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    told: dict[str, Any] = {**asdict(facts), "backend": "nccl" if gpu else "gloo"}
    # Not where the data is: every machine may have its own copy.
    told["settings"] = _hash([json.dumps({**to_mapping(config), "data": ""}, sort_keys=True, default=str)])
    if splits is not None:
        samples = [s for d in (splits.train, splits.monitor, splits.test) if d is not None for s in d.samples]
        told["images"] = len(samples)
        told["data"] = _hash(f"{s.name} {s.size} {len(s.points)} {float(s.points.sum()):.3f}" for s in samples)
        told["needed"] = SPARE + (decoded_bytes(splits.train.samples) if config.cache in ("memory", "device") else 0)
    return Facts(**told)


def _hash(lines: Iterable[str]) -> str:
    made = hashlib.sha256()
    for line in lines:
        made.update(line.encode(errors="surrogateescape") + b"\n")
    return made.hexdigest()[:12]


@dataclass
class _Mark:
    """A file by which other machines know the run folder; `error` where it cannot be written."""

    name: str = ""
    error: str = ""


@contextlib.contextmanager
def _mark(folder: Path | None) -> Any:
    """The file, until the block ends, and the folder with it where it was not there; no file without a folder."""
    if folder is None:
        yield _Mark()
        return
    made, file = [p for p in (folder, *folder.parents) if not p.exists()], folder / f".papm-{secrets.token_hex(8)}"
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text("papm", encoding="ascii")
            mark = _Mark(file.name)
        except OSError as error:
            mark = _Mark(error=f"{folder}: the run folder cannot be written ({error.strerror})")
        yield mark
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
            for empty in made:
                empty.rmdir()


def _exchange(own: Facts, world: int, folder: Path, patience: float) -> list[Facts]:
    """What all processes say; ConfigError where they do not meet in time."""
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    wait = timedelta(seconds=patience)
    try:
        store, _, _ = next(iter(rendezvous(f"env://?rank={own.rank}&world_size={world}", timeout=wait)))
        store.set_timeout(wait)
    except Exception as error:  # torch has several kinds
        if own.rank == 0:
            raise ConfigError(
                f"{own.who}: not all of {world} processes came to {address} within {patience:.0f} s; "
                "look at what the others say, and whether machines may reach that port"
            ) from error
        raise ConfigError(
            f"{own.who}: rank 0 cannot be reached at {address} within {patience:.0f} s; is it that machine's address in the "
            "network between them, and is the port open?"
        ) from error
    mark = json.loads(_told(store, "mark", 0, own, patience, {"token": own.token} if own.rank == 0 else None))
    seen = own.rank == 0 or not mark["token"] or _appears(folder / mark["token"])
    last = json.dumps(asdict(own) | {"sees_folder": seen})
    store.set(f"papm/facts/{own.rank}", last)
    everyone = [Facts(**json.loads(_told(store, "facts", k, own, patience))) for k in range(world)]
    store.set(f"papm/read/{own.rank}", "1")
    if own.rank == 0:  # the store may end with this process, the file does: nobody may still be looking
        for k in range(world):
            _told(store, "read", k, own, patience)
    return everyone


def _told(
    store: Any, what: str, rank: int, own: Facts, patience: float, mine: Mapping[str, Any] | None = None
) -> bytes:
    """What a process has said, or says now."""
    key = f"papm/{what}/{rank}"
    if mine is not None:
        store.set(key, json.dumps(mine))
    try:
        return bytes(store.get(key))
    except Exception as error:
        raise ConfigError(
            f"{own.who}: rank {rank} said nothing within {patience:.0f} s; look at what it printed, and whether it runs"
        ) from error


def _appears(file: Path) -> bool:
    """Whether a file of another machine is seen here before long: network folders are refreshed only now and then."""
    until = time.monotonic() + SEEN_WITHIN
    while not file.exists():
        if time.monotonic() > until:
            return False
        with contextlib.suppress(OSError):
            os.listdir(file.parent)  # noqa: PTH208  makes some network folders look
        time.sleep(0.2)
    return True


def compare(everyone: Sequence[Facts]) -> list[str]:
    """What is wrong, a sentence for each fault.

    >>> compare([Facts(0, "a", memory=9 * SPARE), Facts(1, "b", memory=9 * SPARE, torch="2.6.0")])[0][:39]
    'rank 1 on b has torch 2.6.0, rank 0 on '
    """
    first = everyone[0]
    faults = list(dict.fromkeys(f"{f.who}: {f.error}" for f in everyone if f.error))
    for other in everyone[1:]:
        faults += [
            f"{other.who} has {package} {theirs}, {first.who} {ours}; install one version on every machine"
            for package in ("papm", "torch", "python")
            if (theirs := getattr(other, package)) != (ours := getattr(first, package))
        ]
        if not other.sees_folder:
            faults.append(
                f"{other.who} does not see what {first.who} wrote into the run folder; put --out on storage that all "
                "machines share"
            )
        if first.error or other.error:
            continue
        if other.backend != first.backend:
            faults.append(
                f"{other.who} would use {other.backend}, {first.who} {first.backend}; give device=cpu or cuda"
            )
        if other.data == first.data and other.settings != first.settings:  # some follow from the data
            faults.append(f"{other.who} has other settings than {first.who}; start every process with the same words")
        if other.data != first.data:
            faults.append(
                f"{other.who} sees other data than {first.who} ({other.images:,} images, not {first.images:,}, or other sizes"
                " or points); every machine must see the same files"
            )
    return faults + [
        f"{f.who}: {f.memory / 1e9:.1f} GB of memory for a process that needs {f.needed / 1e9:.1f}; start fewer on a machine,"
        " or use cache=disk"
        for f in everyone
        if f.memory < f.needed and not f.error
    ]
