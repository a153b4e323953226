"""What a training is, whoever describes it: a cell of a table, or the result of one that was done.

Both become one flat mapping of settings with every default spelt out (`steps`, `loss.sigma`, `network.activation`, …), so
that they can be compared: a result belongs to a cell when it has everything the cell asks for, and whatever else differs from
today's recipe can be named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from papm import config as configuration
from papm import losses, methods, models
from papm.config import GROUPS, LEARNING, TrainConfig
from papm.data import resize
from papm.data.base import HOLDOUT
from papm.engine import auto
from papm.engine.build import resolve
from papm.errors import ConfigError, unknown
from papm.models.weights import PUBLISHED
from papm.study.cells import AUTO as AUTO
from papm.study.cells import NAMED

RECORDED = ("steps", "crop", "batch")
IDENTITY = ("dataset", "backbone", "method", "noise", "noise_kind", "correct", "init")
# Settings that no longer exist. Trainings that left them at these values are what they are without them.
GONE: Mapping[str, Any] = {
    "region": 0, "loss.balance": 0, "loss.w_count": 0, "loss.bounded": False, "loss.sigma_min": 3, "loss.ignore_border": 0,
    "loss.count_weight": 0, "loss.normalizer": "weighted", "loss.reduction": "mean",
}  # fmt: skip
CHECKPOINT, REQUIRED = "checkpoint", "required"  # `init`: which one is not said; a study may leave it to the command
NONE, PRETRAINED = "none", "pretrained"  # `weights`: a result knows the file's checksum, not what it was called


def read_settings(given: Iterable[str] | None, taken: Mapping[str, str]) -> dict[str, Any]:
    """key=value pairs as settings of a study: `loss.sigma`, not a nested mapping; `taken` are keys that are given otherwise.

    >>> read_settings(["steps=100", "loss.sigma=8"], {})
    {'steps': 100, 'loss.sigma': 8}
    """
    out: dict[str, Any] = {}
    for pair in given or []:
        key = pair.partition("=")[0]
        if key in taken:
            raise ConfigError(f"give {key} as {taken[key]}, not as {key}=…")
        if key in ("data", "method", "backbone", *GROUPS.values()) and "." not in key:
            raise ConfigError(f"{key} is what the cells of a study say; choose cells with --only")
        value: Any = configuration.parse_overrides([pair])
        if key.partition(".")[0] in GROUPS:
            value = next(iter(value.values()))
            out[key] = next(iter(value.values()))
        elif key not in configuration.names():
            raise unknown("key", key, configuration.names())
        else:
            out |= value
    return out


def configure(settings: Mapping[str, Any]) -> TrainConfig:
    """The configuration of one training; `settings` are as written in a study, `dataset` stands for the data.

    >>> configure({"dataset": "trancos", "backbone": "vgg19", "method": "al-papm", "loss.sigma": 8}).loss
    {'mass': 64.0, 'sigma': 8}
    """
    # Which weights are the result is not said by a cell: until it is, a setting that goes with some choices only is good.
    given: dict[str, Any] = {"data": str(settings["dataset"]), "select": "last"}
    for key, value in settings.items():
        group, dot, option = key.partition(".")
        if dot:
            given.setdefault(GROUPS[group], {})[option] = value
        elif key not in ("dataset", "method", "backbone", "weights", *by_data(settings)):
            given[key] = value
    return resolve(str(settings["method"]), str(settings["backbone"]), given)


def by_data(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings that are left to the data.

    >>> by_data({"dataset": "trancos", "steps": "auto", "crop": 256})
    ('steps',)
    """
    return tuple(k for k in auto.CHOSEN if settings.get(k) == AUTO)


def starts_from(config: TrainConfig, weights: str | None) -> str:
    """Whether the trunk starts from published weights: where there are some, unless `weights` is none."""
    if config.init is not None:
        return NONE
    trunk = config.network.get("trunk") or models.info(config.backbone).trunk
    return PRETRAINED if trunk in PUBLISHED and weights != NONE else NONE


def asked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The training a cell asks for, every setting spelt out."""
    config = configure(settings)
    whole = of_config(config, str(settings["dataset"]), starts_from(config, settings.get("weights")))
    return whole | dict.fromkeys(by_data(settings), AUTO)


def of_config(config: TrainConfig, dataset: str, weights: str) -> dict[str, Any]:
    """The training of a configuration, every setting spelt out; `weights` is none or pretrained."""
    own = _plain_rate({k: getattr(config, k) for k in (*RECORDED, *LEARNING)})
    who = {"dataset": dataset, "backbone": config.backbone, "method": config.method}
    moved = {"noise": config.noise, "noise_kind": config.noise_kind}
    options = resize.resolved(dataset, config.options)
    start = {} if config.init is None else {"init": CHECKPOINT}
    return {**_flat({**who, **moved, **own}, config.loss, config.network, options, weights), **start}


def done(result: Mapping[str, Any]) -> dict[str, Any]:
    """The training behind a result, every setting spelt out."""
    defaults, options = TrainConfig(), result.get("options") or {}
    own = {k: getattr(defaults, k) for k in LEARNING} | dict(options.get("training") or {})
    if isinstance(before := result.get("asked"), Mapping) and "trunk_lr" in before:
        own["trunk_lr"] = before["trunk_lr"]  # a run that restarted is the one that was asked for
    own = _plain_rate(own)
    own |= {"steps": result.get("steps"), **{k: options.get(k, getattr(defaults, k)) for k in ("crop", "batch")}}
    who = {k: str(result[k]) for k in ("dataset", "backbone", "method")}
    moved = {"noise": result.get("noise") or 0, "noise_kind": str(result.get("noise_kind", defaults.noise_kind))}
    loss, network, data = (options.get(k) or {} for k in ("loss", "network", "data"))
    weights = PRETRAINED if result.get("weights_sha256") else NONE
    found = _flat({**who, **moved, **own}, loss, network, data, weights)
    if result.get("init"):
        found |= {"init": CHECKPOINT, "weights": NONE}
    method = methods.METHODS.get(str(result["method"]))
    live = {f"loss.{k}" for k in (losses.options(method.loss) if method else ())}
    chosen = result.get(AUTO)
    by_the_data = tuple(k for k in auto.CHOSEN if k in chosen) if isinstance(chosen, list) else ()
    kept = {k: v for k, v in found.items() if k in live or k not in GONE or v != GONE[k]}
    return kept | ({AUTO: by_the_data} if by_the_data else {})  # which of them the data chose


def _plain_rate(own: dict[str, Any]) -> dict[str, Any]:
    """The settings with no rate of the trunk where it is that of the rest."""
    return own | ({"trunk_lr": None} if own["trunk_lr"] == own["lr"] else {})


def _flat(
    own: Mapping[str, Any], loss: Mapping[str, Any], network: Mapping[str, Any], data: Mapping[str, Any], weights: str
) -> dict[str, Any]:
    """One flat mapping, the options of loss and network with their defaults; a method or network may be gone by now."""
    method, backbone = own["method"], own["backbone"]
    usual = losses.options(methods.method(method).loss) if method in methods.METHODS else {}
    every_network = {**(models.info(backbone).options if backbone in models.names() else {}), **network}
    return {
        **own,
        "noise": float(own["noise"]),
        "noise_kind": own["noise_kind"] if own["noise"] else "",
        **{f"loss.{k}": v for k, v in {**usual, **loss}.items()},
        **{f"network.{k}": v for k, v in every_network.items()},
        **{f"data.{k}": v for k, v in data.items()},
        "weights": weights,
    }


def required(settings: Mapping[str, Any], recipe: Collection[str] = ()) -> dict[str, Any]:
    """What a result must have to belong to a cell: who learns what on what, from which data, and what the cell itself sets.

    Settings named in `recipe` are not the cell's question but how the study trains it: like the steps or the rate of today's
    recipe, they may differ, and are then named.
    """
    whole = asked(settings)
    keys = {*IDENTITY, *(k for k in whole if (k in settings and k not in recipe) or k.startswith("data."))}
    # What the data says is known once it is read. A figure of held-out training images is none of the test images.
    known = {k: v for k, v in whole.items() if k in keys and v != AUTO}
    return {f"data.{HOLDOUT}": None, **known}


def differences(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `have` that are not as wanted, with their values; None where it does not have a setting.

    >>> differences({"crop": 256, "steps": "auto"}, {"crop": 256, "steps": 9000, "auto": ("crop", "steps")})
    {}
    >>> differences({"crop": 256, "steps": "auto"}, {"crop": 512, "steps": 9000})
    {'crop': 512, 'steps': 9000}
    """
    keys = [*wanted, *(k for k in have if k not in wanted and k != AUTO)]
    by_the_data = {k for k in (*have.get(AUTO, ()), "network.num_classes") if wanted.get(k) == AUTO}
    return {k: have.get(k) for k in keys if k not in by_the_data and wanted.get(k) != have.get(k)}


def overrides(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What must be written after `papm train DATA --method … --backbone …`: the settings that the recipe does not have."""
    config = configure(settings)
    # Options that call for another recipe (network.trunk=tiny) bring it along by themselves.
    plain = configure({k: v for k, v in settings.items() if k in NAMED or k.startswith("network.")})
    bare = configure({k: settings[k] for k in NAMED})
    mine, recipe = configuration.to_mapping(config), configuration.to_mapping(plain)
    out = {k: v for k, v in mine.items() if k not in GROUPS.values() and v != recipe[k]}
    if out.keys() & {"scale_min", "scale_max"}:
        out["scale_share"] = mine["scale_share"]  # scales that are given undo the recipe's share
    for group, name in GROUPS.items():
        defaults = dict(getattr(bare, name))
        if group == "loss":
            defaults = {**losses.options(methods.method(config.method).loss), **defaults}
        elif group == "network":
            defaults = {**models.info(config.backbone).options, **defaults}
        changed = {k: v for k, v in mine[name].items() if k not in defaults or defaults[k] != v}
        out |= {f"{group}.{k}": v for k, v in changed.items()}
    return out


def in_words(values: Mapping[str, Any]) -> str:
    """Settings as they are written on the command line.

    >>> in_words({"steps": 20000.0, "network.offsets": False, "trunk_lr": None, "cost": "l2"})
    'steps=20000 network.offsets=false trunk_lr=null cost=l2'
    """
    return " ".join(words(values))


def words(values: Mapping[str, Any]) -> list[str]:
    """The same one by one."""
    return [f"{k}={_word(v)}" for k, v in values.items()]


def _word(value: Any) -> str:
    """A value as YAML reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)
