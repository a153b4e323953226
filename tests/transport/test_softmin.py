"""The three ways to pass over a cost agree with float64, whatever the cost holds."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from papm.transport import softmin
from papm.transport.softmin import Way


def _module(name: str) -> ModuleType:
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"transport_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The CUDA kernels, compiled for the host."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    host = _module("softmin_on_host")
    library = host.build(tmp_path_factory.mktemp("softmin"))
    return lambda name: host.Kernel(library, name)


@pytest.fixture
def on_host(kernels: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in place of a GPU's, in this test alone."""
    monkeypatch.setattr(softmin, "_kernel", lambda name, device: kernels(name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


@pytest.fixture(params=["torch", "c", pytest.param("cuda", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest) -> Way:
    if request.param == "c" and softmin._library() is None:
        pytest.skip("needs a C compiler")
    if request.param == "cuda":
        request.getfixturevalue("on_host")
    found: Way = request.param
    return found


def scene(b: int, n: int, m: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g)

    a = torch.ones(b, n)
    a[0, n // 2 :] = 0.0  # padding
    weights = rand(b, m) ** 4
    weights[..., ::5] = 0.0
    return {
        "cost": 5 * rand(b, n, m) ** 3,
        "f": rand(b, n) - 0.5,
        "g": rand(b, m) - 0.5,
        "a": a * (0.5 + rand(b, n)),
        "b": weights,
        "s": (rand(b, n) - 0.5).sign(),
    }


SIZES = [(1, 1, 1), (2, 3, 40), (3, 70, 33), (1, 33, 300)]


@pytest.mark.parametrize(("b", "n", "m"), SIZES)
@pytest.mark.parametrize("eps", [1.41, 0.1, 0.01])
def test_softmin_is_that_of_float64(b: int, n: int, m: int, eps: float, way: Way) -> None:
    x = scene(b, n, m)
    for over, add in (("columns", x["b"].log() + x["g"] / eps), ("rows", x["a"].log() + x["f"] / eps)):
        found = softmin.softmin(x["cost"], add, eps, 0.9, 1e30 * eps, over, way)  # type: ignore[arg-type]
        shaped = (add[:, None, :] if over == "columns" else add[:, :, None]).double()
        exact = -eps * 0.9 * torch.logsumexp(shaped - x["cost"].double() / eps, 2 if over == "columns" else 1)
        torch.testing.assert_close(found.double(), exact.clamp(-1e30 * eps, 1e30 * eps), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("b", "n", "m"), SIZES)
def test_sums_of_the_plan_are_those_of_float64(b: int, n: int, m: int, way: Way) -> None:
    x, eps = scene(b, n, m), 0.05
    cost, f, g, a, weights, s = (x[k].double() for k in ("cost", "f", "g", "a", "b", "s"))
    k = torch.exp(((f[..., None] + g[:, None] - cost) / eps).clamp(max=80.0))
    got = softmin.received(x["cost"], x["f"], x["g"], x["b"], eps, way)
    torch.testing.assert_close(got.double(), torch.einsum("bnm,bm->bn", k, weights), rtol=5e-5, atol=1e-9)
    found = softmin.sent(x["cost"], x["f"], x["g"], x["a"], x["s"], eps, way).double()
    ak = k * a[..., None]
    logs = torch.where(ak > 0, ak.clamp(min=1e-300).log(), 0.0)
    torch.testing.assert_close(found[:, 0], ak.sum(1), rtol=5e-5, atol=1e-9)
    wide = (k * (a > 0)[..., None]).sum(1)
    assert (found[:, 1] - torch.einsum("bnm,bn->bm", k * (a > 0)[..., None], s)).abs().le(5e-5 * wide + 1e-9).all()
    assert (found[:, 2] - (ak * logs).sum(1)).abs().le(1e-4 * (ak * logs).abs().sum(1) + 1e-6).all()


def test_what_nothing_reaches_is_at_the_limit(way: Way) -> None:
    cost = torch.rand(2, 4, 5)
    none = torch.full((2, 5), -math.inf)
    assert softmin.softmin(cost, none, 0.1, 1.0, 7.0, "columns", way).eq(7.0).all()
    assert softmin.softmin(cost, none[:, :4], 0.1, 1.0, 7.0, "rows", way).eq(7.0).all()
    cost[0, 1] = math.inf
    found = softmin.softmin(cost, torch.zeros(2, 5), 0.1, 1.0, 7.0, "columns", way)
    assert found[0, 1] == 7.0 and found[1].lt(7.0).all()
    assert softmin.softmin(torch.rand(2, 4, 5), torch.full((2, 5), 1e3), 0.1, 1.0, 7.0, "columns", way).eq(-7.0).all()


@pytest.mark.parametrize("where", ["cost", "add"])
def test_nan_comes_out_as_nan(where: str, way: Way) -> None:
    """What is not a number must reach the trainer's check, not be lost in a maximum."""
    for at in (0, 20):
        cost, columns, rows = torch.rand(1, 30, 40), torch.zeros(1, 40), torch.zeros(1, 30)
        if where == "cost":
            cost[0, at, at] = math.nan
        else:
            columns[0, at] = rows[0, at] = math.nan
        assert softmin.softmin(cost, columns, 0.1, 1.0, 1e28, "columns", way)[0, at].isnan()
        assert softmin.softmin(cost, rows, 0.1, 1.0, 1e28, "rows", way)[0, at].isnan()
        assert softmin.received(cost, rows, columns, torch.ones(1, 40), 0.1, way)[0, at].isnan()
        ones = torch.ones(1, 30)
        assert softmin.sent(cost, rows, columns, ones, ones, 0.1, way)[0, :, at].isnan().all()


def test_far_values_do_not_overflow(way: Way) -> None:
    """Potentials at the limit, and a plan steeper than any float holds, stay finite."""
    cost = torch.rand(1, 6, 9)
    f, g = torch.full((1, 6), 1e27), torch.full((1, 9), 0.0)
    found = softmin.received(cost, f, g, torch.ones(1, 9), 0.01, way)
    torch.testing.assert_close(found, torch.full((1, 6), 9 * math.exp(80.0)), rtol=1e-5, atol=0.0)
    assert softmin.sent(cost, f, g, torch.ones(1, 6), torch.ones(1, 6), 0.01, way).isfinite().all()
    assert softmin.received(cost, -f, g, torch.ones(1, 9), 0.01, way).eq(0.0).all()


def test_strided_tensors_are_taken(way: Way) -> None:
    x = scene(2, 20, 30)
    turned = x["cost"].mT.contiguous().mT
    assert not turned.is_contiguous()
    one, other = (softmin.softmin(c, x["g"], 0.1, 1.0, 1e28, "columns", way) for c in (x["cost"], turned))
    torch.testing.assert_close(one, other)


def test_who_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert softmin.way_for(torch.rand(1, 2, 3, dtype=torch.float64)) == "torch"
    assert softmin.way_for(torch.rand(0, 2, 3)) == "torch"
    monkeypatch.setattr(softmin, "_library", lambda: None)
    assert softmin.way_for(torch.rand(1, 2, 3)) == "torch"
    built: Any = object()
    monkeypatch.setattr(softmin, "_library", lambda: built)
    assert softmin.way_for(torch.rand(1, 2, 3)) == "c"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    x = {k: v.cuda() for k, v in scene(4, 100, 1024).items()}
    assert softmin.way_for(x["cost"]) == "cuda"
    for eps in (1.41, 0.01):
        for over, add in (("columns", x["b"].log() + x["g"] / eps), ("rows", x["a"].log() + x["f"] / eps)):
            one, other = (softmin.softmin(x["cost"], add, eps, 0.9, 1e28, over, w) for w in ("cuda", "torch"))  # type: ignore[arg-type]
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    a, b = (softmin.received(x["cost"], x["f"], x["g"], x["b"], 0.05, w) for w in ("cuda", "torch"))  # type: ignore[arg-type]
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    a, b = (softmin.sent(x["cost"], x["f"], x["g"], x["a"], x["s"], 0.05, w) for w in ("cuda", "torch"))  # type: ignore[arg-type]
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
