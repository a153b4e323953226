"""What `papm train` says beside its figures: how a setting is written, what to know before hours are spent, and after."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from papm.errors import ConfigError
from papm.text import n_of

if TYPE_CHECKING:
    from papm.config import TrainConfig

FEW = 5  # validation images below which the lowest of twenty evaluations says little
OPTIONS = ("method", "backbone", "weights", "init", "out", "config", "resume", "dry-run", "json", "help")


def refuse_settings_as_options(argv: Sequence[str]) -> None:
    """`papm train … --steps 5` is a slip that many tools allow: say how it is written here.

    >>> refuse_settings_as_options(["train", "photos", "--steps", "5"])
    Traceback (most recent call last):
    papm.errors.ConfigError: --steps is a setting, not an option: write steps=5
    """
    if not argv or argv[0] != "train":
        return
    from papm import config as configuration  # it imports torch, which takes seconds

    for k, word in enumerate(argv):
        if word == "--":
            return
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name in OPTIONS:
            continue
        following = argv[k + 1] if k + 1 < len(argv) and not argv[k + 1].startswith("-") else "VALUE"
        _refuse(name, value if equals else following, {*configuration.names(), *configuration.GROUPS})


def _refuse(name: str, value: str, settings: Collection[str]) -> None:
    """Say how an option is written that is a setting of the training, of a loss or of a network."""
    from papm import losses, models

    key = name.replace("-", "_")
    if key == "data":
        raise ConfigError("data is the first argument, not an option: write papm train DATA …")
    if key == "epochs":
        raise ConfigError("training is counted in steps of `batch` crops, not in epochs: write steps=NUMBER")
    if key == "learning_rate" or key.partition(".")[0] in settings:
        raise ConfigError(
            f"--{name} is a setting, not an option: write {'lr' if key == 'learning_rate' else key}={value}"
        )
    if any(key in losses.options(loss) for loss in losses.names()):
        raise ConfigError(f"--{key} is an option of a loss: write loss.{key}={value}")
    if any(key in models.info(network).options for network in models.names()):
        raise ConfigError(f"--{key} is an option of a network: write network.{key}={value}")


def before_training(config: TrainConfig, timed: bool = False) -> list[str]:
    """What is worth knowing before hours are spent: a large network on a CPU (unless `timed`), or one that starts from nothing.

    >>> from papm.config import TrainConfig
    >>> before_training(TrainConfig(data="photos", backbone="tiny"))
    []
    """
    import torch

    from papm import models

    about = models.info(config.backbone)
    if config.network.get("trunk", about.trunk) in (None, "tiny"):
        return []
    said = []
    cpu = config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())
    if cpu and not timed and about.trunk != "lite":
        small = "network.trunk=tiny" if about.kind == "points" else "--backbone tiny"
        said.append(f"{config.backbone} is slow on a CPU: --dry-run says how long it takes; {small} is made for a CPU.")
    if config.weights is None and config.init is None:
        said.append(f"{config.backbone} starts from random weights; --weights imagenet gives far better counts.")
    return said


def chosen_on_few(result: dict[str, Any]) -> str | None:
    """A caution where the weights were chosen on so few images that the choice is mostly chance.

    >>> chosen_on_few({"select": "val", "sizes": {"train": 9, "val": 1, "test": 2}})
    'Weights chosen on 1 image are mostly chance (trained on 9): give more images, or select=last.'
    """
    sizes = result.get("sizes") or {}
    if result.get("select") != "val" or not 0 < sizes.get("val", 0) < FEW:
        return None
    chosen = f"Weights chosen on {n_of(sizes['val'], 'image')} are mostly chance (trained on {sizes.get('train')})"
    return f"{chosen}: give more images, or select=last."
