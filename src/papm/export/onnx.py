"""ONNX: a network as a file that runs without papm and without torch, for images of any size or of one.

The file takes `images` [B, 3, H, W], float32, RGB normalised with its own mean and std, and gives `density`
[B, C, ⌈H/stride⌉, ⌈W/stride⌉], or for a point network
`points` [B, M, 2], `logits` [B, M, classes + 1] and `reference` [M, 2]. What a user of the file has to
know (network, stride, mean, std, …) is in its metadata, every value as JSON.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from papm import checkpoint, models
from papm.checkpoint import ModelSpec
from papm.data.resize import bounds
from papm.errors import CheckpointError, ConfigError, DataError
from papm.extras import require
from papm.files import write_atomic
from papm.inference import Inference
from papm.models import Network
from papm.structures import DensityOutput
from papm.version import __version__

OPSET = 18  # the first with every operation the networks use, whatever the default of the torch at hand
EXAMPLE = (96, 128)  # sides of the image a network is traced with; a multiple of what every network needs
PREFIX = "papm."  # of the keys of the metadata
# Sizes at which a file is compared with its network: smaller than a cell, odd, exact multiples, long and thin.
SIZES = ((1, 1), (3, 5), (17, 1), (31, 33), (64, 65), (64, 128), (200, 13))


class _Outputs(nn.Module):
    """A network whose outputs are plain tensors."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        output = self.network(images)
        if isinstance(output, DensityOutput):
            return (output.density,)
        return output.points, output.logits, output.reference


def export_onnx(
    model: Network | str | Path,
    file: str | Path,
    size: tuple[int, int] | None = None,
    dynamic: bool = True,
    *,
    spec: ModelSpec | None = None,
) -> Path:
    """Write a network, or that of a checkpoint or run folder, as an ONNX file; the file that is there is replaced whole.

    `dynamic`: for any batch and any H and W from 1. Otherwise for one image of `size` = (H, W) only, which lets runtimes
    optimise more. `spec` says where a network came from, for the metadata; a checkpoint knows it.
    """
    require_onnx()
    if not dynamic and size is None:
        raise ConfigError("a file for one image size needs that size: size=(height, width)")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError(f"the size of an image is (height, width), both at least 1, not {size}")
    network, known = _load(model)
    spec = spec or known
    # A copy, so that the caller's network keeps its device, precision and mode.
    plain = copy.deepcopy(network).cpu().float().eval()
    _require_numbers(plain, model)
    height, width = size or EXAMPLE
    options: dict[str, Any] = {}
    if dynamic:
        # torch.export takes a map of one cell, and a batch of one, for programs of their own: begin with more. What it
        # makes is right for those too (`check_onnx` looks).
        low = plain.multiple + 1
        sides = {
            0: torch.export.Dim("batch"),
            2: torch.export.Dim("height", min=low),
            3: torch.export.Dim("width", min=low),
        }
        options["dynamic_shapes"] = {"images": sides}
        height, width = EXAMPLE
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Outputs(plain),
            (torch.zeros(2 if dynamic else 1, 3, height, width),),
            input_names=["images"],
            output_names=["density"] if kind_of(plain) == "density" else ["points", "logits", "reference"],
            opset_version=OPSET,
            dynamo=True,
            **options,
        )
    assert program is not None
    proto = program.model_proto
    for key, value in metadata_of(plain, spec, None if dynamic else (height, width)).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = PREFIX + key, json.dumps(value, ensure_ascii=False)
    path = Path(file)
    write_atomic(path, lambda stream: stream.write(proto.SerializeToString()))
    return path


def kind_of(network: Network) -> str:
    """What a network gives, "density" or "points"."""
    return "density" if isinstance(network, models.DensityNetwork) else "points"


def metadata_of(network: Network, spec: ModelSpec | None, size: tuple[int, int] | None) -> dict[str, Any]:
    """What a file says about itself."""
    spec = spec or ModelSpec(type(network).__name__.lower())
    inference = spec.inference or network.inference
    return {
        "version": __version__,
        "backbone": spec.backbone,
        "method": spec.method,
        "kind": kind_of(network),
        "stride": network.stride,
        "num_classes": network.num_classes,
        "classes": list(inference.classes),
        "resize": bounds(inference.resize),
        "size": None if size is None else list(size),
        "input": "float32 [B, 3, H, W], RGB, (pixel / 255 - mean) / std",
        "mean": list(inference.mean),
        "std": list(inference.std),
        "count": _how_to_count(inference),
        "window": inference.window or None,
        "calibration": None if inference.calibration is None else asdict(inference.calibration),
        "interval": None if inference.interval is None else asdict(inference.interval),
    }


def _how_to_count(inference: Inference) -> str:
    if inference.calibration is not None:
        return f"{inference.factor!r} * {_how_to_count(replace(inference, calibration=None))}"
    if inference.decode == "sum" and inference.window:
        return f"sum of density over windows of {inference.window} px, side by side, each run by itself"
    if inference.decode == "sum":
        return "sum of density"
    if inference.decode == "expected":
        return f"sum of w * (1 - q) / (q + w * (1 - q)), q = softmax(logits)[..., 0], w = {inference.background:g}"
    return "number of points whose softmax(logits)[..., 1:].max > 0.5"


def onnx_metadata(file: str | Path) -> dict[str, Any]:
    """What `export_onnx` wrote into a file about it."""
    require_onnx()
    import onnx

    try:
        proto = onnx.load(str(file), load_external_data=False)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except Exception:  # protobuf's own kinds of error
        raise DataError(f"{file}: not a readable ONNX file") from None
    stored = {p.key.removeprefix(PREFIX): p.value for p in proto.metadata_props if p.key.startswith(PREFIX)}
    try:
        return {key: json.loads(text) for key, text in stored.items()}
    except ValueError:
        raise DataError(f"{file}: its metadata is not as papm writes it") from None


def check_onnx(
    file: str | Path, model: Network | str | Path, sizes: Sequence[tuple[int, int]] = SIZES, seed: int = 0
) -> float:
    """Largest difference between the file (in onnxruntime) and the network over images of these sizes, as a share of the
    largest value of the output."""
    require_onnx("onnxruntime")
    import onnxruntime

    network = copy.deepcopy(_load(model)[0]).cpu().float().eval()
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(seed)
    worst = 0.0
    for size in sizes:
        images = torch.randn(1, 3, *size, generator=generator)
        with torch.no_grad():
            made = _Outputs(network)(images)
        for own, other in zip(made, session.run(None, {"images": images.numpy()})):
            found = torch.from_numpy(other)
            if found.shape != own.shape:
                raise DataError(
                    f"{Path(file).name}: gives {list(found.shape)} for an image of {size}, the network {list(own.shape)}"
                )
            if not bool(found.isfinite().all() and own.isfinite().all()):  # of which no difference can be taken
                raise DataError(f"{Path(file).name}: gives numbers that are not finite for an image of {size}")
            if own.numel():
                scale = own.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
                worst = max(worst, float((found - own).abs().max() / scale))
    return worst


def require_onnx(*also: str) -> None:
    """Refuse with what to install when a package is missing."""
    require("export", "exporting to ONNX needs", "onnx", "onnxscript", *also)


def _require_numbers(network: Network, model: Network | str | Path) -> None:
    """Refuse a network whose weights, or outputs for an image of noise, are not finite numbers."""
    where = "the network" if isinstance(model, Network) else str(model)
    checkpoint.require_finite(network, where)
    with torch.no_grad():
        made = _Outputs(network)(torch.randn(1, 3, *EXAMPLE, generator=torch.Generator().manual_seed(0)))
    if not all(bool(t.isfinite().all()) for t in made):
        raise CheckpointError(
            f"{where}: its outputs are not finite numbers (NaN or infinity): its training failed or its weights are damaged"
        )


def _load(model: Network | str | Path) -> tuple[Network, ModelSpec | None]:
    if isinstance(model, Network):
        return model, None
    path = checkpoint.resolve(Path(model).expanduser())
    spec, state = checkpoint.load(path)
    return checkpoint.build(spec, state, path), spec


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells at length what is none of a user's business (torchvision is missing, names of dimensions)."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
