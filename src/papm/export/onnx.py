"""ONNX: a network as a file that runs without papm and without torch, for images of any size or of one.

The file takes `images` [B, 3, H, W], float32, RGB normalised with its own mean and std, and gives `density`
[B, C, ⌈H/stride⌉, ⌈W/stride⌉], or for a point network
`points` [B, M, 2], `logits` [B, M, classes + 1] and `reference` [M, 2]. What a user of the file has to
know (network, stride, mean, std, …) is in its metadata, every value as JSON; `papm.model` is the whole contract of the model
(`papm.exported.About`), with which `Counter.load` counts.
"""

from __future__ import annotations

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

from papm import exported
from papm.checkpoint import ModelSpec
from papm.data.resize import bounds
from papm.errors import ConfigError, DataError
from papm.export.program import SIZES, Outputs, compare, example, load_model, plain_network
from papm.exported import OUTPUTS, About, kind_of
from papm.extras import require
from papm.files import write_atomic
from papm.inference import Inference
from papm.models import Network
from papm.version import __version__

OPSET = 18  # the first with every operation the networks use, whatever the default of the torch at hand
PREFIX = "papm."  # of the keys of the metadata


def export_onnx(
    model: Network | str | Path,
    file: str | Path,
    size: tuple[int, int] | None = None,
    dynamic: bool = True,
    *,
    spec: ModelSpec | None = None,
    licence: str = "",
) -> Path:
    """Write a network, or that of a checkpoint or run folder, as an ONNX file; the file that is there is replaced whole.

    `dynamic`: for any batch and any H and W from 1. Otherwise for one image of `size` = (H, W) only, which lets runtimes
    optimise more. `spec` says where a network came from, for the metadata; a checkpoint knows it. `licence`: of the model, for
    whoever gets the file.
    """
    require_onnx()
    if not dynamic and size is None:
        raise ConfigError("a file for one image size needs that size: size=(height, width)")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError(f"the size of an image is (height, width), both at least 1, not {size}")
    network, known = load_model(model)
    plain = plain_network(network, model)
    only = None if dynamic else size
    images, shapes = example(plain, only)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            Outputs(plain),
            (images,),
            input_names=["images"],
            output_names=list(OUTPUTS[kind_of(plain)]),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
        )
    assert program is not None
    proto = program.model_proto
    about = About.of(plain, spec or known or ModelSpec(type(plain).__name__.lower()), only, licence)
    values = {k: json.dumps(v, ensure_ascii=False) for k, v in metadata_of(about).items()}
    for key, text in {**values, "model": about.to_text()}.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = PREFIX + key, text
    path = Path(file)
    write_atomic(path, lambda stream: stream.write(proto.SerializeToString()))
    return path


def metadata_of(about: About) -> dict[str, Any]:
    """What a file says about itself to those who read it without papm."""
    inference = about.inference
    return {
        "version": __version__,
        "backbone": about.backbone,
        "method": about.method,
        "revision": about.revision,
        "licence": about.licence,
        "kind": about.kind,
        "stride": about.stride,
        "num_classes": about.num_classes,
        "classes": list(inference.classes),
        "resize": bounds(inference.resize),
        "size": None if about.size is None else list(about.size),
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
    return compare(exported.load(Path(file))[0], load_model(model)[0], sizes, seed).values


def require_onnx(*also: str) -> None:
    """Refuse with what to install when a package is missing."""
    require("export", "exporting to ONNX needs", "onnx", "onnxscript", *also)


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
