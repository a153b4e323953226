"""A torch.export package (.pt2): the network as a program that any torch of the same or a later release runs, without papm.

`torch.export.load("model.pt2").module()(images)` gives the outputs in the order of `papm.exported.OUTPUTS`; the contract is the
extra file `papm.json`. To load such a file can run code of whoever wrote it: papm writes packages and loads none.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from papm.checkpoint import ModelSpec
from papm.export.program import SIZES, Difference, Outputs, compare, example, load_model, plain_network
from papm.exported import About
from papm.models import Network
from papm.structures import DensityOutput, PointProposals

CONTRACT = "papm.json"


def export_package(
    model: Network | str | Path,
    file: str | Path,
    size: tuple[int, int] | None = None,
    *,
    spec: ModelSpec | None = None,
    licence: str = "",
) -> Path:
    """Write a network, or that of a checkpoint or run folder, as a torch.export package, for any batch of images whose sides
    are longer than what the network pads to (`multiple` in the contract), or for one image of `size` (H, W)."""
    network, known = load_model(model)
    plain = plain_network(network, model)
    images, shapes = example(plain, size)
    about = About.of(plain, spec or known or ModelSpec(type(plain).__name__.lower()), size, licence)
    with torch.no_grad():
        program = torch.export.export(Outputs(plain), (images,), dynamic_shapes=shapes)
    logging.getLogger("torch.export").setLevel(logging.ERROR)  # it advises on file names
    torch.export.save(program, str(file), extra_files={CONTRACT: about.to_text()})
    return Path(file)


def check_package(file: Path, network: Network, size: tuple[int, int] | None = None) -> Difference:
    """How far a package that was just written is from its network; it is loaded, so: only one's own."""
    program = torch.export.load(str(file)).module()

    def run(images: Tensor) -> DensityOutput | PointProposals:
        made = program(images)
        return DensityOutput(made[0], network.stride) if len(made) == 1 else PointProposals(*made)

    fitting = [s for s in SIZES if min(s) > network.multiple] + [(network.multiple + 1, 2 * network.multiple + 7)]
    return compare(run, network, fitting if size is None else [size])
