from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from torch.nn import functional as F

from papm import losses, methods, models
from papm.errors import ConfigError, DataError
from papm.models import vgg
from papm.models.attention import disagreement
from papm.models.head import CROWD, DensityHead
from papm.models.man import MAN
from papm.structures import PointBatch
from papm.targets import touched_cells


@pytest.fixture(scope="module")
def network() -> MAN:
    torch.manual_seed(0)
    return cast(MAN, models.create("man").eval())


POINTS = PointBatch.from_list([torch.zeros(0, 2), torch.zeros(0, 2)])


def test_parameters(network: MAN) -> None:
    """VGG19; four layers of nine projections and one back, 512 → 2048 → 512, two norms; the head of vgg19."""
    linear = 10 * (512 * 512 + 512) + (512 * 2048 + 2048) + (2048 * 512 + 512)
    head = (9 * 512 + 1) * 256 + (9 * 256 + 1) * 128 + 129
    count = sum(p.numel() for p in network.parameters())
    assert count == 20_024_384 + 4 * (linear + 4 * 512) + head == 40_412_737
    first = network.encoder[0].attention  # type: ignore[union-attr]
    assert first.heads == 2 and first.dropout == 0.1  # type: ignore[union-attr]


def test_stride_and_sizes(network: MAN) -> None:
    assert (network.stride, network.multiple, network.features.strides) == (16, 32, (32,))
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 65, 31)).density.shape == (1, 1, 5, 2)


@torch.no_grad()
def test_forward_equals_the_parts_written_out(network: MAN) -> None:
    image = torch.randn(1, 3, 64, 96)
    features = F.max_pool2d(models.VGGTrunk("vgg19").requires_grad_(False)(image)[-1], 2)
    assert features.shape == (1, 512, 2, 3)  # shapes only: that trunk has other weights
    tokens = network.features(image)[-1].flatten(2).transpose(1, 2)
    for layer in network.encoder:
        mixed = layer.attention(tokens, (2, 3))[0]  # type: ignore[operator]
        tokens = F.layer_norm(tokens + mixed, (512,))  # affine parts start as the identity
        tokens = F.layer_norm(tokens + layer.feed(tokens), (512,))  # type: ignore[operator]
    grid = tokens.transpose(1, 2).reshape(1, 512, 2, 3)
    x = F.interpolate(grid, size=(4, 6), mode="bilinear", align_corners=False)
    x = network.head.regress(x)
    torch.testing.assert_close(network(image).density, network.head.output(x).relu())


@torch.no_grad()
def test_two_images_together_are_as_alone(network: MAN) -> None:
    images = torch.randn(2, 3, 64, 64)
    together = network(images).density
    for b in range(2):
        torch.testing.assert_close(together[b : b + 1], network(images[b : b + 1]).density, rtol=1e-4, atol=1e-6)


def test_region_loss_while_training_only(network: MAN) -> None:
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        output = network(images)
    assert not output.aux and network.auxiliary_losses(output, POINTS) == {}
    trained = copy.deepcopy(network).train()
    output = trained(images)
    terms = trained.auxiliary_losses(output, POINTS)
    assert all(output.aux[f"region{k}"].shape == (2, 4, 512) for k in range(4))
    whole = sum(disagreement(output.aux[f"region{k}"]).mean() for k in range(4))
    torch.testing.assert_close(terms["region"], whole)
    assert 0 < terms["region"].item() < 2 * 4 * 4  # four tokens, four layers, 1 − cos ≤ 2
    terms["region"].backward()
    for key, parameter in trained.named_parameters():
        if key.startswith("features.") or ("project" in key and "bias" not in key):
            assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), key
            assert bool(parameter.grad.any()), key


def test_region_loss_looks_only_at_what_counts(network: MAN) -> None:
    """Padding beside a small image, a margin, what lies outside a region of interest."""
    trained = copy.deepcopy(network).train()
    output = trained(torch.randn(2, 3, 64, 80))  # 2 × 3 tokens
    mask = torch.zeros(2, 64, 80, dtype=torch.bool)
    mask[0, :32, :33] = True  # its first two tokens; nothing of the second image
    term = trained.auxiliary_losses(output, POINTS, mask)["region"]
    alone = sum(disagreement(output.aux[f"region{k}"][:1, :2]).sum() for k in range(4))
    torch.testing.assert_close(term, alone / 2)  # a mean over both images
    everything = trained.auxiliary_losses(output, POINTS, torch.ones_like(mask))["region"]
    torch.testing.assert_close(everything, trained.auxiliary_losses(output, POINTS)["region"])
    (gradient,) = torch.autograd.grad(term, output.aux["region3"])
    assert bool(gradient.isfinite().all()) and bool(gradient[0, :2].any())
    assert not gradient[0, 2:].any() and not gradient[1].any()
    padded = trained(torch.randn(2, 3, 64, 80), mask=mask)  # what attention was told is kept from the loss too
    assert trained.auxiliary_losses(padded, POINTS)["region"] > 0 and padded.aux["real"].sum() == 2 + 6


def test_region_loss_can_be_left_out_or_weighted(network: MAN) -> None:
    images = torch.randn(2, 3, 64, 64)
    other = copy.deepcopy(network).train()
    other.region_weight = 0.0
    assert not other(images).aux
    with torch.device("meta"):
        assert cast(MAN, models.create("man", region_loss=False)).region_weight == 0.0
        assert cast(MAN, models.create("man", region_weight=0.25)).region_weight == 0.25


@torch.no_grad()
def test_padding_named_by_a_mask_is_not_attended_to(network: MAN) -> None:
    """Two images in one batch, one of them padded: with the mask, what lies in its padding does not matter far away."""
    images = torch.randn(2, 3, 64, 320)
    mask = torch.ones(2, 64, 320, dtype=torch.bool)
    mask[1, :, 40:] = False
    other = images.clone()
    other[1, :, :, 256:] = 5.0  # beyond what the trunk's convolutions see from the first cells
    first, second = network(images, mask=mask).density, network(other, mask=mask).density
    torch.testing.assert_close(first[0], second[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first[1, ..., :1], second[1, ..., :1], rtol=1e-4, atol=1e-6)
    open_first, open_second = network(images).density, network(other).density
    assert not torch.allclose(open_first[1, ..., :1], open_second[1, ..., :1], rtol=1e-4, atol=1e-6)
    everywhere = network(images, mask=torch.ones_like(mask)).density
    torch.testing.assert_close(everywhere, open_first, rtol=1e-4, atol=1e-6)
    assert bool(network(images, mask=torch.zeros_like(mask)).density.isfinite().all())
    with pytest.raises(DataError, match="does not fit"):
        network(images, mask=mask[:1])


@torch.no_grad()
def test_a_mask_fits_a_narrow_image_in_half_precision(network: MAN) -> None:
    """On a CPU it is made wider there; what was added is not attended to."""
    images, mask = torch.randn(1, 3, 40, 20), torch.ones(1, 40, 20, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        density = network(images, mask=mask).density
    assert density.shape == (1, 1, 3, 2) and bool(density.isfinite().all())


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (40, 20)])
def test_what_was_added_to_a_narrow_image_has_no_region_loss(size: tuple[int, int], masked: bool, network: MAN) -> None:
    trained, mask = copy.deepcopy(network).train(), torch.ones(2, *size, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        output = trained(torch.randn(2, 3, *size), mask=mask if masked else None)
    loss = trained.auxiliary_losses(output, POINTS, mask)["region"]
    real = touched_cells(mask, 32)
    counted = torch.cat([real, torch.zeros_like(real)], -1).flatten(1)  # twice as wide
    regions = [output.aux[f"region{k}"] for k in range(4)]
    torch.testing.assert_close(loss, torch.stack([disagreement(r, counted) for r in regions]).sum(0).mean())


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_starts_alive(seed: int) -> None:
    torch.manual_seed(seed)
    density = models.create("man").eval()(torch.randn(1, 3, 64, 64)).density
    assert bool((density > 0).all())
    crowd = 500 * 16 * 16 / (768 * 1024)  # a cell of a photograph of ShanghaiTech A
    assert crowd / 2 < density.mean().item() < crowd * 4


@pytest.mark.slow
def test_learns_with_the_rates_of_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the channels, squares on noise: with the trunk as fast as the rest, each image got the same count."""
    monkeypatch.setattr(vgg, "_CHANNELS", (8, 16, 32, 64, 64))
    torch.manual_seed(1)  # 60 steps are few: some starts need 90
    head = DensityHead(64, 1, 8)
    small = MAN(vgg.VGGTrunk("vgg19", (32,)), head, 1, 16, 1.0, False).train()
    assert small.head.output.bias is not None
    torch.nn.init.constant_(small.head.output.bias, CROWD * 16**2)
    images, counts = 0.3 * torch.randn(4, 3, 96, 96), torch.tensor([2, 60, 10, 30])
    points = [torch.rand(int(n), 2) * 96 for n in counts]
    for image, dots in zip(images, points):
        for x, y in dots.long().tolist():
            image[:, max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = 2
    recipe = methods.recipe("dm-count", "man")
    share = recipe.get("trunk_lr", recipe["lr"]) / recipe["lr"]
    rate = 3e-3  # so few channels want larger steps: the sum of 64 changes moves an output less than that of 512
    groups = small.parameter_groups()
    optimizer = torch.optim.AdamW(
        [{"params": groups["trunk"], "lr": rate * share}, {"params": groups["head"], "lr": rate}]
    )
    loss, batch, errors = losses.create("dm-count", stride=16), PointBatch.from_list(points), []
    for _ in range(60):
        output = small(images)
        total = loss(output, batch).total + small.auxiliary_losses(output, batch)["region"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        errors.append((output.density.detach().sum((1, 2, 3)) - counts).abs().mean().item())
    assert sum(errors[-10:]) / 10 < errors[0] / 2


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="unknown stride of network 'man' '2'; known: 16, 4, 8"):
        models.create("man", stride=2)
    for weight in (-1.0, float("nan"), "much", True):
        with pytest.raises(ConfigError, match=f"region_weight of network 'man' .*finite number.*, not '?{weight}"):
            models.create("man", region_weight=weight)
    with pytest.raises(ConfigError, match="region_loss of network 'man' is true or false, not 'perhaps'"):
        models.create("man", region_loss="perhaps")
    with pytest.raises(ConfigError, match="checkpoint of network 'man' is true or false, not 'perhaps'"):
        models.create("man", checkpoint="perhaps")
