"""What a loss is given, checked once: maps or proposals in float32 or better, points as a padded batch on their device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.points import as_batch
from papm.structures import DensityOutput, PointBatch, PointProposals
from papm.text import n_of

Points = Sequence[Tensor] | PointBatch


def accept_density(
    prediction: Tensor | DensityOutput | PointProposals, points: Points, stride: int, maps: int = 1
) -> tuple[Tensor, PointBatch]:
    """A density [B, maps, h, w] and its points; an error where they do not fit each other or the loss."""
    if isinstance(prediction, PointProposals):
        raise ConfigError("this is a loss on density maps; a point network needs a point loss")
    if not isinstance(prediction, Tensor | DensityOutput):
        raise ConfigError(f"a density must be a tensor [B, C, h, w], not {type(prediction).__name__}")
    if isinstance(prediction, DensityOutput):
        if prediction.stride != stride:
            raise ConfigError(f"the network's stride is {prediction.stride}, the loss was made for {stride}")
        prediction = prediction.density
    if prediction.dim() != 4:
        raise ConfigError(f"a density must be [B, C, h, w], not {list(prediction.shape)}")
    if prediction.shape[1] != maps:
        wanted = "one map" if maps == 1 else f"{maps} maps"
        raise ConfigError(f"this loss needs {wanted} per image, the network gives {prediction.shape[1]}")
    check_images(len(prediction))
    check_density(prediction)
    batch = accept_points(points, prediction.device)
    if len(batch) != len(prediction):
        raise ConfigError(f"{n_of(len(prediction), 'map')} but points of {n_of(len(batch), 'image')}")
    return _precise(prediction), batch


def accept_proposals(
    prediction: Tensor | DensityOutput | PointProposals, points: Points
) -> tuple[PointProposals, PointBatch]:
    """Proposals and their points; an error where they do not fit each other."""
    if not isinstance(prediction, PointProposals):
        raise ConfigError("this is a loss on proposed points; a density network needs another")
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
    xy, logits, reference = (_precise(t) for t in (prediction.points, prediction.logits, prediction.reference))
    return PointProposals(xy, logits, reference), batch


def _precise(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


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


def check_points(points: Sequence[Tensor]) -> None:
    """Refuse what is not [n, 2], and NaN and infinite coordinates, naming the image."""
    for b, p in enumerate(points):
        if p.numel() and (p.dim() != 2 or p.shape[1] != 2):
            raise DataError(f"the points of image {b} of the batch must be [n, 2], not {list(p.shape)}")
        if not torch.isfinite(p).all():
            raise DataError(f"image {b} of the batch has a point that is not a finite number")
