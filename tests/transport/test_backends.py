"""The compiled paths: the C loop and its fallback, the CUDA kernel run on the host."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

from papm.structures import PointBatch
from papm.transport import create_cost, grid_sinkhorn, native, reference
from papm.transport.sorted_windows import SortedWindows, list_starts
from papm.transport.windows import WindowProblem, window_for

FLOOR = 1e-16


PRECISIONS = [(torch.float32, FLOOR), (torch.float64, 1e-33)]  # the second: a reach of 19 px for ggd-l2


def problem(
    name: str, n: int = 40, size: tuple[int, int] = (9, 12), dtype: torch.dtype = torch.float32, floor: float = FLOOR
) -> tuple[WindowProblem, torch.Tensor, torch.Tensor]:
    """Two images, one with half of its points on one spot, one with padding."""
    rng = torch.Generator().manual_seed(n)
    cost = create_cost(name)
    window = window_for(cost, 10.0, 8, floor, dtype)
    assert window is not None
    xy = torch.rand(2, n, 2, generator=rng) * torch.tensor([size[1] * 8.0, size[0] * 8.0])
    xy[0, : n // 2] = xy[0, :1]
    valid = torch.ones(2, n)
    valid[1, n - n // 4 :] = 0
    b = torch.rand(2, size[0] * size[1], generator=rng) ** 3
    a, b = (valid / valid.sum(1, keepdim=True)).to(dtype), (b / b.sum(1, keepdim=True)).to(dtype)
    return WindowProblem(xy.to(dtype), size, 8, cost, 10.0, window), a, b


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l2", "ggd-l2", "ggd-l1"])
@pytest.mark.parametrize(("dtype", "floor"), PRECISIONS)
def test_compiled_loop(name: str, dtype: torch.dtype, floor: float) -> None:
    if not native.available():
        pytest.skip("no C compiler")
    p, a, b = problem(name, dtype=dtype, floor=floor)
    want_u, want_v = reference.scaling(p, a, b, a, floor, 100)
    u, v = native.solve(p, a, b, a, floor, 100)
    close = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(v.log(), want_v.log(), rtol=close, atol=close)
    torch.testing.assert_close(u, want_u, rtol=10 * close, atol=0)
    assert (u[1, 30:] == 0).all()


def test_compiled_loop_on_threads_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available():
        pytest.skip("no C compiler")
    p, a, b = problem("ggd-l2")
    want = native.solve(p, a, b, a, FLOOR, 50)
    monkeypatch.setattr(native, "THREAD_WORK", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    got = native.solve(p, a, b, a, FLOOR, 50)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_a_reach_too_dear_for_float32_is_solved_in_the_loop_of_float64() -> None:
    if not native.available():
        pytest.skip("no C compiler")
    points, density = PointBatch.from_list([torch.rand(20, 2) * 128]), torch.rand(1, 16, 16)
    got = grid_sinkhorn(points, density, 8, "ggd-l2", reach=19.2)
    assert (got.solver, got.log_v.dtype) == ("compiled", torch.float64)


def test_without_a_compiler_the_torch_path_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points, density = PointBatch.from_list([torch.rand(20, 2) * 128]), torch.rand(1, 16, 16)
    want = grid_sinkhorn(points, density, 8, "ggd-l2", solver="sparse")
    try:
        for environment in ({"PAPM_NATIVE": "0"}, {"PAPM_CACHE": str(tmp_path), "CC": "no-such-compiler"}):
            for key, value in environment.items():
                monkeypatch.setenv(key, value)
            native._library.cache_clear()
            got = grid_sinkhorn(points, density, 8, "ggd-l2")
            assert got.solver == "sparse" and torch.equal(got.log_v, want.log_v)
            monkeypatch.undo()
    finally:
        native._library.cache_clear()


@pytest.mark.parametrize("name", ["l2", "ggd-l2"])
def test_every_entry_is_found_from_its_cell(name: str) -> None:
    """The runs of sorted points that see a cell hold exactly the entries of that cell."""
    p, a, _ = problem(name)
    table = SortedWindows.build(p, a)
    first = list_starts(table.start, p.window.half, p.size)
    h, w = p.size
    radius, real = p.radius, int((a[0] > 0).sum())
    seen = [0] * (h * w)
    for i in range(real):
        y, x = divmod(int(table.cell[0, i]), w)
        for k, side in enumerate(p.window.half):
            for dx in range(-side, side + 1):
                row, column = y + k - radius, x + dx
                if 0 <= row < h and 0 <= column < w:
                    seen[row * w + column] += 1
    assert first[0].diff().tolist() == seen
    order = table.order[0]
    assert sorted(order.tolist()) == list(range(a.shape[1]))
    torch.testing.assert_close(table.unsort(table.sort(a)), a, rtol=0, atol=0)


def _host() -> ModuleType:
    path = Path(__file__).with_name("cuda_on_host.py")
    spec = importlib.util.spec_from_file_location("cuda_on_host", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lanes", "cluster"), [("ggd-l2", 8, 1), ("l2", 4, 3), ("ggd-l2", 1, 2)])
@pytest.mark.parametrize(("dtype", "floor"), PRECISIONS)
def test_cuda_kernel_on_the_host(
    tmp_path: Path, name: str, lanes: int, cluster: int, dtype: torch.dtype, floor: float
) -> None:
    """The source that a GPU runs, with a thread for each of its threads."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    host, (p, a, b) = _host(), problem(name, dtype=dtype, floor=floor)
    try:
        library = host.build(tmp_path, p.window.half, floor, lanes, cluster, dtype)
    except subprocess.CalledProcessError as error:
        if "barrier" in error.stderr and "No such file" in error.stderr:
            pytest.skip("the C++ compiler is older than C++20")
        raise
    want_u, want_v = reference.scaling(p, a, b, a, floor, 4)
    u, v, value = host.solve(library, p, a, b, a, 4, threads=32)
    close = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(value, p.value(want_u.log(), want_v.log()), rtol=close, atol=0)
    torch.testing.assert_close(u, want_u, rtol=close, atol=0)
    torch.testing.assert_close(v, want_v, rtol=close, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("solver", ["graph", "cuda", "auto"])
@pytest.mark.parametrize("reach", [None, 19.2])
def test_gpu_solvers(solver: str, reach: float | None) -> None:
    rng = torch.Generator().manual_seed(0)
    points = PointBatch.from_list([torch.rand(n, 2, generator=rng) * 256 for n in (200, 0, 31)])
    density = torch.rand(3, 32, 32, generator=rng) ** 4
    want = grid_sinkhorn(
        PointBatch(points.xy.double(), points.valid), density.double(), 8, "ggd-l2", solver="reference", reach=reach
    )
    if reach is not None and solver != "auto":  # too dear for float32: `auto` takes float64
        density = density.double()
    got = grid_sinkhorn(points.to("cuda"), density.cuda(), 8, "ggd-l2", solver=solver, reach=reach)  # type: ignore[arg-type]
    assert got.solver == ("cuda" if solver == "auto" else solver)
    for x, y in zip(got.potentials, want.potentials):
        close = {"rtol": 1e-3, "atol": 1e-2} if reach is None else {"rtol": 1e-9, "atol": 1e-9}
        torch.testing.assert_close(x.cpu().double(), y, **close)
