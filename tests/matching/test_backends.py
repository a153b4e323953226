"""The compiled paths: threads, life without a compiler, and the CUDA kernel run on the host."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from papm.compiled import OWN_SHARED, PLAIN_SHARED, ask_for_shared
from papm.errors import ConfigError
from papm.matching import assign, assign_batch, cuda, native, solve


def _module(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"matching_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = _module("test_solve")
Host = Callable[..., tuple[Tensor, Tensor]]


def test_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [cases.make(kind, 20, 50, seed) for seed in range(3) for kind in cases.KINDS]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = assign_batch(costs)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(solve, "THREAD_WORK", 0)
    for _ in range(3):
        for one, two in zip(alone, assign_batch(costs)):
            assert torch.equal(one[1], two[1])
    costs[5] = costs[5].clone().fill_(float("nan"))
    with pytest.raises(ConfigError, match="problem 5"):
        assign_batch(costs)


def test_without_a_compiler_scipy_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cost = cases.make("uniform", 9, 14, seed=0)
    want = assign(cost, "scipy")
    try:
        for environment in ({"PAPM_NATIVE": "0"}, {"PAPM_CACHE": str(tmp_path), "CC": "no-such-compiler"}):
            for key, value in environment.items():
                monkeypatch.setenv(key, value)
            native._library.cache_clear()
            assert not native.available() and torch.equal(assign(cost)[1], want[1])
            with pytest.raises(ConfigError, match="needs a C compiler"):
                assign(cost, "native")
            monkeypatch.undo()
    finally:
        native._library.cache_clear()


def test_compiled_solver_refuses_what_it_cannot() -> None:
    if not native.available():
        pytest.skip("no C compiler")
    for cost in (torch.rand(3, 2), torch.rand(2, 3, dtype=torch.float64)):
        with pytest.raises(ConfigError, match="takes float32 on the CPU"):
            native.solve(cost)


@pytest.fixture(scope="module", params=[True, False], ids=["redux", "shuffle"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("no C++ compiler, or no fibers")
    made: ctypes.CDLL = _module("cuda_on_host").build(tmp_path_factory.mktemp("assign"), request.param)
    return made


@pytest.fixture(scope="module")
def run() -> Host:
    made: Host = _module("cuda_on_host").solve
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases.KINDS)
def test_cuda_kernel_on_the_host(library: ctypes.CDLL, run: Host, kind: str) -> None:
    """The source that a GPU runs: right, whatever the sizes, and the same however its threads are scheduled."""
    sizes = torch.tensor([[13, 40], [40, 13], [0, 40], [20, 20], [1, 1], [17, 70]])
    costs = torch.full((len(sizes), 40, 70), float("nan"))
    for k, (n, m) in enumerate(sizes.tolist()):
        costs[k, :n, :m] = cases.make(kind, n, m, seed=k)
    columns, _ = run(library, costs, sizes, threads=64, seed=1)
    for k, (n, m) in enumerate(sizes.tolist()):
        assert (columns[k, n:] == -1).all()
        rows = (columns[k] >= 0).nonzero().flatten()
        cases.check(costs[k, :n, :m], (rows, columns[k, rows]))
    again, _ = run(library, costs, sizes, threads=32, seed=2)
    assert torch.equal(columns, again)


@pytest.mark.slow
def test_cuda_kernel_without_bids_and_with_many(library: ctypes.CDLL, run: Host) -> None:
    costs = torch.stack([cases.make("columns", 15, 45, seed) for seed in range(2)])
    sizes = torch.tensor([[15, 45], [15, 45]])
    for rounds in (0, 50):
        columns, steps = run(library, costs, sizes, rounds=rounds)
        for k in range(2):
            cases.check(costs[k], (torch.arange(15), columns[k]))
        assert (steps[:, 0] <= rounds).all() and (rounds > 0 or (steps[:, 1] >= 15).all())


def test_cuda_kernel_ends_whatever_the_costs(library: ctypes.CDLL, run: Host) -> None:
    """Values that are not finite cannot be refused on a device; they count as very large ones and never hang it."""
    costs = torch.rand(3, 6, 9)
    costs[0] = float("nan")
    costs[1, 2] = float("inf")
    costs[2, :, 1:5] = float("inf")
    columns, _ = run(library, costs, torch.tensor([[6, 9]] * 3))
    for k in range(3):
        assert len(columns[k].unique()) == 6 and columns[k].min() >= 0
    finite = costs[2].nan_to_num(posinf=1e30)
    assert float(finite[torch.arange(6), columns[2]].max()) > 1e29  # six rows, five columns: one must
    assert int((finite[torch.arange(6), columns[2]] > 1).sum()) == 1


def test_size_limits() -> None:
    """8192 proposals and 1000 points fit the 227 KB of a Hopper block."""
    assert cuda.shared_bytes(1000, 8192) <= 227 * 1024 - OWN_SHARED
    assert cuda.shared_bytes(10, 30) == cuda.shared_bytes(30, 10) == 30 * 24 + 10 * 20


def test_what_a_kernel_declares_itself_is_kept_for_it() -> None:
    """Two lists of 32 warps: 16 bytes of `Found` and 12 of `Reached` each. 512 × 1600 fits 48 KB only without them."""
    declared = 2 * 32 * (16 + 12) + 3 * 4
    assert declared <= OWN_SHARED
    assert cuda.shared_bytes(512, 1600) < 48 * 1024 < cuda.shared_bytes(512, 1600) + declared
    assert cuda.shared_bytes(512, 1600) >= PLAIN_SHARED  # so that more is asked for


def test_shared_memory_is_asked_for_where_torch_would_not() -> None:
    """torch takes less than 48 KB to be there, whatever the kernel declares itself."""
    asked: list[int] = []
    kernel = SimpleNamespace(set_shared_memory_config=asked.append)
    for number in (PLAIN_SHARED - 1, PLAIN_SHARED, 48 * 1024 - 1, 48 * 1024, 100_000):
        ask_for_shared(kernel, number)
    assert asked == [48 * 1024, 48 * 1024, 48 * 1024, 100_000]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [256, 400, 460, 512, 540, 800])
def test_sizes_around_the_plain_limit_on_a_gpu(n: int) -> None:
    costs = torch.rand(2, n, 1600, generator=torch.Generator().manual_seed(n))
    assert torch.equal(assign_batch(costs.cuda()).columns.cpu(), assign_batch(costs).columns)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    costs = torch.stack([cases.make(kind, 30, 200, seed=2) for kind in cases.KINDS])
    counts = torch.arange(30, 30 - len(costs), -1)
    there, counts_there = costs.cuda(), counts.cuda()
    assign_batch(there, counts_there)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = assign_batch(there, counts_there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for cost, count, (rows, columns) in zip(costs, counts.tolist(), made.pairs()):
        cases.check(cost[:count], (rows.cpu(), columns.cpu()))
    for cost, (rows, columns) in zip(costs, assign_batch(list(there))):
        assert rows.is_cuda
        cases.check(cost, (rows.cpu(), columns.cpu()))
