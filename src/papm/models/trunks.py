"""What networks stand on: a trunk turns images into feature maps, and any head that asks for its strides sits on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.registry import Registry


@runtime_checkable
class Trunk(Protocol):
    """Feature maps of images, fine to coarse.

    `receptive_field` is a radius: how many pixels beyond its own cell a value of the last map sees, None for the whole image.
    A trunk that starts from published weights has their name as `arch`; it then learns at the rate of trunks (`trunk_lr`).
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    receptive_field: int | None

    def __call__(self, images: Tensor) -> list[Tensor]: ...
    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W], sides multiples of the last stride → a map [B, channels[i], H/strides[i], W/strides[i]] each."""


TRUNKS: Registry[Callable[[tuple[int, ...]], Any]] = Registry("trunk")  # factory(strides) → Trunk, an nn.Module


def trunk(name: str, strides: tuple[int, ...]) -> Any:
    """The trunk of that name, with random weights, giving maps at these strides.

    >>> import torch
    >>> made = trunk("tiny", (8, 16))
    >>> made.channels, [tuple(m.shape) for m in made(torch.zeros(1, 3, 32, 32))]
    ((48, 64), [(1, 48, 4, 4), (1, 64, 2, 2)])
    """
    made = TRUNKS.get(name)(strides)
    assert isinstance(made, nn.Module) and isinstance(made, Trunk)
    if tuple(made.strides) != strides:
        raise ConfigError(
            f"trunk '{name}' has maps at strides {', '.join(map(str, made.strides))};"
            f" this network needs {', '.join(map(str, strides))}"
        )
    return made


def parameter_shapes(name: str) -> dict[str, torch.Size]:
    """Names and shapes of all that the whole trunk of that name, down to stride 32, holds."""
    with torch.device("meta"):
        return {key: value.shape for key, value in trunk(name, (32,)).state_dict().items()}


def outside(field: int | None, head: int | None) -> int | None:
    """The receptive field of a head on a trunk: their sum, or the whole image where one of them sees it."""
    return None if field is None or head is None else field + head
