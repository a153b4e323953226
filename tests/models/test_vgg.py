from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from papm import models
from papm.models import DensityHead, VGGTrunk, layers
from papm.models.layers import upsampled

# Numbers of the convolution layers in torchvision's published files.
CONVOLUTIONS = {
    "vgg16": [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28],
    "vgg16-bn": [0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40],
    "vgg19": [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34],
}


@pytest.mark.parametrize(
    ("arch", "parameters"), [("vgg16", 14_714_688), ("vgg16-bn", 14_723_136), ("vgg19", 20_024_384)]
)
def test_layers_and_sizes_are_the_published_ones(arch: str, parameters: int) -> None:
    with torch.device("meta"):
        trunk = VGGTrunk(arch)
    convolutions = [int(key.split(".")[0]) for key, value in trunk.state_dict().items() if value.ndim == 4]
    assert convolutions == CONVOLUTIONS[arch]
    assert sum(p.numel() for p in trunk.parameters()) == parameters
    assert trunk.channels == (512,)
    assert trunk.strides == (16,)


def test_keys_of_the_network_are_those_of_torchvision() -> None:
    with torch.device("meta"):
        network = models.create("vgg19")
    trunk = [key for key in network.state_dict() if key.startswith("features.")]
    assert trunk == [f"features.{n}.{part}" for n in CONVOLUTIONS["vgg19"] for part in ("weight", "bias")]
    head = sum(p.numel() for p in network.parameter_groups()["head"])
    assert head == (9 * 512 + 1) * 256 + (9 * 256 + 1) * 128 + 129


def test_forward_equals_the_layers_written_out() -> None:
    """The published configuration "E", written as a plain loop over the state dict."""
    torch.manual_seed(0)
    network = models.create("vgg19", upsample="bilinear-aligned").double()
    state = network.state_dict()
    image = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    x, number = image, 0
    pool = 0
    for layer in [64, 64, pool, 128, 128, pool, *[256] * 4, pool, *[512] * 4, pool, *[512] * 4]:
        if layer == pool:
            x, number = F.max_pool2d(x, 2), number + 1
        else:
            x = F.conv2d(x, state[f"features.{number}.weight"], state[f"features.{number}.bias"], padding=1).clamp(
                min=0
            )
            assert x.shape[1] == layer
            number += 2
    x = F.interpolate(x, size=(4, 6), mode="bilinear", align_corners=True)
    for key in ("regress.0", "regress.2", "output"):
        weight, bias = state[f"head.{key}.weight"], state[f"head.{key}.bias"]
        x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2).clamp(min=0)
    with torch.no_grad():
        torch.testing.assert_close(network(image).density, x)


def test_maps_of_a_cut_trunk() -> None:
    trunk = VGGTrunk("vgg16-bn", (2, 4, 16, 32)).eval()
    assert (trunk.strides, trunk.channels) == ((2, 4, 16, 32), (128, 256, 512, 512))
    assert len(trunk) == 44 and len(VGGTrunk("vgg16-bn", (2, 4))) == 23  # torchvision's numbers, up to a ReLU or pool
    with torch.no_grad():
        maps = trunk(torch.randn(1, 3, 32, 64))
        assert [tuple(m.shape[1:]) for m in maps] == [(128, 16, 32), (256, 8, 16), (512, 2, 4), (512, 1, 2)]
        torch.testing.assert_close(F.max_pool2d(maps[2], 2), maps[3])
    assert all(bool((m >= 0).all()) for m in maps)


def test_random_trunk_keeps_the_scale() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        (features,) = VGGTrunk("vgg16")(torch.randn(1, 3, 64, 64))
    assert 0.1 < features.square().mean().sqrt() < 10  # 13 layers: ×0.8 each would already give 0.05


@pytest.mark.parametrize("mode", ["bilinear", "bilinear-aligned", "nearest"])
def test_upsampling_keeps_constants_and_ranges(mode: str) -> None:
    x = torch.rand(1, 2, 3, 5)
    up = upsampled(x, mode)
    assert up.shape == (1, 2, 6, 10)
    assert up.min() >= x.min() - 1e-6
    assert up.max() <= x.max() + 1e-6
    torch.testing.assert_close(upsampled(torch.full((1, 1, 2, 2), 3.0), mode), torch.full((1, 1, 4, 4), 3.0))


def test_upsampling_by_hand() -> None:
    row = torch.tensor([0.0, 4.0]).reshape(1, 1, 1, 2)
    assert upsampled(row, "bilinear")[0, 0, 0].tolist() == [0, 1, 3, 4]
    assert upsampled(row, "nearest")[0, 0, 0].tolist() == [0, 0, 4, 4]
    torch.testing.assert_close(upsampled(row, "bilinear-aligned")[0, 0, 0], torch.tensor([0, 4 / 3, 8 / 3, 4]))


def test_normal_head() -> None:
    torch.manual_seed(0)
    head = DensityHead(init="normal")
    for key, value in head.named_parameters():
        if key.endswith("bias"):
            assert not value.any()
        else:
            assert abs(value.std().item() - 0.01) < 0.002


def test_abs_is_relu_of_both_signs() -> None:
    torch.manual_seed(0)
    head = DensityHead(channels=8, activation="abs", init="default")
    x = torch.randn(1, 8, 4, 4)
    with torch.no_grad():
        both = head(x)
        head.activation = "relu"
        positive = head(x)
        head.output.weight.neg_()
        head.output.bias.neg_()  # type: ignore[union-attr]
        torch.testing.assert_close(both, positive + head(x))
    assert 0 < (positive == 0).float().mean() < 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["vgg16", "vgg16-bn"])
def test_strips_give_the_maps_of_the_whole_image(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, images = VGGTrunk(arch, (8,)).eval(), torch.randn(1, 3, 224, 32)
    with torch.no_grad():
        (whole,) = trunk(images)
        monkeypatch.setattr(layers, "SPAN", 1)  # strips of 64 rows
        (cut,) = trunk(images)
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)
