"""The training loop: plan → step → every so many steps log, evaluate, save.

A run that is stopped or killed goes on from last.ckpt as if nothing had happened. Where a step is evaluated, last.ckpt is
written after that: a run that was killed in between evaluates the step again. One that was stopped in between has written it,
and begins with the evaluation that is missing.
"""

from __future__ import annotations

from pathlib import Path

from papm import checkpoint
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.cache import decoded_bytes
from papm.engine.fallen import Fallen, objects_of_a_crop
from papm.engine.interrupts import Stop
from papm.engine.keep import Keeper
from papm.engine.log import Log
from papm.engine.oom import no_memory
from papm.engine.run_folder import read_metrics
from papm.engine.training import Training
from papm.engine.watch import Watched
from papm.errors import CheckpointError, PapmError
from papm.untrusted import brief

# Evaluations of a pixel that a step of it takes: forward, and backward twice as long; in bf16 half as many.
STEP_COST = 3
EVALUATIONS_SHARE, FEWEST, MOST = 0.25, 4, 20


def fit(training: Training, watched: Watched | None, log: Log, keeper: Keeper, stop: Stop) -> None:
    """All steps that are left, or those until `stop`."""
    c, ranks = training.config, training.ranks
    shorter = ranks.any(training.precision != training.counting)  # machines may differ; all evaluate at the same steps
    every = evaluate_every(c, watched.dataset, shorter) if watched is not None else 0

    def due(step: int) -> bool:
        ends = step == c.steps and c.select != "last"  # the last weights may be chosen too
        return every > 0 and step > 0 and (step % every == 0 or ends)

    fallen = Fallen(objects_of_a_crop(training.data), c, training.network)
    log.start(training.done)
    if ranks.first:
        fallen.recall(read_metrics(log.file.path))
    if (
        due(training.done)
        and log.latest.get("step") != training.done
        and evaluate(training, watched, log, keeper, stop)
    ):
        save(training, log, keeper, stop)
    if stop.now():
        return

    for item in training.data.items(training.done, training.device, ranks.rank, ranks.world):
        training.take(item)
        step = training.done
        if step % c.log_every == 0 or step == c.steps:
            values = training.means()
            log.step(step, values)
            if ranks.first:
                fallen.look(step, values["count_error"])
        stop.after(step)
        if due(step) and not stop.now():
            evaluate(training, watched, log, keeper, stop)
        if step % c.save_every == 0 or step == c.steps or stop.now():
            save(training, log, keeper, stop)
        if stop.now():
            return


def evaluate(training: Training, watched: Watched | None, log: Log, keeper: Keeper, stop: Stop) -> bool:
    """Count the watched images; whether that was done to the end."""
    assert watched is not None
    score = watched.score(training.watched, training.counting, training.ranks, stop)
    stop.agree()
    if score is None:
        return False
    values = {k: float(v) for k, v in score.to_dict().items() if v is not None and k != "n"}
    if "mae" not in values:
        raise PapmError(f"the counts are no longer finite at step {training.done}; try a smaller lr, or clip=1")
    log.evaluation(training.done, values)
    if training.config.select != "last" and log.best["step"] == training.done and training.ranks.first:
        keeper.write_best(training.done)
    return True


def save(training: Training, log: Log, keeper: Keeper, stop: Stop) -> None:
    """last.ckpt, by the first process; where others wait for it, going on without room on the disk would hang."""
    state = {**training.state_dict(), "log": log.state_dict()}
    if training.ranks.first:
        keeper.save(training.done, state, end=stop.now() or training.ranks.world > 1)


def resume(path: Path, training: Training, log: Log) -> None:
    """Go on from last.ckpt. Half of a state would make another run: what lacks anything is refused."""
    state = checkpoint.read(path).get("training")
    reason = "this run was started by an older papm"
    try:
        if isinstance(state, dict):
            reason = "its weights, or the state of its optimiser, are not those of this run"
            training.load_state_dict(state, checkpoint.load(path)[1])
            log.load_state_dict(state["log"])
            return
    except KeyError as error:
        reason = f"it has no {brief(str(error))}"
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if no_memory(error):
            raise
    raise CheckpointError(
        f"{path}: a run cannot go on from this file ({reason}); start again with another --out, or from its weights with --init"
    )


def evaluate_every(config: TrainConfig, watched: Dataset, shorter: bool = False) -> int:
    """Steps from one evaluation of the watched images to the next: twenty times a run, less often where they are so many or so
    large that counting them would take more than a quarter of the time of the steps; four times at least. `shorter`: the steps
    are in a lower precision than the evaluations.
    """
    if config.eval_every:
        return config.eval_every
    cost = STEP_COST / 2 if shorter else STEP_COST
    trained = cost * config.steps * config.batch * config.devices * config.crop**2
    times = min(max(EVALUATIONS_SHARE * trained / max(1, decoded_bytes(watched.samples) // 3), FEWEST), MOST)
    # Rounded down, for else no evaluation would be of the last steps, whose learning rate is lowest.
    every = max(1, config.steps // int(times))
    return every if config.steps // every <= MOST else every + 1
