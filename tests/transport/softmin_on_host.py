"""Runs softmin.cu on the host: every CUDA thread of a block is a thread, every barrier a barrier. For tests without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from torch import Tensor

from papm.transport import softmin

SHIM = r"""
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>
struct Index { int x, y; };
static thread_local Index threadIdx, blockIdx;
static std::barrier<> *all;
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define __syncthreads() all->arrive_and_wait()
"""

LAUNCH = r"""
template <class Work> static void launch(int blocks_x, int blocks_y, int wide, int high, Work work) {
    for (int by = 0; by < blocks_y; ++by)
        for (int bx = 0; bx < blocks_x; ++bx) {
            std::barrier<> barrier(wide * high);
            all = &barrier;
            std::vector<std::thread> running;
            for (int t = 0; t < wide * high; ++t)
                running.emplace_back([&, t] {
                    threadIdx = {t % wide, t / wide}; blockIdx = {bx, by};
                    work();
                });
            for (auto &thread : running) thread.join();
        }
}
typedef const float *In; typedef float *Out;
#define GRID int gx, int gy, int bx, int by
extern "C" void run_softmin_rows(GRID, In c, In a, Out o, int n, int m, double i, double f, double l) {
    launch(gx, gy, bx, by, [&] { softmin_rows(c, a, o, n, m, i, f, l); });
}
extern "C" void run_softmin_columns(GRID, In c, In a, Out o, int n, int m, double i, double f, double l) {
    launch(gx, gy, bx, by, [&] { softmin_columns(c, a, o, n, m, i, f, l); });
}
extern "C" void run_plan_rows(GRID, In c, In f, In g, In w, Out o, int n, int m, double i) {
    launch(gx, gy, bx, by, [&] { plan_rows(c, f, g, w, o, n, m, i); });
}
extern "C" void run_plan_columns(GRID, In c, In f, In g, In a, In s, Out o, int n, int m, double i) {
    launch(gx, gy, bx, by, [&] { plan_columns(c, f, g, a, s, o, n, m, i); });
}
"""


def build(folder: Path) -> ctypes.CDLL:
    """Compile the CUDA source for the host; raises CalledProcessError when the compiler refuses it."""
    source, made = folder / "softmin.cc", folder / "softmin.so"
    source.write_text(SHIM + softmin.source() + LAUNCH, encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return ctypes.CDLL(str(made))


class Kernel:
    """Called as torch calls a compiled kernel: whole numbers as int, others as double."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.function = getattr(library, f"run_{name}")
        self.function.restype = None

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: list[Tensor | int | float]) -> None:
        made = [
            ctypes.c_void_p(x.data_ptr())
            if isinstance(x, Tensor)
            else ctypes.c_int(x)
            if isinstance(x, int)
            else ctypes.c_double(x)
            for x in args
        ]
        self.function(*(ctypes.c_int(k) for k in (*grid[:2], *block[:2])), *made)
