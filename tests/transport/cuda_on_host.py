"""Runs sinkhorn.cu on the host: every CUDA thread is a thread, every barrier a barrier. For tests without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from papm.transport import cuda
from papm.transport.sorted_windows import SortedWindows, list_starts
from papm.transport.windows import WindowProblem

SHIM = r"""
#include <algorithm>
#include <barrier>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>
using std::max; using std::min;
struct Index { int x; };
struct Block { std::barrier<> all; std::vector<real> pool, lanes; Block(int t, int s) : all(t), pool(s), lanes(t) {} };
static thread_local Index threadIdx, blockIdx, blockDim;
static thread_local Block *here;
static thread_local std::barrier<> *cluster;
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __threadfence()
#define __ldcg(p) (*(p))
#define __syncthreads() here->all.arrive_and_wait()
static real __shfl_xor_sync(unsigned, real value, int step) {
    here->lanes[threadIdx.x] = value;
    here->all.arrive_and_wait();
    const real other = here->lanes[threadIdx.x ^ step];
    here->all.arrive_and_wait();
    return other;
}
"""

LAUNCH = r"""
extern "C" void launch(const real *kernel, const int *cell, const int *start, const int *first, const real *a,
                       const real *b, real *lk, int *lp, real *u, real *v, real *moved, int n, int h, int w,
                       int iterations, int images, int threads, int shared) {
    for (int image = 0; image < images; ++image) {
        std::barrier<> all(CLUSTER * threads);
        std::vector<std::unique_ptr<Block>> blocks;
        std::vector<std::thread> running;
        for (int c = 0; c < CLUSTER; ++c) blocks.push_back(std::make_unique<Block>(threads, shared));
        for (int c = 0; c < CLUSTER; ++c)
            for (int t = 0; t < threads; ++t)
                running.emplace_back([&, c, t] {
                    threadIdx.x = t; blockIdx.x = image * CLUSTER + c; blockDim.x = threads;
                    here = blocks[c].get(); cluster = &all;
                    sinkhorn(kernel, cell, start, first, a, b, lk, lp, u, v, moved, n, h, w, iterations);
                });
        for (auto &thread : running) thread.join();
    }
}
"""


def build(
    folder: Path, half: tuple[int, ...], floor: float, lanes: int, cluster: int, dtype: torch.dtype
) -> ctypes.CDLL:
    """Compile the CUDA source for the host; raises CalledProcessError when the compiler refuses it."""
    lines = [
        "cluster->arrive_and_wait();" if "asm volatile" in line else line
        for line in cuda.source(half, floor, lanes, cluster, dtype).splitlines()
    ]
    kernel = "\n".join(lines).replace("extern __shared__ real pool[];", "real *pool = here->pool.data();")
    own = f"using real = {'double' if dtype == torch.float64 else 'float'};\n"
    text = own + SHIM + kernel.replace("#define real", "// real is") + LAUNCH
    source, made = folder / f"k{lanes}_{cluster}.cc", folder / f"k{lanes}_{cluster}.so"
    source.write_text(text, encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return ctypes.CDLL(str(made))


def solve(
    library: ctypes.CDLL, problem: WindowProblem, a: Tensor, b: Tensor, u: Tensor, iterations: int, threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `cuda.solve`, with the launch on the host."""
    table = SortedWindows.build(problem, a)
    first = list_starts(table.start, problem.window.half, problem.size)
    kernel = table.kernel.contiguous()
    nan = float("nan")  # poison: everything read must have been written
    lists, points = torch.full_like(kernel, nan), torch.full(kernel.shape, -1, dtype=torch.int32)
    weights, u, v = table.sort(a), table.sort(u), torch.full_like(b, nan)
    shared = cuda.shared_bytes(problem.window, problem.size, a.shape[1], a.dtype) // a.dtype.itemsize
    moved = torch.full_like(u, nan)
    tensors = (kernel, table.cell, table.start, first, weights, b, lists, points, u, v, moved)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    library.launch(*pointers, a.shape[1], *problem.size, iterations, len(a), threads, shared)
    return table.unsort(u), v, moved.sum(1) * -problem.reg
