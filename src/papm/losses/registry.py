"""The losses by name, and the module that a loss function becomes.

A loss is a function of a prediction and its points whose keyword-only parameters are its options:

    def mine(density: Tensor, points: PointBatch, *, stride: int = 8, sigma: float = 4.0, context: LossContext | None = None)
        -> LossOutput

`register("mine", mine)` makes it a loss by name. `FunctionLoss` holds the options and calls it; a loss with something more to
say (a halo, parameters of its own) registers a subclass beside its function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from papm.losses.base import CountingLoss, LossContext
from papm.registry import Registry, check_options
from papm.registry import options as options_of
from papm.structures import LossOutput, PointBatch

Function = Callable[..., LossOutput]
F = TypeVar("F", bound=Function)

INPUTS = ("stride", "context", "progress", "generator")  # keywords of a loss function that are no options


class FunctionLoss(CountingLoss):
    """A loss function with its options: `function(density, points, stride=…, context=…, **options)`."""

    def __init__(self, function: Function, stride: int = 8, **options: Any) -> None:
        super().__init__(stride)
        self.function = function
        self.options = {**options_of(function, skip=INPUTS), **options}

    def compute(self, prediction: Any, points: PointBatch, context: LossContext | None) -> LossOutput:
        return self.function(prediction, points, stride=self.stride, context=context, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in {"stride": self.stride, **self.options}.items())


@dataclass(frozen=True)
class _Entry:
    function: Function | None
    module: type[CountingLoss]

    @property
    def declared(self) -> list[Callable[..., Any]]:
        """Where the options are declared."""
        return [f for f in (self.function, self.module) if f is not None]


LOSSES: Registry[_Entry] = Registry("loss")


def register(name: str, function: Function | type[CountingLoss], module: type[FunctionLoss] = FunctionLoss) -> None:
    """Add a loss: a function, with the module that holds its options; or a `CountingLoss` made by `(stride, **options)`."""
    made = _Entry(None, function) if isinstance(function, type) else _Entry(function, module)
    LOSSES.register(name, made)


def names() -> list[str]:
    """The known losses."""
    return LOSSES.names()


def options(name: str) -> dict[str, Any]:
    """The options of a loss with their defaults."""
    return options_of(*LOSSES.get(name).declared, skip=INPUTS)


def create(name: str, stride: int = 8, **given: Any) -> CountingLoss:
    """The loss of that name for a network of that stride.

    >>> create("hd-papm", stride=8, sigma=6.0)
    DensityLoss(stride=8, sigma=6.0, shape=8.0, scale=1.0)
    """
    entry = LOSSES.get(name)
    check_options(f"loss '{name}'", given, *entry.declared, skip=INPUTS)
    if entry.function is None:
        return entry.module(stride, **given)
    return cast(type[FunctionLoss], entry.module)(entry.function, stride, **given)


def variant(function: F, name: str, doc: str, **defaults: Any) -> F:
    """The same function with other defaults, and a name and docstring of its own."""
    made = functools.partial(function, **defaults)
    made.__name__, made.__doc__ = name, doc  # type: ignore[attr-defined]
    return cast(F, made)
