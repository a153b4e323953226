"""Networks: `papm.models.create("vgg19", weights="imagenet")(images).density`."""

from papm.models import csrnet, man, mcnn, msfanet, p2pnet, tiny, vgg_density
from papm.models.base import (
    DensityNetwork,
    Network,
    NetworkInfo,
    create,
    info,
    names,
    register,
    set_frame,
    set_reading,
)
from papm.models.head import DensityHead
from papm.models.norms import calibrate_norms
from papm.models.vgg import VGGTrunk, vgg_trunk
from papm.models.weights import load_trunk, sha256_of

__all__ = [
    "DensityHead",
    "DensityNetwork",
    "Network",
    "NetworkInfo",
    "VGGTrunk",
    "calibrate_norms",
    "create",
    "csrnet",
    "info",
    "load_trunk",
    "man",
    "mcnn",
    "msfanet",
    "names",
    "p2pnet",
    "register",
    "set_frame",
    "set_reading",
    "sha256_of",
    "tiny",
    "vgg_density",
    "vgg_trunk",
]
