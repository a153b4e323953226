"""`lite`: TensorFlow's padding, frozen norms, the published file, and the maps they make of a photograph."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from papm import imagenet, images, models
from papm.models import layers, lite
from papm.models.trunks import parameter_shapes, trunk
from papm.models.weights import PUBLISHED, read_weights


def same_convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """TensorFlow's SAME, from its documentation: cell by cell, every window written out."""
    (height, width), kernel = x.shape[-2:], weight.shape[-1]
    rows, columns = math.ceil(height / stride), math.ceil(width / stride)
    top, left = (max((n - 1) * stride + kernel - length, 0) // 2 for n, length in ((rows, height), (columns, width)))
    around = F.pad(x, (kernel,) * 4)
    out = x.new_zeros(x.shape[0], weight.shape[0], rows, columns)
    for i in range(rows):
        for j in range(columns):
            y, z = i * stride - top + kernel, j * stride - left + kernel
            out[:, :, i, j] = (around[:, None, :, y : y + kernel, z : z + kernel] * weight).sum((2, 3, 4))
    return out


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [(8, 12), (7, 12), (9, 5), (1, 2)])
def test_padding_is_tensorflows(size: tuple[int, int], kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    conv = torch.nn.Conv2d(3, 4, kernel, stride, bias=False).double()
    norm = lite.FrozenNorm(4).double()
    norm.running_var.fill_(1 - lite.EPSILON)  # a norm that changes nothing
    torch.testing.assert_close(lite.convolve(x, conv, norm), same_convolution(x, conv.weight, stride))


def test_norms_are_batch_norm_in_evaluation() -> None:
    """Training neither moves the statistics nor reads those of the batch; scale and shift learn."""
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(3, 8, 3, 1, bias=False), lite.FrozenNorm(8)
    plain = torch.nn.BatchNorm2d(8, eps=lite.EPSILON)
    for parameter in (*norm.parameters(), *norm.buffers()):
        parameter.data.copy_(torch.rand(8) + 0.5)
    plain.load_state_dict({**norm.state_dict(), "num_batches_tracked": torch.tensor(0)})
    x = torch.randn(2, 3, 8, 8)
    expected = plain.eval()(F.conv2d(x, conv.weight, padding=1))
    found = lite.convolve(x, conv, norm.train())
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in norm.parameters())
    assert torch.equal(norm.running_mean, plain.running_mean) and len(list(norm.parameters())) == 2


def test_a_trunk_ends_at_its_last_stride() -> None:
    whole, cut = trunk("lite", (2, 4, 8, 16, 32)), trunk("lite", (8, 16))
    assert whole.channels == (16, 24, 40, 112, 320) and whole.receptive_field == 425
    assert cut.channels == (40, 112) and cut.receptive_field == 169
    cut.load_state_dict({k: v for k, v in whole.state_dict().items() if k in cut.state_dict()})
    x = torch.randn(1, 3, 64, 96)
    for a, b in zip(whole(x)[2:4], cut(x), strict=True):
        assert torch.equal(a, b)


def test_images_arrive_as_the_trunk_learned_them() -> None:
    made = trunk("lite", (8, 16))
    pixels = torch.arange(256.0).expand(1, 3, -1)[..., None]
    mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in (imagenet.MEAN, imagenet.STD))
    given = (pixels / 255 - mean) / std * made.colour + made.shift
    torch.testing.assert_close(given, (pixels - 127) / 128, rtol=0, atol=1e-6)


@pytest.mark.realdata
def test_the_published_file_fits_key_by_key(real_data: Path, real: Callable[[str], Path]) -> None:
    path = real("efficientnet_lite0")
    tensors = read_weights(path)
    made = trunk("lite", (2, 4, 8, 16, 32)).eval()
    models.load_trunk(made, path, "lite")
    for key, value in made.state_dict().items():  # none is missing
        assert torch.equal(value, tensors[key].float()), key
    more = set(tensors) - set(made.state_dict())  # and none left over but the classifier's
    assert all(k.startswith(PUBLISHED["lite"].unused) or k.endswith("num_batches_tracked") for k in more)
    assert made.state_dict().keys() == parameter_shapes("lite").keys()
    photo = next((real_data / "ShanghaiTech/part_A_final/train_data/images").glob("*.jpg"))
    image = images.read_image(photo)[None, :, :256, :256]
    with torch.no_grad():
        maps = made(imagenet.normalize(image))
    for found in maps:  # what blocks without an activation give: both signs, of a size that float16 holds
        assert bool(found.isfinite().all()) and 1 < float(found.std()) < 12 and float(found.abs().max()) < 200
        assert abs(float(found.mean())) < 2


def test_folded_weights_give_the_same_map_and_are_forgotten_where_they_would_be_stale() -> None:
    torch.manual_seed(0)
    network = models.create("lite").eval()
    images = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        before, keys = network(images).density, list(network.state_dict())
        lite.fold(network)
        torch.testing.assert_close(network(images).density, before)
        assert list(network.state_dict()) == keys
        state = {k: 1.1 * v for k, v in network.state_dict().items()}
        network.load_state_dict(state)
        assert not torch.allclose(network(images).density, before)
        lite.fold(network)
        moved = network.double()(images.double()).density
    network.train()
    assert moved.dtype == torch.float64
    assert all(m.folded is None for m in network.modules() if isinstance(m, lite.FrozenNorm))


@pytest.mark.slow
@pytest.mark.parametrize("strides", [(4, 16), (8, 16)])
def test_strips_give_the_maps_of_the_whole_image(strides: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    made = trunk("lite", strides).eval()
    images = torch.randn(2, 3, 304, 64)
    with torch.no_grad():
        whole = made(images)
        monkeypatch.setattr(layers, "SPAN", 1)  # strips of 96 rows
        for own, other in zip(made(images), whole, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


def test_gradients_of_bf16_on_a_cpu_are_those_of_float32() -> None:
    torch.manual_seed(0)
    network, images = models.create("lite").train(), torch.rand(2, 3, 64, 64)
    found = []
    for half in (False, True):
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            network(images).density.float().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.99
    assert found[1].norm() == pytest.approx(float(found[0].norm()), rel=0.02)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_weights_of_any_precision_count_under_autocast(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    network, images = models.create("lite").eval(), torch.rand(1, 3, 64, 64)
    expected = network(images).density
    with torch.autocast("cpu", torch.bfloat16):
        found = network.to(kind)(images.to(kind)).density
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05 * float(expected.max()))
