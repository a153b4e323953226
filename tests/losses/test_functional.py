"""The losses as functions: the same numbers as the modules, options declared once, documented, checked."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from papm import losses
from papm.errors import ConfigError, DataError
from papm.losses import LossContext, functional
from papm.losses.kdmg import KernelGenerator
from papm.losses.registry import INPUTS
from papm.structures import DensityOutput, PointBatch, PointProposals

FUNCTIONS = {
    "hd-papm": functional.hd_papm, "gaussian": functional.gaussian, "gaussian-adaptive": functional.gaussian_adaptive,
    "sc": functional.sc, "dm-count": functional.dm_count, "al-papm": functional.al_papm, "gl": functional.gl,
    "gl-papm": functional.gl_papm, "uot": functional.uot, "bl": functional.bayesian, "ial": functional.ial,
    "noisecc": functional.noisecc, "kdmg": functional.kdmg, "p2pnet": functional.p2pnet, "p2p-papm": functional.p2p_papm,
}  # fmt: skip
VARIANTS = {"gaussian-16", "p2p-papm-literal"}  # of functions with other defaults


def scene(name: str) -> tuple[Any, list[Tensor]]:
    rng = torch.Generator().manual_seed(0)
    points = [torch.rand(n, 2, generator=rng) * 64 for n in (7, 0)]
    if name.startswith("p2p"):
        xy = torch.rand(2, 40, 2, generator=rng) * 64
        return PointProposals(xy, torch.randn(2, 40, 2, generator=rng, requires_grad=True), xy[0]), points
    return (0.3 * torch.rand(2, 1, 8, 8, generator=rng)).requires_grad_(), points


def test_every_loss_is_a_function() -> None:
    assert set(FUNCTIONS) == set(losses.names()) - VARIANTS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_is_the_total_of_the_module(name: str) -> None:
    prediction, points = scene(name)
    torch.manual_seed(0)
    module = losses.create(name, stride=8)
    more: dict[str, Any] = {"generator": module.generator} if name == "kdmg" else {}
    mask = torch.ones(2, 64, 64, dtype=torch.bool)
    mask[:, 40:] = False
    for context in (None, LossContext(mask=mask)):
        total = FUNCTIONS[name](prediction, points, context=context, **more)
        assert total.dim() == 0 and total.requires_grad
        torch.testing.assert_close(total, module(prediction, points, context=context).total)
    again = FUNCTIONS[name](prediction, PointBatch.from_list(points), stride=8, context=context, **more)
    torch.testing.assert_close(again, total)
    if isinstance(prediction, Tensor):
        torch.testing.assert_close(
            FUNCTIONS[name](DensityOutput(prediction, 8), points, context=context, **more), total
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_those_of_the_signature(name: str) -> None:
    """Once declared, and the same for the function, the module and the command line; kdmg's generator has two of its own."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in INPUTS}
    generator = {"side": 5, "channels": 32} if name == "kdmg" else {}
    assert losses.options(name) == {**own, **generator}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_docstring_says_the_shapes_and_its_example_runs(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert "points B × [n, 2]" in text or name == "p2p-papm"
    names = {**vars(functional), "functional": functional, "KernelGenerator": KernelGenerator}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert test.examples and doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_input_and_options_are_checked() -> None:
    density, points = scene("sc")
    with pytest.raises(ConfigError, match="sigma of al_papm must be positive, not 0"):
        functional.al_papm(density, points, sigma=0.0)
    with pytest.raises(ConfigError, match="unknown option of al_papm 'sgima'; did you mean 'sigma'"):
        functional.al_papm(density, points, sgima=3.0)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="stride of sc is a whole number ≥ 1"):
        functional.sc(density, points, stride=0)
    with pytest.raises(ConfigError, match="stride is 4, the loss was made for 8"):
        functional.sc(DensityOutput(density, 4), points)
    with pytest.raises(DataError, match="image 1 of the batch has a point"):
        functional.sc(density, [points[0], torch.tensor([[float("nan"), 1.0]])])
    with pytest.raises(ConfigError, match="a density network needs another"):
        functional.p2pnet(density, points)  # type: ignore[arg-type]


def test_autocast_does_not_reach_inside() -> None:
    density, points = scene("hd-papm")
    with torch.autocast("cpu", torch.bfloat16):
        cast = functional.hd_papm(density, points)
    assert cast.dtype == torch.float32 and cast == functional.hd_papm(density, points)


def test_p2p_papm_begins_with_the_cost_of_p2pnet() -> None:
    """A poor proposal 2 px away or a good one 20 px away: distance says the first, a weak GGD cost the second."""
    xy = torch.tensor([[12.0, 10.0], [30.0, 10.0]])
    proposals = PointProposals(xy[None], torch.tensor([[[0.0, -2.0], [0.0, 2.0]]]), xy)
    points = [torch.tensor([[10.0, 10.0]])]
    early, late = (functional.p2p_papm(proposals, points, tau=1e-5, progress=p) for p in (0.1, 1.0))
    assert early == functional.p2pnet(proposals, points) and early != late
