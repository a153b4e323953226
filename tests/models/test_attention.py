from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from papm.models import attention
from papm.models.attention import EncoderLayer, RegionAttention, between, disagreement


def tokens(batch: int, h: int, w: int, width: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, h * w, width, generator=generator, dtype=torch.float64)


def layer(width: int = 16, seed: int = 0, **options: float | bool) -> EncoderLayer:
    torch.manual_seed(seed)
    made = EncoderLayer(width, 2, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        made.attention.project.bias.normal_()
        made.attention.project.weight.mul_(2)
    return made.eval()


# --- the box between two corners --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_between_certain_corners_is_the_box(h: int, w: int, data: st.DataObject) -> None:
    (y1, x1), (y2, x2) = ((data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))) for _ in range(2))
    p, q = torch.eye(h * w)[y1 * w + x1], torch.eye(h * w)[y2 * w + x2]
    expected = torch.zeros(h, w)
    for first, last in (((y1, x1), (y2, x2)), ((y2, x2), (y1, x1))):
        expected[first[0] : last[0] + 1, first[1] : last[1] + 1] += 1
    assert between(p, q, (h, w)).reshape(h, w).tolist() == expected.tolist()


def test_between_is_symmetric_and_equals_the_sum_over_corners() -> None:
    h, w = 3, 4
    p, q = torch.randn(2, 5, h * w, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(between(p, q, (h, w)), between(q, p, (h, w)))
    before = torch.tensor([[a // w <= b // w and a % w <= b % w for b in range(h * w)] for a in range(h * w)]).double()
    slow = (p @ before) * (q @ before.T) + (p @ before.T) * (q @ before)
    torch.testing.assert_close(between(p, q, (h, w)), slow)


# --- attention --------------------------------------------------------------------------------------------------------


def test_weights_are_those_of_the_formula_and_rows_sum_to_one() -> None:
    module = layer().attention
    x, (h, w) = tokens(2, 3, 4), (3, 4)
    parts = module.project(x).view(2, 12, 9, 2, 8).permute(2, 0, 3, 1, 4)
    weights, region = module.weights(parts[:4], parts[4:8], (h, w))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 12, dtype=torch.float64))
    b, head, i = 1, 0, 5  # one token, by hand
    part = module.project(x)[b].view(12, 9, 2, 8)[:, :, head]
    dot = [part[i, k] @ part[:, 4 + k].T for k in range(4)]
    r = between(dot[1].softmax(0), dot[2].softmax(0), (h, w))
    torch.testing.assert_close(region[b, head, i], r)
    torch.testing.assert_close(weights[b, head, i], ((0.1 * dot[0] + r * dot[3]) / 8**0.5).softmax(0))
    mixed = torch.cat([weights[b, k, i] @ parts[8, b, k] for k in range(2)])
    torch.testing.assert_close(module(x, (h, w))[0][b, i], module.output(mixed))
    features = module(x, (h, w), regions=True)[1]
    assert features is not None
    torch.testing.assert_close(features[b, i], region[b, :, i].sum(0) @ x[b])


def test_images_of_a_batch_do_not_mix() -> None:
    module, x = layer(), tokens(3, 2, 5)
    together, regions = module(x, (2, 5), None, True)
    for b in range(3):
        alone, region = module(x[b : b + 1], (2, 5), None, True)
        torch.testing.assert_close(together[b : b + 1], alone)
        torch.testing.assert_close(regions[b : b + 1], region)


def test_hidden_tokens_are_as_if_they_were_not_there() -> None:
    """A grid of 3×4 inside one of 5×6, whatever the rest holds."""
    module, small = layer(), tokens(1, 3, 4)
    alone, region = module(small, (3, 4), None, True)
    valid = torch.zeros(5, 6, dtype=torch.bool)
    valid[:3, :4] = True
    for filler in (0.0, 100.0):
        grid = torch.full((1, 5, 6, 16), filler, dtype=torch.float64)
        grid[:, :3, :4] = small.reshape(1, 3, 4, 16)
        mixed, regions = module(grid.reshape(1, 30, 16), (5, 6), valid.reshape(1, 30), True)
        torch.testing.assert_close(mixed.reshape(5, 6, 16)[:3, :4].reshape(1, 12, 16), alone)
        torch.testing.assert_close(regions.reshape(5, 6, 16)[:3, :4].reshape(1, 12, 16), region)
        torch.testing.assert_close(disagreement(regions, valid.reshape(1, 30)), disagreement(region))
        assert bool(mixed.isfinite().all())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_few_rows_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch, checkpoint: bool) -> None:
    results = []
    for entries in (1 << 24, 2 * 2 * 20 * 7):  # all 20 rows at once; 7, 7 and 6 of them
        monkeypatch.setattr(attention, "ENTRIES", entries)
        module, x = layer(checkpoint=checkpoint and entries < 1 << 24), tokens(2, 4, 5).requires_grad_()
        mixed, regions = module(x, (4, 5), None, True)
        (mixed.sin().sum() + disagreement(regions).sum()).backward()
        assert x.grad is not None
        results.append((mixed, regions, x.grad, module.attention.project.weight.grad))
    for one, few in zip(*results):
        torch.testing.assert_close(one, few)


def test_checkpointing_draws_the_same_dropout() -> None:
    gradients = []
    for checkpoint in (False, True):
        module, x = layer(dropout=0.5, checkpoint=checkpoint).train(), tokens(1, 3, 3)
        torch.manual_seed(1)
        module(x, (3, 3))[0].sin().sum().backward()
        gradients.append(module.attention.project.weight.grad)
    torch.testing.assert_close(*gradients)


def test_gradients_are_right() -> None:
    torch.manual_seed(0)
    module = RegionAttention(4, 2).double().eval()
    x = tokens(1, 2, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: module(t, (2, 2), None, True), (x,))


# --- the region loss --------------------------------------------------------------------------------------------------


def test_disagreement_by_hand() -> None:
    alike = torch.tensor([[1.0, 2.0]]).expand(1, 3, 2) * torch.tensor([[1.0], [2.0], [5.0]])
    assert disagreement(alike).abs().item() < 1e-6
    right = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # each 45° from their mean
    torch.testing.assert_close(disagreement(right), torch.tensor([2 - 2**0.5]))
    opposite = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])  # no mean, no direction
    torch.testing.assert_close(disagreement(opposite), torch.tensor([2.0]))
    assert bool(disagreement(torch.zeros(2, 3, 4)).isfinite().all())
