from __future__ import annotations

from typing import Any

import pytest
import torch

from papm import models
from papm.errors import ConfigError, DataError
from papm.models.base import _is_exporting, crop_to_image, pad_to_multiple
from papm.models.weights import PUBLISHED
from papm.structures import DensityOutput


def test_names_are_sorted_and_described() -> None:
    assert models.names() == sorted(models.names())
    assert {"tiny", "vgg19"} <= set(models.names())
    for name in models.names():
        about = models.info(name)
        assert about.name == name
        assert about.kind in ("density", "points")
        assert about.summary
        assert about.stride >= 1
        assert about.trunk is None or about.trunk in PUBLISHED


def test_unknown_network_names_the_nearest() -> None:
    for ask in (models.create, models.info):
        with pytest.raises(ConfigError, match="unknown network 'vgg91'; did you mean 'vgg19'"):
            ask("vgg91")


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown option of network 'tiny' 'strid'; did you mean 'stride'"):
        models.create("tiny", strid=4)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("tiny", "stride", 3),
        ("tiny", "stride", "4"),
        ("tiny", "activation", "softplus"),
        ("tiny", "num_classes", 0),
        ("tiny", "num_classes", 1.5),
        ("vgg19", "stride", 16),
        ("vgg19", "upsample", "cubic"),
        ("vgg19", "head_init", "xavier"),
        ("vgg19", "activation", "none"),
        ("vgg19", "num_classes", True),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} of network '{name}'"):
        models.create(name, **{option: value})


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 1, 8, 8), (1, 4, 8, 8)])
def test_what_is_not_a_batch_of_rgb_images_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"\[B, 3, H, W\]"):
        models.create("tiny")(torch.zeros(shape))


def test_bytes_are_refused() -> None:
    with pytest.raises(DataError, match="uint8"):
        models.create("tiny")(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("multiple", [1, 8, 16])
@pytest.mark.parametrize("size", [(1, 1), (16, 16), (17, 31)])
@pytest.mark.parametrize("framed", [False, True])
def test_padding_is_the_least_that_fits(multiple: int, size: tuple[int, int], framed: bool) -> None:
    image = torch.rand(1, 3, *size)
    padded = pad_to_multiple(image, multiple, framed)
    assert all(side % multiple == 0 for side in padded.shape[-2:])
    assert all(side - own < multiple for side, own in zip(padded.shape[-2:], size))
    assert torch.equal(padded[..., : size[0], : size[1]], image)
    if framed:
        assert padded.sum() == pytest.approx(float(image.sum()))


def test_padding_mirrors_the_image_and_goes_on_with_a_frame() -> None:
    image = torch.rand(2, 3, 13, 21)
    mirrored = torch.nn.functional.pad(image, (0, 3, 0, 3), mode="reflect")
    assert torch.equal(pad_to_multiple(image, 8), mirrored)
    zeros = torch.nn.functional.pad(image, (0, 3, 0, 3))
    assert torch.equal(pad_to_multiple(image, 8, framed=True), zeros)
    # of a strip of two rows there are no sixteen to mirror: the first goes on
    assert torch.equal(pad_to_multiple(image[..., :2, :16], 16)[..., 3:, :], image[..., :1, :16].expand(2, 3, 13, 16))


def test_crop_keeps_cells_with_at_least_one_pixel() -> None:
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert crop_to_image(maps, 17, 8, 8).shape == (1, 1, 3, 1)
    assert crop_to_image(maps, 16, 9, 8).tolist() == [[[[0, 1], [4, 5]]]]


@pytest.mark.slow
def test_compiling_is_not_exporting() -> None:
    """What only an exported program needs (gathers, padding by nothing, points dropped on the host) stays out of training."""

    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if _is_exporting():
                return x + 1
            return x - 1

    asks = Asks()
    assert torch.compile(asks, backend="eager")(torch.zeros(2)).tolist() == [-1, -1] == asks(torch.zeros(2)).tolist()
    exported = torch.export.export(asks, (torch.zeros(2),)).module()
    assert exported(torch.zeros(2)).tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "p2pnet"])
def test_a_network_can_be_given_to_torch_export_as_it_is(name: str) -> None:
    network, images = models.create(name).eval(), torch.randn(1, 3, 64, 96)
    made, wanted = torch.export.export(network, (images,)).module()(images), network(images)
    assert type(made) is type(wanted)
    field = "density" if name == "tiny" else "points"
    assert torch.allclose(getattr(made, field), getattr(wanted, field), atol=1e-4)


@pytest.mark.parametrize("name", models.names())
def test_a_batch_of_no_images_gives_a_batch_of_no_outputs(name: str) -> None:
    made = models.create(name).eval()(torch.zeros(0, 3, 64, 64))
    assert len(made.density if isinstance(made, DensityOutput) else made.points) == 0
