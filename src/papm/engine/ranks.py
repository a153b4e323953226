"""The processes of a run: which of them is this one, who started the others, and what they tell each other.

papm starts the processes of `devices=N` itself, on one machine. A scheduler may have done so instead, on one or several:
`srun --ntasks=N papm train … devices=N`, or torchrun. Then every process learns its number from it; every machine has as many
of them. Lightning Fabric starts and connects them; a process that trains alone never imports it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from papm.errors import ConfigError
from papm.extras import has, require
from papm.text import n_of

PORTS = range(15_000, 30_000)  # where the processes of a job step meet


class Ranks:
    """This process among those of a run. Of one alone nothing is exchanged.

    >>> alone = Ranks()
    >>> alone.mean(torch.tensor([2.0])), alone.any(False), alone.first
    (tensor([2.]), False, True)
    """

    def __init__(self, rank: int = 0, world: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def first(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in its place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a tensor over all processes, in its place."""
        return self.total(values).div_(self.world) if self.world > 1 else values

    def mean_of(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over all processes, in their places and in one exchange."""
        if self.world > 1:
            flat = self.mean(torch.cat([t.reshape(-1) for t in tensors]))
            for t, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors])):
                t.copy_(part.view(t.shape))

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process. Waits for all of them."""
        return bool(self.total(torch.tensor(float(flag), device=self.device))) if self.world > 1 else flag

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Every process gets what the first has."""
        for t in tensors if self.world > 1 else ():
            dist.broadcast(t, 0)


@contextmanager
def launched(devices: int, device: torch.device, patience: float | None = None) -> Iterator[Ranks]:
    """The processes of a run, started where nobody else has done so. If this one fails, those it started end too.

    They wait for each other for `patience` seconds, or as long as torch does.
    """
    if devices == 1:
        yield Ranks()
        return
    fabric = _fabric(devices, device, patience)
    fabric.launch()
    try:
        yield Ranks(fabric.global_rank, fabric.world_size, device)
    except BaseException:
        end_others(fabric)
        raise
    dist.destroy_process_group()
    os.environ.pop("WORLD_SIZE", None)  # the next training of this process may have another


def _fabric(devices: int, device: torch.device, patience: float | None = None) -> Any:
    """Fabric for so many processes. The slim package does not load the rest of Lightning."""
    if not has("lightning_fabric"):
        require("train", "training on several processes needs", "lightning")
    try:
        import lightning_fabric as lightning
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError:
        from lightning import fabric as lightning  # type: ignore[no-redef]
        from lightning.fabric.plugins.environments.lightning import LightningEnvironment  # type: ignore[assignment]
        from lightning.fabric.strategies.ddp import DDPStrategy  # type: ignore[assignment]
    for name in (lightning.__name__, f"{lightning.__name__}.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    kind = "gpu" if device.type == "cuda" else "cpu"
    environment = LightningEnvironment()  # not what it finds of a scheduler: see `join_started`
    nodes = machines(devices)
    strategy = DDPStrategy() if patience is None else DDPStrategy(timeout=timedelta(seconds=patience))
    here = devices // nodes
    return lightning.Fabric(accelerator=kind, devices=here, num_nodes=nodes, strategy=strategy, plugins=[environment])


def end_others(fabric: Any) -> None:
    """After a failure of the first process: the others would wait for it, on GPUs for half an hour, and hold their memory."""
    for process in getattr(fabric.strategy.launcher, "procs", ()):
        process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has the other


def is_first_process() -> bool:
    """Whether this is the process that writes the run folder: the one that starts the others, or the only one."""
    return local_rank() == 0 and node_rank() == 0


def local_rank() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return _number("LOCAL_RANK", _by_srun("SLURM_LOCALID"))


def node_rank() -> int:
    """The number of this machine."""
    return _number("NODE_RANK", _number("GROUP_RANK", _by_srun("SLURM_NODEID")))


def _by_srun(name: str) -> int:
    """What srun says before `join_started` has taken it over: a process that comes late must not take itself for the first, and
    refuse the folder in which the first has begun."""
    found = _started()
    return _number(name, 0) if found is not None and found.by == "srun" and not found.shell else 0


def machines(devices: int) -> int:
    """How many machines a scheduler started the processes of this run on."""
    found = _started()
    return 1 if found is None or found.processes != devices else found.machines


def started_processes() -> int:
    """How many processes of this command a scheduler started; 1 where it is a process like any."""
    found = _started()
    return 1 if found is None or found.shell else found.processes


def processes_here(devices: int) -> int:
    """How many of the processes of a run are on this machine."""
    return devices // machines(devices)


def _number(name: str, default: int) -> int:
    """A variable of the environment; where it is empty or missing, the default."""
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"the variable {name}={text} of the environment is no number; unset it") from None


class Started(NamedTuple):
    """What a scheduler started: by which word, how many processes, on how many machines."""

    by: str
    processes: int
    machines: int

    @property
    def shell(self) -> bool:
        """Whether this is the shell of `srun --pty`, in which papm was started once."""
        return self.by == "srun" and "SLURM_PTY_PORT" in os.environ


def _started() -> Started | None:
    """What a scheduler says that it started; nothing where it started one process, or nobody did.

    In a batch script that runs papm without srun there are variables of SLURM too, but none of a job step.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Lightning takes WORLD_SIZE away after a training; every machine has as many processes.
        nodes = _number("GROUP_WORLD_SIZE", 1)
        return Started("torchrun", _number("WORLD_SIZE", nodes * _number("LOCAL_WORLD_SIZE", 1)), nodes)
    number = _number("SLURM_STEP_NUM_TASKS", 1)
    return None if number == 1 else Started("srun", number, _number("SLURM_STEP_NUM_NODES", 1))


def join_started(devices: int) -> None:
    """Take part in what a scheduler started; refuse what would wait for processes that do not come, or train twice.

    In the shell of `srun --ntasks=4 --pty bash` papm was started once.
    """
    found = _started()
    if found is None or (found.shell and found.processes != devices):
        return
    by, number, nodes = found
    if number != devices:
        alone = "leave torchrun out and papm starts them"
        alone = alone if by == "torchrun" else "start each training by its own srun --ntasks=1"
        raise ConfigError(
            f"{by} started {n_of(number, 'process', 'processes')} of this command, and devices={devices}; "
            f"give devices={number}, or {alone}"
        )
    per_machine = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "") if by == "srun" else ""
    if number % nodes or "," in per_machine:
        raise ConfigError(
            f"{by} started {number} processes on {nodes} machines, not as many on each; "
            "srun has --ntasks-per-node for it, and torchrun --nproc-per-node"
        )
    env = os.environ
    env["NODE_RANK"] = str(_number("SLURM_NODEID", 0) if by == "srun" else _number("GROUP_RANK", 0))
    if by == "srun":
        job, step = (_number(k, 0) for k in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        env["LOCAL_RANK"] = str(_number("SLURM_LOCALID", 0))
        hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or ""
        env.setdefault("MASTER_ADDR", first_host(hosts) if nodes > 1 else "127.0.0.1")
        env.setdefault("MASTER_PORT", str(PORTS[(31 * job + step) % len(PORTS)]))


def first_host(listed: str) -> str:
    """The first machine of a list in SLURM's notation.

    >>> first_host("gpu[003-005,9],login"), first_host("a,b"), first_host("rack[1-2]node[07,9].org")
    ('gpu003', 'a', 'rack1node07.org')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed.strip())
    if first is None:
        raise ConfigError(
            f"the variable SLURM_STEP_NODELIST={listed} of the environment names no machine; set MASTER_ADDR"
        )
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])
