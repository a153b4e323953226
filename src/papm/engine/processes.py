"""Which of several processes is this one, and who started the others?

papm starts the processes of `devices=N` itself. A scheduler may have done so instead: `srun --ntasks=N papm train … devices=N`,
or torchrun. Then every process learns its number from it. All run on one machine.
"""

from __future__ import annotations

import os

from papm.errors import ConfigError

PORTS = range(15_000, 30_000)  # where the processes of a job step meet


def is_first_process() -> bool:
    """Whether this is the process that writes the run folder: the one that starts the others, or the only one."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0 and int(os.environ.get("NODE_RANK", "0")) == 0


def local_rank() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join_started(devices: int) -> None:
    """Take part in what a scheduler started; refuse what would wait for processes that do not come, or train twice.

    In a batch script that runs papm without srun there are variables of SLURM too, but none of a job step.
    """
    env = os.environ
    by, number = "srun", int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    if "TORCHELASTIC_RUN_ID" in env:
        by, number = "torchrun", int(env.get("WORLD_SIZE", "1"))
    elif number == 1:
        return
    if number != devices:
        raise ConfigError(
            f"{by} started {number} process{'' if number == 1 else 'es'} of this command, and devices={devices}; "
            f"give devices={number}, or start one and papm starts the others"
        )
    if int(env.get("SLURM_STEP_NUM_NODES" if by == "srun" else "GROUP_WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"{by} started this command on several machines; papm trains on one")
    if by == "srun":
        job, step = (int(env.get(k, "0")) for k in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        env["LOCAL_RANK"], env["NODE_RANK"] = env["SLURM_LOCALID"], "0"
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(PORTS[(31 * job + step) % len(PORTS)]))
