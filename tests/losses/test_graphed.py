"""A captured loss gives what the loss gives. Capturing itself needs a GPU: here a stand-in runs the function again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from papm import losses
from papm.graphs import round_up
from papm.losses.base import CountingLoss, LossContext
from papm.losses.classes import ClassLoss
from papm.losses.forward_correction import ForwardLoss
from papm.losses.graphed import AFTER, Graphs, flatten, rebuild
from papm.structures import LossOutput, PointBatch

CAPTURED = [n for n in losses.names() if n not in ("kdmg", "p2pnet", "p2p-papm", "p2p-papm-literal", "ial")]


def again(function: Callable[[], Any], pool: Any = None) -> tuple[Callable[[], None], Any]:
    """As `graphs.capture`: later runs fill the tensors of the first result."""
    first = function()

    def run() -> None:
        for old, new in zip(first, function()):
            if isinstance(old, Tensor):
                old.copy_(new)

    return run, first


def scene(seed: int, n: tuple[int, int] = (7, 0)) -> tuple[Tensor, PointBatch]:
    rng = torch.Generator().manual_seed(seed)
    density = torch.rand(2, 1, 8, 8, generator=rng) * 0.2
    return density, PointBatch.from_list([torch.rand(k, 2, generator=rng) * 64 for k in n])


@pytest.mark.parametrize("name", CAPTURED)
def test_the_same_loss_terms_and_gradients(name: str) -> None:
    """Also of the terms one by one, and with fewer points after more."""
    loss = losses.create(name, stride=8)
    graphs = Graphs(again)
    context = LossContext(offsets=torch.zeros(2, 2), sizes=torch.full((2, 2), 64.0))
    for k in range(AFTER + 4):
        density, points = scene(k, (30 - 4 * k, k))
        a, b = (density.clone().requires_grad_() for _ in range(2))
        plain = loss.compute(a, points, context)
        made = graphs(loss, b, points, context)
        torch.testing.assert_close(made.total, plain.total)
        assert made.weights == plain.weights
        for term in plain.terms:
            torch.testing.assert_close(made.terms[term], plain.terms[term].to(made.total))
        one, other = ((o.total + 2 * sum(t for t in o.terms.values() if t.requires_grad)).sum() for o in (plain, made))
        torch.testing.assert_close(torch.autograd.grad(other, b)[0], torch.autograd.grad(one, a)[0])
    assert len(graphs.graphs) == 1


def test_a_later_call_leaves_the_gradient_of_an_earlier_one_alone() -> None:
    loss, graphs = losses.create("dm-count", stride=8), Graphs(again)
    for k in range(AFTER + 1):
        graphs(loss, scene(k)[0].requires_grad_(), scene(k)[1], None)
    density, points = scene(11)
    a, b = (density.clone().requires_grad_() for _ in range(2))
    first = graphs(loss, a, points, None).total
    graphs(loss, scene(12)[0].requires_grad_(), scene(12)[1], None)
    first.backward()
    loss.compute(b, points, None).total.backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(a.grad, b.grad)


def test_a_setting_that_is_changed_is_heeded() -> None:
    loss, graphs = losses.create("hd-papm", stride=8), Graphs(again)
    density, points = scene(0)
    for _ in range(AFTER + 2):
        graphs(loss, density.requires_grad_(), points, None)
    loss.options["sigma"] = 9.0
    assert graphs(loss, density, points, None).total == loss.compute(density, points, None).total


def still(function: Callable[[], Any], pool: Any = None) -> tuple[Callable[[], None], Any]:
    """As a graph of which nothing but its own tensors can change: the values of the first run."""
    return (lambda: None), function()


def test_a_weight_in_a_dictionary_that_is_changed_is_heeded() -> None:
    """Options are a plain dictionary: what was captured with another value is not played again."""
    loss, graphs = losses.create("gl", stride=8), Graphs(still)
    density, points = scene(0)
    for _ in range(AFTER + 2):
        graphs(loss, density.requires_grad_(), points, None)
    assert len(graphs.graphs) == 1
    options: Any = loss.options
    for weight in (3.0, 0.0, 3.0):  # and back again, to what is captured
        options["w_pixel"] = weight
        for _ in range(AFTER + 2):
            made, plain = graphs(loss, density, points, None), loss.compute(density, points, None)
            torch.testing.assert_close(made.total, plain.total)
            assert made.weights == plain.weights
    assert len(graphs.graphs) == 3


class Grows(CountingLoss):
    """The sum of the density, doubled in the second half of training."""

    @property
    def phase(self) -> bool:
        return self.progress >= 0.5

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        total = density.sum() * (2 if self.phase else 1)
        return LossOutput(total, {"sum": total})


@pytest.mark.parametrize("wrap", [lambda loss: ClassLoss(loss, 1), lambda loss: ForwardLoss(loss, 8.0)])
def test_a_loss_around_one_that_changes_on_the_way(wrap: Callable[[CountingLoss], CountingLoss]) -> None:
    """Captured, the loss inside is no longer called: it must hear of the progress all the same."""
    loss, graphs = wrap(Grows(8)), Graphs(lambda function, pool: ((lambda: None), function()))
    density, points = scene(0)
    for k in range(10):
        loss.progress = k / 10
        made = graphs(loss, density.clone().requires_grad_(), points, None)
        torch.testing.assert_close(made.total, density.sum() * (2 if k >= 5 else 1))
    assert len(graphs.graphs) == 2


@pytest.mark.parametrize("wrap", [lambda loss: ClassLoss(loss, 1), lambda loss: ForwardLoss(loss, 8.0)])
def test_a_loss_is_the_same_after_another_was_put_around_it(
    wrap: Callable[[CountingLoss], CountingLoss], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be captured as before, by itself and in a second wrapper; inside one it never is, all of that is."""
    loss = losses.create("hd-papm", stride=8)
    before = dict(vars(loss))
    first, second = wrap(loss), wrap(loss)
    assert vars(loss) == before and loss.capturable and first.capturable and second.capturable
    monkeypatch.setattr(CountingLoss, "captures", lambda self, density: self.capturable)  # as on a GPU
    density, points = scene(0)
    for _ in range(AFTER + 2):
        first(density.requires_grad_(), points)
    assert not loss._graphs.seen and first._graphs.seen


def test_what_cannot_be_captured_is_computed() -> None:
    def refuse(function: Callable[[], Any], pool: Any = None) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    loss, graphs = losses.create("hd-papm", stride=8), Graphs(refuse)
    density, points = scene(0)
    for _ in range(AFTER + 2):
        made = graphs(loss, density.requires_grad_(), points, None)
        assert made.total == loss.compute(density, points, None).total
    assert not graphs.usable


def test_flatten_and_rebuild() -> None:
    density, points = scene(3)
    context = LossContext(mask=torch.ones(2, 64, 64) > 0, halo=points, sizes=torch.ones(2, 2))
    d, p, c = rebuild(flatten(density, points, context), context)
    assert d.equal(density) and p.xy.equal(points.xy) and p.valid.equal(points.valid)
    assert c is not None and c.halo is not None and c.halo.xy.equal(points.xy) and c.offsets is None


def test_copies_and_files_of_a_loss_hold_no_graphs() -> None:
    loss = losses.create("al-papm", stride=8)
    loss._graphs.usable = False
    assert copy.deepcopy(loss)._graphs.usable
    assert pickle.loads(pickle.dumps(loss))._graphs.usable  # noqa: S301


def test_lengths_are_few() -> None:
    assert len({round_up(n) for n in range(5000)}) == 9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CAPTURED)
def test_on_a_gpu_every_call_gives_the_same(name: str) -> None:
    """The first calls run as usual, the later ones from the graph; points on the host or on the device."""
    loss = losses.create(name, stride=8)
    plain = losses.create(name, stride=8)
    plain.capturable = False
    context = LossContext(offsets=torch.zeros(2, 2).cuda(), sizes=torch.full((2, 2), 64.0).cuda())
    for k in range(AFTER + 5):
        density, points = scene(k, (30 - 2 * k, k))
        a, b = (density.cuda().requires_grad_() for _ in range(2))
        given = points.to("cuda") if k % 2 else points.to_list()
        one, other = plain(a, given, context=context), loss(b, given, context=context)
        one.total.backward()
        other.total.backward()
        torch.testing.assert_close(other.total, one.total, rtol=1e-4, atol=1e-5)
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
    assert len(loss._graphs.graphs) == 1 and loss._graphs.usable
