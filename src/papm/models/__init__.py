"""Networks: `papm.models.create("vgg19", weights="imagenet")(images).density`."""

from papm.models import csrnet, dinov2, lite, man, mcnn, msfanet, p2pnet, tiny, tiny_trunk, vgg_density
from papm.models.base import DensityNetwork, Network
from papm.models.head import DensityHead
from papm.models.norms import calibrate_norms
from papm.models.registry import NETWORKS, NetworkInfo, create, info, names, register
from papm.models.trunks import TRUNKS, Trunk
from papm.models.vgg import VGGTrunk
from papm.models.weights import load_trunk, sha256_of

__all__ = [
    "NETWORKS",
    "TRUNKS",
    "DensityHead",
    "DensityNetwork",
    "Network",
    "NetworkInfo",
    "Trunk",
    "VGGTrunk",
    "calibrate_norms",
    "create",
    "csrnet",
    "dinov2",
    "info",
    "lite",
    "load_trunk",
    "man",
    "mcnn",
    "msfanet",
    "names",
    "p2pnet",
    "register",
    "sha256_of",
    "tiny",
    "tiny_trunk",
    "vgg_density",
]
