"""Which of several processes is this one, and who started the others?

papm starts the processes of `devices=N` itself. A scheduler may have done so instead: `srun --ntasks=N papm train … devices=N`,
or torchrun. Then every process learns its number from it. All run on one machine.
"""

from __future__ import annotations

import os

from papm.errors import ConfigError
from papm.text import n_of

PORTS = range(15_000, 30_000)  # where the processes of a job step meet


def is_first_process() -> bool:
    """Whether this is the process that writes the run folder: the one that starts the others, or the only one."""
    return local_rank() == 0 and _number("NODE_RANK", 0) == 0


def local_rank() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return _number("LOCAL_RANK", 0)


def _number(name: str, default: int) -> int:
    """A variable of the environment; where it is empty or missing, the default."""
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"the variable {name}={text} of the environment is no number; unset it") from None


def join_started(devices: int) -> None:
    """Take part in what a scheduler started; refuse what would wait for processes that do not come, or train twice.

    In a batch script that runs papm without srun there are variables of SLURM too, but none of a job step. In the shell of
    `srun --ntasks=4 --pty bash` there are, and papm was started there once.
    """
    env = os.environ
    by, number, alone = "srun", _number("SLURM_STEP_NUM_TASKS", 1), "start each training by its own srun --ntasks=1"
    if "TORCHELASTIC_RUN_ID" in env:
        # Lightning takes WORLD_SIZE away after a training; all processes of a machine are as many, where there is one.
        by, number = "torchrun", _number("WORLD_SIZE", _number("LOCAL_WORLD_SIZE", 1))
        alone = "leave torchrun out and papm starts them"
    elif number == 1 or ("SLURM_PTY_PORT" in env and number != devices):
        return
    if number != devices:
        raise ConfigError(
            f"{by} started {n_of(number, 'process', 'processes')} of this command, and devices={devices}; "
            f"give devices={number}, or {alone}"
        )
    if _number("SLURM_STEP_NUM_NODES" if by == "srun" else "GROUP_WORLD_SIZE", 1) > 1:
        raise ConfigError(f"{by} started this command on several machines; papm trains on one")
    if by == "srun":
        job, step = (_number(k, 0) for k in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        env["LOCAL_RANK"], env["NODE_RANK"] = str(_number("SLURM_LOCALID", 0)), "0"
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(PORTS[(31 * job + step) % len(PORTS)]))
