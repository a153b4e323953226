from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from papm import models
from papm.errors import CheckpointError, ConfigError
from papm.models.msfanet import MSFANet, attention_target
from papm.structures import PointBatch


@pytest.fixture(scope="module")
def network() -> MSFANet:
    torch.manual_seed(0)
    return cast(MSFANet, models.create("msfanet").eval())


@pytest.fixture(scope="module")
def qnrf() -> MSFANet:
    torch.manual_seed(0)
    return cast(MSFANet, models.create("msfanet", form="qnrf").eval())


def convolutions(*shapes: tuple[int, int, int], bias: bool = True, norm: bool) -> int:
    """Parameters of convolutions (inside, outside, kernel), each with batch norm if `norm`."""
    return sum(a * b * k * k + (b if bias else 0) + (2 * b if norm else 0) for a, b, k in shapes)


def decoder(deep: int, norm: bool) -> int:
    steps = ((deep + 512, 256, 1), (256, 256, 3), (512 + deep, 128, 1), (128, 128, 3), (256, 64, 1), (64, 64, 3))
    return convolutions(*steps, (64, 32, 3), norm=norm)


CONTEXT = convolutions(*[(512, 512, 1)] * 4, bias=False, norm=False) + convolutions(
    (512, 512, 1), (1024, 512, 1), norm=False
)
PYRAMID = ((512, 256, 1), *[(512, 256, 3)] * 3, (512, 256, 1), (1280, 256, 1))


def test_parameters_of_both_forms(network: MSFANet, qnrf: MSFANet) -> None:
    """Layer shapes of the published networks; 14 723 136 and 20 024 384 are VGG16-BN and VGG19."""
    count = {name: sum(p.numel() for p in n.parameters()) for name, n in (("sht", network), ("qnrf", qnrf))}
    pyramid = convolutions(*PYRAMID, bias=False, norm=True)
    assert count["sht"] == 14_723_136 + CONTEXT + pyramid + 2 * decoder(256, True) + (33 + 2) + 33 == 22_904_388
    plain = convolutions(*PYRAMID, bias=False, norm=False)
    branch = convolutions((512, 256, 3), (256, 128, 3), norm=False)
    assert count["qnrf"] == 20_024_384 + CONTEXT + plain + branch + decoder(384, False) + 33 == 28_618_113


def test_forms_differ_as_published(network: MSFANet, qnrf: MSFANet) -> None:
    assert network.features.strides == qnrf.features.strides == (2, 4, 8, 16)
    assert (network.features.arch, qnrf.features.arch) == ("vgg16-bn", "vgg19")
    rates = {m.dilation[0] for m in network.modules() if isinstance(m, nn.Conv2d)}
    assert rates == {1, 6, 12, 18}
    assert {m.dilation[0] for m in qnrf.modules() if isinstance(m, nn.Conv2d)} == {1, 12, 24, 36}
    assert not any(isinstance(m, nn.BatchNorm2d) for m in qnrf.modules())
    assert (network.activation, qnrf.activation) == ("relu", "abs")


@torch.no_grad()
def test_attention_gates_the_density(network: MSFANet) -> None:
    image = torch.randn(1, 3, 33, 47)
    output = network(image)
    assert output.aux["attention"].shape == output.density.shape == (1, 1, 17, 24)
    assert output.aux["attention"].dtype == torch.float32
    shut = copy.deepcopy(network)
    bias = shut.get_parameter("attention.1.bias")
    bias.fill_(-1e4)  # nobody anywhere
    assert not bool(shut(image).density.any())
    bias.fill_(1e4)
    assert bool((shut(image).density > output.density).all())


@torch.no_grad()
def test_starts_alive(network: MSFANet, qnrf: MSFANet) -> None:
    image = torch.randn(1, 3, 32, 32)
    for made in (network, qnrf):
        density = made(image).density
        assert bool((density >= 0).all()) and (density > 0).float().mean() > 0.9


def test_attention_target_is_a_disc_around_each_point() -> None:
    points = PointBatch.from_list([torch.tensor([[40.0, 24.0], [7.0, 60.0]]), torch.zeros(0, 2)])
    target = attention_target(points, (64, 64), stride=1)
    assert not bool(target[1].any())
    y, x = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
    distance = (x - 40).square() + (y - 24).square()
    # exp(−r²/2σ²) / 2πσ² > 0.001 with σ = 4: r² < 73.4
    radius2 = -2 * 16 * torch.tensor(0.001 * 2 * torch.pi * 16).log()
    alone = x + y < 66
    alone &= y < 40
    assert bool((target[0][alone].bool() == (distance < radius2)[alone]).all())
    assert bool(target[0, 59, 6])  # near a border the kernel keeps its mass inside, and the disc stays
    coarse = attention_target(points, (32, 32), stride=2)
    fine = target.reshape(2, 32, 2, 32, 2).mean((2, 4))
    assert bool((coarse[fine == 1] == 1).all()) and bool((coarse[fine == 0] == 0).all())


def test_attention_loss_is_the_cross_entropy(network: MSFANet) -> None:
    trained = copy.deepcopy(network).train()
    points = PointBatch.from_list([torch.tensor([[10.0, 12.0]]), torch.zeros(0, 2)])
    output = trained(torch.randn(2, 3, 32, 32))
    terms = trained.auxiliary_losses(output, points)
    assert list(terms) == ["attention"]
    p = output.aux["attention"][:, 0].sigmoid()
    target = attention_target(points, (16, 16), 2)
    by_hand = -(target * p.log() + (1 - target) * (1 - p).log()).mean()
    torch.testing.assert_close(terms["attention"], 0.1 * by_hand)
    terms["attention"].backward()
    for part in ("where.up8.0.0.weight", "attention.0.weight", "features.0.weight", "context.join.weight"):
        gradient = trained.get_parameter(part).grad
        assert gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any()), part
    assert trained.get_parameter("how_many.up2.2.0.weight").grad is None  # attention is the other decoder's


def test_attention_loss_can_be_left_out(network: MSFANet, qnrf: MSFANet) -> None:
    points = PointBatch.from_list([torch.zeros(0, 2)])
    with torch.no_grad():
        output, other = network(torch.zeros(1, 3, 16, 16)), qnrf(torch.zeros(1, 3, 16, 16))
    assert qnrf.auxiliary_losses(other, points) == {} and not other.aux
    with torch.device("meta"):
        silent = models.create("msfanet", attention_weight=0.0)
    assert silent.auxiliary_losses(output, points) == {}


@torch.no_grad()
def test_the_attention_loss_looks_only_at_what_counts(network: MSFANet) -> None:
    points = PointBatch.from_list([torch.tensor([[12.0, 12.0]]), torch.zeros(0, 2)])
    output = network(torch.randn(2, 3, 33, 48))
    mask = torch.zeros(2, 33, 48, dtype=torch.bool)
    mask[0, 5:8, 7:32] = True  # cells of rows 2 to 3, columns 3 to 15
    found = network.auxiliary_losses(output, points, mask)["attention"]
    target = attention_target(points, (17, 24), 2)
    p = output.aux["attention"][:, 0].sigmoid()
    entropy = -(target * p.log() + (1 - target) * (1 - p).log())
    torch.testing.assert_close(found, 0.1 * entropy[0, 2:4, 3:16].mean())
    everything = network.auxiliary_losses(output, points, torch.ones_like(mask))["attention"]
    torch.testing.assert_close(everything, network.auxiliary_losses(output, points)["attention"])
    assert network.auxiliary_losses(output, points, torch.zeros_like(mask))["attention"] == 0


def test_checkpointing_gives_the_same_gradients(network: MSFANet) -> None:
    """Dropout off, as its draws differ between the two networks."""
    image = torch.randn(2, 3, 32, 32)
    results = []
    for checkpoint in (False, True):
        with torch.device("meta"):
            made = models.create("msfanet", checkpoint=checkpoint, activation="abs")
        made = made.to_empty(device="cpu")
        made.load_state_dict(network.state_dict())
        made.train()
        made.pyramid.dropout.p = 0.0  # type: ignore[union-attr]
        made(image).density.square().sum().backward()
        results.append((made, {k: p.grad for k, p in made.named_parameters()}))
    (plain, a), (again, b) = results
    scale = max(float(g.abs().max()) for g in a.values() if g is not None)
    for key, gradient in a.items():
        other = b[key]
        assert gradient is not None and other is not None
        assert float((gradient - other).abs().max()) < 1e-5 * scale, key
    for (key, c), d in zip(plain.named_buffers(), again.buffers()):
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(c, d, msg=key, rtol=1e-4, atol=1e-6)


def test_trains_on_one_image(network: MSFANet) -> None:
    trained = copy.deepcopy(network).train()
    trained(torch.randn(1, 3, 32, 32)).density.sum().backward()
    gradient = trained.get_parameter("features.0.weight").grad
    assert gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any())


@pytest.mark.slow
def test_weights_are_those_of_the_trunk_chosen(tmp_path: Path) -> None:
    file = tmp_path / "trunk.safetensors"
    given = {f"features.{k}": v.contiguous() for k, v in models.VGGTrunk("vgg16").state_dict().items()}
    save_file(given, file)
    loaded = models.create("msfanet", trunk="vgg16", weights=file)
    assert torch.equal(loaded.get_parameter("features.28.weight"), given["features.28.weight"])
    normed = models.create("msfanet", weights=file)  # vgg16-bn: the same convolutions among its norms
    assert torch.equal(normed.get_parameter("features.40.weight"), given["features.28.weight"])
    with pytest.raises(CheckpointError, match="a vgg19 trunk"):
        models.create("msfanet", weights=file, form="qnrf")


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="unknown form of network 'msfanet' 'nwpu'; known: qnrf, shanghaitech"):
        models.create("msfanet", form="nwpu")
    for weight in (-1.0, "much"):
        with pytest.raises(
            ConfigError, match=f"attention_weight of network 'msfanet' .*finite number.*, not '?{weight}"
        ):
            models.create("msfanet", attention_weight=weight)
    with pytest.raises(ConfigError, match="checkpoint of network 'msfanet' is true or false, not 'perhaps'"):
        models.create("msfanet", checkpoint="perhaps")
