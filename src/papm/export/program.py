"""What every export shares: a network as a program of plain tensors, traced for any image size, and compared with itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from papm import checkpoint
from papm.checkpoint import ModelSpec
from papm.errors import CheckpointError, DataError
from papm.inference import Inference
from papm.models import Network
from papm.structures import DensityOutput, PointProposals

EXAMPLE = (96, 128)  # sides of the image a network is traced with; a multiple of what every network needs
# Sizes at which a file is compared with its network: smaller than a cell, odd, exact multiples, long and thin.
SIZES = ((1, 1), (3, 5), (17, 1), (31, 33), (64, 65), (64, 128), (200, 13))
LIMIT = 1e-4  # of the output's largest value: what float32 sums in another order differ by, with room
COUNT_LIMIT = 1e-3  # of the count
LEAST_COUNT = 0.1  # objects: of a smaller count no share is taken


class Outputs(nn.Module):
    """A network whose outputs are plain tensors."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        output = self.network(images)
        if isinstance(output, DensityOutput):
            return (output.density,)
        return output.points, output.logits, output.reference


def load_model(model: Network | str | Path) -> tuple[Network, ModelSpec | None]:
    """A network as it is, or that of a checkpoint or run folder."""
    if isinstance(model, Network):
        return model, None
    path = checkpoint.resolve(model)
    spec, state = checkpoint.load(path)
    return checkpoint.build(spec, state, path), spec


def plain_network(network: Network, model: Network | str | Path) -> Network:
    """A copy of a network to export: on the CPU, in float32. Refused where its weights or outputs are not finite."""
    plain = copy.deepcopy(network).cpu().float().eval()
    where = "the network" if isinstance(model, Network) else str(model)
    checkpoint.require_finite(plain, where)
    with torch.no_grad():
        made = Outputs(plain)(torch.randn(1, 3, *EXAMPLE, generator=torch.Generator().manual_seed(0)))
    if not all(bool(t.isfinite().all()) for t in made):
        raise CheckpointError(
            f"{where}: its outputs are not finite numbers (NaN or infinity): its training failed or its weights are damaged"
        )
    return plain


def example(network: Network, size: tuple[int, int] | None) -> tuple[Tensor, dict[str, Any] | None]:
    """An image to trace a network with, and which of its sides are free; none where it is for one `size` only."""
    if size is not None:
        return torch.zeros(1, 3, *size), None
    # torch.export takes a map of one cell, and a batch of one, for programs of their own: begin with more. What it makes is
    # right for those too (`compare` looks).
    low, dim = network.multiple + 1, torch.export.Dim
    sides = {0: dim("batch"), 2: dim("height", min=low), 3: dim("width", min=low)}
    return torch.zeros(2, 3, *EXAMPLE), {"images": sides}


@dataclass(frozen=True)
class Difference:
    """The largest over all images: of a value, as a share of the largest value; of a count, as a share of it."""

    values: float
    counts: float

    @property
    def small(self) -> bool:
        """Whether both are what rounding explains; not where one is no number."""
        return self.values <= LIMIT and self.counts <= COUNT_LIMIT


Run = Callable[[Tensor], DensityOutput | PointProposals]


@torch.no_grad()
def compare(other: Run, network: Network, sizes: Sequence[tuple[int, int]] = SIZES, seed: int = 0) -> Difference:
    """How far what another runtime computes is from the network, over images of noise of these sizes (H, W)."""
    plain = copy.deepcopy(network).cpu().float().eval()
    generator = torch.Generator().manual_seed(seed)
    values = counts = 0.0
    told = other.inference if isinstance(other, Network) else network.inference  # of a file: its own
    for size in sizes:
        images = torch.randn(1, 3, *size, generator=generator)
        wanted, made = plain(images), other(images)
        for own, found in zip(_tensors(wanted), _tensors(made), strict=True):
            if found.shape != own.shape:
                raise DataError(
                    f"the file gives {list(found.shape)} for an image of {size}, the network {list(own.shape)}"
                )
            if not bool(found.isfinite().all() and own.isfinite().all()):  # of which no difference can be taken
                raise DataError(f"the file gives numbers that are not finite for an image of {size}")
            if own.numel():
                scale = own.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
                values = max(values, float((found - own).abs().max() / scale))
        one, two = _count(wanted, network.inference), _count(made, told)
        counts = max(counts, abs(two - one) / max(abs(one), LEAST_COUNT))
    return Difference(values, counts)


def _tensors(output: DensityOutput | PointProposals) -> tuple[Tensor, ...]:
    return (output.density,) if isinstance(output, DensityOutput) else (output.points, output.logits, output.reference)


def _count(output: DensityOutput | PointProposals, contract: Inference) -> float:
    """The count; of proposals the expected one, which does not jump where a score is near ½."""
    found = output.density if isinstance(output, DensityOutput) else output.probabilities(contract.background)
    return float(found.double().sum())
