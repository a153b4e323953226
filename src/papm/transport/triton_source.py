# mypy: ignore-errors
"""Two Triton kernels, one half-step each, on the sorted windows of `sorted_windows.py`.

`shape` [2·rows + 1] int32 holds the cells to each side by row of the window, the first entry of each row, and the number of
entries. Both kernels gather and write every element once: nothing is added atomically.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without Triton: nothing below is called
    triton = None


def _jit(function):
    return function if triton is None else triton.jit(function)


@_jit
def rows(
    kernel, cell, shape, a, u, v, n, h, w, floor,
    ROWS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """u = a / (K·v + δ): v [B, h·w] gathered over each point's window."""
    image = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    live = i < n
    where = tl.load(cell + image * n + i, mask=live, other=0)
    y = where // w
    x = where % w
    total = tl.zeros([POINTS], dtype=tl.float32)
    base = kernel + image * n * tl.load(shape + 2 * ROWS) + i
    for r in range(ROWS):
        side = tl.load(shape + r)
        first = tl.load(shape + ROWS + r)
        jy = y + (r - ROWS // 2)
        for c in range(2 * side + 1):
            jx = x + (c - side)
            inside = live & (jy >= 0) & (jy < h) & (jx >= 0) & (jx < w)
            k = tl.load(base + (first + c) * n, mask=live, other=0.0)
            total += k * tl.load(v + image * h * w + jy * w + jx, mask=inside, other=0.0)
    weight = tl.load(a + image * n + i, mask=live, other=0.0)
    tl.store(u + image * n + i, weight / (total + floor), mask=live)


@_jit
def columns(
    kernel, cell, start, shape, b, u, v, n, h, w, floor,
    ROWS: tl.constexpr, CELLS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """v = b / (Kᵀ·u + δ): u gathered over the runs of points that see each cell."""
    image = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    live = j < h * w
    y = j // w
    x = j % w
    total = tl.zeros([CELLS, LANES], dtype=tl.float32)
    base = kernel + image * n * tl.load(shape + 2 * ROWS)
    begin = start + image * (h * w + 1)
    lane = tl.arange(0, LANES)
    for r in range(ROWS):
        side = tl.load(shape + r)
        first = tl.load(shape + ROWS + r) + side
        row = y - (r - ROWS // 2)
        inside = live & (row >= 0) & (row < h)
        low = tl.load(begin + row * w + tl.maximum(x - side, 0), mask=inside, other=0)
        high = tl.load(begin + row * w + tl.minimum(x + side, w - 1) + 1, mask=inside, other=0)
        longest = tl.max(high - low, axis=0)
        for e in range(0, longest, LANES):
            i = low[:, None] + e + lane[None, :]
            some = i < high[:, None]
            column = tl.load(cell + image * n + i, mask=some, other=0) - (row * w)[:, None]
            entry = first + x[:, None] - column
            k = tl.load(base + entry * n + i, mask=some, other=0.0)
            total += k * tl.load(u + image * n + i, mask=some, other=0.0)
    weight = tl.load(b + image * h * w + j, mask=live, other=0.0)
    tl.store(v + image * h * w + j, weight / (tl.sum(total, axis=1) + floor), mask=live)
