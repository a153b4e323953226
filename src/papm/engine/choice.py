"""From what a user gave of a run to all of its settings: method and network of the machine, start, crop, batch and length."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from papm import methods, models
from papm.config import TrainConfig, group
from papm.data.base import Dataset
from papm.data.fractions import require_pixels
from papm.data.spec import open_spec
from papm.data.splits import Splits
from papm.data.splits import choose as choose_splits
from papm.engine import auto
from papm.engine.build import resolve, with_bounds
from papm.engine.head_start import head_start
from papm.engine.resumed import going_on
from papm.engine.start import AUTO, implied
from papm.models.weights import held, read_weights
from papm.predict.predictor import pick_device
from papm.text import Brief

if TYPE_CHECKING:
    from papm.models.base import Progress

Data = str | Path | Mapping[str, Dataset]  # NAME:FOLDER, a name, a folder; or splits that were opened
USUAL = {True: "dinov2", False: "tiny"}  # the network of a machine with a GPU, and without


def choose(
    machine: torch.device, method: str = AUTO, backbone: str = AUTO, wanted: str | None = None
) -> tuple[str, str]:
    """What `auto` means on this machine: a method and a backbone that fit each other; `wanted`: in place of the usual one.

    >>> choose(torch.device("cuda")), choose(torch.device("cpu")), choose(torch.device("cpu"), method="p2p-papm")
    (('al-papm', 'dinov2'), ('hd-papm', 'tiny'), ('p2p-papm', 'p2pnet'))
    """
    if backbone == AUTO:
        points = method != AUTO and methods.method(method).network == "points"
        backbone = "p2pnet" if points else wanted or USUAL[machine.type == "cuda"]
    if method == AUTO:
        points = models.info(backbone).kind == "points"
        method = "p2p-papm" if points else "al-papm" if backbone == "dinov2" else "hd-papm"
    return method, backbone


def _wanted(given: Mapping[str, Any], machine: torch.device) -> tuple[str | None, dict[str, Any]]:
    """The density network that weights in hand are of, or that has what the usual one of the machine lacks; and its options."""
    options, weights = group(given, "network"), given.get("weights")
    if weights == "imagenet" and machine.type != "cuda":
        return "lite", options  # the one that has such weights and that a CPU can train
    arch = None if weights in (None, "imagenet") else held(read_weights(Path(str(weights)).expanduser()))
    if arch is not None:
        return (arch, options) if arch in models.names() else ("vgg19", {"trunk": arch, **options})
    usual, paper = (set(models.info(name).options) for name in (USUAL[True], "vgg19"))
    lacks = machine.type == "cuda" and not set(options) <= usual and set(options) <= paper
    return "vgg19" if lacks else None, options


@dataclass(frozen=True, eq=False, repr=False)
class Choice(Brief):
    """All settings of a run, why those that `auto` chose are what they are, and the splits that were opened to choose."""

    config: TrainConfig
    why: tuple[str, ...] = ()
    splits: Splits | None = None


def configure(
    data: Data,
    method: str,
    backbone: str,
    settings: Mapping[str, Any],
    resumed: Path | None = None,
    on_download: Progress | None = None,
) -> Choice:
    """All settings of a run: the recipe of method and backbone, over it what is given, and `auto` for what is left open.

    A run that is `resumed` from its folder has its own where nothing is given. `on_download` hears of weights that are fetched.
    """
    given = {k: v for k, v in settings.items() if not (k in auto.CHOSEN and v == AUTO)}
    named = next((d.name for d in data.values()), "") if isinstance(data, Mapping) else str(data)
    if resumed is not None:
        config = with_bounds(going_on(resumed, {**given, "method": method, "backbone": backbone, "data": named}))
        opened = data if isinstance(data, Mapping) else open_spec(config.data, **config.options)
        return Choice(config, (), choose_splits(opened, config.select, config.val_fraction, config.seed))
    why: list[str] = []
    open_to_all = method == backbone == AUTO and not {"init", "weights", "network"} & set(given)
    if given.get("init"):
        method, backbone, given = implied(method, backbone, given)
    if AUTO in (method, backbone):
        machine, free = pick_device(str(given.get("device", AUTO))), backbone == AUTO
        wanted, options = _wanted(given, machine) if free else (None, {})
        method, backbone = choose(machine, method, backbone, wanted)
        if free:
            if backbone == wanted and options:
                given["network"] = options
            here = f"for a {'GPU' if machine.type == 'cuda' else 'CPU'}"
            reason = "as its weights or options are given" if backbone == wanted else here
            why.append(f"{method} with {backbone}: {reason}")
        if free and machine.type != "cuda" and backbone == "p2pnet" and not given.get("weights"):
            given["network"] = {"trunk": "tiny", **group(given, "network")}
        if free and models.info(backbone).trunk is not None and "trunk" not in group(given, "network"):
            given = {"weights": "imagenet", **given}
    config = with_bounds(resolve(method, backbone, {**given, "data": named}))
    starts = open_to_all and config.backbone == USUAL[False]
    if not starts and not isinstance(data, Mapping) and set(auto.CHOSEN) <= set(given):
        return Choice(config, tuple(why))
    opened = data if isinstance(data, Mapping) else open_spec(config.data, **config.options)
    config, more = auto.select(config, given, opened)
    why += more
    splits = choose_splits(opened, config.select, config.val_fraction, config.seed)
    seen = auto.look(splits.train, "turn" not in given)
    if starts:
        require_pixels(splits.train)  # before ready models count them, and weights are fetched
        added, reasons = head_start(splits.train, on_download)
        backbone = added.pop("backbone", backbone)
        given = {**added, **given}
        if "init" in added:
            method, backbone, given = implied(method, backbone, given)
        config = dataclasses.replace(
            with_bounds(resolve(method, backbone, {**given, "data": named})), select=config.select
        )
        why[:1] = [f"{config.method} with {config.backbone}: for a CPU", *reasons]
    config, more = auto.choose(config, given, seen)
    return Choice(config, (*why, *more), splits)
