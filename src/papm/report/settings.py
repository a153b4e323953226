"""The settings of a run, in words: what differs from the defaults, and the command that makes the run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from papm import config as configuration
from papm import methods
from papm.config import GROUPS, TrainConfig
from papm.engine.auto import CHOSEN
from papm.errors import ConfigError


def changed(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(key, value, default) of the settings that are not at their default."""
    usual = configuration.to_mapping(TrainConfig())
    return [
        (key, _scalar(value), _scalar(usual[key]) if key in usual else "")
        for key, value in config.items()
        if key not in usual or usual[key] != value
    ]


def command(config: Mapping[str, Any], out: str) -> str:
    """The `papm train` line that makes this run again: what its recipe does not set, and what `auto` would choose."""
    method, backbone = str(config.get("method", "")), str(config.get("backbone", ""))
    try:
        network = config.get("network")
        recipe = methods.recipe(method, backbone, network if isinstance(network, Mapping) else None)
    except ConfigError:  # a method this version does not know: spell everything out
        recipe = {}
    base = {**configuration.to_mapping(TrainConfig()), **recipe}
    words = ["papm", "train", str(config.get("data", "")), "--method", method, "--backbone", backbone, "--out", out]
    groups = {field: group for group, field in GROUPS.items()}
    for key, value in config.items():
        if key in ("data", "method", "backbone") or (key not in CHOSEN and key in base and base[key] == value):
            continue
        if key in groups and isinstance(value, Mapping):
            usual = base.get(key, {})
            new = {name: v for name, v in value.items() if name not in usual or usual[name] != v}
            words += [f"{groups[key]}.{name}={_scalar(v)}" for name, v in new.items()]
        elif key in ("weights", "init") and value is not None:
            words += [f"--{key}", str(value)]
        else:
            words.append(f"{key}={_scalar(value)}")
    return shlex.join(words)


def _scalar(value: Any) -> str:
    """A value as YAML on one line, which is how the command line reads it."""
    if isinstance(value, float):
        return repr(value)
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
