"""No loss waits for the device: what a CUDA graph can capture, checked without one.

Tensors of the meta device have a shape and no values: whatever needs a value (`.item()`, `.tolist()`, `if tensor`, `nonzero`,
an index that is a mask) raises. They pass for CUDA ones here, so that losses take the path they take there; the kernels
themselves are replaced by their shapes. Copies from the host are watched apart: they do not fail on meta.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from papm import losses
from papm.losses import LossContext, PointLoss
from papm.losses.base import CountingLoss
from papm.losses.forward_correction import ForwardLoss
from papm.matching import cuda as matching_cuda
from papm.structures import LossOutput, PointBatch, PointProposals
from papm.transport import cuda as transport_cuda

B, N, SIDE, STRIDE = 2, 7, 64, 8
DENSITY = [name for name in losses.names() if not isinstance(losses.create(name), PointLoss)]
POINTS = [name for name in losses.names() if name not in DENSITY]
# Where there is a GPU, kernels would really be launched, on tensors without memory; there test_graphed.py has the real thing.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")


class NoCopies(TorchFunctionMode):
    """Refuses what would carry values from the host to the device; a number in place of a tensor is fine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type == "meta":
            name = getattr(func, "__name__", str(func))
            given = [a for a in args if isinstance(a, Tensor)]
            if name in ("tensor", "as_tensor", "new_tensor", "asarray", "from_numpy"):
                raise AssertionError(f"{name} copies from the host")
            if any(t.device.type == "cpu" and t.ndim for t in given):
                raise AssertionError(f"{name} mixes host and device")
            if name == "__getitem__" and isinstance(args[1], list):
                raise AssertionError("a list as an index is copied from the host")
        return result


@pytest.fixture(autouse=True)
def cuda_without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def assigned(costs: Tensor, counts: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        assert costs.dtype == torch.float32 and counts.shape == (len(costs), 2)
        return torch.empty(costs.shape[:2], dtype=torch.int64, device=costs.device), counts

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: self.device.type == "meta"))
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())  # knows no meta
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(matching_cuda, "fits", lambda *a: True)
    monkeypatch.setattr(matching_cuda, "available", lambda device: True)
    monkeypatch.setattr(matching_cuda, "solve", assigned)
    monkeypatch.setattr(transport_cuda, "available", lambda device: False)
    yield
    for cached in (transport_cuda.available, matching_cuda.available):
        getattr(cached, "cache_clear", lambda: None)()


def points(labels: bool = False, extents: bool = True) -> PointBatch:
    valid = torch.ones(B, N, dtype=torch.bool, device="meta")
    return PointBatch(
        torch.rand(B, N, 2, device="meta"),
        valid,
        torch.rand(B, N, device="meta") if extents else None,
        valid.long() if labels else None,
    )


def context(halo: PointBatch) -> LossContext:
    return LossContext(
        mask=torch.ones(B, SIDE, SIDE, dtype=torch.bool, device="meta"),
        offsets=torch.zeros(B, 2, device="meta"),
        sizes=torch.full((B, 2), float(SIDE), device="meta"),
        halo=halo,
        images=torch.rand(B, 3, SIDE, SIDE, device="meta"),
    )


def density() -> Tensor:
    return torch.rand(B, 1, SIDE // STRIDE, SIDE // STRIDE, device="meta", requires_grad=True)


def proposals(columns: int = 2) -> PointProposals:
    m = 4 * (SIDE // STRIDE) ** 2
    xy, logits = (torch.rand(B, m, k, device="meta", requires_grad=True) for k in (2, columns))
    return PointProposals(xy, logits, SIDE * torch.rand(m, 2, device="meta"))


def guarded(loss: CountingLoss, call: Callable[[], LossOutput]) -> None:
    """Once as it likes, for what is kept from the first call on; then no value may be asked for, forwards or back."""
    call().total.backward()
    with NoCopies():
        out = call()
        out.total.backward()
    assert set(out.terms) == set(out.weights) and out.total.device.type == "meta"


@pytest.mark.parametrize("name", DENSITY)
@pytest.mark.parametrize("known", [True, False], ids=["context", "crop alone"])
def test_density_losses_wait_for_nothing(name: str, known: bool) -> None:
    loss = losses.create(name, stride=STRIDE).to("meta")
    if loss.needs_images and not known:
        return
    batch = points()
    guarded(loss, lambda: loss(density(), batch, context=context(batch) if known else None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("hd-papm", "ring"), ("hd-papm", "disc"), ("hd-papm", "gaussian"), ("bl", "ring"), ("al-papm", "ring")],
)
@pytest.mark.parametrize("known", [True, False], ids=["context", "crop alone"])
def test_corrected_losses_wait_for_nothing(name: str, kind: Any, known: bool) -> None:
    batch = points()
    for margin in (0, 16):
        loss = losses.create(name, stride=STRIDE).to("meta")
        around = ForwardLoss(loss, 12.0, kind, margin)
        given = context(batch) if known else None
        guarded(around, functools.partial(lambda *a: a[0](density(), batch, context=a[1]), around, given))


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"published": True, "point_weight": 0.0}],
    ids=["plain", "published"],
)
@pytest.mark.parametrize("known", [True, False], ids=["context", "crop alone"])
def test_point_losses_wait_for_nothing(name: str, options: dict[str, Any], known: bool) -> None:
    loss = losses.create(name, stride=STRIDE, **options)
    for progress in (0.0, 1.0):
        loss.progress = progress
        for batch in (points(), points(extents=False)):
            around = context(batch) if known else None
            guarded(
                loss, functools.partial(lambda *given: loss(proposals(), given[0], context=given[1]), batch, around)
            )


@pytest.mark.parametrize("name", POINTS)
def test_classes_and_crops_without_points_wait_for_nothing(name: str) -> None:
    loss = losses.create(name, stride=STRIDE)
    batch = points(labels=True)
    guarded(loss, lambda: loss(proposals(columns=4), batch, context=context(batch)))
    none = PointBatch(batch.xy[:, :0], batch.valid[:, :0], torch.rand(B, 0, device="meta"))
    guarded(loss, lambda: loss(proposals(), none, context=context(none)))


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "nonzero": lambda x: x.nonzero(),
    "mask as index": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "numpy": lambda x: x.detach().cpu().numpy(),
    "tensor from a list": lambda x: x + torch.tensor([1.0, 2.0], device=x.device)[0],
    "new_tensor": lambda x: x + x.new_tensor([1.0, 2.0])[0],
    "copy": lambda x: x + torch.ones(8).to(x.device),
    "index by a list": lambda x: x[[0, 1]],
}


@pytest.mark.parametrize("what", WAITS)
def test_the_watch_notices(what: str) -> None:
    """Each of these waits for a GPU, or copies to it; each is seen."""

    class Waiting(CountingLoss):
        def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
            WAITS[what](density)
            total = density.sum()
            return LossOutput(total, {"sum": total.detach()})

    loss, batch = Waiting(STRIDE), points()
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError, ValueError)):
        guarded(loss, lambda: loss(density(), batch))
