"""The named methods: a kind of network, a loss, a recipe. Reading this file is reading the paper's Table 1.

A recipe holds only what differs from the defaults of `config.TrainConfig`; a backbone adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from papm.errors import ConfigError
from papm.registry import Registry


@dataclass(frozen=True)
class Method:
    """What `--method NAME` means."""

    name: str
    loss: str
    summary: str
    network: Literal["density", "points"] = "density"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    shanghaitech_a: float | None = None  # the paper's test MAE with VGG19 (Table 1) or P2PNet, to compare with


WORDS = {"density": "density maps", "points": "points"}

# The networks of BL, NoiseCC and KDMG end in |·|. The rest of their published recipes (Adam with one crop a step, a constant
# rate of 1e-5, 3e-6 and 5e-7, a thousand epochs) belongs to training without averaged weights; docs/losses.md gives it.
ABS: Mapping[str, Any] = {"network": {"activation": "abs"}}

# What keeps a map from losing mass (docs/notebook/counts-too-low.md): cells below zero that are called upon rise again, and
# an object weighs the same in the transport of all crops that are not crowded.
LIVE: Mapping[str, Any] = {"network": {"activation": "relu-live"}}
EVEN: Mapping[str, Any] = {**LIVE, "loss": {"mass": 64.0}}

# Where a network starts from photographs, contrast and brightness of crops change, and half of the crops change their size; the
# others are as sharp as what will be counted. On held-out images of ShanghaiTech A and B and on other days of TRANCOS the
# error and the bias were lower with both (docs/notebook/counts-too-low.md).
PHOTOGRAPHS: Mapping[str, Any] = {"colour": 0.3, "scale_min": 0.6, "scale_max": 1.67, "scale_share": 0.5}

# The name of all that follows, in every result: raised when a figure may change by it. 2 is against counts that are too low;
# 4 moves fewer crops inside small images than 2, and leaves the transport of crowded crops as published; 5 has colours, and
# transport that calls upon an empty cell only for an object that is missed; 6 has scales. (3 drew crops denser towards the
# border: ShanghaiTech B, al-papm, −15 and −78 %.)
RECIPE = "6"

METHODS: Registry[Method] = Registry("method")
method = METHODS.get


def register(added: Method) -> Method:
    """Make a method known by its name."""
    METHODS.register(added.name, added)
    return added


for _method in (
    Method("gaussian", "gaussian", "regression of a Gaussian density map, σ = 4 px", shanghaitech_a=65.2),
    Method("gaussian-16", "gaussian-16", "regression of a Gaussian density map, σ = 16 px"),
    Method("gaussian-adaptive", "gaussian-adaptive", "Gaussian whose σ is 0.3 × the distance to three neighbours"),
    Method("sc", "sc", "count and total variation only: DM-Count without its transport", shanghaitech_a=66.7),
    Method(
        "dm-count",
        "dm-count",
        "optimal transport onto the dots, squared distance",
        recipe=EVEN,
        shanghaitech_a=59.7,
    ),
    Method(
        "al-papm",
        "al-papm",
        "optimal transport with the GGD cost (σ = 16, s = 2)",
        recipe=EVEN,
        shanghaitech_a=57.1,
    ),
    Method("gl", "gl", "unbalanced transport with GL's perspective cost"),
    Method("gl-papm", "gl-papm", "unbalanced transport with the GGD cost"),
    Method("bl", "bl", "density that belongs to a point sums to one (Bayesian loss)", recipe=ABS),
    Method("ial", "ial", "the Bayesian loss without the tenth of the points that fit worst (MAN's)", recipe=ABS),
    Method(
        "noisecc",
        "noisecc",
        "likelihood of the map under Gaussian annotation noise",
        recipe=ABS,
        shanghaitech_a=61.9,
    ),
    Method(
        "kdmg",
        "kdmg",
        "regression of a map whose kernels are learned from the image",
        recipe={**ABS, "loss_lr": 2e-5},  # a fifth of the usual rate, as 1e-7 is of KDMG's 5e-7
    ),
    Method("hd-papm", "hd-papm", "regression of the hand-designed PAPM, GGD(σ = 4, s = 8)", shanghaitech_a=62.3),
    Method("p2pnet", "p2pnet", "points matched one-to-one by distance and score", "points", shanghaitech_a=52.7),
    Method(
        "p2p-papm",
        "p2p-papm",
        "points matched with the GGD cost (σ = 16, s = 2), τ = 0.4/C(σ)",
        "points",
        shanghaitech_a=51.2,
    ),
    Method("p2p-papm-literal", "p2p-papm-literal", "P2P-PAPM with the paper's τ = 1e-5 as printed", "points"),
):
    register(_method)

# The demo network learns from nothing on small scenes; the defaults are for a pretrained VGG19 on photographs.
BACKBONES: dict[str, Mapping[str, Any]] = {
    "tiny": {
        "steps": 1500,
        "crop": 160,
        "margin": 16,
        "batch": 8,
        "lr": 2e-3,
        "warmup": 50,
        "clip": 5.0,  # al-papm on misplaced dots, 700 steps: MAE 3.0 with it, 4.0 without
        "ema": 0.99,
        "grey": 0.0,
        "save_every": 200,
    },
    # Rates of lite and dinov2 were not varied; what they reach: docs/notebook/counts-too-low.md.
    "lite": {"lr": 1e-3, "trunk_lr": 2e-4, "clip": 0.1, "ema": 0.999, "warmup": 100},
    "dinov2": {"lr": 2e-4, "trunk_lr": 3e-5, "weight_decay": 0.05, "warmup": 500},
    # CSRNet's code: SGD 1e-7, momentum 0.95, decay 5e-4, whole images one by one; a rate for SGD on a sum of squares says
    # nothing to AdamW, whose rate here is that of VGG19. (NWPU's sample code: Adam 1e-5, 6 crops.)
    "csrnet": {"weight_decay": 5e-4},
    # From random weights; grey is what it sees anyway. Adam 1e-5 in the usual reimplementation, 1e-4 in NWPU's sample code.
    "mcnn": {"lr": 1e-4, "weight_decay": 0.0, "grey": 0.0},
    # M-SFANet's code for UCF-QNRF: Lookahead-Adam 5e-4 ("try 5e-4, 1e-4, 5e-5"), decay 1e-4, 5 crops of 512. It learns in few
    # steps: ShanghaiTech A, al-papm, test MAE 61, 56 and 57 after 3000, 5000 and 8000 (docs/notebook/msfanet.md).
    # It averages over all that it sees: crops of 256 px made it count 24 % too few in whole images, windows of 512 px 0.7 %.
    "msfanet": {"steps": 8000, "crop": 512, "batch": 4, "lr": 1e-4, "weight_decay": 1e-4},
    # MAN's code: Adam 5e-6 for all layers, decay 1e-5, one crop of 512 a step, sizes 0.75 to 1.25; sizes as they are trained
    # better with VGG19. The encoder normalises its tokens: only their directions reach the head. A fast trunk turns them all
    # the same way within some ten steps, and the map becomes a constant (dead channels of the trunk after 48 steps, dm-count
    # on crops of 128 px: 74 % with 1e-4, 42 % with 4e-5, none with 1e-5; docs/networks.md). The encoder and the head start
    # from nothing and take ten times the trunk's rate; layers that normalise after adding want a warm-up.
    "man": {"crop": 512, "lr": 1e-4, "trunk_lr": 1e-5, "weight_decay": 1e-5, "warmup": 1000},
    # P2PNet's code: 32 crops of 128 px per step, sizes 0.7 to 1.3, Adam 1e-4, trunk 1e-5, gradients cut to 0.1, 130,000 steps.
    # Of some twenty recipes on held-out images of ShanghaiTech A none was better by more than chance; by expected counts the
    # error was lower in six of eight (docs/notebook/p2pnet-recipe.md). Fewer steps at a falling rate: test MAE 60 after 26,000.
    "p2pnet": {
        "steps": 26_000,
        "crop": 128,
        "batch": 32,
        "lr": 1e-4,
        "trunk_lr": 1e-5,
        "clip": 0.1,
        "count": "expected",
        "scale_min": 0.7,
        "scale_max": 1.3,
    },
}

# How long to train where nobody says: views of each pixel of the training images, fewest and most steps.
LENGTHS: dict[str, tuple[int, int, int]] = {
    "tiny": (200, 2000, 6000),
    "msfanet": (40, 1500, 8000),
    "p2pnet": (100, 3000, 26_000),
    "dinov2": (15, 2000, 12_000),  # it learns in a fifth of VGG19's steps, each of which takes three times as long
}
# Of `tiny` with more channels, whose steps take two to three times as long (docs/notebook/touching-cells.md).
WIDE = (130, 1500, 4000)
LENGTH = (100, 2000, 30_000)
ON_CPU = {"lite": (40, 600, 1500)}  # from trained weights: minutes (docs/notebook/small-data.md)


def length(backbone: str, network: Mapping[str, Any] | None = None, on_cpu: bool = False) -> tuple[int, int, int]:
    """Views of each pixel, fewest and most steps of a run whose length is not given; a small trunk has that of `tiny`.

    `on_cpu`: of a trunk that starts from trained weights, on a CPU.

    >>> length("p2pnet"), length("p2pnet", {"trunk": "tiny"}), length("tiny", {"width": 2}), length("lite", on_cpu=True)
    ((100, 3000, 26000), (200, 2000, 6000), (130, 1500, 4000), (40, 600, 1500))
    """
    if on_cpu and backbone in ON_CPU:
        return ON_CPU[backbone]
    if backbone == "tiny" and (network or {}).get("width", 1) > 1:
        return WIDE
    return LENGTHS.get("tiny" if (network or {}).get("trunk") == "tiny" else backbone, LENGTH)


# Regression of a map on a pretrained trunk. The squared error of a crowded crop is a hundred times that of a sparse one: unless
# every gradient is cut to the same size, the crowded ones drown the rest (validation MAE after 5000 steps 135 without clipping,
# 79 with it, 72 with three times the rate as well; docs/notebook/defaults.md).
CLIPPED: Mapping[str, Any] = {"clip": 0.1, "lr": 3e-4}
REGRESSION = ("gaussian", "gaussian-16", "gaussian-adaptive", "hd-papm")

# Mass that is moved, or divided by its sum, has no meaning below zero: `network.activation=none` is not for these.
MASS = ("sc", "dm-count", "al-papm", "gl", "gl-papm")

# Options of a network that call for another recipe: (network, option, value).
VARIANTS: dict[tuple[str, str, Any], Mapping[str, Any]] = {
    ("p2pnet", "trunk", "tiny"): {
        "steps": 1500,
        "crop": 128,
        "margin": 16,  # synthetic crowds, 500 steps: MAE 3.0 with it, 5.5 without
        "batch": 8,
        "lr": 2e-3,
        "trunk_lr": None,
        "warmup": 50,
        "ema": 0.99,
        "grey": 0.0,
        "clip": 0.5,
        "scale_min": 1.0,
        "scale_max": 1.0,
        "save_every": 200,
    },
}


def recipe(name: str, backbone: str, network: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a run of this method on this backbone, with these options of it, sets before the user does."""
    from papm import models

    chosen, kind = method(name), models.info(backbone).kind
    if chosen.network != kind:
        fitting = [n for n in models.names() if models.info(n).kind == chosen.network]
        raise ConfigError(
            f"method '{name}' trains networks that give {WORDS[chosen.network]}, '{backbone}' gives {WORDS[kind]}; "
            f"use --backbone {' or '.join(fitting)}"
        )
    if name in MASS and (network or {}).get("activation") == "none":
        raise ConfigError(
            f"method '{name}' needs densities that are not negative; use network.activation=relu or abs, not none"
        )
    pretrained = models.info(backbone).trunk is not None
    found: dict[str, Any] = dict(PHOTOGRAPHS) if pretrained and kind == "density" else {}
    if name in REGRESSION:
        found |= {**LIVE, **(CLIPPED if pretrained else {})}
    found |= BACKBONES.get(backbone, {})  # a network's own comes first
    for (name_, option, value), changes in VARIANTS.items():
        if name_ == backbone and (network or {}).get(option) == value:
            found |= changes
    found |= chosen.recipe
    if "network" in found:  # a network of one's own may end as it likes
        found["network"] = {k: v for k, v in found["network"].items() if k in models.info(backbone).options}
    return found
