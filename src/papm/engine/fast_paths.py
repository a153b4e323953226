"""Which of the compiled loops are in use on this machine; where one is not, torch or scipy does its work, more slowly."""

from __future__ import annotations

import torch

from papm import _kernel_maps
from papm.matching import cuda as matching_cuda
from papm.matching import native as matching_native
from papm.models import depthwise
from papm.transport import cuda as transport_cuda
from papm.transport import native as transport_native
from papm.transport import softmin


def c_paths() -> dict[str, bool]:
    """The C loops by what they do; each is built here if it was not yet (`papm.compiled`)."""
    return {
        "targets": _kernel_maps.usable(torch.zeros(1, 2), 2.0, 1),
        "transport": transport_native.available(),
        "unbalanced transport": softmin.way_for(torch.zeros(1, 1, 1)) == "c",
        "matching": matching_native.available(),
        "training lite": depthwise.available(),
    }


def cuda_paths() -> dict[str, bool]:
    """The same of the kernels of the first GPU; none without a GPU."""
    if not torch.cuda.is_available():
        return {}
    device = torch.device("cuda", torch.cuda.current_device())
    return {
        "transport": transport_cuda.available(device),
        "unbalanced transport": softmin.way_for(torch.zeros(1, 1, 1, device=device)) == "cuda",
        "matching": matching_cuda.available(device),
    }
