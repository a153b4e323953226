"""The losses as plain functions: `f(density, points, *, stride=8, …, context=None) -> Tensor`, the total, to call backward on.

Points are a list of [n, 2] tensors, (x, y) in input pixels, or a `PointBatch`. The options of a loss by name are the
keywords of its function; see the docstring of each. `kdmg` also needs the network that makes its kernels.

>>> density = torch.rand(2, 1, 8, 8, requires_grad=True)
>>> al_papm(density, [torch.rand(5, 2) * 64, torch.zeros(0, 2)], stride=8, sigma=16.0, shape=2.0).backward()
>>> density.grad.shape
torch.Size([2, 1, 8, 8])
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from papm.losses import bayesian as bayesian_file
from papm.losses import density, transport, unbalanced
from papm.losses import kdmg as kdmg_file
from papm.losses import noisecc as noisecc_file
from papm.losses import points as points_file
from papm.losses.inputs import Points, accept_density, accept_proposals
from papm.registry import check_options
from papm.structures import DensityOutput, LossOutput, PointBatch, PointProposals

P = ParamSpec("P")
UNCHECKED = ("context", "generator", "progress")

MapFunction = Callable[Concatenate[Tensor, PointBatch, P], LossOutput]
PointFunction = Callable[Concatenate[PointProposals, PointBatch, P], LossOutput]


def _of_map(function: MapFunction[P]) -> Callable[Concatenate[Tensor | DensityOutput, Points, P], Tensor]:
    """The total of a loss on density maps, its input checked."""

    @functools.wraps(function)
    def total(density: Tensor | DensityOutput, points: Points, **options: Any) -> Tensor:
        _check(function, options)
        given, batch = accept_density(density, points, options.get("stride", 8))
        with torch.autocast(given.device.type, enabled=False):
            return function(given, batch, **options).total  # type: ignore[call-arg]

    return total  # type: ignore[return-value]


def _of_points(function: PointFunction[P]) -> Callable[Concatenate[PointProposals, Points, P], Tensor]:
    """The total of a loss on proposals, its input checked."""

    @functools.wraps(function)
    def total(proposals: PointProposals, points: Points, **options: Any) -> Tensor:
        _check(function, options)
        given, batch = accept_proposals(proposals, points)
        with torch.autocast(batch.xy.device.type, enabled=False):
            return function(given, batch, **options).total  # type: ignore[call-arg]

    return total  # type: ignore[return-value]


def _check(function: Callable[..., LossOutput], options: dict[str, Any]) -> None:
    checked = {k: v for k, v in options.items() if k not in UNCHECKED}
    check_options(function.__name__, checked, function)


hd_papm = _of_map(density.hd_papm)
gaussian = _of_map(density.gaussian)
gaussian_adaptive = _of_map(density.gaussian_adaptive)
sc = _of_map(transport.sc)
dm_count = _of_map(transport.dm_count)
al_papm = _of_map(transport.al_papm)
gl = _of_map(unbalanced.gl)
gl_papm = _of_map(unbalanced.gl_papm)
uot = _of_map(unbalanced.uot)
bayesian = _of_map(bayesian_file.bayesian)
ial = _of_map(bayesian_file.ial)
noisecc = _of_map(noisecc_file.noisecc)
kdmg = _of_map(kdmg_file.kdmg)
p2pnet = _of_points(points_file.p2pnet)
p2p_papm = _of_points(points_file.p2p_papm)
