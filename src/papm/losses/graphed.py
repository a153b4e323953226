"""A loss on the GPU as one launch: a CUDA graph.

A loss is some fifty small kernels: launching them one by one takes longer than the network itself at 8 × 256². When a loss
has been called a few times with inputs of one shape, it and its derivatives are captured as a CUDA graph, and called again
they are launched as one. Values, terms and gradients are the same; only a second derivative is no longer to be had.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from papm.graphs import capture, new_pool, round_up
from papm.structures import LossContext, LossOutput, PointBatch
from papm.text import Brief

if TYPE_CHECKING:
    from papm.losses.base import CountingLoss

log = logging.getLogger(__name__)

AFTER = 3  # calls of one shape before it is worth capturing
KEPT = 16  # graphs; the padding of the points takes few lengths, so this is seldom reached

Compute = Callable[[Tensor, PointBatch, LossContext | None], LossOutput]
Capture = Callable[..., tuple[Callable[[], None], Any]]  # as graphs.capture


class _KnownGradients(torch.autograd.Function):
    """Numbers [k] that were computed elsewhere together with their gradients [k, …] by the density."""

    @staticmethod
    def forward(ctx: Any, density: Tensor, values: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (gradients,) = ctx.saved_tensors
        return torch.tensordot(grads[0], gradients, 1), None, None


@dataclass(frozen=True, eq=False, repr=False)
class _Graph(Brief):
    """A captured loss: how to run it again, and the tensors it reads and writes."""

    again: Callable[[], None]
    inputs: list[Tensor]
    names: tuple[str, ...]  # of the terms
    weights: dict[str, float]
    values: Tensor  # [1 + terms], the total first
    gradients: Tensor  # [1 + terms, *density.shape]


class Graphs:
    """The CUDA graphs of one loss, by the shapes of its input and the loss's own settings."""

    def __init__(self, how: Capture = capture) -> None:
        self.capture = how
        self.graphs: dict[Hashable, _Graph] = {}
        self.seen: Counter[Hashable] = Counter()
        self.usable = True
        self.pool: Any = None

    def __deepcopy__(self, memo: Any) -> Graphs:
        return Graphs(self.capture)

    def __reduce__(self) -> Any:
        return Graphs, ()

    def __call__(
        self, loss: CountingLoss, density: Tensor, points: PointBatch, context: LossContext | None
    ) -> LossOutput:
        if not self.usable:
            return loss.compute(density, points, context)
        inputs = flatten(density, points, context)
        key = (settings(loss), tuple((name, *_padded(t, name), t.dtype, t.device) for name, t in inputs.items()))
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= AFTER or len(self.graphs) >= KEPT:
                return loss.compute(density, points, context)
            try:
                self.graphs[key] = self._capture(loss.compute, inputs, context)
            except RuntimeError as error:
                log.warning("this loss cannot be captured as a CUDA graph, going on without: %s", str(error)[:200])
                self.usable = False
                return loss.compute(density, points, context)
        graph = self.graphs[key]
        _fill(graph.inputs, list(inputs.values()))
        graph.again()
        known: Tensor = _KnownGradients.apply(density, graph.values, graph.gradients.clone())  # type: ignore[no-untyped-call]
        total, *terms = known.unbind()
        return LossOutput(total, dict(zip(graph.names, terms)), dict(graph.weights))

    def _capture(self, compute: Compute, inputs: dict[str, Tensor], context: LossContext | None) -> _Graph:
        static = {name: t.detach().new_zeros(_padded(t, name)) for name, t in inputs.items()}
        _fill(list(static.values()), list(inputs.values()))
        density = static["density"].requires_grad_()

        def run() -> tuple[tuple[str, ...], dict[str, float], Tensor, Tensor]:
            made = compute(*rebuild(static, context))
            parts = [made.total, *made.terms.values()]
            gradients = [
                torch.autograd.grad(p, density, retain_graph=True)[0] if p.requires_grad else torch.zeros_like(density)
                for p in parts
            ]
            values = torch.stack([p.detach().reshape(()) for p in parts])
            return tuple(made.terms), dict(made.weights), values, torch.stack(gradients)

        with torch.enable_grad(), torch.cuda.device_of(density):  # type: ignore[no-untyped-call]
            if self.pool is None and density.is_cuda:
                self.pool = new_pool()
            again, (names, weights, values, gradients) = self.capture(run, pool=self.pool)
        return _Graph(again, list(static.values()), names, weights, values, gradients)


def flatten(density: Tensor, points: PointBatch, context: LossContext | None) -> dict[str, Tensor]:
    """Every tensor a loss may look at, by name."""
    found = {"density": density.detach()}
    for field in fields(points):
        if (t := getattr(points, field.name)) is not None:
            found[f"points.{field.name}"] = t
    for field in fields(LossContext) if context is not None else ():
        value = getattr(context, field.name)
        if isinstance(value, PointBatch):
            found |= {
                f"context.{field.name}.{f.name}": t for f in fields(value) if (t := getattr(value, f.name)) is not None
            }
        elif isinstance(value, Tensor):
            found[f"context.{field.name}"] = value
    return found


def rebuild(flat: dict[str, Tensor], like: LossContext | None) -> tuple[Tensor, PointBatch, LossContext | None]:
    """What `flatten` took apart, with the context's tensors in the place of those of `like`."""

    def points(prefix: str) -> PointBatch:
        return PointBatch(**{k.removeprefix(prefix): t for k, t in flat.items() if k.startswith(prefix)})

    if like is None:
        return flat["density"], points("points."), None
    changed: dict[str, Any] = {}
    for field in fields(LossContext):
        value = getattr(like, field.name)
        if isinstance(value, PointBatch):
            changed[field.name] = points(f"context.{field.name}.")
        elif isinstance(value, Tensor):
            changed[field.name] = flat[f"context.{field.name}"]
    return flat["density"], points("points."), LossContext(**changed)


def settings(loss: CountingLoss) -> tuple[Hashable, ...]:
    """The plain attributes of a loss and its parts: one that is changed later must not be computed as before."""
    return loss.phase, *(
        (name, _frozen(value))
        for part in loss.modules()
        for name, value in vars(part).items()
        if not name.startswith("_") and name != "progress"
    )


def _frozen(value: Any) -> Hashable:
    """What a value is now, as something that can be a key: a dictionary or a list may hold something else at the next call.

    >>> _frozen({"pixel": 0.1, "levels": [1, 2]})
    (('pixel', 0.1), ('levels', (1, 2)))
    """
    if isinstance(value, Mapping):
        return tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return cast(Hashable, value)


def _padded(t: Tensor, name: str) -> tuple[int, ...]:
    """The shape kept for a tensor: lists of points are padded to one of few lengths."""
    if name.startswith(("points.", "context.halo.")):
        return (t.shape[0], round_up(t.shape[1]), *t.shape[2:])
    return tuple(t.shape)


def _fill(static: list[Tensor], new: list[Tensor]) -> None:
    """Copy inputs into the tensors that a graph reads; what is padded is zero, and so not valid."""
    with torch.no_grad():
        whole = [(to, t) for to, t in zip(static, new) if to.shape == t.shape]
        torch._foreach_copy_([to for to, _ in whole], [t for _, t in whole])
        for to, t in zip(static, new):
            if to.shape != t.shape:
                to[:, : t.shape[1]].copy_(t)
                to[:, t.shape[1] :].zero_()
