"""Where a training starts from, and whom it learns from: other models by path or by name."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papm import checkpoint, methods, models, ready
from papm.config import TrainConfig, group
from papm.data import resize
from papm.errors import ConfigError
from papm.inference import Inference
from papm.losses.base import CountingLoss
from papm.losses.distil import DistilLoss, Teacher

AUTO = "auto"

log = logging.getLogger(__name__)


def model_file(name: str) -> Path:
    """The checkpoint that `init` or `teachers` names. The name of a ready model means that model wherever a command runs, for
    settings are stored and repeated elsewhere; a run here of the same name is ./NAME.
    """
    if name not in ready.known():
        return checkpoint.resolve(name)
    if checkpoint.run_checkpoint(Path(name)) is not None:
        log.warning("%s: the ready model of that name is used; for the run in this folder write ./%s", name, name)
    return ready.find(name).path


def implied(method: str, backbone: str, given: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Method, backbone and settings of a training that starts from another model (`init`): where nothing is said, those that it
    has. Another network, or other options of it, contradict the model and are refused.
    """
    file = model_file(str(given["init"]))
    spec, _ = checkpoint.load(file)
    if backbone not in (AUTO, spec.backbone):
        raise ConfigError(
            f"{given['init']}: is a '{spec.backbone}', the run trains a '{backbone}'; leave out --backbone"
        )
    asked, usual = group(given, "network"), models.info(spec.backbone).options
    for key, value in asked.items():
        if key in usual and value != AUTO and value != spec.options.get(key, usual[key]):
            its = spec.options.get(key, usual[key])
            raise ConfigError(f"{given['init']}: has network.{key}={its}, not {value}; leave it out")
    if method == AUTO and spec.method in methods.METHODS:
        method = spec.method
    made = {**given, "network": {**asked, **spec.options}}
    frame = spec.inference.frame if spec.inference is not None else 0
    if frame and not frame % 16 and not given.get("correct"):
        made.setdefault("margin", frame)  # what it saw beyond a border
    return method, spec.backbone, made


def with_teachers(config: TrainConfig, loss: CountingLoss) -> CountingLoss:
    """The loss of a configuration with the pull towards its teachers."""
    if not config.teachers:
        return loss
    about = models.info(config.backbone)
    names = [name.strip() for name in config.teachers.split(",") if name.strip()]
    teachers = [_teacher(name, config, loss.maps) for name in names]
    return DistilLoss(loss, teachers, config.teacher_weight, (tuple(about.mean), tuple(about.std)))


def _teacher(name: str, config: TrainConfig, maps: int) -> Teacher:
    file = model_file(name)
    spec, state = checkpoint.load(file)
    network = checkpoint.build(spec, state, file)
    if not isinstance(network, models.DensityNetwork):
        raise ConfigError(f"{name}: a teacher gives a density map; '{spec.backbone}' gives points")
    if network.num_classes != maps:
        raise ConfigError(f"{name}: counts {network.num_classes} classes, the student {maps}")
    contract: Inference = network.inference
    rule = resize.take("", {k: v for k, v in config.options.items() if k in resize.OPTIONS})[0]
    if contract.resize != rule:
        raise ConfigError(
            f"{name}: was trained on images that were resized otherwise; give the student the same data.…"
        )
    # Crops bring the surroundings that their margin holds; what it lacks of what the teacher knows is framed as ever.
    network.inference = dataclasses.replace(contract, frame=max(0, contract.frame - config.frame))
    return Teacher(network, network.stride, (tuple(contract.mean), tuple(contract.std)), contract.factor)
