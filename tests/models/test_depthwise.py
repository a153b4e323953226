"""The C loop of channel-wise convolutions: torch's convolution and its gradients, at every shape and in both precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from papm import models
from papm.models import depthwise
from papm.models.depthwise import reference, relu6_depthwise, usable
from papm.models.lite import Block

pytestmark = pytest.mark.skipif(not depthwise.available(), reason="no C compiler")
SHAPES = [(96, 16, 20), (20, 7, 9), (33, 9, 8), (5, 1, 2), (16, 3, 3), (144, 67, 31), (1, 1, 1)]


def inputs(channels: int, height: int, width: int, kernel: int, kind: torch.dtype = torch.float32) -> list[Tensor]:
    """A map that passes 0 and 6 in many places, a weight and a bias."""
    torch.manual_seed(0)
    x = (4 * torch.randn(2, channels, height, width)).to(kind)
    return [t.requires_grad_() for t in (x, torch.randn(channels, 1, kernel, kernel), torch.randn(channels))]


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs_convolution(shape: tuple[int, int, int], kernel: int, stride: int, clip: bool) -> None:
    given = inputs(*shape, kernel)
    found, expected = (f(*given, stride, clip) for f in (relu6_depthwise, reference))
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected)
    for ours, torchs in zip(*(torch.autograd.grad(out, given, gradient) for out in (found, expected))):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_maps_in_bf16_are_summed_in_float32(kernel: int, stride: int) -> None:
    x, weight, bias = inputs(48, 13, 18, kernel, torch.bfloat16)
    with torch.no_grad():  # eighths, whose sums are the same in any order, on any processor
        for t in (x, weight, bias):
            t.copy_((8 * t).round() / 8)
    found = relu6_depthwise(x, weight, bias, stride, True)
    whole = x.detach().float().requires_grad_()
    expected = reference(whole, weight, bias, stride, True)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())
    gradient = torch.randn_like(expected).bfloat16()
    ours = torch.autograd.grad(found, (x, weight, bias), gradient)
    # Where rounding puts a value on 6, its ReLU6 is flat in bf16 alone.
    kept = (found > 0) & (found < 6) & (expected > 0) & (expected < 6)
    same = torch.autograd.grad(expected, (whole, weight, bias), torch.where(kept, gradient.float(), 0.0))
    assert [g.dtype for g in ours] == [torch.bfloat16, torch.float32, torch.float32]
    torch.testing.assert_close(ours[0].float(), same[0], rtol=1e-2, atol=1e-2)
    for a, b in zip(ours[1:], same[1:]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(32, 24, 24, 3)
    out = relu6_depthwise(*given, 1, True)
    alone = (out, *torch.autograd.grad(out.sum(), given))
    monkeypatch.setattr(depthwise, "THREAD_WORK", 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        out = relu6_depthwise(*given, 1, True)
        together = (out, *torch.autograd.grad(out.sum(), given))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nan_is_not_hidden(kind: torch.dtype) -> None:
    """A run whose weights are no numbers must notice."""
    x, weight, bias = inputs(16, 6, 6, 3, kind)
    with torch.no_grad():
        x[0, 3, 2, 2] = float("nan")
    assert bool(relu6_depthwise(x, weight, bias, 1, True)[0, 3, 1:4, 1:4].isnan().all())


def test_any_order_of_memory_will_do() -> None:
    given = inputs(16, 9, 11, 3)
    as_lists, by_channel = (
        given[0].detach().contiguous(memory_format=m) for m in (torch.contiguous_format, torch.channels_last)
    )
    gradient = torch.randn(2, 16, 5, 6)
    results = []
    for x, g in (
        (as_lists, gradient.contiguous()),
        (by_channel, gradient.contiguous(memory_format=torch.channels_last)),
    ):
        x.requires_grad_()
        out = relu6_depthwise(x, given[1], given[2], 2, False)
        results.append((out, torch.autograd.grad(out, x, g)[0]))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_it_is_for_training_on_a_cpu_alone() -> None:
    x = torch.randn(1, 4, 8, 8)
    assert usable(x, 3) and not usable(x, 7) and not usable(x.double(), 3) and not usable(x[:0], 3)
    with torch.no_grad():
        assert not usable(x, 3)


def test_fake_tensors_have_no_memory_to_read() -> None:
    with FakeTensorMode():
        fake = torch.randn(1, 4, 8, 8)
        assert not usable(fake, 3)
    assert not usable(fake, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, which is still there
@pytest.mark.parametrize("traced", [make_fx, torch.jit.trace])
def test_a_network_that_is_traced_keeps_its_convolutions(traced: Callable[..., Any]) -> None:
    network, images = Block(4, 4, 3, 1, 6), torch.randn(1, 4, 9, 9)
    program = traced(network)(images) if traced is make_fx else traced(network, images)
    torch.testing.assert_close(program(2 * images), network(2 * images))


@pytest.mark.parametrize("half", [False, True])
def test_lite_learns_the_same_with_it(half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients() -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        network = models.create("lite").train()
        images = torch.randn(2, 3, 64, 96)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            density = network(images).density.float()
        density.square().sum().backward()
        return density.detach(), [p.grad for p in network.parameters() if p.grad is not None]

    density, ours = gradients()
    monkeypatch.setattr("papm.models.lite.usable", lambda x, kernel: False)
    expected, torchs = gradients()
    close = 0.05 if half else 1e-4
    torch.testing.assert_close(density, expected, rtol=close, atol=close * float(expected.abs().max()))
    assert len(ours) == len(torchs)
    a, b = (torch.cat([g.flatten() for g in gradients]) for gradients in (ours, torchs))
    assert float((a - b).norm() / b.norm()) < (0.1 if half else 1e-3)
