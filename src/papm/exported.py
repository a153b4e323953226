"""Models that other runtimes compute, as networks again: what `papm.Counter.load("model.onnx")` counts with.

An exported file holds the whole contract of its model as one JSON text (`About`), `papm.model` in ONNX's metadata, `papm/model`
in OpenVINO's rt_info. A file without it is not ours: nobody knows how it wants its images, or how to count what it gives.
Framing and padding are part of the exported program. No code of a file is run, and what its contract says is checked.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papm import extras, untrusted
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, ConfigError, DataError, PapmError
from papm.inference import MOST_CLASSES, Inference
from papm.models import DensityNetwork, Network
from papm.models.base import check_images
from papm.structures import DensityOutput, PointProposals
from papm.untrusted import brief, is_whole

FORMAT = 1
LONGEST = 2_000_000  # characters of a contract: 5000 names of checked images, and all else
OUTPUTS = {"density": ("density",), "points": ("points", "logits", "reference")}
LARGEST_SIDE = 65_536

Array = NDArray[np.float32]
Compute = Callable[[Array], Sequence[Array]]  # images [B, 3, H, W] to what `OUTPUTS` names


@dataclass(frozen=True)
class About:
    """What an exported file says about its model.

    `revision` tells these weights from others; `licence` is what whoever exported it said; `size` (H, W) is that of the only
    images that the file takes, None: any.

    >>> about = About("tiny", "density", stride=4, multiple=8, receptive_field=71, num_classes=1)
    >>> About.from_text(about.to_text()) == about
    True
    """

    backbone: str
    kind: str
    stride: int
    multiple: int
    receptive_field: int | None
    num_classes: int
    method: str = ""
    step: int = 0
    revision: str = ""
    licence: str = ""
    size: tuple[int, int] | None = None
    inference: Inference = field(default_factory=Inference)
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not is_whole(self.format, 1, 2**31) or self.format > FORMAT:
            raise ConfigError(f"it is of format {brief(self.format)}, and this papm reads {FORMAT}; upgrade to read it")
        if self.kind not in OUTPUTS:
            raise ConfigError(f"it gives '{brief(self.kind)}', neither density nor points")
        bounds = {"stride": 64, "multiple": 1024, "num_classes": MOST_CLASSES}
        for name, most in bounds.items():
            if not is_whole(getattr(self, name), 1, most):
                raise ConfigError(f"its {name} is a whole number from 1 to {most}, not {brief(getattr(self, name))}")
        if self.receptive_field is not None and not is_whole(self.receptive_field, 0, LARGEST_SIDE):
            raise ConfigError(f"its receptive_field is a number of pixels, not {brief(self.receptive_field)}")
        if not is_whole(self.step, 0, 2**62):
            raise ConfigError(f"its step is a whole number, not {brief(self.step)}")
        if not all(isinstance(v, str) for v in (self.backbone, self.method, self.revision, self.licence)):
            raise ConfigError("its backbone, method, revision and licence are texts")
        size = self.size
        if size is not None and not (
            isinstance(size, tuple) and len(size) == 2 and all(is_whole(n, 1, LARGEST_SIDE) for n in size)
        ):
            raise ConfigError(f"its size is a height and a width, not {brief(size)}")

    @staticmethod
    def of(network: Network, spec: ModelSpec, size: tuple[int, int] | None = None, licence: str = "") -> About:
        """Of a network that is to be exported; of its training only the method, since settings name folders of its owner."""
        return About(
            spec.backbone,
            kind_of(network),
            network.stride,
            network.multiple,
            network.receptive_field,
            network.num_classes,
            spec.method,
            spec.step,
            _revision(network),
            licence,
            size,
            spec.inference or network.inference,
        )

    @property
    def spec(self) -> ModelSpec:
        """The model as a checkpoint would tell it."""
        return ModelSpec(self.backbone, {}, self.method, {}, self.step, self.inference)

    def to_text(self) -> str:
        """JSON, as stored."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({**values, "inference": self.inference.to_mapping()}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_text(text: str) -> About:
        """What `to_text` stored, checked; ConfigError says what is wrong with it."""
        if len(text) > LONGEST:
            raise ConfigError(f"its contract has more than {LONGEST:,} characters")
        try:
            values = untrusted.plain_json(text)
        except ValueError:
            raise ConfigError("its contract is not the JSON that papm writes") from None
        known = {f.name for f in fields(About)}
        if not isinstance(values, dict) or not isinstance(values.get("inference"), Mapping) or not set(values) <= known:
            raise ConfigError("its contract is not as this papm writes it")
        size = values.get("size")
        try:
            values["inference"] = Inference.from_mapping(values["inference"])
            return About(**{**values, "size": tuple(size) if isinstance(size, list) else size})
        except TypeError:
            raise ConfigError("its contract lacks entries, or has wrong ones") from None


class ExportedNetwork(Network):
    """A network that another runtime computes on the CPU; it is asked like any other, and cannot be trained."""

    digest: Tensor

    def __init__(self, about: About, compute: Compute, file: Path) -> None:
        super().__init__()
        self.about, self.compute, self.name = about, compute, file.name
        self.stride, self.multiple, self.num_classes = about.stride, about.multiple, about.num_classes
        self.receptive_field, self.inference, self.fixed = about.receptive_field, about.inference, about.size
        # In place of weights: what tells this model from others (`predict/journal.py`), and where it is computed.
        content = hashlib.sha256(about.to_text().encode() + file.read_bytes()).digest()
        self.register_buffer("digest", torch.tensor(list(content), dtype=torch.uint8))

    def forward(self, images: Tensor) -> DensityOutput | PointProposals:
        """Images [B, 3, H, W] → what the network gave that was exported."""
        check_images(images)
        size = self.about.size
        if size is not None and tuple(images.shape[-2:]) != size:
            raise DataError(
                f"{self.name} counts images of {size[0]}×{size[1]} pixels only (height × width), not of"
                f" {images.shape[-2]}×{images.shape[-1]}: export the model without --fixed"
            )
        parts = torch.split(images.float().cpu(), 1 if size is not None else max(1, len(images)))
        made = [[torch.from_numpy(np.array(a)) for a in self.compute(p.contiguous().numpy())] for p in parts]
        self._check(made, parts)
        if self.about.kind == "density":
            return DensityOutput(torch.cat([m[0] for m in made]), self.stride)
        points, logits = (torch.cat([m[k] for m in made]) for k in (0, 1))
        return PointProposals(points, logits, made[0][2])

    def _check(self, made: Sequence[Sequence[Tensor]], images: Sequence[Tensor]) -> None:
        """Refuse outputs whose shapes are not those that the contract promises."""
        for found, part in zip(made, images):
            b, (h, w) = len(part), part.shape[-2:]
            if self.about.kind == "density":
                wanted: tuple[tuple[int, ...], ...] = (
                    (b, self.num_classes, -(-h // self.stride), -(-w // self.stride)),
                )
            else:
                m = found[-1].shape[0] if found and found[-1].ndim else -1
                wanted = ((b, m, 2), (b, m, self.num_classes + 1), (m, 2))
            if [tuple(t.shape) for t in found] != list(wanted) or not all(t.is_floating_point() for t in found):
                raise CheckpointError(f"{self.name}: does not give what its contract says; export the model again")


def kind_of(network: Network) -> str:
    """What a network gives, "density" or "points"."""
    if isinstance(network, ExportedNetwork):
        return network.about.kind
    return "density" if isinstance(network, DensityNetwork) else "points"


def is_exported(file: Path) -> bool:
    """Whether a name is that of an exported model: .onnx, OpenVINO's .xml, or a torch.export package, .pt2."""
    return file.suffix.lower() in (*READERS, ".pt2")


def load(file: Path) -> tuple[ExportedNetwork, ModelSpec]:
    """The network of an exported file, and what model it is."""
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    if file.suffix.lower() == ".pt2":
        raise CheckpointError(
            f"{file}: packages of torch.export can run code of whoever wrote them, so papm does not load them; count with the"
            " checkpoint, or export the model as .onnx"
        )
    text, compute = READERS[file.suffix.lower()](file)
    try:
        about = About.from_text(text)
    except PapmError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return ExportedNetwork(about, compute, file), about.spec


def _onnx(file: Path) -> tuple[str, Compute]:
    """The contract of an ONNX file, and its network in ONNX Runtime."""
    onnxruntime = require("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # it says again what it raises
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map.get("papm.model")
    except Exception:  # kinds of its own, and what decoding of damaged texts raises
        raise CheckpointError(f"{file}: not a readable ONNX file") from None
    if text is None:
        _refuse(file)
    return text, lambda images: session.run(None, {"images": images})


def _openvino(file: Path) -> tuple[str, Compute]:
    """The contract of an OpenVINO model, and its network in OpenVINO."""
    openvino = import_openvino()
    core = openvino.Core()
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    try:
        model = core.read_model(str(file))
        known = model.has_rt_info(["papm", "model"])
        text = str(model.get_rt_info(["papm", "model"]).astype(str)) if known else ""
        compiled = core.compile_model(model, "CPU", how)
    except Exception:  # RuntimeError, mostly
        raise CheckpointError(f"{file}: not a readable OpenVINO model (an .xml file with its .bin beside it)") from None
    if not known:
        _refuse(file)

    def compute(images: Array) -> list[Array]:
        found = compiled.create_infer_request().infer([images])  # one for each call: threads share the model
        return [np.array(found[k]) for k in range(len(compiled.outputs))]

    return text, compute


READERS: dict[str, Callable[[Path], tuple[str, Compute]]] = {".onnx": _onnx, ".xml": _openvino}


def _refuse(file: Path) -> NoReturn:
    raise CheckpointError(
        f"{file}: not a model that papm exported: it does not say how it counts; use papm export to make one"
    )


def require(package: str, extra: str) -> Any:
    """An optional package, imported, or what to install."""
    extras.require(extra, "this kind of file needs", package)
    return importlib.import_module(package)


def import_openvino() -> Any:
    """OpenVINO without its telemetry: the package that would send usage data is not imported, whether installed or not."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require("openvino", "openvino")


def _revision(network: Network) -> str:
    """A short text that tells these weights from others."""
    made = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        made.update(name.encode())
        made.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return made.hexdigest()[:16]
