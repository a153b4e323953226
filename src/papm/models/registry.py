"""The networks by name: `register` adds one, `create` builds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from papm import imagenet
from papm.errors import ConfigError
from papm.inference import MOST_CLASSES, Colour, Inference
from papm.models.base import Kind, Network, Progress
from papm.models.weights import load_network, load_trunk
from papm.registry import Range, Registry, check_options, options

Factory = Callable[..., Network]
# What networks take: more is a slip of the pen, or a file that wants all of the memory.
Classes = Annotated[int, Range(f"must be a whole number from 1 to {MOST_CLASSES}", 1, MOST_CLASSES)]
Weight = Annotated[float, Range("must be a finite number of at least 0", 0)]


@dataclass(frozen=True)
class NetworkInfo:
    """What is known about a registered network without building it."""

    name: str
    kind: Kind
    stride: int  # default; `options` says whether it can be chosen
    summary: str
    factory: Factory
    trunk: str | None = (
        None  # whose published weights it starts from, or None when all of it starts from random weights
    )
    mean: Colour = imagenet.MEAN  # of the images it takes: (pixel/255 − mean)/std
    std: Colour = imagenet.STD
    windows: bool = False  # it looks at all it is given, and counts in windows of the size of its training crops

    @property
    def options(self) -> Mapping[str, Any]:
        """Option of `create` → default: the keyword arguments of the factory."""
        return options(self.factory)

    @property
    def inference(self) -> Inference:
        """How a network of this kind counts before training says more."""
        return Inference(decode="sum" if self.kind == "density" else "threshold", mean=self.mean, std=self.std)


NETWORKS: Registry[NetworkInfo] = Registry("network")
names, info = NETWORKS.names, NETWORKS.get


def register(name: str, *, kind: Kind, stride: int, summary: str, **about: Any) -> Callable[[Factory], Factory]:
    """Decorator: make a factory known as `name`; its keyword arguments are the options. `about`: see `NetworkInfo`."""

    def add(factory: Factory) -> Factory:
        NETWORKS.register(name, NetworkInfo(name, kind, stride, summary, factory, **about))
        return factory

    return add


def create(
    name: str,
    weights: str | Path | None = None,
    *,
    progress: Progress | None = None,
    inference: Inference | None = None,
    **options: Any,
) -> Network:
    """Build a network by name.

    `weights`: None (random), "imagenet" (the published file, downloaded once; `progress` is told how far it is), or a
    file with the trunk's weights (for a network without a pretrained trunk: all of its weights). `inference` says how it
    counts, by default `info(name).inference`. `options` are those of `info(name).options`.

    >>> import torch
    >>> network = create("tiny", stride=8)
    >>> network(torch.zeros(2, 3, 20, 33)).density.shape
    torch.Size([2, 1, 3, 5])
    """
    about = info(name)
    check_options(f"network '{name}'", options, about.factory)
    network = about.factory(**options)
    network.inference = inference or about.inference
    if weights is not None:
        network.weights_sha256 = _load(network, weights, about, options, progress)
    return network


def _load(
    network: Network, weights: str | Path, about: NetworkInfo, options: Mapping[str, Any], progress: Progress | None
) -> str:
    """Load weights into the trunk, or into all of a network without one; the SHA-256 of their file."""
    trunk = network.trunk
    if about.trunk is not None and trunk is not None:
        return load_trunk(trunk, weights, str(trunk.arch), progress=progress).sha256
    if weights == "imagenet":
        chosen = f" with trunk={options['trunk']}" if "trunk" in options else ""
        raise ConfigError(f"network '{about.name}'{chosen} has no ImageNet weights; leave them out or give a file")
    return load_network(network, weights).sha256
