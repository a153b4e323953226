from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from papm.models.context import ASPP, SIZES, ScaleContext, average_bins


@pytest.mark.parametrize("size", [(1, 1), (2, 7), (6, 6), (13, 5), (32, 24)])
@pytest.mark.parametrize("bins", SIZES)
def test_bins_are_those_of_adaptive_pooling(size: tuple[int, int], bins: int) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(average_bins(x, bins), F.adaptive_avg_pool2d(x, bins))


def context(channels: int = 8) -> ScaleContext:
    torch.manual_seed(0)
    module = ScaleContext(channels).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def test_context_is_the_weighted_mean_of_four_scales() -> None:
    module = context()
    x = torch.randn(2, 8, 9, 7, dtype=torch.float64)
    top, bottom = torch.zeros_like(x), torch.zeros_like(x)
    for conv, size in zip(module.scales, SIZES):
        c = F.interpolate(conv(F.adaptive_avg_pool2d(x, size)), size=(9, 7), mode="bilinear", align_corners=False)
        w = module.weight(x - c).sigmoid()
        top, bottom = top + w * c, bottom + w
    torch.testing.assert_close(module(x), module.join(torch.cat([top / bottom, x], 1)).relu())


def test_a_flat_map_has_flat_context_whatever_its_size() -> None:
    module = context()
    colour = torch.randn(1, 8, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(module(colour.expand(-1, -1, 11, 6)), module(colour).expand(-1, -1, 11, 6))


def test_weights_that_vanish_in_half_precision() -> None:
    """All four sigmoids underflow: their shares are still a quarter each, not 0/0."""
    module = context().float()
    with torch.no_grad():
        assert module.weight.bias is not None
        module.weight.weight.zero_()
        module.weight.bias.fill_(-30.0)
    x = torch.randn(1, 8, 6, 6)
    half = ScaleContext(8).half()
    half.load_state_dict(module.state_dict())
    out = half(x.half()).float()
    assert bool(out.isfinite().all())
    torch.testing.assert_close(out, module(x), rtol=0.02, atol=0.05)


def test_pyramid_shapes_and_reach() -> None:
    torch.manual_seed(0)
    module = ASPP((2, 3, 4), channels=4, width=3).eval()
    assert [tuple(b[0].weight.shape) for b in module.branches] == [(3, 4, 1, 1), *[(3, 4, 3, 3)] * 3]
    assert [b[0].dilation[0] for b in module.branches] == [1, 2, 3, 4]
    assert module.join[0].weight.shape == (3, 15, 1, 1)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, torch.nn.Conv2d):
                layer.weight.fill_(0.1)
        module.pooled[0].weight.zero_()  # the rest is convolution: an impulse stays within the largest rate
        x = torch.zeros(1, 4, 11, 11)
        x[0, 0, 5, 5] = 1.0
        seen = module(x).sum((0, 1)).nonzero()
    offsets = {(int(i) - 5, int(j) - 5) for i, j in seen}
    assert offsets == {(a * r, b * r) for r in (2, 3, 4) for a in (-1, 0, 1) for b in (-1, 0, 1)}


def test_pyramid_sees_the_mean_of_the_map() -> None:
    torch.manual_seed(0)
    module = ASPP((2, 3, 4), channels=4, width=3, norm=False).eval()
    with torch.no_grad():
        module.pooled[0].weight.abs_()
        x = torch.rand(1, 4, 9, 9)
        whole = (module.pooled[0].weight[:, :, 0, 0] @ x.mean((-2, -1))[0]).relu()
        parts = [branch(x) for branch in module.branches]
        joined = module.join(torch.cat([*parts, whole[None, :, None, None].expand(1, 3, 9, 9)], 1))
        torch.testing.assert_close(module(x), joined)


def test_pyramid_that_learned_on_small_maps_reads_large_ones_alike() -> None:
    """Weights that no training map reached do nothing; those that it reached have learned."""
    torch.manual_seed(0)
    module = ASPP((2, 6, 9), channels=4, width=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(8, 4, 7, 7)).square().sum().backward()
        optimizer.step()
    outer = [branch[0].weight.detach().clone() for branch in module.branches[1:]]
    for weight in outer:
        weight[..., 1, 1] = 0
    assert [int(weight.any(1).any(0).sum()) for weight in outer] == [8, 8, 0]  # a dilation of 9 never meets a map of 7
    flat = torch.ones(1, 4, 7, 7)
    branch = module.eval().branches[3]
    torch.testing.assert_close(branch(torch.ones(1, 4, 31, 31))[..., :7, :7], branch(flat))


def test_pyramid_trains_on_one_image() -> None:
    """The global pool of one image is one value a channel, which plain batch norm refuses."""
    module = ASPP((2, 3, 4), channels=4, width=3).train()
    x = torch.randn(1, 4, 5, 5, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())
    assert not bool(module.pooled[1].running_mean.any())  # one value is no statistic
    assert bool(module.join[1].running_mean.any())
