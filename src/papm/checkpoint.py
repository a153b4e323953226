"""Models on disk: tensors and plain JSON types in one file, read with `weights_only=True`, written atomically.

A checkpoint is a dictionary with `papm` (what network this is and how it was trained) and `state_dict` (its weights, with
the prefix `network.`). The trainer's own `last.ckpt` has the same two entries and more besides, so that both kinds load.
A model to hand on is a `.safetensors` file: the weights in half precision, and in its header `papm`, as JSON, and its `card`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save as safetensors_of
from torch import Tensor

from papm import models, ready, untrusted
from papm.config import BACKGROUND_WEIGHT, displacement
from papm.data import resize
from papm.errors import CheckpointError, ConfigError, PapmError
from papm.files import write_atomic
from papm.inference import LARGEST_FRAME, Inference
from papm.ready.named import resolve as resolve
from papm.ready.named import run_checkpoint as run_checkpoint
from papm.registry import check_options
from papm.untrusted import brief
from papm.version import __version__

FORMAT = 1
COMPACT = ".safetensors"
PREFIX = "network."
LONGEST = 100_000  # values in the description of a network: the largest profile (`papm.likeness`), and all else
# Options of networks that are gone, with the value that asked for nothing: a file that says so loads.
GONE = {"rebalance": None, "context": False}


@dataclass(frozen=True)
class ModelSpec:
    """What is needed to build the network again, and where it came from."""

    backbone: str
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    inference: Inference | None = None  # how it counts; None: as `models.info(backbone).inference` says

    @property
    def classes(self) -> tuple[str, ...]:
        """What is counted, by name, where there are several."""
        return self.inference.classes if self.inference is not None else ()

    def to_mapping(self) -> dict[str, Any]:
        """Plain types, as stored."""
        return {
            "format": FORMAT,
            "version": __version__,
            "backbone": self.backbone,
            "options": dict(self.options),
            "method": self.method,
            "config": dict(self.config),
            "step": self.step,
            **({} if self.inference is None else {"inference": self.inference.to_mapping()}),
        }

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> ModelSpec:
        """What `to_mapping` stored, also before models held their `inference`."""
        stored = values.get("inference")
        return ModelSpec(
            str(values["backbone"]),
            {str(k): v for k, v in dict(values.get("options", {})).items() if k not in GONE or v is not GONE[k]},
            str(values.get("method", "")),
            dict(values.get("config", {})),
            int(values.get("step", 0)),
            _before_the_contract(values) if stored is None else Inference.from_mapping(stored),
        )


def _before_the_contract(values: Mapping[str, Any]) -> Inference:
    """How a model counts that was stored without saying so: what its training settings meant in those days.

    The frame was the margin, or what `correct` needed; the resize rule stood among the options of the dataset, and what
    background weighed among those of the loss.
    """
    config, name = dict(values.get("config") or {}), str(values["backbone"])
    about = models.info(name).inference if name in models.NETWORKS else Inference()
    bounds = config.get("options")
    bounds = {k: v for k, v in bounds.items() if k in resize.OPTIONS} if isinstance(bounds, Mapping) else {}
    try:
        frame = int(config.get("margin") or 0)
        frame = frame or displacement(config.get("correct") or 0.0, config.get("correct_kind", "ring"))
    except (TypeError, ValueError, ArithmeticError):
        frame = -1
    if not 0 <= frame <= LARGEST_FRAME:
        raise ConfigError(f"its margin is no number of pixels from 0 to {LARGEST_FRAME}")
    try:
        background = float((config.get("loss") or {}).get("background_weight", BACKGROUND_WEIGHT))
    except (TypeError, ValueError, AttributeError):
        background = -1.0
    if not 0 <= background < float("inf"):
        raise ConfigError("the weight of background in its training is no number")
    return replace(
        about,
        frame=frame,
        resize=resize.take("", bounds)[0],
        decode="expected" if about.decode == "threshold" and config.get("count") == "expected" else about.decode,
        background=background,
        classes=tuple(str(c) for c in values.get("classes", ())),
        scales=tuple(float(s) for s in values.get("scales", ())),
    )


def save(
    path: Path, spec: ModelSpec, network_state: Mapping[str, Tensor], card: str = "", *, half: bool = True
) -> None:
    """Write a model; an existing file is replaced only when the new one is whole.

    A name that ends in .safetensors asks for a file to hand on, which may hold a `card`; in full precision unless `half`.
    """
    state = {PREFIX + k: v.detach().cpu() for k, v in network_state.items()}
    _store(path, {"papm": spec.to_mapping(), "state_dict": state, "card": card}, half)


def _store(path: Path, values: dict[str, Any], half: bool) -> None:
    """Write the dictionary of a checkpoint in the form that the name of the file asks for."""
    if path.suffix == COMPACT:
        content = _compact(path, values, half)
        return write_atomic(path, lambda stream: stream.write(content))
    return write_atomic(path, lambda stream: write({k: v for k, v in values.items() if k != "card" or v}, stream))


def _compact(path: Path, values: dict[str, Any], half: bool) -> bytes:
    """The bytes of a .safetensors file: kernels in half precision; biases and norms, which are few, as they are."""
    state = {k.removeprefix(PREFIX): v for k, v in values["state_dict"].items() if k.startswith(PREFIX)}
    halved = {k: v.half() if half and v.is_floating_point() and v.dim() > 1 else v for k, v in state.items()}
    for key, value in halved.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise CheckpointError(
                f"{path}: the weights '{key}' do not fit in half precision; keep the model as a .ckpt"
            )
    about = {"papm": json.dumps(values["papm"], allow_nan=False), "card": str(values.get("card", ""))}
    return safetensors_of({k: v.contiguous() for k, v in halved.items()}, about)


def write(values: dict[str, Any], stream: IO[bytes]) -> None:
    """Write a checkpoint's dictionary by way of memory: torch reports a full disk as an error of its own kind."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    stream.write(buffer.getbuffer())


def _require_checkpoint(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint file{'' if path.exists() else ' or run folder'}")
    if path.suffix.lower() in (".onnx", ".xml", ".pt2"):
        raise CheckpointError(
            f"{path}: an exported model; this needs the checkpoint or run folder that it was made from"
        )


def read(path: Path) -> dict[str, Any]:
    """The raw dictionary of a checkpoint, safely: no code of the file is run."""
    _require_checkpoint(path)
    try:
        values = _read_compact(path) if path.suffix == COMPACT else untrusted.load_tensors(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("papm"), dict) or "state_dict" not in values:
        raise CheckpointError(f"{path}: not a papm checkpoint; trunk weights are given with --weights")
    number, version = values["papm"].get("format", 0), brief(values["papm"].get("version"))
    if not isinstance(number, int):
        raise CheckpointError(f"{path}: not a whole papm checkpoint (its format is '{brief(number)}', not a number)")
    if number > FORMAT:
        raise CheckpointError(f"{path}: written by a newer papm ({version}); upgrade to read it")
    return values


def _read_compact(path: Path) -> dict[str, Any]:
    """The dictionary of a .safetensors file, its weights in full precision; without `papm` where it is no model of ours."""
    tensors, about = untrusted.load_safetensors(path)
    if "papm" not in about:
        return {}
    state = {PREFIX + k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    return {"papm": untrusted.plain_json(about["papm"]), "state_dict": state, "card": about.get("card", "")}


def require_changeable(path: Path, out: Path | None = None) -> None:
    """Refuse a model that cannot be written again, in its place or at `out`: before time is spent on what is to be stored."""
    _require_checkpoint(path)
    if out is None and (name := ready.shipped(path)):
        raise CheckpointError(
            f"{name} is a model that came with a package and stays as it is; papm calibrate --out FILE writes your own"
        )


def change_inference(path: Path, out: Path | None = None, **changes: Any) -> None:
    """Write a model again with another contract, in its place or at `out`; all else in the file stays."""
    require_changeable(path, out)
    inference = load(path)[0].inference
    assert inference is not None  # a file that does not say it counts as its settings meant
    values = read(path)
    values["papm"] = {**values["papm"], "inference": replace(inference, **changes).to_mapping()}
    _store(out or path, values, half=False)  # what was halved is not halved again, and nothing else is


def load(path: Path) -> tuple[ModelSpec, dict[str, Tensor]]:
    """What a checkpoint is, and the weights of its network."""
    values = read(path)
    try:
        untrusted.require_plain(values["papm"], LONGEST)
        spec = ModelSpec.from_mapping(values["papm"])
        state = {k.removeprefix(PREFIX): v for k, v in values["state_dict"].items() if k.startswith(PREFIX)}
    except PapmError as error:
        raise CheckpointError(f"{path}: not a whole papm checkpoint ({error})") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: not a whole papm checkpoint ({_first_line(error)})") from None
    if not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: not a whole papm checkpoint (weights that are no tensors)")
    return spec, state


def build(spec: ModelSpec, state: Mapping[str, Tensor], path: Path | None = None) -> models.Network:
    """The network of a checkpoint with its weights."""
    where = str(path or "checkpoint")
    try:
        # Only options of the network: a file must not make us fetch or open another (`weights`).
        check_options(f"network '{spec.backbone}'", spec.options, models.info(spec.backbone).factory)
        network = models.create(spec.backbone, inference=spec.inference, **spec.options)
    except PapmError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (RuntimeError, MemoryError):
        raise CheckpointError(f"{where}: there is no memory for its network") from None
    assign(network, state, where)
    return network


def assign(network: torch.nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load weights; a checkpoint of another network is refused with the first thing that differs."""
    own = network.state_dict()
    for key in own:
        if key not in state:
            raise CheckpointError(f"{where}: belongs to another network: it has no '{key}'")
        if own[key].shape != state[key].shape:
            raise CheckpointError(
                f"{where}: belongs to another network: '{key}' is {list(state[key].shape)}, not {list(own[key].shape)}"
            )
        if own[key].is_floating_point() != state[key].is_floating_point():
            raise CheckpointError(f"{where}: '{key}' holds {state[key].dtype}, not {own[key].dtype}")
    extra = next((k for k in state if k not in own), None)
    if extra is not None:
        raise CheckpointError(f"{where}: belongs to another network: '{extra}' is not part of this one")
    network.load_state_dict(dict(state))
    require_finite(network, where)


def require_finite(network: torch.nn.Module, where: str) -> None:
    """Refuse weights that are not finite numbers, also those that the network's own precision cannot hold."""
    for key, value in network.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise CheckpointError(
                f"{where}: the weights '{key}' are not finite numbers (NaN or infinity): its training failed or the file is"
                " damaged; use another checkpoint, or train again"
            )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:120] if text else type(error).__name__
