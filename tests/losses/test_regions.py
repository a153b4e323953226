"""A loss on blocks of a crop: points land in their blocks, sums are sums of blocks, margins are left out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import papm.losses as losses
from papm.errors import ConfigError
from papm.losses.base import LossContext
from papm.losses.regions import RegionLoss, split_map, split_points
from papm.methods import METHODS
from papm.structures import PointBatch

STRIDE = 8
NAMES = sorted(set(losses.names()) - {m.loss for m in map(METHODS.get, METHODS) if m.network == "points"})


def test_split_map_is_row_by_row_and_pads_with_zeros() -> None:
    maps = torch.arange(2 * 3 * 5 * 7).float().view(2, 3, 5, 7)
    blocks = split_map(maps, 4)
    assert blocks.shape == (2 * 2 * 2, 3, 4, 4)
    assert torch.equal(blocks[0], maps[0, :, :4, :4])
    assert torch.equal(blocks[1][..., :3], maps[0, :, :4, 4:]) and not blocks[1][..., 3].any()
    assert torch.equal(blocks[6][:, :1], maps[1, :, 4:, :4]) and not blocks[6][:, 1:].any()
    assert blocks.sum() == maps.sum()


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 63.75, width=32), st.floats(0, 31.75, width=32)), max_size=9),
        min_size=1,
        max_size=3,
    )
)
def test_every_point_lands_in_the_block_it_lies_in(points: list[list[tuple[float, float]]]) -> None:
    listed = [torch.tensor(p, dtype=torch.float32).reshape(-1, 2) for p in points]
    extents = [torch.arange(len(p)).float() + 1 for p in listed]
    labels = [torch.arange(len(p)) for p in listed]
    batch = PointBatch.from_list(listed, extents=extents, labels=labels)
    corners = torch.tensor([[x, y] for y in (0.0, 16.0) for x in (0.0, 16.0, 32.0, 48.0)])
    made = split_points(batch, corners, 16)
    assert len(made) == len(points) * 8 and made.extents is not None and made.labels is not None
    assert (made.xy[~made.valid] == 0).all()
    assert not (made.valid[:, 1:] & ~made.valid[:, :-1]).any()  # padding at the end
    for b, p in enumerate(listed):
        for k, corner in enumerate(corners):
            row = b * 8 + k
            here = ((p >= corner) & (p < corner + 16)).all(1)
            assert torch.allclose(made.xy[row][made.valid[row]] + corner, p[here])
            assert torch.equal(made.extents[row][made.valid[row]], extents[b][here])
            assert torch.equal(made.labels[row][made.valid[row]], labels[b][here])


def test_a_halo_takes_neighbours_along() -> None:
    batch = PointBatch.from_list([torch.tensor([[14.0, 8.0], [17.0, 8.0], [40.0, 8.0]])])
    corners = torch.tensor([[0.0, 0.0], [16.0, 0.0]])
    made = split_points(batch, corners, 16, halo=4.0)
    assert made.to_list()[0].tolist() == [[14.0, 8.0], [17.0, 8.0]]
    assert made.to_list()[1].tolist() == [[-2.0, 8.0], [1.0, 8.0]]


def scene(side: int = 64) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    points = [side * torch.rand(n, 2, generator=generator) for n in (9, 0, 20)]
    return torch.rand(3, 1, side // STRIDE, side // STRIDE, generator=generator, dtype=torch.float64) / 4, points


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("region", [16, 32])
def test_the_loss_is_the_sum_over_blocks(name: str, region: int) -> None:
    try:
        inner = losses.create(name, stride=STRIDE)
    except TypeError:
        pytest.skip("needs more than a stride")
    if inner.needs_images:
        pytest.skip("blocks carry no images")
    density, points = scene()
    out = RegionLoss(inner, region)(density, points)
    expected = 0.0
    cells = region // STRIDE
    for b, p in enumerate(points):
        for i in range(64 // region):
            for j in range(64 // region):
                corner = torch.tensor([j * region, i * region])
                here = ((p >= corner) & (p < corner + region)).all(1)
                block = density[b : b + 1, :, i * cells : (i + 1) * cells, j * cells : (j + 1) * cells]
                expected += float(inner(block, [p[here] - corner]).total) / len(points)
    assert out.total.item() == pytest.approx(expected, rel=1e-4)
    assert out.total.item() == pytest.approx(sum(out.weights[k] * float(t) for k, t in out.terms.items()), rel=1e-5)


def test_one_block_is_the_loss_itself() -> None:
    density, points = scene()
    for name in ("hd-papm", "gaussian"):
        inner = losses.create(name, stride=STRIDE)
        assert float(RegionLoss(inner, 64)(density, points).total) == pytest.approx(float(inner(density, points).total))


def test_kernels_that_stay_in_their_blocks_make_no_difference() -> None:
    """A loss of cells, points in the middle of their blocks: value and gradient of the whole crop."""
    density, _ = scene()
    points = [torch.tensor([[16.3, 15.2], [48.0, 17.9], [15.5, 48.0]])] * 3
    inner = losses.create("hd-papm", stride=STRIDE)  # reaches 8.1 px
    gradients = []
    for loss in (inner, RegionLoss(inner, 32)):
        d = density.clone().requires_grad_()
        out = loss(d, points)
        gradients.append(torch.autograd.grad(out.total, d)[0])
        assert out.total.item() == pytest.approx(float(inner(density, points).total), rel=1e-6)
    assert torch.allclose(*gradients, atol=1e-7)


def context_of(points: list[torch.Tensor], side: int = 64) -> LossContext:
    """The crop is the whole image."""
    return LossContext(
        offsets=torch.zeros(3, 2), sizes=torch.full((3, 2), float(side)), halo=PointBatch.from_list(points)
    )


def test_without_context_a_kernel_is_squeezed_into_its_block_with_context_it_is_not() -> None:
    """Blocks alone keep each point's mass inside its block; with the surroundings the loss of cells equals the whole's."""
    density, points = scene()
    inner = losses.create("hd-papm", stride=STRIDE)
    whole = float(inner(density, points).total)
    for region in (16, 32):
        blocks = RegionLoss(inner, region)
        assert float(blocks(density, points).total) != pytest.approx(whole, rel=1e-3)
        assert float(blocks(density, points, context=context_of(points)).total) == pytest.approx(whole, rel=1e-5)


def test_gaussian_blocks_with_context_are_near_the_whole() -> None:
    """The halo of a Gaussian ends at 3σ, so the tail of farther neighbours is missing."""
    density, points = scene()
    inner = losses.create("gaussian", stride=STRIDE)
    whole = float(inner(density, points).total)
    found = float(RegionLoss(inner, 16)(density, points, context=context_of(points)).total)
    assert found == pytest.approx(whole, rel=0.01)


def test_a_margin_is_seen_by_no_block() -> None:
    density, points = scene()
    kept = [p[((p >= 16) & (p < 48)).all(1)] for p in points]
    loss = RegionLoss(losses.create("hd-papm", stride=STRIDE), 16, margin=16)
    first = loss(density, kept)
    other = density.clone()
    other[..., :2, :] = other[..., 6:, :] = other[..., :, :2] = other[..., :, 6:] = 9.0
    other.requires_grad_()
    out = loss(other, points)  # points of the margin are left out as well
    assert out.total.item() == pytest.approx(first.total.item())
    gradient = torch.autograd.grad(out.total, other)[0]
    assert not gradient[..., :2].any() and not gradient[..., 6:, :].any() and gradient[..., 2:6, 2:6].any()
    inner = RegionLoss(losses.create("hd-papm", stride=STRIDE), 16)
    assert float(inner(density[..., 2:6, 2:6], [p - 16 for p in kept]).total) == pytest.approx(first.total.item())


def test_a_margin_with_context_is_the_window_of_the_whole_target() -> None:
    density, points = scene()
    inner = losses.create("hd-papm", stride=STRIDE)
    target = inner.target(density, PointBatch.from_list(points), None).double()
    expected = (density - target)[..., 2:6, 2:6].square().sum() / 6
    mask = torch.zeros(3, 64, 64, dtype=torch.bool)
    mask[:, 16:48, 16:48] = True
    kept = [p[((p >= 16) & (p < 48)).all(1)] for p in points]
    context = context_of(points)
    found = RegionLoss(inner, 16, margin=16)(density, kept, context=context)
    assert found.total.item() == pytest.approx(float(expected), rel=1e-5)
    masked = inner(density, kept, context=LossContext(mask, context.offsets, context.sizes, context.halo))
    assert masked.total.item() == pytest.approx(float(expected), rel=1e-5)


def test_the_mask_follows_its_blocks() -> None:
    density, points = scene()
    mask = torch.zeros(3, 64, 64, dtype=torch.bool)
    mask[:, :40, 8:] = True
    inner = losses.create("hd-papm", stride=STRIDE)
    context = LossContext(mask, torch.zeros(3, 2), torch.full((3, 2), 64.0), PointBatch.from_list(points))
    whole = inner(density, points, context=context)
    assert float(RegionLoss(inner, 32)(density, points, context=context).total) == pytest.approx(
        whole.total.item(), rel=1e-5
    )


def test_every_image_keeps_its_own_size() -> None:
    """A batch of blocks is the mean of its images: the sizes of the images go with their blocks."""
    density, points = scene()
    inner = losses.create("bl", stride=STRIDE)  # its background goes with the short side of the image
    sizes = torch.tensor([[64.0, 500.0], [200.0, 150.0], [400.0, 300.0]])

    def total(images: slice) -> float:
        context = LossContext(offsets=torch.zeros(3, 2)[images], sizes=sizes[images])
        return float(RegionLoss(inner, 32)(density[images], points[images], context=context).total)

    alone = [total(slice(k, k + 1)) for k in range(3)]
    assert total(slice(None)) == pytest.approx(sum(alone) / 3, rel=1e-6)


def test_blocks_must_fit_the_stride() -> None:
    inner = losses.create("hd-papm", stride=STRIDE)
    for region, margin in ((20, 0), (16, 4), (0, 0), (-16, 0), (16, -8)):
        with pytest.raises(ConfigError, match="multiples of the map's stride 8"):
            RegionLoss(inner, region, margin)
    with pytest.raises(ConfigError, match="leaves nothing"):
        RegionLoss(inner, 16, margin=32)(*scene())
    assert RegionLoss(inner, 16).halo == inner.halo
