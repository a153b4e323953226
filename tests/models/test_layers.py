from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from papm.models.head import activate, start_positive
from papm.models.layers import BatchNorm, checkpointed, conv_block, resize


def test_batch_norm_is_that_of_torch() -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 6) * 3 + 1
    for mode in (True, False):
        torch.testing.assert_close(ours.train(mode)(x), theirs.train(mode)(x))
    assert ours.running_mean is not None and theirs.running_mean is not None
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_checkpointing_changes_neither_gradients_nor_statistics() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(conv_block(3, 4, 3, True), conv_block(4, 2, 1, True)).double()
    twice = copy.deepcopy(plain)
    for layer in twice.modules():
        if isinstance(layer, BatchNorm):
            layer.recomputed = True
    for seed in range(3):
        x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        weight = torch.arange(72.0, dtype=torch.float64).reshape(1, 2, 6, 6).sin()
        for module, active in ((plain, False), (twice, True)):
            out: Tensor = checkpointed(active, module, x)
            (out * weight).sum().backward()
    for (key, a), b in zip(plain.named_parameters(), twice.parameters()):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, msg=key)
    for (key, c), d in zip(plain.named_buffers(), twice.named_buffers()):
        torch.testing.assert_close(c, d[1], msg=key)
    with torch.no_grad():  # without gradients nothing runs twice
        plain(x), checkpointed(True, twice, x)
    for (key, c), d in zip(plain.named_buffers(), twice.named_buffers()):
        torch.testing.assert_close(c, d[1], msg=key)


def test_start_positive_opens_a_relu() -> None:
    torch.manual_seed(0)
    features = torch.rand(1, 64, 8, 8)
    dead = 0
    for _ in range(20):
        layer = nn.Conv2d(64, 1, 1)
        dead += bool((activate(layer(features), "relu") == 0).float().mean() > 0.9)
        start_positive(layer, 0.5)
        assert bool((layer(features) > 0.5).all())
    assert dead > 3  # this is what it is for


def test_activations() -> None:
    x = torch.tensor([-2.0, 3.0])
    assert [activate(x, name).tolist() for name in ("relu", "abs", "none")] == [[0, 3], [2, 3], [-2, 3]]


def test_resize_follows_the_other_map() -> None:
    row = torch.tensor([0.0, 4.0]).reshape(1, 1, 1, 2)
    like = torch.zeros(1, 7, 1, 4)
    assert resize(row, like)[0, 0, 0].tolist() == [0, 1, 3, 4]
    assert resize(row, like, "nearest")[0, 0, 0].tolist() == [0, 0, 4, 4]
    torch.testing.assert_close(resize(row, like, "bilinear-aligned")[0, 0, 0], torch.tensor([0, 4 / 3, 8 / 3, 4]))


def test_a_live_relu_is_a_relu_that_can_rise() -> None:
    """Same values; below zero it passes a gradient that asks for more, and none that asks for less."""
    x = torch.tensor([-2.0, -2.0, 3.0, 3.0], requires_grad=True)
    y = activate(x, "relu-live")
    assert torch.equal(y, torch.relu(x))
    y.backward(torch.tensor([-0.5, 0.5, -0.5, 0.5]))
    assert x.grad is not None and x.grad.tolist() == [-0.5, 0.0, -0.5, 0.5]


def test_a_map_below_zero_learns_only_behind_a_live_relu() -> None:
    for activation, learns in (("relu", False), ("relu-live", True)):
        raw = torch.full((4,), -1.0, requires_grad=True)
        target = torch.tensor([0.0, 0.0, 1.0, 1.0])
        for _ in range(200):
            loss = (activate(raw, activation) - target).square().sum()
            raw = (raw - 0.1 * torch.autograd.grad(loss, raw)[0]).detach().requires_grad_()
        assert torch.allclose(activate(raw, activation), target, atol=1e-3) == learns
