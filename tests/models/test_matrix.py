"""Every network with every loss: two steps of training on one batch lower its loss, and what was learned can be saved.

The steps are those of `papm train` (crops, masks, auxiliary losses, parameter groups, recipe of the method), without the
trainer around them. Networks are built once and put back to their start for every loss.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from papm import checkpoint, data, losses, methods, models
from papm.checkpoint import ModelSpec
from papm.config import TrainConfig
from papm.data.splits import Splits
from papm.engine.build import build_loss, resolve
from papm.engine.data import CountingData
from papm.engine.objective import Objective
from papm.engine.optimizer import build_optimizer
from papm.errors import ConfigError
from papm.losses.base import CountingLoss
from papm.models import Network
from papm.structures import Batch, DensityOutput

DENSITY = [n for n in models.names() if models.info(n).kind == "density"]
POINTS = [n for n in models.names() if models.info(n).kind == "points"]
POINT_LOSSES = [m.loss for m in map(methods.METHODS.get, methods.METHODS) if m.network == "points"]
DENSITY_LOSSES = [n for n in losses.names() if n not in POINT_LOSSES]
RELATIVE = {"uot": "gl"}  # losses that are no method: trained as the method they vary
CROP, BATCH = 32, 2
RATE = 2e-5  # a step this small goes downhill if the gradient points there at all


def test_the_matrix_is_whole() -> None:
    assert set(DENSITY_LOSSES) >= {m.loss for m in map(methods.METHODS.get, methods.METHODS) if m.network == "density"}
    assert set(DENSITY_LOSSES) - set(RELATIVE) <= set(methods.METHODS) and set(POINT_LOSSES) <= set(methods.METHODS)
    assert len(DENSITY) >= 6 and len(DENSITY_LOSSES) >= 14 and POINTS == ["p2pnet"]


@dataclass
class Built:
    """A network and the weights it began with."""

    network: Network
    start: dict[str, Tensor]


@functools.lru_cache(maxsize=2)  # the losses of one network follow each other, some with ReLU, some with |·| at its end
def built(backbone: str, options: tuple[tuple[str, Any], ...]) -> Built:
    torch.manual_seed(0)
    network = models.create(backbone, **dict(options))
    return Built(network, {k: v.clone() for k, v in network.state_dict().items()})


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Any:
    yield
    built.cache_clear()


SHORT = {
    "crop": CROP,
    "batch": BATCH,
    "warmup": 0,
    "steps": 100,
    "device": "cpu",
    "lr": RATE,
    "trunk_lr": None,
    "margin": 0,
}


def settings(backbone: str, method: str, **given: Any) -> TrainConfig:
    return resolve(method, backbone, {**SHORT, **given})


@functools.cache
def batch_of(halo: float, seed: int = 0) -> Batch:
    """Two crops; the images are smaller than the crop in one direction, so that there is padding and a mask."""
    scenes = data.open("synthetic", train=BATCH, test=0, size="24x40", count="3-6", seed=seed)["train"]
    counting = CountingData(Splits(scenes, None, None), settings("tiny", "hd-papm"), halo)
    counting.load(torch.device("cpu"))
    made = counting.render(counting.plan(0))
    assert made.mask is not None and not made.mask.all() and made.points.counts.sum() > 0
    return made


def descend(network: Network, loss: CountingLoss, config: TrainConfig, steps: int = 2) -> list[float]:
    """The loss before each of some steps on one batch, and after them."""
    objective, batch = Objective(network.train(), loss), batch_of(loss.halo)
    optimizer = build_optimizer(config, network, loss, torch.device("cpu"), half=False)
    found = []
    for step in range(steps + 1):
        objective.prepare(0, config.steps, config.seed, 0)  # the same dropout in every step: the step's number stays 0
        with torch.set_grad_enabled(step < steps):
            total = objective(batch)[0]
        found.append(float(total.detach()))
        if step < steps:
            optimizer(optimizer.gradients(total), total.detach())
    return found


@pytest.mark.parametrize("loss", DENSITY_LOSSES)
@pytest.mark.parametrize("backbone", DENSITY)
def test_two_steps_lower_the_loss(backbone: str, loss: str) -> None:
    config = settings(backbone, RELATIVE.get(loss, loss))
    made = built(backbone, tuple(sorted(config.network.items())))
    made.network.load_state_dict(made.start)
    module_loss = build_loss(config, made.network.stride)
    if loss in RELATIVE:
        module_loss = losses.create(loss, stride=made.network.stride)
    values = descend(made.network, module_loss, config)
    assert all(v == v and abs(v) < 1e9 for v in values), values
    assert values[2] < values[0], values
    with torch.no_grad():
        output = made.network.eval()(batch_of(module_loss.halo).images)
    assert isinstance(output, DensityOutput) and bool((output.density >= 0).all())
    assert bool(output.density.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("loss", POINT_LOSSES)
@pytest.mark.parametrize("trunk", ["tiny", "vgg16", "lite"])
def test_two_steps_lower_the_loss_of_points(trunk: str, loss: str) -> None:
    config = settings("p2pnet", loss, network={"trunk": trunk})
    made = built("p2pnet", tuple(sorted(config.network.items())))
    made.network.load_state_dict(made.start)
    values = descend(made.network, build_loss(config, made.network.stride), config)
    assert all(v == v and abs(v) < 1e9 for v in values), values
    assert values[2] < values[0], values


@pytest.mark.parametrize("backbone", [*DENSITY, *POINTS])
def test_what_was_learned_is_what_is_loaded(backbone: str, tmp_path: Path) -> None:
    """Bit for bit, running statistics of batch norm included."""
    method = "p2p-papm" if backbone in POINTS else "al-papm"
    config = settings(backbone, method)
    made = built(backbone, tuple(sorted(config.network.items())))
    made.network.load_state_dict(made.start)
    descend(made.network, build_loss(config, made.network.stride), config, steps=1)
    images = batch_of(0.0).images
    file = tmp_path / "best.ckpt"
    checkpoint.save(file, ModelSpec(backbone, dict(config.network), method), made.network.state_dict())
    again = checkpoint.build(*checkpoint.load(file), file)
    with torch.no_grad():
        own, loaded = made.network.eval()(images), again.eval()(images)
    pairs = (
        [(own.density, loaded.density)]
        if isinstance(own, DensityOutput)
        else [(own.points, loaded.points), (own.logits, loaded.logits)]
    )
    assert all(torch.equal(a, b) and bool(a.any()) for a, b in pairs)
    made.network.load_state_dict(made.start)
    with torch.no_grad():
        before = made.network(images)
    first = before.density if isinstance(before, DensityOutput) else before.logits
    assert not torch.equal(first, pairs[-1][0])  # the step had changed something


@pytest.mark.parametrize("backbone", DENSITY)
@pytest.mark.parametrize("method", [m for m in methods.METHODS if methods.method(m).network == "points"])
def test_points_are_refused_by_maps(backbone: str, method: str) -> None:
    with pytest.raises(
        ConfigError, match=f"method '{method}' trains networks that give points, '{backbone}' gives"
    ) as e:
        settings(backbone, method)
    assert "\n" not in str(e.value) and "--backbone p2pnet" in str(e.value)


@pytest.mark.parametrize("method", [m for m in methods.METHODS if methods.method(m).network == "density"])
def test_maps_are_refused_by_points(method: str) -> None:
    with pytest.raises(ConfigError, match="trains networks that give density maps, 'p2pnet' gives points") as e:
        settings("p2pnet", method)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("backbone", ["csrnet", "msfanet"])
@pytest.mark.parametrize("method", ["sc", "dm-count", "al-papm", "gl", "gl-papm"])
def test_negative_densities_are_refused_by_losses_that_move_mass(backbone: str, method: str) -> None:
    with pytest.raises(ConfigError, match=r"densities that are not negative; use network\.activation=relu or abs"):
        settings(backbone, method, network={"activation": "none"})
    for other in ("gaussian", "hd-papm", "bl", "noisecc"):
        assert settings(backbone, other, network={"activation": "none"}).network["activation"] == "none"
