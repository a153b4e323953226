"""The result of a run: what the chosen weights find in the test images, as one JSON object."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from papm import checkpoint
from papm.config import LEARNING, TrainConfig
from papm.data.splits import Splits
from papm.engine.build import counting_precision, precision_of, recipe_of
from papm.engine.evaluate import Evaluation, evaluate, write_evaluation
from papm.engine.log import Log
from papm.engine.profile import profile_of
from papm.engine.run_folder import hardware, revision
from papm.errors import PapmError
from papm.files import write_json
from papm.inference import CountInterval, Inference
from papm.metrics import conformal
from papm.metrics.conformal import coverage
from papm.text import Brief

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Weights(Brief):
    """The (averaged) weights of a network at a step."""

    step: int
    state: Mapping[str, torch.Tensor]


def finish(
    config: TrainConfig,
    folder: Path,
    splits: Splits,
    log: Log,
    device: torch.device,
    last: Weights,
    weights_sha256: str | None,
    asked: TrainConfig | None = None,
    begun: str | None = None,
) -> dict[str, Any]:
    """Evaluate the chosen and the last weights on the test images and write result.json and predictions.csv.

    `asked` is what the run began with, where it restarted with another learning rate of its trunk; `begun`, the precision of
    its steps, where it goes on.
    """
    for name in ("best.ckpt", "last.ckpt"):
        if not (folder / name).exists():
            raise PapmError(f"{folder}: training ended, but {name} could not be written; make room and --resume")
    spec, state = checkpoint.load(folder / "best.ckpt")
    network = checkpoint.build(spec, state).to(device)
    # A run that is resumed may have been calibrated: its figures are those of the training.
    network.inference = replace(network.inference, calibration=None)
    result: dict[str, Any] = {
        "dataset": splits.train.name,
        "backbone": config.backbone,
        "method": config.method,
        "recipe": recipe_of(replace(config, trunk_lr=(asked or config).trunk_lr)),
        "noise": config.noise,
        "noise_kind": config.noise_kind,
        "seed": config.seed,
        "steps": config.steps,
        "options": {
            "loss": dict(config.loss),
            "network": dict(config.network),
            "data": dict(config.options),
            "crop": config.crop,
            "batch": config.batch,
            "training": {k: getattr(config, k) for k in LEARNING},
        },
        **({} if config.init is None else {"init": Path(config.init).name}),
        **({} if asked is None or asked.trunk_lr == config.trunk_lr else {"asked": {"trunk_lr": asked.trunk_lr}}),
        "select": config.select,
        "selected_step": spec.step,
        "sizes": splits.sizes,
        "mae": None,
        "rmse": None,
        "mae_last": None,
        "mae_best_on_test": None,
        "mae_val": log.best.get("mae") if splits.monitor is not splits.test else None,
        "mae_in_image": None,
        "weights_sha256": weights_sha256,
    }
    precision = counting_precision(config, device, begun)
    own = _own_figures(network, spec.inference or network.inference, splits, config, precision)
    checkpoint.change_inference(folder / "best.ckpt", **own)
    test = splits.test or splits.monitor
    if test is not None:
        found = evaluate(network, test, precision=precision, classes=spec.classes)
        if "interval" in own and splits.spare is not None:
            result["interval"] = _told(own["interval"], splits.spare.split, found)
        write_evaluation(folder / "predictions.csv", found)
        result |= scores(found)
        result["split"] = test.split
        if last.step == spec.step:
            result["mae_last"] = result["mae"]
        else:
            checkpoint.assign(network, last.state, "the last weights")
            result["mae_last"] = evaluate(network, test, precision=precision).score.mae
        if splits.monitor is splits.test and log.best:
            result["mae_best_on_test"] = min(log.best["mae"], result["mae_last"])
    result |= {"seconds": round(log.clock.now(), 1), "hardware": hardware(device)}
    result |= {"precision": precision_of(config, device, begun), "revision": revision()}
    write_json(folder / "result.json", result)
    return result


def _own_figures(
    network: torch.nn.Module, contract: Inference, splits: Splits, config: TrainConfig, precision: str
) -> dict[str, Any]:
    """What a model is to know of itself: what its training images were like, and how far its counts may be off where the data
    has images that neither taught nor chose anything (never the test images).
    """
    known: dict[str, Any] = {"profile": profile_of(network, splits.train, config, precision)}
    if splits.spare is not None and contract.calibration is None and contract.interval is None:
        counted = evaluate(network, splits.spare, precision=precision)
        try:
            known["interval"] = conformal.interval(counted.predicted, counted.truth)
        except PapmError as error:  # too few, and how many more are needed; or counts that are no numbers
            logger.warning("counts have no interval: %s", error)
    return known


def _told(known: CountInterval, split: str, test: Evaluation) -> dict[str, Any]:
    """The interval as plain values, with the images that it is from and the share of test images whose truth it holds."""
    held = coverage([known.around(count) for count in test.predicted], test.truth)
    return {**asdict(known), "split": split, "coverage": held}


def scores(found: Evaluation) -> dict[str, Any]:
    """The figures of an evaluation as plain values."""
    score, apart = found.score.to_dict(), found.class_scores
    return {
        "mae": score["mae"],
        "rmse": score["rmse"],
        "nae": score["nae"],
        "bias": score["bias"],
        "images": score["n"],
        "mae_in_image": found.score_in_image.mae,
        "intervals": {k: list(v) for k, v in found.intervals().items() if all(x == x for x in v)},
        **({"mae_by_count": found.mae_by_count} if found.readings else {}),
        **({"datasets": {k: s.to_dict() for k, s in each.items()}} if (each := found.dataset_scores) else {}),
        **({"classes": {k: {"mae": s.mae, "rmse": s.rmse} for k, s in apart.items()}} if apart else {}),
    }
