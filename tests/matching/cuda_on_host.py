"""Runs assign.cu on the host, for tests without a GPU: every CUDA thread is a fiber, switched at barriers only.

The order in which fibers run between two barriers is drawn anew each time, so that a missing barrier shows as a result that
depends on the seed.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from papm.matching import cuda

SHIM = r"""
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <ucontext.h>
#include <vector>
using std::max; using std::min;
struct Index { int x; };
static Index threadIdx, blockIdx, blockDim;
struct Fiber { ucontext_t context; std::vector<char> stack; int waits; };  // 0 ready, 1 for its warp, 2 for the block, 3 done
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static std::vector<double> pool_memory;
static std::vector<unsigned long long> slots;
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
static void pause(int why) {
    const int me = threadIdx.x;
    fibers[me].waits = why;
    swapcontext(&fibers[me].context, &scheduler);
}
static void __syncthreads() { pause(2); }
static void __syncwarp() { pause(1); }
template <class T> static T exchange(T value, int other) {
    const int me = threadIdx.x;
    std::memcpy(&slots[me], &value, sizeof value);
    pause(1);
    T found;
    std::memcpy(&found, &slots[(me & ~31) | other], sizeof found);
    pause(1);
    return found;
}
template <class T> static T __shfl_xor_sync(unsigned, T value, int step) {
    return exchange(value, (threadIdx.x & 31) ^ step);
}
static unsigned __reduce_min_sync(unsigned, unsigned value) {
    const int me = threadIdx.x;
    slots[me] = value;
    pause(1);
    unsigned least = value;
    for (int lane = 0; lane < 32; ++lane) least = min(least, (unsigned)slots[(me & ~31) | lane]);
    pause(1);
    return least;
}
template <class T> static T swap_in(T *to, T value) { const T old = *to; *to = value; return old; }
template <class T> static T atomicMax(T *to, T value) { return swap_in(to, max(*to, value)); }
template <class T> static T atomicMin(T *to, T value) { return swap_in(to, min(*to, value)); }
static int atomicAdd(int *to, int value) { return swap_in(to, *to + value); }
static float __ldg(const float *from) { return *from; }
static long long __double_as_longlong(double x) { long long y; std::memcpy(&y, &x, 8); return y; }
static double __longlong_as_double(long long x) { double y; std::memcpy(&y, &x, 8); return y; }
"""

LAUNCH = r"""
static struct { const float *costs; const int *counts; long long *matched; int *steps; int N, M, rows, columns, rounds; } a;
static void body() {
    assign(a.costs, a.counts, a.matched, a.steps, a.N, a.M, a.rows, a.columns, a.rounds);
    pause(3);
}
extern "C" int launch(const float *costs, const int *counts, long long *matched, int *steps, int N, int M, int rows,
                      int columns, int rounds, int problems, int threads, int bytes, int seed) {
    a = {costs, counts, matched, steps, N, M, rows, columns, rounds};
    std::mt19937 draw(seed);
    for (int problem = 0; problem < problems; ++problem) {
        pool_memory.assign((bytes + 7) / 8, std::nan(""));  // poison: everything read must have been written
        slots.assign(threads, 0);
        fibers = std::vector<Fiber>(threads);
        blockIdx.x = problem, blockDim.x = threads;
        std::vector<int> order(threads);
        for (int t = 0; t < threads; ++t) {
            Fiber &f = fibers[t];
            order[t] = t;
            f.stack.resize(65536);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
            f.context.uc_link = nullptr, f.waits = 0;
            makecontext(&f.context, body, 0);
        }
        for (;;) {
            bool ran = false;
            std::shuffle(order.begin(), order.end(), draw);
            for (int t : order)
                if (fibers[t].waits == 0) threadIdx.x = t, ran = true, swapcontext(&scheduler, &fibers[t].context);
            for (int w = 0; w < threads; w += 32) {  // a warp goes on when all of it has come
                bool all = true;
                for (int t = w; t < w + 32; ++t) all &= fibers[t].waits == 1;
                if (all) for (int t = w; t < w + 32; ++t) fibers[t].waits = 0, ran = true;
            }
            if (ran) continue;
            int block = 0, done = 0;
            for (auto &f : fibers) block += f.waits == 2, done += f.waits == 3;
            if (done == threads) break;
            if (block != threads) return 1;  // a barrier that some never reach
            for (auto &f : fibers) f.waits = 0;
        }
    }
    return 0;
}
"""


def build(folder: Path, redux: bool) -> ctypes.CDLL:
    """Compile the CUDA source for the host."""
    text = SHIM + cuda.source(redux).replace("extern __shared__ double pool[];", "double *pool = pool_memory.data();")
    source, made = folder / f"assign{redux}.cc", folder / f"assign{redux}.so"
    source.write_text(text + LAUNCH, encoding="utf-8")
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return ctypes.CDLL(str(made))


def solve(
    library: ctypes.CDLL, costs: Tensor, counts: Tensor, threads: int = 64, seed: int = 0, rounds: int = cuda.ROUNDS
) -> tuple[Tensor, Tensor]:
    """As `cuda.solve`, with the launch on the host."""
    problems, n, m = costs.shape
    costs, counts = costs.float().contiguous(), counts.to(torch.int32).contiguous()
    columns, steps = torch.full((problems, n), -7), torch.zeros(problems, 3, dtype=torch.int32)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (costs, counts, columns, steps)]
    room = (min(n, m), max(n, m))
    code = library.launch(*pointers, n, m, *room, rounds, problems, threads, cuda.shared_bytes(n, m), seed)
    assert code == 0, "threads of one block wait at different barriers"
    return columns, steps
