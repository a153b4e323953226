"""One frozen dataclass holds everything a training run depends on; YAML in and out, `key=value` on the command line.

`loss.NAME=value`, `network.NAME=value` and `data.NAME=value` reach the options of the loss, the network and the dataset.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from papm.errors import ConfigError, unknown
from papm.registry import LARGEST_NUMBER
from papm.untrusted import LARGEST, LONGEST_YAML, brief, load_yaml

# What each number may be, least and most: beyond it is a slip of the pen, which would take days or all of the memory.
LIMITS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "log_every", "save_every"), (1, 10**9)),
    **dict.fromkeys(("warmup", "eval_every"), (0, 10**9)),
    **dict.fromkeys(("lr", "trunk_lr", "loss_lr", "weight_decay", "clip", "teacher_weight"), (0, LARGEST_NUMBER)),
    **dict.fromkeys(("margin", "noise", "correct"), (0, 10_000)),  # pixels
    "batch": (1, 65_536),
    "crop": (16, 16_384),
    "devices": (1, 4096),
    "workers": (-1, 1024),
    "seed": (0, 2**63 - 1),
}
SHARES = ("missed", "doubled")  # kinds of noise whose amount is a share of the points, not a distance
MOST_PIXELS = 2**30  # in one step, on one device: 13 GB of input

# What background weighs in the cross-entropy of proposals (P2PNet's eos_coef). An expected count undoes it
# (`papm.inference`); a checkpoint that does not name it was trained with this.
BACKGROUND_WEIGHT = 0.5


@dataclass(frozen=True)
class TrainConfig:
    """A training run. Defaults suit a stride-8 VGG19 on crowd photographs (docs/notebook/defaults.md: how they were found)."""

    # what is trained on what
    data: str = ""  # NAME:ROOT, a dataset name, or a path whose format is recognised
    method: str = "hd-papm"
    backbone: str = "vgg19"
    weights: str | None = None  # imagenet, or a .safetensors/.pth file for the trunk
    init: str | None = None  # a papm checkpoint or ready model to start from: all of the network's weights
    teachers: str | None = None  # models to learn from beside the dots, divided by commas
    teacher_weight: float = 1.0  # what their maps weigh beside the loss of the method
    loss: Mapping[str, Any] = field(default_factory=dict)  # options of the loss, e.g. loss.sigma=6
    network: Mapping[str, Any] = field(default_factory=dict)  # options of the network, e.g. network.stride=4
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the dataset, e.g. data.look=cells

    # how long, and how the model is chosen
    steps: int = 30_000
    batch: int = 8  # crops per step, on each device
    crop: int = 256  # side of a training crop in pixels
    seed: int = 0
    select: Literal["val", "last", "test"] = "val"  # which weights are the result; test is how many papers do it
    val_fraction: float = 0.1  # share of the training images held out when select=val and the data has no val split

    # optimisation
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: float = 1e-4
    trunk_lr: float | None = None  # learning rate of the pretrained trunk; the same as lr when not given
    loss_lr: float | None = None  # learning rate of what the loss itself learns (kdmg); the same as lr when not given
    weight_decay: float = 1e-4
    warmup: int = 300  # steps of linear warm-up
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = 0.0  # largest norm of the gradient, 0: no clipping
    ema: float = 0.9995  # decay of the averaged weights that are evaluated and saved, 0: none

    # augmentation and noise
    flip: float = 0.5  # probability of a left-right flip
    turn: bool = False  # crops in all eight orientations, in place of flip: for images without an up and down
    grey: float = 0.1  # probability of removing colour
    colour: float = 0.0  # contrast changes by at most this share, brightness by half of it
    scale_min: float = 1.0  # random resizing, log-uniform between these two
    scale_max: float = 1.0
    scale_share: float = 1.0  # share of crops that are resized; the others are as sharp as what is counted
    positions: Literal["border", "uniform"] = (
        "border"  # of crops: some moved inside from beyond the border, or anywhere alike
    )
    margin: int = 0  # pixels on each side of a crop that the network sees and the loss does not
    noise: float = (
        0.0  # training points are moved by this many pixels once, before training; or the share of them, see below
    )
    noise_kind: Literal["ring", "disc", "gaussian", "missed", "doubled"] = "ring"  # the last two: a share of the points
    noise_edge: Literal["redraw", "clip", "drop"] = "redraw"
    correct: float = 0.0  # the loss takes training points to lie this many pixels from their objects, 0: on them
    correct_kind: Literal["ring", "disc", "gaussian"] = "ring"

    # what is counted where a network gives points: scores above ½, or the sum of their probabilities (docs/guide/prediction.md)
    count: Literal["points", "expected"] = "points"

    # the machine
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1  # processes (GPUs, or CPU processes); more than one trains with DDP
    precision: Literal["auto", "32", "bf16", "16"] = "auto"  # auto: bf16 on a GPU or CPU with units for it, else 32
    compile: Literal["auto", "yes", "no"] = "auto"  # torch.compile; auto: on a GPU when the run is long enough to pay
    graph: Literal["auto", "no"] = "auto"  # a training step as one CUDA graph, where that is possible
    cache: Literal["auto", "device", "memory", "disk"] = "auto"  # where decoded images live
    workers: int = -1  # loader processes when images do not live on the device; -1: as many as suit the machine

    # what is written when
    eval_every: int = 0  # steps between evaluations, 0: 20 times a run, fewer if they would take long
    watch: Literal["averaged", "raw"] = "averaged"  # what they look at; raw: the weights as the last step left them
    log_every: int = 50  # steps between lines of metrics.csv
    save_every: int = 500  # steps between writes of last.ckpt

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, not {value}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name) or 0
            if value < low and low == 0:
                raise ConfigError(f"{name} must not be negative, but is {brief(value)}")
            if not low <= value <= high:
                bound = f"least {low}" if value < low else f"most {high:.15g}"
                raise ConfigError(f"{name} must be at {bound}, not {brief(value)}")
        if not 0 <= self.colour < 1:
            raise ConfigError(f"colour is a share between 0 and 1, not {self.colour}")
        for name in ("flip", "grey", "scale_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a probability between 0 and 1, not {getattr(self, name)}")
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema is a decay between 0 (off) and 1, not {self.ema}")
        if self.watch == "raw" and self.ema and self.select != "last":
            raise ConfigError(
                "watch=raw only looks, and keeps the averaged weights: it needs select=last (or use ema=0)"
            )
        if not 0 < self.val_fraction < 1:
            raise ConfigError(f"val_fraction is a share between 0 and 1, not {self.val_fraction}")
        if self.noise_kind in SHARES and not self.noise < 1:
            raise ConfigError(
                f"noise is a share of the points, below 1, where they are {self.noise_kind}, not {self.noise:g}"
            )
        if not 0.1 <= self.scale_min <= self.scale_max <= 10:
            raise ConfigError(
                f"scale_min ≤ scale_max within 0.1 and 10 is needed, not {self.scale_min}, {self.scale_max}"
            )
        if self.crop % 16 or self.margin % 16:
            raise ConfigError(f"crop and margin are multiples of 16, not {self.crop}, {self.margin}")
        if self.crop - 2 * self.margin < 16:
            raise ConfigError(f"a margin of {self.margin} leaves nothing of a crop of {self.crop}")
        if self.batch * self.view**2 > MOST_PIXELS:
            raise ConfigError(
                f"{self.batch} crops of {self.view}×{self.view} pixels are too much for a step; use a smaller batch or crop"
            )
        if self.correct and self.resizes:
            raise ConfigError(
                "correct is a distance in pixels of the images, which scale_min and scale_max change: leave them at 1"
            )
        if self.correct and 0 < self.margin < self.reach:
            raise ConfigError(
                f"correct={self.correct:g} needs a margin of at least {self.reach}, not {self.margin}; 0 finds it"
            )

    @property
    def resizes(self) -> bool:
        """Whether crops may be of another scale than their image."""
        return (self.scale_min != 1 or self.scale_max != 1) and self.scale_share > 0

    @property
    def rate_of_trunk(self) -> float:
        """Learning rate of the pretrained trunk, given or not."""
        return self.lr if self.trunk_lr is None else self.trunk_lr

    @property
    def reach(self) -> int:
        """How far away the objects of the points may be: `correct`, 2σ for a Gaussian, rounded up to a multiple of 16."""
        return displacement(self.correct, self.correct_kind)

    @property
    def frame(self) -> int:
        """Pixels on each side that the network sees and the loss does not: `margin`, or else what `correct` needs."""
        return self.margin or self.reach

    @property
    def view(self) -> int:
        """Side of what the network sees: the crop, grown by the frame that `correct` needs where no margin is set."""
        return self.crop + 2 * (self.frame - self.margin)


# Settings that a result records under options.training; what it does not record had its default.
LEARNING = (
    "optimizer", "lr", "trunk_lr", "loss_lr", "weight_decay", "warmup", "schedule", "clip", "ema",
    "margin", "correct", "correct_kind", "flip", "turn", "grey", "colour", "scale_min", "scale_max",
    "scale_share", "positions", "count", "watch", "teachers", "teacher_weight",
)  # fmt: skip


def displacement(correct: float, kind: str) -> int:
    """How far away the object of a point may be, in pixels, rounded up to a multiple of 16; twice σ for a Gaussian."""
    return -(-math.ceil(correct * (2 if kind == "gaussian" else 1)) // 16) * 16


# Settings of earlier versions: the folder of an old run still says what it was, though it cannot go on.
GONE = ("region",)

GROUPS = {"loss": "loss", "network": "network", "data": "options"}


def names() -> list[str]:
    """Every key of a configuration."""
    return [f.name for f in dataclasses.fields(TrainConfig)]


def from_mapping(values: Mapping[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """A configuration with `values` over `base` (or the defaults); unknown keys and wrong kinds are errors."""
    hints = _hints()
    update: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise unknown("key", str(key), hints)
        update[key] = _coerce(key, value, hints[key])
    return dataclasses.replace(base or TrainConfig(), **update)


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """`["steps=100", "loss.sigma=6"]` → {"steps": 100, "loss": {"sigma": 6}}; values are YAML scalars.

    >>> parse_overrides(["steps=100", "loss.sigma=6"])
    {'steps': 100, 'loss': {'sigma': 6}}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sep, text = pair.partition("=")
        if not sep or not key:
            raise ConfigError(f"'{pair}' is not of the form key=value")
        group, dot, option = key.partition(".")
        if dot and group not in GROUPS:
            raise unknown("group of options", group, GROUPS)
        if dot and not option:
            raise ConfigError(f"'{pair}' is not of the form {group}.option=value")
        try:
            # A path or a name is what was written: a folder may be called 2024.10, 007 or 2024-10-01.
            value = text if _is_text(key) and text not in _NOTHING else _number(text, load_yaml(text))
        except (yaml.YAMLError, ValueError):  # ValueError: a date that is none, a number that is too large
            raise ConfigError(f"{key}: cannot read the value '{brief(text)}'") from None
        if dot:
            options = out.setdefault(GROUPS[group], {})
            if not isinstance(options, dict):
                raise ConfigError(f"{GROUPS[group]} is a mapping, not '{brief(options)}'")
            options[option] = value
        else:
            out[key] = value
    return out


def group(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The options that settings give under `loss`, `network` or `options`; none where they say nothing.

    >>> group({"loss": {"sigma": 6}}, "loss"), group({"loss": None}, "loss"), group({}, "loss")
    ({'sigma': 6}, {}, {})
    """
    found = values.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise ConfigError(f"{key} is a mapping, not '{brief(found)}'")
    return dict(found or {})


_NOTHING = ("", "~", "null", "Null", "NULL")  # how YAML writes None


@functools.cache
def _hints() -> dict[str, Any]:
    """Key → its type; resolving annotations takes milliseconds, and a study reads thousands of settings."""
    return typing.get_type_hints(TrainConfig)


def _is_text(key: str) -> bool:
    return _hints().get(key) in (str, str | None)


def _number(text: str, value: Any) -> Any:
    """YAML reads 1e-4 as text; people mean a number."""
    if isinstance(value, str):
        try:
            return float(text)
        except ValueError:
            return value
    return value


def _coerce(key: str, value: Any, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
        origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else brief(value)
        if text not in choices:
            raise ConfigError(f"{key} is one of {', '.join(choices)}, not '{brief(value)}'")
        return text
    if hint is bool and isinstance(value, bool):
        return value
    if hint in (int, float) and isinstance(value, str):
        value = _number(value, value)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{key}: a number of more than 18 digits")
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer():
        return int(value)
    if hint is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    if origin is not None and isinstance(value, Mapping):
        return {str(k): _number(v, v) for k, v in value.items()}
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(hint, "a mapping")
    raise ConfigError(f"{key} is {kind}, not '{brief(value)}'")


def to_mapping(config: TrainConfig) -> dict[str, Any]:
    """Plain types only, for YAML, JSON and checkpoints."""
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(config).items()}


def to_yaml(config: TrainConfig) -> str:
    """The resolved configuration as text; `load` reads it back to an equal one."""
    return yaml.dump(to_mapping(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes what stands in two places twice: aliases are not read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def load(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        if path.stat().st_size > 4 * LONGEST_YAML:
            raise ConfigError(f"{path}: too large for a file of settings")
        values = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: not UTF-8, a date that is none, what is nested too deeply
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: not valid YAML ({brief(problem or str(error))})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a list of 'key: value' lines")
    return values
