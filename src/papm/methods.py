"""The named methods: a kind of network, a loss, a recipe. Reading this file is reading the paper's Table 1.

A recipe holds only what differs from the defaults of `config.TrainConfig`; a backbone adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from papm.errors import unknown


@dataclass(frozen=True)
class Method:
    """What `--method NAME` means."""

    name: str
    loss: str
    summary: str
    network: Literal["density", "points"] = "density"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    shanghaitech_a: float | None = None  # the paper's test MAE with VGG19 (Table 1), to compare with


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("gaussian", "gaussian", "regression of a Gaussian density map, σ = 4 px", shanghaitech_a=65.2),
        Method("gaussian-16", "gaussian-16", "regression of a Gaussian density map, σ = 16 px"),
        Method("gaussian-adaptive", "gaussian-adaptive", "Gaussian whose σ is 0.3 × the distance to three neighbours"),
        Method("sc", "sc", "count and total variation only: DM-Count without its transport", shanghaitech_a=66.7),
        Method("dm-count", "dm-count", "optimal transport onto the dots, squared distance", shanghaitech_a=59.7),
        Method("al-papm", "al-papm", "optimal transport with the GGD cost (σ = 16, s = 2)", shanghaitech_a=57.1),
        Method("gl", "gl", "unbalanced transport with GL's perspective cost"),
        Method("gl-papm", "gl-papm", "unbalanced transport with the GGD cost"),
        Method("hd-papm", "hd-papm", "regression of the hand-designed PAPM, GGD(σ = 4, s = 8)", shanghaitech_a=62.3),
    )
}

# The demo network learns from nothing on small scenes; the defaults are for a pretrained VGG19 on photographs.
BACKBONES: dict[str, Mapping[str, Any]] = {
    "tiny": {
        "steps": 1500,
        "crop": 128,
        "batch": 8,
        "lr": 2e-3,
        "warmup": 50,
        "ema": 0.99,
        "grey": 0.0,
        "save_every": 200,
    },
}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def recipe(name: str, backbone: str) -> dict[str, Any]:
    """What a run of this method on this backbone sets before the user does."""
    return {**BACKBONES.get(backbone, {}), **method(name).recipe}
