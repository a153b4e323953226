"""From what a user asked for to the parts of a run: the settings, the network, the loss."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from papm import checkpoint, losses, methods, models
from papm import config as configuration
from papm.config import TrainConfig
from papm.data import resize
from papm.data.base import Dataset
from papm.data.classes import class_names, number_of_classes, require_labels
from papm.data.spec import names_of, share_options
from papm.data.splits import Splits
from papm.engine import auto
from papm.engine.data import several_classes
from papm.engine.start import model_file, with_teachers
from papm.errors import ConfigError, unknown
from papm.imagenet import normalize
from papm.inference import Inference
from papm.losses.classes import ClassLoss
from papm.losses.forward_correction import ForwardLoss
from papm.models import Network
from papm.models.base import Progress

SETTLE_IMAGES, SETTLE_SIDE = 32, 256
CPU_BF16 = ("amx_tile", "avx512_bf16")  # units of a CPU; what tells of them has no public name up to torch 2.13
SMALLEST_INNER = 64  # pixels that the margin of a recipe leaves at least


def resolve(method: str, backbone: str, given: dict[str, Any]) -> TrainConfig:
    """Defaults, then the recipe of the method and backbone, then what the user set."""
    models.info(backbone)
    own = {k: configuration.group(given, k) for k in ("loss", "network")}
    recipe = methods.recipe(method, backbone, own["network"])
    # Options are merged one by one: choosing a stride does not undo the recipe's activation.
    merged: dict[str, Any] = {k: {**recipe.get(k, {}), **own[k]} for k in own if k in recipe or k in given}
    if given.get("correct") and methods.method(method).network == "points":
        raise ConfigError(f"correct is for losses on density maps; method '{method}' matches points")
    if given.get("teachers") and methods.method(method).network == "points":
        raise ConfigError(f"teachers are for losses on density maps; method '{method}' matches points")
    if given.get("count") == "expected" and methods.method(method).network != "points":
        raise ConfigError(f"count=expected is for networks that give points; method '{method}' trains density maps")
    crop = given.get("crop", math.inf)
    if given.get("correct") or (isinstance(crop, int | float) and crop - 2 * recipe.get("margin", 0) < SMALLEST_INNER):
        recipe["margin"] = 0  # the displacement says how wide a frame must be; a crop that is given needs its pixels
    if {"scale_min", "scale_max"} & given.keys():
        recipe.pop("scale_share", None)  # scales of one's own are for all crops, as they were before there was a share
    if given.get("correct"):
        recipe |= {"scale_min": 1.0, "scale_max": 1.0}  # a displacement is so many pixels of the image as it is
    config = configuration.from_mapping({**recipe, **given, **merged, "method": method, "backbone": backbone})
    known = models.info(backbone).options
    for key in config.network:
        if key not in known:
            raise unknown(f"option of network '{backbone}'", key, known)
    loss_options = losses.options(methods.method(method).loss)
    for key in config.loss:
        if key not in loss_options:
            raise unknown(f"option of loss '{methods.method(method).loss}'", key, loss_options)
    if methods.method(method).network == "points":
        # Now, since one of the loss's options says how a network is read, which is built before its loss.
        losses.create(methods.method(method).loss, **config.loss)
        if config.count == "expected" and not config.loss.get("background_weight", True):
            raise ConfigError("without background (loss.background_weight=0) no chance is known; use count=points")
    return config


def recipe_of(config: TrainConfig) -> str:
    """The name of the recipes where a run keeps to its own (crop, batch, steps and turn may be any), else "own".

    >>> some = {"steps": 5, "turn": True, "trunk_lr": 1e-4, "loss": {"sigma": 16}}, {"lr": 1.0}
    >>> [recipe_of(resolve("al-papm", "vgg19", given)) for given in some]
    ['6', 'own']
    """
    usual = resolve(config.method, config.backbone, {"network": dict(config.network)})
    own = (*(k for k in configuration.LEARNING if k not in (*auto.CHOSEN, "trunk_lr")), "network")
    same = all(getattr(config, k) == getattr(usual, k) for k in own) and config.rate_of_trunk == usual.rate_of_trunk
    loss = losses.options(methods.method(config.method).loss)  # what is given may be the default
    same = same and {**loss, **config.loss} == {**loss, **usual.loss}
    recipe = methods.recipe(config.method, config.backbone, config.network).get("network", {})
    kept = all(config.network.get(k) == v for k, v in recipe.items())
    return methods.RECIPE if same and kept else "own"


def with_bounds(config: TrainConfig) -> TrainConfig:
    """The configuration with `data.resize=usual` spelt out: a model must know its sizes without its dataset."""
    if "resize" not in config.options:
        return config
    names = names_of(config.data)
    if len(names) > 1:
        share_options(names, config.options)  # one rule for all of them, which `usual` is not
    return dataclasses.replace(config, options=resize.resolved(names[0], config.options))


def with_classes(config: TrainConfig, splits: Splits) -> TrainConfig:
    """The configuration with `network.num_classes=auto` spelt out; labels that do not fit the network are refused."""
    if "num_classes" not in config.network:
        return config
    classes = number_of_classes(config.network["num_classes"], splits.train)
    if classes > 1:
        for split in (splits.train, splits.monitor, splits.test):
            require_labels(split or (), classes)
    return dataclasses.replace(config, network={**config.network, "num_classes": classes})


def precision_of(config: TrainConfig, device: torch.device, begun: str | None = None) -> str:
    """`auto` is bf16 where the device has units for it, else full precision. A CPU trains in bf16 where fp16 was asked for.

    A run that was `begun` in a precision goes on in it.
    """
    wanted = begun or config.precision
    if wanted == "16" and device.type == "cpu":
        return "bf16"
    if wanted != "auto":
        return wanted
    return "bf16" if has_bf16_units(device) else "32"


def counting_precision(config: TrainConfig, device: torch.device, begun: str | None = None) -> str:
    """The precision of evaluations: that of the steps; on a CPU, where nothing is asked for, that of `papm predict` there."""
    return "32" if config.precision == "auto" and device.type == "cpu" else precision_of(config, device, begun)


def has_bf16_units(device: torch.device) -> bool:
    """Whether a training step is faster in bf16: on a GPU that has it, and on a CPU with AMX or AVX512-BF16 (docs/speed.md)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in CPU_BF16)
    return device.type == "cpu" and any(known is not None and known() for known in asked)


def inference_of(config: TrainConfig, splits: Splits | None = None) -> Inference:
    """How the model of a run will count; stored with it, so that nobody has to ask the settings again."""
    known = models.info(config.backbone)
    about = known.inference
    rule = resize.take("", {k: v for k, v in config.options.items() if k in resize.OPTIONS})[0]
    scales: tuple[float, ...] = ()
    if rule and splits is not None:
        least, usual, most = resize.scales(splits.train)
        small, large = (config.scale_min, config.scale_max) if config.resizes else (1.0, 1.0)
        scales = (least * small, usual, most * large)
    classes: tuple[str, ...] = ()
    if several_classes(config) and splits is not None:
        classes = known_names(splits.train, int(config.network["num_classes"]))
    return dataclasses.replace(
        about,
        frame=config.frame,
        resize=rule,
        decode="expected" if about.decode == "threshold" and config.count == "expected" else about.decode,
        background=float(config.loss.get("background_weight", configuration.BACKGROUND_WEIGHT)),
        classes=classes,
        scales=scales,
        window=config.crop - 2 * config.margin if known.windows else 0,
    )


def build_network(
    config: TrainConfig, progress: Progress | None = None, splits: Splits | None = None, goes_on: bool = False
) -> Network:
    """The network of a configuration, with trunk weights (`progress` hears of their download) or a checkpoint to start from.

    A run that `goes_on` has its weights in last.ckpt, and no need of the file or the model that it once started from.
    """
    torch.manual_seed(config.seed)
    inference = inference_of(config, splits)
    weights = None if goes_on else config.weights
    network = models.create(config.backbone, weights, progress=progress, inference=inference, **config.network)
    if config.init is not None and not goes_on:
        file = model_file(config.init)
        spec, state = checkpoint.load(file)
        if spec.backbone != config.backbone:
            raise ConfigError(f"{file}: is a '{spec.backbone}', the run trains a '{config.backbone}'")
        checkpoint.assign(network, state, str(file))
    if (config.init is not None or goes_on) and isinstance(network.trunk, models.VGGTrunk):
        network.trunk.uncalibrated = False  # its norms are those of a checkpoint
    return network


def settle_norms(network: Network, dataset: Dataset, device: torch.device) -> None:
    """Batch norms over trunk weights that were trained without any get the statistics of the training images.

    The same images in every process and at every start: up to 32, evenly spread over the dataset, the middle of each.
    """
    trunk = network.trunk
    if not isinstance(trunk, models.VGGTrunk) or not trunk.uncalibrated:
        return
    step = max(1, len(dataset) // SETTLE_IMAGES)
    mean, std = network.inference.mean, network.inference.std
    middles = (middle(normalize(dataset[i].image, mean, std), SETTLE_SIDE) for i in range(0, len(dataset), step))
    models.calibrate_norms(trunk.to(device), (m[None].to(device) for m in itertools.islice(middles, SETTLE_IMAGES)))


def middle(image: Tensor, side: int) -> Tensor:
    """The middle of an image [3, H, W], at most `side` pixels high and wide.

    >>> middle(torch.zeros(3, 40, 20), 32).shape
    torch.Size([3, 32, 20])
    """
    top, left = (max(0, n - side) // 2 for n in image.shape[-2:])
    return image[:, top : top + side, left : left + side]


def build_loss(config: TrainConfig, stride: int) -> losses.CountingLoss:
    """The loss of a configuration: the map is displaced (`correct`), taken class by class, and pulled towards teachers."""
    loss = losses.create(methods.method(config.method).loss, stride=stride, **config.loss)
    if several_classes(config) and not isinstance(loss, losses.PointLoss):
        loss = ClassLoss(loss, int(config.network["num_classes"]))
    if config.correct:
        loss = ForwardLoss(loss, config.correct, config.correct_kind, config.frame)
    return with_teachers(config, loss)


def known_names(dataset: Dataset, classes: int) -> tuple[str, ...]:
    """A name for each class: those of the dataset where it has as many, else numbers."""
    names = class_names(dataset)
    return names if len(names) == classes else tuple(str(k) for k in range(classes))
