"""The settings of a run that goes on: what it has stored, and what may change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papm import checkpoint, ready
from papm import config as configuration
from papm.config import TrainConfig
from papm.data.several import parts_of
from papm.engine import used_images
from papm.engine.start import AUTO
from papm.errors import CheckpointError, ConfigError
from papm.models import Network
from papm.models.weights import PUBLISHED, cache_folder, sha256_of
from papm.untrusted import brief

# What a run may change of what was asked for: a smaller batch where memory holds no larger one, a slower trunk where maps
# became empty.
ADAPTED = ("batch", "trunk_lr")
# What may change between the parts of one run without making it another run. The folder of the data may too, where
# used_images.csv says which images they are; drawn scenes have no files, and are told by what they are drawn from.
FREE = {"device", "workers", "cache", "compile", "graph", "log_every", "save_every", "eval_every"}
PATHS = {"data", "init", "weights", "teachers"}  # one file or folder has many names
UNKNOWN = "unknown"  # in place of a checksum: there were pretrained weights, and their file is gone


def check_same(folder: Path, config: TrainConfig) -> None:
    """Refuse to resume with other settings: the result would be neither run."""
    before = stored_config(folder)
    old, new = configuration.to_mapping(before), configuration.to_mapping(config)
    if before.batch * before.devices == config.batch * config.devices:  # the same crops, on other processes
        old |= {"batch": config.batch, "devices": config.devices}
    moved = bool(used_images.read(folder)) and not (drawn(before.data) or drawn(config.data))
    for key, value in new.items():
        if key in FREE or (key == "data" and moved) or _same(key, old[key], value):
            continue
        then, now = brief(old[key]), brief(value)
        raise ConfigError(f"{folder}: was started with {key}={then}, not {now}; resume without changing it")


def _same(key: str, then: Any, now: Any) -> bool:
    """Whether two values mean the same: equal ones, or paths of the same files."""
    if then == now or key not in PATHS or None in (then, now):
        return bool(then == now)
    return [_place(key, name) for name in then.split(",")] == [_place(key, name) for name in now.split(",")]


def _place(key: str, name: str) -> str | Path:
    """The path that a setting names; the name of a ready model stands for itself."""
    if key != "data" and name.strip() in ready.known():
        return name.strip()
    try:
        return Path(name.strip()).expanduser().resolve()
    except (OSError, RuntimeError):  # of a user who is not known
        return name


def drawn(spec: str) -> bool:
    """Whether data, or a part of it, is drawn by papm."""
    return any(part.partition(":")[0] == "synthetic" for part in parts_of(spec))


def as_begun(folder: Path, config: TrainConfig) -> tuple[TrainConfig, TrainConfig]:
    """The settings of a run that goes on, as it has them and as they were asked for: either resumes it."""
    values = _environment(folder).get("asked")
    asked = {k: values[k] for k in ADAPTED if isinstance(values, dict) and k in values}
    if not asked:
        return config, config
    before = stored_config(folder)
    own = {k: getattr(before, k) for k, value in asked.items() if getattr(config, k) == value}
    return dataclasses.replace(config, **own), configuration.from_mapping(asked, config)


def going_on(folder: Path, given: Mapping[str, Any]) -> TrainConfig:
    """The settings of a stored run, over them what is given now, options one by one; `check_same` says what may differ."""
    before = configuration.to_mapping(stored_config(folder))
    options = {k: {**before[k], **configuration.group(given, k)} for k in configuration.GROUPS.values()}
    said = {k: v for k, v in given.items() if not (k in ("method", "backbone") and v == AUTO)}
    return configuration.from_mapping({**before, **said, **options})


def weights_used(folder: Path, config: TrainConfig, network: Network) -> str | None:
    """The SHA-256 of the weights file that a run started from; None where there was none.

    Where an older papm started it and stored none, that of the file as it is here, else UNKNOWN; nothing is downloaded.
    """
    stored = _environment(folder)
    if config.weights is None or "weights_sha256" in stored:
        value = stored.get("weights_sha256")
        return value if isinstance(value, str) else None
    file, begins = Path(config.weights).expanduser(), ""
    if config.weights == "imagenet":
        published = PUBLISHED[str(getattr(network.trunk, "arch", None))]
        file, begins = cache_folder() / published.name, published.sha256
    try:
        found = sha256_of(file)
    except CheckpointError:
        return UNKNOWN
    return found if found.startswith(begins) else UNKNOWN


def precision_begun(folder: Path) -> str | None:
    """The precision of the steps of a run so far; None where it follows from the settings.

    Where an older papm started it and stored none: on a CPU it trained in float32 unless it was told otherwise.
    """
    stored, before = _environment(folder), stored_config(folder)
    if stored.get("precision") in ("32", "bf16", "16"):
        return str(stored["precision"])
    on_cpu = before.device == "cpu" or " CPU, " in str(stored.get("hardware"))
    return "32" if before.precision == "auto" and on_cpu else None


def _environment(folder: Path) -> dict[str, Any]:
    """environment.json; nothing where it cannot be read."""
    try:
        values = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def stored_config(folder: Path) -> TrainConfig:
    """The resolved configuration of a run."""
    values = configuration.load(folder / "config.yaml")
    return configuration.from_mapping({k: v for k, v in values.items() if k not in configuration.GONE})


def steps_done(folder: Path) -> int:
    """How many steps last.ckpt of a run has behind it."""
    last = folder / "last.ckpt"
    return checkpoint.load(last)[0].step if last.exists() else 0
