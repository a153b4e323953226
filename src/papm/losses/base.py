"""What every loss shares: its call, its context, the checks on its input, and the registry.

loss = papm.losses.create("hd-papm", stride=8)
out = loss(density, points)        # density [B, C, h, w], points: a list of [n, 2] tensors
out.total.backward()
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from papm.errors import ConfigError, DataError, unknown
from papm.losses.recorded import Recorder
from papm.points import as_batch
from papm.structures import DensityOutput, LossOutput, PointBatch, PointProposals
from papm.structures import LossContext as LossContext
from papm.targets import touched_cells
from papm.text import n_of

Points = Sequence[Tensor] | PointBatch


class CountingLoss(nn.Module):
    """Base of the losses: normalises both accepted forms of input, checks them, and calls `compute`.

    `halo` is the band around a crop, in pixels, whose points the loss wants to know (`LossContext.halo`). `progress` is
    the part of training that is done, 0 … 1: a training loop may set it before a step, for losses that change on the way.
    Left alone it is 1: the loss in its final form.
    """

    halo: float = 0.0
    needs_images: bool = False  # whether the loss cannot do without LossContext.images
    maps: int = 1  # maps an image that it takes: one for each class
    recordable: bool = True  # False: it waits for the device, or chooses its operations by values on it
    progress: float = 1.0

    def __init__(self, stride: int = 8) -> None:
        super().__init__()
        if stride < 1:
            raise ConfigError(f"a loss needs the stride of the network's map, a whole number ≥ 1, not {stride}")
        self.stride = int(stride)
        self._recorder = Recorder()

    @property
    def phase(self) -> Hashable:
        """What the loss does at this point of training, where that depends on `progress`: recordings are made for each."""
        return None

    def forward(
        self, prediction: Tensor | DensityOutput | PointProposals, points: Points, *, context: LossContext | None = None
    ) -> LossOutput:
        """The loss of a batch: `total` to call backward on, and the named terms it is made of."""
        density, batch = self.accept(prediction, points)
        with torch.autocast(density.device.type, enabled=False):
            if self.records(density):
                return self._recorder(self, density, batch, context)
            return self.compute(density, batch, context)

    def accept(self, prediction: Tensor | DensityOutput | PointProposals, points: Points) -> tuple[Tensor, PointBatch]:
        """Both inputs in the form that `compute` takes, in float32 or better; an error where they do not fit."""
        if isinstance(prediction, PointProposals):
            raise ConfigError(f"{type(self).__name__} is a loss on density maps; a point network needs a point loss")
        if not isinstance(prediction, Tensor | DensityOutput):
            raise ConfigError(f"a density must be a tensor [B, C, h, w], not {type(prediction).__name__}")
        if isinstance(prediction, DensityOutput):
            if prediction.stride != self.stride:
                raise ConfigError(f"the network's stride is {prediction.stride}, the loss was made for {self.stride}")
            prediction = prediction.density
        if prediction.dim() != 4:
            raise ConfigError(f"a density must be [B, C, h, w], not {list(prediction.shape)}")
        if prediction.shape[1] != self.maps:
            wanted = "one map" if self.maps == 1 else f"{self.maps} maps"
            raise ConfigError(f"this loss needs {wanted} an image, the network gives {prediction.shape[1]}")
        check_images(len(prediction))
        check_density(prediction)
        batch = accept_points(points, prediction.device)
        if len(batch) != len(prediction):
            raise ConfigError(f"{n_of(len(prediction), 'map')} but points of {n_of(len(batch), 'image')}")
        return prediction.float() if prediction.dtype != torch.float64 else prediction, batch

    def records(self, density: Tensor) -> bool:
        """Whether this call may be launched as one (`losses.recorded`): on CUDA, unless something larger is recorded."""
        return (
            self.recordable
            and density.is_cuda
            and density.requires_grad
            and not self.needs_images
            and not torch.compiler.is_compiling()
            and not torch.cuda.is_current_stream_capturing()
            and not any(True for _ in self.parameters())  # what is recorded knows the gradient of the map only
        )

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        """The loss itself, in float32 or better."""
        raise NotImplementedError


class WrappingLoss(CountingLoss):
    """Base of the losses that call another one on parts of their input: what they ask for, and when, is what it asks for."""

    def __init__(self, loss: CountingLoss, maps: int) -> None:
        super().__init__(loss.stride)
        self.loss, self.maps = loss, maps
        self.halo, self.needs_images, self.recordable = loss.halo, loss.needs_images, loss.recordable

    def inner(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        """The loss inside, never recorded by itself: all of it is recorded at once."""
        return self.loss.compute(*self.loss.accept(density, points), context)

    @property
    def progress(self) -> float:
        """That of the loss inside, which alone may depend on it."""
        return self.loss.progress

    @progress.setter
    def progress(self, value: float) -> None:
        self.loss.progress = value

    @property
    def phase(self) -> Hashable:
        return self.loss.phase


class PointLoss(CountingLoss):
    """Base of the losses on proposals: checks both inputs and calls `compute_proposals` in float32 or better."""

    def forward(
        self, prediction: Tensor | DensityOutput | PointProposals, points: Points, *, context: LossContext | None = None
    ) -> LossOutput:
        """The loss of a batch of proposals: `total` to call backward on, and the named terms it is made of."""
        if not isinstance(prediction, PointProposals):
            raise ConfigError(f"{type(self).__name__} is a loss on proposed points; a density network needs another")
        b, m = prediction.logits.shape[:2]
        if prediction.points.shape != (b, m, 2) or prediction.reference.shape != (m, 2):
            raise ConfigError(
                f"proposals need points [B, M, 2], logits [B, M, classes + 1] and reference [M, 2], not "
                f"{list(prediction.points.shape)}, {list(prediction.logits.shape)}, {list(prediction.reference.shape)}"
            )
        check_images(b)
        batch = accept_points(points, prediction.points.device)
        if len(batch) != b:
            raise ConfigError(f"proposals of {n_of(b, 'image')} but points of {len(batch)}")
        xy, logits, reference = (
            t if t.dtype == torch.float64 else t.float()
            for t in (prediction.points, prediction.logits, prediction.reference)
        )
        with torch.autocast(xy.device.type, enabled=False):
            return self.compute_proposals(PointProposals(xy, logits, reference), batch, context)

    def compute_proposals(
        self, proposals: PointProposals, points: PointBatch, context: LossContext | None
    ) -> LossOutput:
        """The loss itself."""
        raise NotImplementedError


def accept_points(points: Points, device: torch.device) -> PointBatch:
    """Either form of points as a padded batch on the device."""
    if isinstance(points, PointBatch):
        if not points.xy.is_cuda:  # on a GPU looking would wait for the device
            odd = ~torch.isfinite(points.xy).all(-1)
            wrong = (odd & points.valid).any(1)
            if wrong.any():
                raise DataError(f"image {int(wrong.nonzero()[0])} of the batch has a point that is not a finite number")
            if odd.any():  # padding that is no zero: times a weight of zero it would still be NaN
                points = replace(points, xy=points.xy.masked_fill(odd[..., None], 0.0))
        return as_batch(points, device)
    # One check on the host, before the copy.
    tensors = [_tensor(b, p) for b, p in enumerate(points)]
    check_points(tensors)
    return as_batch(tensors, device)


def _tensor(image: int, points: Any) -> Tensor:
    """Points as people have them (arrays, lists) as a tensor."""
    if isinstance(points, Tensor):
        return points
    try:
        made = torch.as_tensor(points, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        kind = type(points).__name__
        raise DataError(f"the points of image {image} must be a tensor or array [n, 2], not {kind}") from None
    return made.reshape(0, 2) if made.numel() == 0 else made


def check_images(number: int) -> None:
    """Refuse a batch of none, whose mean is NaN."""
    if not number:
        raise DataError("a loss needs at least one image, and the batch has none")


def check_density(density: Tensor) -> None:
    """Refuse what is no number of objects, naming the image. On the CPU only: on a GPU looking would wait for the device."""
    if density.is_cuda:
        return
    most = 1e150 if density.dtype == torch.float64 else 1e15  # the square of a map's sum must be a number
    good = (density.abs() <= most).flatten(1).all(1)  # NaN is not
    if not good.all():
        wrong = int((~good).nonzero()[0])
        raise DataError(
            f"the density of image {wrong} of the batch holds NaN, infinity, or more than {most:g} in a cell"
        )


def masked(density: Tensor, context: LossContext | None, stride: int) -> Tensor:
    """The density where pixels count, zero elsewhere."""
    mask = cell_mask(context, density, stride)
    return density if mask is None else density * mask


def with_gradient(value: Tensor, density: Tensor, gradient: Tensor) -> Tensor:
    """[B] numbers equal to `value` whose derivative by `density` is `gradient` (both [B, ...], taken as constants)."""
    surrogate = (density * gradient.detach()).flatten(1).sum(1)
    return value.detach() + surrogate - surrogate.detach()


def check_points(points: Sequence[Tensor]) -> None:
    """Refuse what is not [n, 2], and NaN and infinite coordinates, naming the image."""
    for b, p in enumerate(points):
        if p.numel() and (p.dim() != 2 or p.shape[1] != 2):
            raise DataError(f"the points of image {b} of the batch must be [n, 2], not {list(p.shape)}")
        if not torch.isfinite(p).all():
            raise DataError(f"image {b} of the batch has a point that is not a finite number")


def cell_mask(context: LossContext | None, density: Tensor, stride: int) -> Tensor | None:
    """float [B, 1, h, w], 1 where a cell holds at least one pixel that counts; None when all do."""
    if context is None or context.mask is None:
        return None
    cells = touched_cells(context.mask, stride)
    h, w = density.shape[-2:]
    if cells.shape[-2:] != (h, w):
        height, width = context.mask.shape[-2:]
        raise ConfigError(f"a mask of {height}×{width} pixels does not fit {h}×{w} cells of stride {stride}")
    return cells[:, None].float()


_FACTORIES: dict[str, Callable[..., CountingLoss]] = {}


def register(name: str, factory: Callable[..., CountingLoss]) -> None:
    """Add a loss: `factory(stride=..., **options)`, its keyword arguments are the options users may set."""
    _FACTORIES[name] = factory


def names() -> list[str]:
    """The known losses."""
    return sorted(_FACTORIES)


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    if name not in _FACTORIES:
        raise unknown("loss", name, _FACTORIES)
    parameters = inspect.signature(_FACTORIES[name]).parameters.items()
    return {key: p for key, p in parameters if key != "stride" and p.kind is not p.VAR_KEYWORD}


def options(name: str) -> dict[str, Any]:
    """The options of a loss with their defaults."""
    return {key: p.default for key, p in _parameters(name).items()}


def create(name: str, stride: int = 8, **given: Any) -> CountingLoss:
    """The loss of that name for a network of that stride.

    >>> create("hd-papm", stride=8, sigma=6.0)
    DensityLoss(ggd, sigma=6.0, shape=8.0, stride=8)
    """
    known = _parameters(name)
    for key, value in given.items():
        if key not in known:
            raise unknown(f"option of loss '{name}'", key, known)
        if (wanted := _wanted_instead(known[key], value)) is not None:
            raise ConfigError(f"{key} of loss '{name}' is {wanted}, not '{value}'")
    return _FACTORIES[name](stride=stride, **given)


def _wanted_instead(option: inspect.Parameter, value: Any) -> str | None:
    """What the option takes, in words, when it does not take the value; options that are names check themselves."""
    kind, optional = type(option.default).__name__, str(option.annotation).endswith(" | None")
    if option.default is None:
        kind = str(option.annotation).removesuffix(" | None")
    if value is None and optional:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "float" and not (whole or (isinstance(value, float) and math.isfinite(value))):
        return "a number, or null" if optional else "a finite number"
    if kind == "int" and not whole:
        return "a whole number"
    return "true or false" if kind == "bool" and not isinstance(value, bool) else None
