"""Networks: `papm.models.create("vgg19", weights="imagenet")(images).density`."""

from papm.models import tiny, vgg_density
from papm.models.base import DensityNetwork, Network, NetworkInfo, create, info, names, register
from papm.models.head import DensityHead
from papm.models.vgg import VGGTrunk, vgg_trunk
from papm.models.weights import load_trunk, rebalance, sha256_of

__all__ = [
    "DensityHead",
    "DensityNetwork",
    "Network",
    "NetworkInfo",
    "VGGTrunk",
    "create",
    "info",
    "load_trunk",
    "names",
    "rebalance",
    "register",
    "sha256_of",
    "tiny",
    "vgg_density",
    "vgg_trunk",
]
