"""Laws that every registered density network obeys."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm import models
from papm.models.base import DensityNetwork
from papm.models.head import Upsampling
from papm.structures import DensityOutput

NAMES = [name for name in models.names() if models.info(name).kind == "density"]
LOCAL = [
    name for name in NAMES if name not in ("man", "msfanet", "dinov2")
]  # those see the whole image, or a view of it
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("tiny", {"stride": 2}),
    ("tiny", {"stride": 8, "activation": "abs", "num_classes": 3}),
    ("vgg19", {"stride": 4, "activation": "abs", "num_classes": 2}),
    ("vgg19", {"stride": 2, "upsample": "nearest", "head_init": "normal"}),
    ("lite", {"stride": 4, "num_classes": 2}),
    ("csrnet", {"activation": "abs", "num_classes": 2}),
    ("mcnn", {"num_classes": 2}),
    ("msfanet", {"form": "qnrf"}),
    ("msfanet", {"trunk": "vgg16", "num_classes": 2, "checkpoint": True}),
    ("man", {"stride": 8, "num_classes": 2, "checkpoint": True}),
]
IDS = ["-".join([name, *(str(v) for v in options.values())]) for name, options in VARIANTS]
Build = Callable[..., DensityNetwork]


@pytest.fixture(scope="module")
def build() -> Build:
    """Networks with fixed random weights, each built once."""
    built: dict[str, DensityNetwork] = {}

    def make(name: str, **options: Any) -> DensityNetwork:
        key = f"{name}{sorted(options.items())}"
        if key not in built:
            torch.manual_seed(0)
            network = models.create(name, **options)
            assert isinstance(network, DensityNetwork)
            built[key] = network.eval()
        return built[key]

    return make


def images(height: int, width: int, batch: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@pytest.mark.parametrize("size", [(1, 1), (17, 31), (32, 48)])
@torch.no_grad()
def test_shape_sign_and_dtype(build: Build, name: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    network = build(name, **options)
    output = network(images(*size, batch=2))
    stride = options.get("stride", models.info(name).stride)
    cells = [-(-side // stride) for side in size]
    assert isinstance(output, DensityOutput)
    assert output.stride == network.stride == stride
    assert output.density.shape == (2, network.num_classes, *cells)
    assert network.num_classes == options.get("num_classes", 1)
    assert output.density.dtype == torch.float32
    assert bool((output.density >= 0).all())
    assert bool(output.density.isfinite().all())


@pytest.mark.parametrize(("name", "cells"), [("tiny", (1025, 4)), ("mcnn", (1025, 4)), ("csrnet", (513, 2))])
@torch.no_grad()
def test_a_long_thin_image(build: Build, name: str, cells: tuple[int, int]) -> None:
    density = build(name)(images(4097, 13)).density
    assert density.shape == (1, 1, *cells)
    assert bool(density.isfinite().all()) and bool((density >= 0).all())


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_counts_of_odd_sizes_in_half_precision(build: Build, name: str) -> None:
    network = build(name)
    half = copy.deepcopy(network).half()
    for size in ((1, 1), (3, 130), (65, 7)):
        image = images(*size)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = network(image).density
        for density in (mixed, half(image.half()).density):
            assert bool(density.isfinite().all()) and density.sum() >= 0 and bool((density >= 0).all())


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
@torch.no_grad()
def test_padding_is_the_mirror_image_and_not_counted(build: Build, name: str, options: dict[str, Any]) -> None:
    network = build(name, **{"activation": "abs", **options})
    image = images(17, 31)
    multiple = network.multiple
    padded = F.pad(image, (0, -31 % multiple, 0, -17 % multiple), mode="reflect")
    small, whole = network(image).density, network(padded).density
    torch.testing.assert_close(small, whole[..., : small.shape[-2], : small.shape[-1]], rtol=0, atol=0)
    if small.shape != whole.shape:
        assert small.sum() < whole.sum()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_images_of_a_batch_do_not_mix(build: Build, name: str) -> None:
    network = build(name, activation="abs")
    batch = images(40, 24, batch=3)
    together = network(batch).density
    torch.testing.assert_close(together[1:2], network(batch[1:2]).density, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in LOCAL), ("tiny", {"stride": 2}), ("vgg19", {"stride": 2})]
)
@torch.no_grad()
def test_moving_the_image_moves_the_map(build: Build, name: str, options: dict[str, Any], axis: int) -> None:
    network = build(name, **{"activation": "abs", **options})
    assert network.receptive_field is not None
    step, cells = network.multiple, network.multiple // network.stride
    margin = -(-network.receptive_field // step) * step
    length = 2 * margin + 2 * step
    strip = images(32, length + step)
    strip = strip if axis == -1 else strip.mT.contiguous()
    first = network(strip.narrow(axis, 0, length)).density
    second = network(strip.narrow(axis, step, length)).density
    start, inner = margin // network.stride + cells, cells  # both maps are away from borders here
    moved = first.narrow(axis, start, inner), second.narrow(axis, start - cells, inner)
    torch.testing.assert_close(*moved, rtol=1e-4, atol=1e-6)
    assert first.std() > 0


FINER = [("tiny", {"stride": 2}), ("vgg19", {"stride": 4}), ("lite", {"stride": 4})]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in LOCAL), *FINER])
@torch.no_grad()
def test_the_receptive_field_bounds_what_a_cell_sees(build: Build, name: str, options: dict[str, Any]) -> None:
    network = copy.deepcopy(build(name, **{"activation": "abs", **options})).double()
    assert network.receptive_field is not None
    width = 2 * network.receptive_field + 6 * network.multiple
    cell = width // network.stride // 2
    near = slice(cell * network.stride - network.receptive_field, (cell + 1) * network.stride + network.receptive_field)
    image, other, close = (images(16, width, seed=seed).double() for seed in range(3))
    other[..., near] = image[..., near]
    value = network(image).density[..., cell]
    torch.testing.assert_close(network(other).density[..., cell], value, rtol=1e-9, atol=1e-12)
    # and the bound is not idle: half as far is too little
    half = slice(near.start + network.receptive_field // 2, near.stop - network.receptive_field // 2)
    close[..., half] = image[..., half]
    assert not torch.allclose(network(close).density[..., cell], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("upsample", get_args(Upsampling))
@torch.no_grad()
def test_corner_on_corner_is_not_local(build: Build, upsample: str) -> None:
    """Where samples lie then depends on the size of the map: a tile is no part of the whole, and must not pass for one."""
    network = build("vgg19", upsample=upsample)
    features = torch.rand(1, 512, 2, 24, generator=torch.Generator().manual_seed(0))
    head: Any = network.head
    whole, part = (head(x)[..., 16:24] for x in (features, features[..., :20]))
    assert torch.allclose(whole, part, rtol=1e-4) == (network.receptive_field is not None)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LOCAL])
@torch.no_grad()
def test_what_is_not_local_sees_the_far_end(build: Build, name: str) -> None:
    network = build(name, activation="abs")
    assert network.receptive_field is None
    image, other = images(32, 640), images(32, 640, seed=1)
    other[..., :608] = image[..., :608]
    exact = copy.deepcopy(network).double()
    first, second = (exact(x.double()).density[..., :4] for x in (image, other))  # no convolution sees that far
    assert bool((first != second).any())


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=IDS)
def test_gradients_reach_every_parameter(build: Build, name: str, options: dict[str, Any]) -> None:
    network = copy.deepcopy(build(name, **{**options, "activation": "abs"})).train()
    side = 2 * network.multiple  # of one cell or token, softmax and batch norm pass no gradient
    network(images(max(32, side), max(32, side), batch=2)).density.square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key
        # The norm after this one bias takes its mean away again: its gradient is zero but for rounding.
        assert bool(parameter.grad.any()) or (name, key) == ("msfanet", "attention.0.bias"), key


@pytest.mark.parametrize("name", NAMES)
def test_parameter_groups_hold_every_parameter_once(build: Build, name: str) -> None:
    network = build(name)
    groups = network.parameter_groups()
    assert list(groups) == ["trunk", "head"]
    together = [id(p) for group in groups.values() for p in group]
    assert len(together) == len(set(together))
    assert set(together) == {id(p) for p in network.parameters()}
    assert groups["head"]
    assert bool(groups["trunk"]) == (models.info(name).trunk is not None)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_channels_last_gives_the_same(build: Build, name: str) -> None:
    network = build(name, activation="abs")
    image = images(33, 47, batch=2)
    other = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    result = other(image.contiguous(memory_format=torch.channels_last)).density
    torch.testing.assert_close(result, network(image).density, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_precisions_agree_and_end_in_float32(build: Build, name: str) -> None:
    network = build(name, activation="abs")
    image = images(32, 40)
    exact = copy.deepcopy(network).double()(image.double()).density
    assert exact.dtype == torch.float64
    torch.testing.assert_close(network(image).density.double(), exact, rtol=1e-3, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = network(image).density
    half = copy.deepcopy(network).half()(image.half()).density
    scale = exact.abs().max()
    for low, tolerance in ((mixed, 0.05), (half, 0.01)):  # bfloat16 has 8 bits, float16 has 11
        assert low.dtype == torch.float32
        assert (low - exact).abs().max() < tolerance * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_compiles_without_graph_breaks(build: Build, name: str) -> None:
    network = build(name, activation="abs")
    image = images(20, 30)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(image).density, network(image).density)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_exports_for_every_size(build: Build, name: str) -> None:
    class Density(nn.Module):
        def __init__(self, network: DensityNetwork) -> None:
            super().__init__()
            self.network = network

        def forward(self, image: Tensor) -> Tensor:
            density: Tensor = self.network(image).density
            return density

    network = build(name, activation="abs")
    low = network.multiple + 1  # torch.export treats a map of one cell as another program
    sides = {2: torch.export.Dim("height", min=low, max=4096), 3: torch.export.Dim("width", min=low, max=4096)}
    # The example is a multiple on purpose: the padding must be in the program all the same.
    program = torch.export.export(Density(network), (images(64, 96),), dynamic_shapes={"image": sides}).module()
    for size in [(64, 96), (low, low + 14), (96, 50)]:
        torch.testing.assert_close(program(images(*size)), network(images(*size)).density, rtol=1e-4, atol=1e-6)
