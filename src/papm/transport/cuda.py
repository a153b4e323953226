"""The GPU fast path: all iterations of all images in one launch of a CUDA kernel, compiled at first use by NVRTC.

NVRTC comes with torch's CUDA build, and torch compiles the kernel where it finds the CUDA headers. Where it cannot,
`available()` is False and a CUDA graph of torch operations is used. On Hopper and later, CLUSTER blocks share the work of an
image.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.compiled import ask_for_shared, buildable, cuda_kernel, shared_limit
from papm.errors import ConfigError
from papm.graphs import round_up
from papm.transport import graphs
from papm.transport.sorted_windows import SortedWindows, list_starts
from papm.transport.windows import Window, WindowProblem

THREADS = 1024
DTYPES = (torch.float32, torch.float64)
LANES = 8  # threads to a cell
CLUSTER = 8  # blocks to an image, where the device has clusters; 8 is the most that every such device allows


def source(
    half: tuple[int, ...], floor: float, lanes: int = LANES, cluster: int = 1, dtype: torch.dtype = torch.float32
) -> str:
    """The CUDA source for one window shape and floor."""
    from importlib.resources import files

    offsets = [sum(2 * k + 1 for k in half[:r]) for r in range(len(half))]
    double = dtype == torch.float64
    defines = {
        "real": "double" if double else "float",
        "LOG": "log" if double else "logf",
        "ROWS": len(half),
        "HALF": "{" + ",".join(map(str, half)) + "}",
        "OFFSET": "{" + ",".join(map(str, offsets)) + "}",
        "ENTRIES": sum(2 * k + 1 for k in half),
        "LANES": lanes,
        "CLUSTER": cluster,
        "FLOOR": f"{floor:.17e}" if double else f"{floor:.9e}f",
    }
    head = "".join(f"#define {k} {v}\n" for k, v in defines.items())
    return head + files("papm.transport").joinpath("sinkhorn.cu").read_text(encoding="utf-8")


@functools.lru_cache(maxsize=64)
def _compiled(
    half: tuple[int, ...], floor: float, lanes: int, cluster: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """The kernel for one window on one device."""
    return cuda_kernel(source(half, floor, lanes, cluster, dtype), "sinkhorn", device)


@functools.lru_cache(maxsize=8)
def available(device: torch.device) -> bool:
    """Whether kernels can be built for this device (tries small ones at the first call)."""
    small = functools.partial(_compiled, (0, 1, 0), 1e-16, LANES, default_cluster(device), device)
    return buildable(lambda: [small(d) for d in DTYPES], "the CUDA kernel of transport")


@functools.lru_cache(maxsize=8)
def default_cluster(device: torch.device) -> int:
    """Blocks to an image: thread block clusters exist from compute capability 9.0 on."""
    return CLUSTER if torch.cuda.get_device_capability(device) >= (9, 0) else 1


def shared_bytes(window: Window, size: tuple[int, int], n: int, dtype: torch.dtype) -> int:
    """Shared memory of one block: u, and v with its margin."""
    r = window.radius
    return dtype.itemsize * (n + (size[0] + 2 * r) * (size[1] + 2 * r))


def launch(
    problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, floor: float, iterations: int, lanes: int, cluster: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(u, v, ⟨C, T⟩) after `iterations`: the tables, then the one launch."""
    images, n = a.shape
    (h, w), half = problem.size, problem.window.half
    shared = shared_bytes(problem.window, problem.size, n, a.dtype)
    kernel = _compiled(half, floor, lanes, cluster, a.device, a.dtype)
    ask_for_shared(kernel, shared)
    table = SortedWindows.build(problem, a)
    first = list_starts(table.start, half, problem.size)
    list_kernel = torch.empty_like(table.kernel)
    list_point = torch.empty(table.kernel.shape, dtype=torch.int32, device=a.device)
    weights, u, v = table.sort(a), table.sort(u), torch.empty_like(b)
    moved = torch.empty_like(u)
    kernel(
        grid=(images * cluster, 1, 1),
        block=(THREADS, 1, 1),
        args=[
            table.kernel.contiguous(), table.cell.contiguous(), table.start.contiguous(), first.contiguous(),
            weights, b.contiguous(), list_kernel, list_point, u, v, moved, n, h, w, iterations,
        ],
        shared_mem=shared,
    )  # fmt: skip
    return table.unsort(u), v, moved.sum(1) * -problem.reg


def solve(
    problem: WindowProblem,
    a: Tensor,
    b: Tensor,
    u: Tensor,
    floor: float,
    iterations: int,
    lanes: int = LANES,
    cluster: int | None = None,
    record: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """(u, v, ⟨C, T⟩) after `iterations`, as `reference.scaling` on the windows; CUDA, no host sync.

    With `record` the making of the tables is captured in a CUDA graph too: some seventy small launches become one.
    """
    if not a.is_cuda or a.dtype not in DTYPES or problem.far:
        raise ConfigError("the cuda transport solver works on CUDA and takes a cost without a visible cap; use 'auto'")
    images, n = a.shape
    if shared_bytes(problem.window, problem.size, round_up(n), a.dtype) > shared_limit(a.device):
        h, w = problem.size
        raise ConfigError(f"{h}×{w} cells with {n} points are too many for the cuda transport solver; use 'auto'")
    if n == 0 or images == 0:
        return u.clone(), b / floor, b.new_zeros(images)
    blocks = default_cluster(a.device) if cluster is None else cluster
    if not record:
        return launch(problem, a, b, u, floor, iterations, lanes, blocks)
    p, extra = problem, round_up(n) - n

    def run(xy: Tensor, a_: Tensor, b_: Tensor, u_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        static = WindowProblem(xy, p.size, p.stride, p.cost, p.reg, p.window)
        return launch(static, a_, b_, u_, floor, iterations, lanes, blocks)

    key = ("cuda", p.size, p.stride, p.cost, p.reg, p.window, floor, iterations, lanes, blocks)
    u, v, value = graphs.replay(key, run, F.pad(p.xy, (0, 0, 0, extra)), F.pad(a, (0, extra)), b, F.pad(u, (0, extra)))
    return u[:, :n], v, value
