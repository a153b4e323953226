"""Pretrained weights: where the published files are, fetching them once, reading any file safely, rebalancing."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import math
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from papm.errors import CheckpointError, ConfigError, unknown
from papm.models.base import Progress, require
from papm.models.vgg import VGGTrunk, parameter_shapes

log = logging.getLogger(__name__)

_LICENCE = "BSD-3-Clause (torchvision); trained on ImageNet-1k, whose images are licensed for non-commercial research"


@dataclass(frozen=True)
class Published:
    """A weights file on the web; `sha256` is the beginning of its checksum, which torchvision puts into the name."""

    url: str
    sha256: str
    licence: str = _LICENCE


PUBLISHED = {
    "vgg16": Published("https://download.pytorch.org/models/vgg16-397923af.pth", "397923af"),
    "vgg16-bn": Published("https://download.pytorch.org/models/vgg16_bn-6c64b313.pth", "6c64b313"),
    "vgg19": Published("https://download.pytorch.org/models/vgg19-dcbb9e9d.pth", "dcbb9e9d"),
}


@dataclass(frozen=True)
class WeightsUsed:
    """The file that weights were read from, and its checksum."""

    path: Path
    sha256: str


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def cache_folder() -> Path:
    """Where downloaded weights are kept: $PAPM_CACHE/weights, or ~/.cache/papm/weights."""
    root = os.environ.get("PAPM_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "papm") / "weights"


def fetch(arch: str, progress: Progress | None = None) -> WeightsUsed:
    """The published file of a trunk: from the cache if it is there and whole, else downloaded, checked and kept.

    The download is written beside its final place and renamed when its checksum is right, so that a broken download, or
    several processes at once, never leave half a file behind.
    """
    if arch not in PUBLISHED:
        raise unknown("trunk with published weights", arch, PUBLISHED)
    published = PUBLISHED[arch]
    path = cache_folder() / published.url.rsplit("/", 1)[-1]
    if path.is_file():
        digest = sha256_of(path)
        if digest.startswith(published.sha256):
            return WeightsUsed(path, digest)
        log.warning("%s is damaged and will be downloaded again", path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log.info("downloading %s to %s", published.url, path)
        digest = _download(published.url, part, progress)
        if not digest.startswith(published.sha256):
            raise CheckpointError(
                f"{published.url} arrived damaged (its SHA-256 begins with {digest[:8]}, not {published.sha256}); "
                "try again, or download it elsewhere and pass --weights PATH"
            )
        part.replace(path)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise CheckpointError(
            f"cannot download {published.url} to {path.parent} ({reason}); "
            "download it elsewhere and pass --weights PATH"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return WeightsUsed(path, digest)


def _download(url: str, part: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    done = 0
    with urllib.request.urlopen(url, timeout=30) as response, part.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(1 << 20):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file, on the CPU; never runs code from the file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"weights file {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            f"{path} cannot be read as weights ({type(error).__name__}); give a .safetensors or .pth file of tensors"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    ):
        raise CheckpointError(f"{path} holds more than named tensors; save the state dict of the network alone")
    return cast("dict[str, Tensor]", content)


def load_trunk(module: nn.Module, source: str | Path, arch: str, progress: Progress | None = None) -> WeightsUsed:
    """Copy weights into a trunk of kind `arch`; `source` is "imagenet" or a file with torchvision's keys.

    Half-precision files are widened. `classifier.*` is skipped, and so are layers of `arch` that the trunk left out;
    anything else that is missing, unexpected or of another shape is an error that names it.
    """
    if arch not in PUBLISHED:
        raise unknown("trunk", arch, PUBLISHED)
    used = fetch(arch, progress) if source == "imagenet" else None
    path = used.path if used else Path(source).expanduser()
    tensors = read_weights(path)
    whole = parameter_shapes(arch)
    prefix = "features."
    given: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key.startswith("classifier."):
            continue
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or name not in whole:
            raise CheckpointError(
                f"{path}: unexpected key '{key}'; this is not a {arch} trunk with torchvision's keys{_instead(tensors)}"
            )
        given[name] = value
    _copy(module, given, path, prefix, f"a {arch} trunk", partial=True)
    return used or WeightsUsed(path, sha256_of(path))


def _instead(tensors: dict[str, Tensor]) -> str:
    """Which other trunk a file holds, for messages: a network with the option `trunk` can have it."""
    given = {key.removeprefix("features.") for key in tensors if key.startswith("features.")}
    for arch in PUBLISHED:
        if given == set(parameter_shapes(arch)):
            return f", but a {arch} trunk (msfanet and p2pnet take it with network.trunk={arch})"
    return ""


def load_network(network: nn.Module, source: str | Path) -> WeightsUsed:
    """Copy all weights of a network from a file that holds its state dict."""
    path = Path(source).expanduser()
    _copy(network, read_weights(path), path, "", "this network", partial=False)
    return WeightsUsed(path, sha256_of(path))


def _copy(module: nn.Module, given: dict[str, Tensor], path: Path, prefix: str, what: str, partial: bool) -> None:
    """Strict `load_state_dict` with one-sentence errors; `partial` lets the file hold more than the module."""
    wanted = module.state_dict()
    for name, own in wanted.items():
        if name not in given:
            if name.endswith("num_batches_tracked"):  # files older than torch 0.4.1 lack this counter
                continue
            raise CheckpointError(f"{path}: key '{prefix}{name}' is missing; this is not the file of {what}")
        value = given[name]
        if value.shape != own.shape:
            raise CheckpointError(
                f"{path}: key '{prefix}{name}' has shape {list(value.shape)} instead of {list(own.shape)}; "
                f"this is not the file of {what}"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise CheckpointError(f"{path}: key '{prefix}{name}' holds values that are not finite; the file is damaged")
    extra = sorted(set(given) - set(wanted))
    if extra and not partial:
        raise CheckpointError(f"{path}: unexpected key '{prefix}{extra[0]}'; this is not the file of {what}")
    with torch.no_grad():
        for name, own in wanted.items():
            if name in given:
                own.copy_(given[name])


RMS = 0.02  # target of "rms": about √(2/4608), He's value for the 512-channel layers


def rebalance(trunk: nn.Module, target: str = "rms") -> None:
    """Rescale every convolution of a trunk to one weight size, without changing what the trunk computes.

    ReLU and max-pooling are homogeneous, so with W'ₖ = fₖ·Wₖ and b'ₖ = Fₖ·bₖ, Fₖ = f₁⋯fₖ, every activation is Fₖ times
    what it was, and `trunk.scales` = 1/Fₖ at each tap undoes it. fₖ brings the root mean square of the weights to 0.02
    ("rms") or to √(2/fan-in) ("he"). Adam moves all weights by about the learning rate: one rate then suits all layers.

    >>> from papm.models.vgg import vgg_trunk
    >>> trunk = vgg_trunk("vgg16", taps=("conv1_2",)).double()
    >>> images = torch.randn(1, 3, 8, 8).double()
    >>> before = trunk(images)[0]
    >>> rebalance(trunk, "rms")
    >>> bool(torch.allclose(trunk(images)[0], before)), round(trunk[0].weight.square().mean().sqrt().item(), 6)
    (True, 0.02)
    """
    require("rebalance", target, ("rms", "he"))
    if not isinstance(trunk, VGGTrunk) or any(isinstance(layer, nn.BatchNorm2d) for layer in trunk):
        raise ConfigError("rebalance works on VGG trunks without batch normalisation; leave it out for this network")
    product = 1.0
    scales: list[float] = []
    with torch.no_grad():
        for index, layer in enumerate(trunk):
            if isinstance(layer, nn.Conv2d):
                rms = layer.weight.double().square().mean().sqrt().item()
                goal = RMS if target == "rms" else math.sqrt(2.0 / layer.weight[0].numel())
                factor = goal / rms if rms > 0 else 1.0
                product *= factor
                layer.weight.mul_(factor)
                if layer.bias is not None:
                    layer.bias.mul_(product)
            if index in trunk.ends:
                scales.append(1.0 / product)
        undo = next(trunk.parameters()).new_tensor(scales)
        trunk.scales = undo if trunk.scales is None else trunk.scales * undo
