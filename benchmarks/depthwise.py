"""The channel-wise convolutions of a training step of `lite` on a CPU, 8 crops of 256 px: papm's C loop against torch.

    python benchmarks/depthwise.py --threads 1

Each is timed with its ReLU6, the one before it, and all gradients, in the same run and in turns; the lowest of several. In bf16
torch converts to float32 and back, as papm does without a compiler.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from papm.models.depthwise import available, reference, relu6_depthwise

LAYERS = [
    (96, 128, 3, 2),
    (144, 64, 3, 1),
    (144, 64, 5, 2),
    (240, 32, 5, 1),
    (240, 32, 3, 2),
    (480, 16, 3, 1),
    (672, 16, 5, 1),
]


def plain(x: Tensor, weight: Tensor, bias: Tensor, stride: int, clip: bool) -> Tensor:
    return reference(x.float(), weight, bias, stride, clip).to(x.dtype)


def seconds(way: Callable[..., Tensor], given: list[Tensor], stride: int) -> float:
    began = time.perf_counter()
    out = way(*given, stride, True)
    torch.autograd.grad(out, given, torch.ones_like(out))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if not available():
        raise SystemExit("no C compiler: there is nothing to compare")
    for name, kind in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        for channels, side, kernel, stride in LAYERS:
            x = (
                (2 * torch.randn(asked.batch, channels, side, side))
                .to(kind)
                .contiguous(memory_format=torch.channels_last)
            )
            given = [t.requires_grad_() for t in (x, torch.randn(channels, 1, kernel, kernel), torch.randn(channels))]
            times = [[seconds(way, given, stride) for way in (relu6_depthwise, plain)] for _ in range(asked.repeats)]
            ours, torchs = (1e3 * min(column) for column in zip(*times))
            layer = f"{channels} × {side}², kernel {kernel}, stride {stride}"
            found = {"precision": name, "layer": layer, "papm_ms": round(ours, 1), "torch_ms": round(torchs, 1)}
            print(json.dumps(found | {"ratio": round(torchs / ours, 1)}, ensure_ascii=False))


if __name__ == "__main__":
    main()
