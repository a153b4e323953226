"""Batches by step number: who is in them, where their points are, and that the pixels agree with the points."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from papm import losses
from papm.data.augment import HEAD, Augment, Plan, _corner, plan, sample_order
from papm.data.cache import ImageStore
from papm.data.crops import cut_crops, cut_one_by_one, render
from papm.imagenet import MEAN, STD, normalize
from papm.losses.density import target
from papm.points import flip
from papm.structures import Batch, PointBatch
from papm.targets import density_map


def store_of(images: list[Tensor], roi: list[Tensor] | None = None) -> ImageStore:
    """Images uint8 [3, H, W] as the flat store."""
    sizes = torch.tensor([i.shape[1:] for i in images])
    areas = sizes.prod(1)
    pixels = torch.cat([i.permute(1, 2, 0).reshape(-1, 3) for i in images])
    region = None if roi is None else torch.cat([r.reshape(-1) for r in roi])
    return ImageStore(pixels, areas.cumsum(0) - areas, sizes, region)


def noise_image(h: int, w: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def dots(h: int, w: int, points: Tensor) -> Tensor:
    """Black, with one white pixel at each point."""
    image = torch.zeros(3, h, w, dtype=torch.uint8)
    for x, y in points.tolist():
        image[:, math.floor(y), math.floor(x)] = 255
    return image


def with_extent(points: Tensor, extent: float = 3.0) -> np.ndarray:
    return torch.cat([points, torch.full((len(points), 1), extent)], 1).numpy().astype(np.float32)


def to_bytes(images: Tensor) -> Tensor:
    """Undo the normalisation."""
    return images * torch.tensor(STD).view(3, 1, 1) * 255 + torch.tensor(MEAN).view(3, 1, 1) * 255


def heads(*rows: tuple[float, ...]) -> Tensor:
    """Image, x, y, scale, flip, grey of each crop; contrast and brightness as they are."""
    return torch.tensor([(*r, 1.0, 0.0) for r in rows], dtype=torch.float32)


# --- who is in a batch ------------------------------------------------------------------------------------------------


@given(images=st.integers(1, 23), seed=st.integers(0, 5), first=st.integers(0, 100))
def test_every_image_once_an_epoch(images: int, seed: int, first: int) -> None:
    for epoch in (0, 1, 7):
        order = sample_order(seed, epoch * images, images, images)
        assert sorted(order.tolist()) == list(range(images))
    whole = sample_order(seed, 0, first + 30, images)
    assert sample_order(seed, first, 30, images).tolist() == whole[first:].tolist()


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(sample_order(seed, 40 * epoch, 40, 40).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len(orders) == 6


SIZES = [(90, 110), (64, 64), (40, 150), (200, 170), (30, 20)]
POINTS = [
    with_extent(torch.rand(25, 2, generator=torch.Generator().manual_seed(k)) * torch.tensor([w, h]))
    for k, (h, w) in enumerate(SIZES)
]
FULL = Augment(crop=64, flip=0.5, grey=0.3, scale_min=0.5, scale_max=2.0, margin=16, halo=12.0)


def make(step: int, augment: Augment = FULL, **options: Any) -> Plan:
    return plan(step, augment, SIZES, POINTS, **{"seed": 3, "batch": 4, **options})


def test_a_plan_is_a_pure_function_of_seed_step_and_rank() -> None:
    first = {step: make(step) for step in range(12)}
    for step in (11, 3, 0, 7):  # in any order
        assert torch.equal(make(step).rows, first[step].rows) and torch.equal(make(step).counts, first[step].counts)
    assert not torch.equal(first[0].rows[:, :HEAD], first[1].rows[:, :HEAD])
    assert not torch.equal(make(0, seed=4).rows[:, :HEAD], first[0].rows[:, :HEAD])
    assert not torch.equal(make(0, rank=1, world=2).rows[:, :HEAD], first[0].rows[:, :HEAD])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_out_the_same_order(world: int) -> None:
    batch = 8 // world
    seen = []
    for step in range(10):
        for rank in range(world):
            seen += make(step, batch=batch, rank=rank, world=world).rows[:, 0].int().tolist()
    assert seen == sample_order(3, 0, 80, len(SIZES)).tolist()
    for epoch in range(16):
        assert sorted(seen[5 * epoch : 5 * epoch + 5]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("world", [2, 4])
def test_processes_together_see_the_crops_that_one_would(world: int) -> None:
    """Not only the same images: also their places, scales, flips and points."""
    for step in (0, 7):
        whole = make(step, batch=8)
        parts = [make(step, batch=8 // world, rank=rank, world=world) for rank in range(world)]
        assert torch.equal(torch.cat([p.rows[:, :HEAD] for p in parts]), whole.rows[:, :HEAD])
        assert torch.equal(torch.cat([p.counts for p in parts]), whole.counts)


def test_every_crop_has_a_place_and_a_scale_of_its_own() -> None:
    rows = torch.cat([make(step, batch=8).rows[:, :HEAD] for step in range(25)])
    assert len(rows[:, 3].unique()) == 200
    flips = rows[:, 4].view(25, 8).mean(1)
    assert ((flips > 0) & (flips < 1)).sum() > 20  # a batch is neither flipped as one nor left as one


def test_one_option_does_not_shift_the_others_randomness() -> None:
    plain, grey, never = (
        make(5, Augment(crop=64, flip=f, grey=g)).rows[:, :HEAD] for f, g in ((0.5, 0.0), (0.5, 1.0), (0.0, 0.0))
    )
    assert torch.equal(plain[:, :5], grey[:, :5]) and grey[:, 5].all() and not plain[:, 5].any()
    assert torch.equal(plain[:, :4], never[:, :4]) and not never[:, 4].any()


def test_probabilities_and_scales() -> None:
    rows = torch.cat([make(step, batch=8).rows[:, :HEAD] for step in range(100)])
    assert 0.42 < float(rows[:, 4].mean()) < 0.58 and 0.22 < float(rows[:, 5].mean()) < 0.38
    logs = rows[:, 3].log2()
    assert float(logs.min()) >= -1 and float(logs.max()) <= 1
    assert abs(float(logs.mean())) < 0.1 and float(logs.std()) == pytest.approx(2 / math.sqrt(12), rel=0.1)


def test_a_share_of_the_crops_is_resized_and_the_rest_is_untouched() -> None:
    """And nothing else of a crop depends on the share."""
    every, half, none = (dataclasses.replace(FULL, scale_share=share) for share in (1.0, 0.5, 0.0))
    rows = {
        a.scale_share: torch.cat([make(k, a, batch=8).rows[:, :HEAD] for k in range(100)]) for a in (every, half, none)
    }
    kept = rows[0.5][:, 3] == 1
    assert (
        0.42 < float(kept.float().mean()) < 0.58 and not (rows[1.0][:, 3] == 1).any() and (rows[0.0][:, 3] == 1).all()
    )
    assert torch.equal(rows[0.5][~kept], rows[1.0][~kept]) and torch.equal(rows[0.5][kept], rows[0.0][kept])
    assert not none.resizes and half.resizes


def test_crops_lie_in_the_image_and_reach_every_place() -> None:
    xs = set()
    for step in range(1200):
        rows = make(step, Augment(crop=64), batch=5).rows
        for row in rows:
            h, w = SIZES[int(row[0])]
            assert min(0, w - 64) <= row[1] <= max(0, w - 64) and min(0, h - 64) <= row[2] <= max(0, h - 64)
            if row[0] == 0:
                xs.add(int(row[1]))
    assert xs == set(range(110 - 64 + 1))


@pytest.mark.parametrize("margin", [0, 16])
def test_the_border_of_an_image_is_seen_a_third_as_often_as_its_middle(margin: int) -> None:
    inner, draws = 64 - 2 * margin, 4000
    seen, corners = np.zeros(200), np.zeros(200)
    for u in (np.arange(draws) + 0.5) / draws:
        x = _corner(u, 200, 64, margin) + margin
        assert 0 <= x <= 200 - inner
        seen[x : x + inner] += 1
        corners[x] += 1
    for edge in (seen[4:12], seen[-12:-4]):
        assert edge.mean() >= 0.3 * seen[100]
    assert corners[0] <= draws / 6 and corners.max() == pytest.approx(corners[0], abs=2)
    assert (corners[: 200 - inner + 1] > 0).all()


def test_uniform_positions_take_every_place_alike() -> None:
    draws = 137 * 20  # 200 - 64 + 1 places
    corners = np.bincount([_corner((k + 0.5) / draws, 200, 64, 0, border=False) for k in range(draws)])
    assert len(corners) == 137 and (corners == 20).all()
    size, points = [(200, 200)], [np.zeros((0, 3), np.float32)]
    first, second = (
        plan(0, Augment(64, positions=p), size, points, seed=0, batch=64).rows for p in ("border", "uniform")
    )
    assert not torch.equal(first, second)


def test_a_margin_lets_the_border_fall_into_the_seen_part() -> None:
    augment = Augment(crop=64, margin=16)
    low = high = 0
    for step in range(300):
        for row in make(step, augment, batch=5).rows:
            w = SIZES[int(row[0])][1]
            if w >= 32:
                assert -16 <= row[1] <= w - 48
                low, high = low + (row[1] == -16), high + (row[1] == w - 48)
            else:  # the image lies inside the seen part
                assert -row[1] >= 16 and -row[1] + w <= 48
    assert low > 3 and high > 3


@pytest.mark.parametrize(("n", "length"), [(0, 64), (1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (5000, 5120)])
def test_points_are_padded_to_one_of_few_lengths(n: int, length: int) -> None:
    made = plan(0, Augment(crop=64), [(64, 64)], [with_extent(torch.full((n, 2), 9.0))], seed=0, batch=1)
    assert made.counts.tolist() == [[n, n]] and made.rows.shape == (1, HEAD + 3 * length)


# --- points and pixels ------------------------------------------------------------------------------------------------


def rendered(
    augment: Augment, images: list[Tensor], points: list[Tensor], step: int, batch: int = 6
) -> tuple[Plan, Batch, PointBatch]:
    store = store_of(images)
    sizes = [(i.shape[1], i.shape[2]) for i in images]
    made = plan(step, augment, sizes, [with_extent(p) for p in points], seed=1, batch=batch)
    batch = render(store, made, augment)
    assert batch.halo is not None
    return made, batch, batch.halo


PIXELS = [
    torch.tensor([[0.5, 0.5], [79.5, 59.5], [10.5, 20.5], [40.5, 33.5], [79.5, 0.5], [0.5, 30.5]]),
    torch.tensor([[0.5, 0.5], [19.5, 29.5], [7.5, 9.5]]),
    torch.zeros(0, 2),
]
IMAGES = [dots(60, 80, PIXELS[0]), dots(30, 20, PIXELS[1]), dots(100, 50, PIXELS[2])]


@pytest.mark.parametrize("flips", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("margin", [0, 16])
def test_each_point_of_a_crop_is_its_bright_pixel(flips: float, margin: int) -> None:
    """At scale 1, for flips, margins and images smaller than the crop: white pixels and points are the same set."""
    augment = Augment(crop=64, flip=flips, margin=margin, halo=64.0)
    found = 0
    for step in range(12):
        _, batch, halo = rendered(augment, IMAGES, PIXELS, step)
        white = to_bytes(batch.images).mean(1) > 250
        for b in range(len(batch.images)):
            bright = {(x + 0.5, y + 0.5) for y, x in white[b].nonzero().tolist()}
            inside = batch.points.to_list()[b]
            seen = {(x, y) for x, y in bright if margin <= x < 64 - margin and margin <= y < 64 - margin}
            assert {tuple(p) for p in inside.tolist()} == seen
            assert bright <= {tuple(p) for p in halo.to_list()[b].tolist()}
            found += len(seen)
    assert found > 20


@pytest.mark.parametrize("low", [0.5, 0.8, 1.0, 1.5])
def test_each_point_of_a_scaled_crop_is_a_bright_blob(low: float) -> None:
    """With scaling a dot becomes a small blob; its centroid is the transformed point to a tenth of a pixel."""
    augment = Augment(crop=64, flip=0.5, scale_min=low, scale_max=2 * low)
    found = 0
    points = [torch.tensor([[20.5, 25.5], [60.5, 30.5], [45.5, 9.5]])]
    for step in range(8):
        _, batch, _ = rendered(augment, [dots(60, 80, points[0])], points, step, batch=2)
        light = to_bytes(batch.images).mean(1)
        for b, inside in enumerate(batch.points.to_list()):
            for x, y in inside.tolist():
                if not (6 < x < 58 and 6 < y < 58):
                    continue
                i, j = math.floor(y), math.floor(x)
                patch = light[b, i - 5 : i + 6, j - 5 : j + 6].clamp(min=0)
                yy, xx = torch.meshgrid(
                    torch.arange(i - 5, i + 6) + 0.5, torch.arange(j - 5, j + 6) + 0.5, indexing="ij"
                )
                assert float((patch * xx).sum() / patch.sum()) == pytest.approx(x, abs=0.15)
                assert float((patch * yy).sum() / patch.sum()) == pytest.approx(y, abs=0.15)
                found += 1
    assert found >= 5


def test_extents_scale_with_the_image() -> None:
    augment = Augment(crop=64, flip=0.0, scale_min=0.5, scale_max=2.0)
    made, _, halo = rendered(augment, IMAGES[:1], PIXELS[:1], 4)
    assert halo.extents is not None
    for b, scale in enumerate(made.rows[:, 3].tolist()):
        assert torch.allclose(halo.extents[b][halo.valid[b]], torch.tensor(3.0 * scale), rtol=1e-5)


@pytest.mark.parametrize(("margin", "low"), [(0, 1.0), (16, 1.0), (16, 0.6)])
def test_real_pixels_are_those_of_the_image(margin: int, low: float) -> None:
    """Padding alone, whatever counts: margins and regions are pixels that a network may look at."""
    sizes = [(40, 150), (90, 70), (200, 200)]
    images = [torch.full((3, h, w), 255, dtype=torch.uint8) for h, w in sizes]
    roi = [torch.arange(h * w).view(h, w) % 3 > 0 for h, w in sizes]
    augment = Augment(96, flip=0.5, margin=margin, scale_min=low, scale_max=1.0)
    nothing = [np.zeros((0, 3), np.float32)] * 3
    for step in range(3):
        made = render(store_of(images, roi), plan(step, augment, sizes, nothing, seed=0, batch=6), augment)
        assert made.real is not None and made.mask is not None and not made.real.all()
        assert torch.equal(made.real, (made.images != 0).all(1))  # white is not the mean colour
        assert (made.real | ~made.mask).all() and (made.real & ~made.mask).any()
    assert Batch(images=made.images, points=made.points, mask=made.mask).real is None


def test_points_of_the_plan_count() -> None:
    """Inside the crop first, then its halo; counts say where each ends."""
    for step in range(20):
        made = make(step)
        batch = render(store_of([noise_image(h, w) for h, w in SIZES]), made, FULL)
        halo = batch.halo
        assert (
            halo is not None
            and (batch.points.counts == made.counts[:, 0]).all()
            and (halo.counts == made.counts[:, 1]).all()
        )
        for inside, around in zip(batch.points.to_list(), halo.to_list()):
            assert ((inside >= 16) & (inside < 48)).all()
            assert torch.equal(around[: len(inside)], inside)
            rest = around[len(inside) :]
            assert ((rest >= 4) & (rest < 60)).all() and not ((rest >= 16) & (rest < 48)).all(1).any()


@pytest.mark.slow
@given(
    side=st.integers(20, 90),
    scale=st.floats(0.3, 3.0),
    place=st.sampled_from(("first", "last")),
    flips=st.sampled_from((0.0, 1.0)),
)
@settings(max_examples=60)
def test_no_point_falls_off_an_image_that_fits_into_its_crop(side: int, scale: float, place: str, flips: float) -> None:
    """A point on the very edge stays inside when the size is rounded, and when a flip takes x = 0 to x = W."""
    edge = 0.0 if place == "first" else float(np.nextafter(np.float32(side), np.float32(0)))
    points = torch.tensor([[edge, edge]])
    augment = Augment(crop=304, flip=flips, scale_min=scale, scale_max=scale)
    made = plan(0, augment, [(side, side)], [with_extent(points)], seed=0, batch=1)
    batch = render(store_of([noise_image(side, side)]), made, augment)
    assert batch.points.counts.tolist() == [1] and batch.mask is not None
    x, y = batch.points.to_list()[0][0].tolist()
    assert batch.mask[0, math.floor(y), math.floor(x)]
    found = target(torch.zeros(1, 1, 38, 38), batch.points, batch, stride=8, sigma=4.0, shape=8.0)
    assert float(found.sum()) == pytest.approx(1, rel=1e-4)


def test_plan_and_pixels_round_the_scaled_size_alike() -> None:
    """33 × 0.5000000001 is 17 in float64 and 16 in float32: a crop of 16 must not begin at 1 of 16 pixels."""
    augment = Augment(crop=16, scale_min=0.5000000001, scale_max=0.5000000001)
    store = store_of([noise_image(33, 33)])
    for step in range(10):
        made = plan(step, augment, [(33, 33)], [np.zeros((0, 3), np.float32)], seed=0, batch=2)
        batch = render(store, made, augment)
        assert batch.mask is not None and batch.mask.all()


def test_mask_is_where_the_image_is() -> None:
    augment = Augment(crop=64, flip=0.5, margin=0)
    for step in range(6):
        _, batch, _ = rendered(augment, [torch.full((3, 30, 20), 200, dtype=torch.uint8)], [torch.zeros(0, 2)], step, 3)
        assert batch.mask is not None
        assert (batch.mask.sum((1, 2)) == 600).all()
        light = to_bytes(batch.images)
        assert torch.allclose(light.permute(0, 2, 3, 1)[batch.mask], torch.tensor(200.0), atol=1e-3)
        assert (batch.images.permute(0, 2, 3, 1)[~batch.mask] == 0).all()  # the mean colour


def test_mask_of_a_margin() -> None:
    _, batch, _ = rendered(Augment(crop=64, margin=16, flip=0.0), [noise_image(64, 64)], [torch.zeros(0, 2)], 0, 1)
    assert batch.mask is not None
    whole = torch.zeros(64, 64, dtype=torch.bool)
    whole[16:48, 16:48] = True
    assert (batch.mask[0] <= whole).all() and batch.mask.any()
    assert (to_bytes(batch.images) > -1).all()


# --- pixels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resized", [False, True])
def test_scale_one_gives_the_very_pixels(resized: bool) -> None:
    image = noise_image(50, 70)
    augment = Augment(crop=32, scale_min=0.5 if resized else 1.0, scale_max=1.0)
    images, mask, offsets, sizes = cut_crops(
        store_of([image]), heads((0, 7, 11, 1, 0, 0), (0, 38, 18, 1, 1, 0)), augment
    )
    expected = normalize(image)
    assert torch.allclose(images[0], expected[:, 11:43, 7:39], atol=1e-6 if resized else 5e-7)
    assert torch.allclose(images[1], expected[:, 18:50, 38:70].flip(-1), atol=1e-6 if resized else 5e-7)
    assert mask.all() and sizes.tolist() == [[50, 70]] * 2
    assert offsets.tolist() == [[7, 11], [0, 18]]  # of the flipped image: W - crop - x


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.77, 1.0, 1.6, 3.0])
def test_a_constant_image_stays_constant(scale: float) -> None:
    image = torch.tensor([10, 120, 250], dtype=torch.uint8).view(3, 1, 1).expand(3, 40, 60).contiguous()
    augment = Augment(crop=32, scale_min=0.3, scale_max=3.0)
    images, mask, _, sizes = cut_crops(store_of([image]), heads((0, 0, 0, scale, 1, 0)), augment)
    h, w = sizes[0].int().tolist()
    assert (h, w) == (round(40 * scale), round(60 * scale)) and int(mask.sum()) == min(32, h) * min(32, w)
    inside = to_bytes(images).permute(0, 2, 3, 1)[mask]
    assert torch.allclose(inside, torch.tensor([10.0, 120.0, 250.0]), atol=1e-3)


def test_shrinking_a_checkerboard_gives_grey_not_moire() -> None:
    y, x = torch.meshgrid(torch.arange(128), torch.arange(128), indexing="ij")
    image = (255 * ((x + y) % 2)).to(torch.uint8).expand(3, 128, 128).contiguous()
    augment = Augment(crop=32, scale_min=0.3, scale_max=1.0)
    for scale in (0.3, 0.5):
        images, mask, _, _ = cut_crops(store_of([image]), heads((0, 2, 2, scale, 0, 0)), augment)
        assert mask.all()
        assert (to_bytes(images)[..., 1:-1, 1:-1] - 127.5).abs().max() < 15
    still, _, _, _ = cut_crops(store_of([image]), heads((0, 2, 2, 1.0, 0, 0)), augment)
    assert to_bytes(still).std() > 100


@pytest.mark.parametrize("scale", [0.4, 0.5, 0.9, 1.25, 2.0])
def test_resizing_is_that_of_torch(scale: float) -> None:
    """An outside oracle: bilinear, antialiased when shrinking, pixel centres kept; away from borders."""
    image = noise_image(60, 80)
    augment = Augment(crop=24, scale_min=0.4, scale_max=2.0)
    images, _, _, sizes = cut_crops(store_of([image]), heads((0, 4, 0, scale, 0, 0)), augment)
    h, w = round(60 * scale), round(80 * scale)
    whole = torch.nn.functional.interpolate(
        image.float()[None], size=(h, w), mode="bilinear", antialias=scale < 1, align_corners=False
    )
    assert sizes[0].tolist() == [h, w]
    expected, found = whole[0, :, 3:21, 7:25], to_bytes(images)[0, :, 3:21, 3:21]
    if (h / 60, w / 80) == (scale, scale):  # else torch's factor is the rounded one
        assert torch.allclose(found, expected[..., :18], atol=0.05)
    assert float((found - expected).abs().mean()) < 8


def test_a_ramp_keeps_its_place() -> None:
    """Value = x of the pixel's centre: after resizing by s, output pixel k must read (k + ½)/s."""
    image = (torch.arange(100) * 2).to(torch.uint8).expand(3, 20, 100).contiguous()
    augment = Augment(crop=16, scale_min=0.5, scale_max=2.0)
    for scale, flipped in ((0.5, 0), (1.3, 0), (2.0, 1), (0.5, 1)):
        images, _, offsets, sizes = cut_crops(store_of([image]), heads((0, 12, 0, scale, flipped, 0)), augment)
        k = torch.arange(16.0)
        place = (12 + (15 - k if flipped else k) + 0.5) / scale
        assert torch.allclose(to_bytes(images)[0, 0, 2], 2 * (place - 0.5), atol=0.02)
        if flipped:
            assert offsets[0, 0] == sizes[0, 1] - 16 - 12


def test_grey_removes_colour_and_keeps_luminance() -> None:
    image = noise_image(32, 32)
    images, _, _, _ = cut_crops(store_of([image]), heads((0, 0, 0, 1, 0, 1)), Augment(crop=32, grey=1.0))
    grey = to_bytes(images)[0]
    luma = (torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1) * image).sum(0)
    assert torch.allclose(grey, luma.expand(3, 32, 32), atol=1e-3)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("flipped", [0, 1])
def test_region_of_interest_follows_the_pixels(scale: float, flipped: int) -> None:
    """The mask of a region is the region, nearest pixel, in the crop's place: no shift when images are resized."""
    region = torch.zeros(40, 60, dtype=torch.bool)
    region[5:25, 8:41] = True
    roi = [torch.ones(7, 7, dtype=torch.bool), region]
    store = store_of([noise_image(7, 7), noise_image(40, 60)], roi)
    for low in (0.5, scale):
        augment = Augment(crop=64, scale_min=low, scale_max=scale)
        _, mask, _, sizes = cut_crops(store, heads((1, -3, 2, scale, flipped, 0)), augment)
        k = torch.arange(64)
        column = (63 - k if flipped else k) - 3
        h, w = sizes[0].int().tolist()
        source_x, source_y = ((column + 0.5) / scale).floor().long(), ((k + 2 + 0.5) / scale).floor().long()
        real = ((k + 2 < h)[:, None]) & ((column >= 0) & (column < w))[None]
        expected = region[source_y.clamp(0, 39)][:, source_x.clamp(0, 59)] & real
        assert torch.equal(mask[0], expected)


def test_rendering_is_deterministic_to_the_bit() -> None:
    store = store_of([noise_image(h, w, k) for k, (h, w) in enumerate(SIZES)])
    first, second = (render(store, make(6), FULL) for _ in range(2))
    assert torch.equal(first.images, second.images) and torch.equal(first.points.xy, second.points.xy)
    assert first.mask is not None and second.mask is not None and torch.equal(first.mask, second.mask)
    swapped = render(store, make(6), FULL, cut=cut_crops)
    assert torch.equal(swapped.images, first.images)


@pytest.mark.parametrize("more", [{}, {"turn": True, "margin": 4, "colour": 0.3}])
def test_crops_cut_one_by_one_are_those_of_the_whole_batch(more: dict[str, Any]) -> None:
    augment = Augment(48, grey=0.5, scale_min=0.4, scale_max=1.8, scale_share=0.6, **more)
    store = store_of([noise_image(h, w, k) for k, (h, w) in enumerate(SIZES)])
    heads = make(12, augment, batch=12).rows[:, :HEAD]
    assert len(set(heads[:, 3].tolist())) > 5 and (heads[:, 3] == 1).any()
    for one, all_ in zip(cut_one_by_one(store, heads, augment), cut_crops(store, heads, augment), strict=True):
        assert torch.allclose(one.float(), all_.float(), atol=1e-5)


# --- the whole chain --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flips", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.75])
@pytest.mark.parametrize("margin", [0, 16])
def test_the_target_of_a_crop_is_the_window_of_its_flipped_image(flips: float, scale: float, margin: int) -> None:
    """Offsets and sizes are those of the flipped, scaled image: the target equals its whole map's window."""
    size = (120, 140)
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(2)) * torch.tensor([140.0, 120.0])
    loss = losses.create("hd-papm", stride=8)
    augment = Augment(64, flip=flips, scale_min=scale, scale_max=scale, margin=margin, halo=loss.halo)
    h, w = round(120 * scale), round(140 * scale)
    moved = points * scale
    whole = torch.zeros(h + 128, w + 128)
    whole[64 : 64 + h, 64 : 64 + w] = density_map(flip(moved, w) if flips else moved, (h, w))
    store = store_of([noise_image(*size)])
    for step in range(4):
        made = plan(step, augment, [size], [with_extent(points)], seed=0, batch=2)
        batch = render(store, made, augment)
        assert batch.offsets is not None and batch.sizes is not None
        found = target(torch.zeros(2, 1, 8, 8), batch.points, batch, stride=8, sigma=4.0, shape=8.0)
        for b, (x, y) in enumerate(batch.offsets.int().tolist()):
            expected = whole[64 + y : 128 + y, 64 + x : 128 + x].reshape(8, 8, 8, 8).sum((1, 3))
            cells = slice(margin // 8, 8 - margin // 8)  # the halo is that of the part that the loss sees
            assert torch.allclose(found[b, 0, cells, cells], expected[cells, cells], atol=2e-4)


@pytest.mark.slow
def test_one_compiled_form_does_for_all_numbers_of_points() -> None:
    """Compiling takes seconds, and after a few forms of a function the compiler gives up."""
    compiled: list[Any] = []

    def count(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    store, augment = store_of([noise_image(40, 50)]), Augment(crop=16)
    cut = torch.compile(cut_crops, dynamic=False, backend=count)
    for length in (64, 128, 256):
        rows = torch.zeros(2, HEAD + 3 * length)
        rows[:, 3] = 1.0  # scale
        render(store, Plan(rows, torch.zeros(2, 2)), augment, cut)
    assert len(compiled) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_same_without_waiting_for_it() -> None:
    """Decisions and points to the bit, pixels to 1e-3, and no host sync once the plan is on its way."""
    host = store_of([noise_image(h, w, k) for k, (h, w) in enumerate(SIZES)], [torch.rand(s) < 0.7 for s in SIZES])
    device = torch.device("cuda")
    there = host.to(device)
    for step in range(3):
        made = make(step)
        moved = made.pin_memory().to(device)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            batch = render(there, moved, FULL)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        expected = render(host, made, FULL)
        halo, around = batch.halo, expected.halo
        assert halo is not None and around is not None
        assert torch.equal(halo.xy.cpu(), around.xy) and torch.equal(halo.valid.cpu(), around.valid)
        assert torch.allclose(batch.images.cpu(), expected.images, atol=1e-3)
        assert batch.mask is not None and expected.mask is not None and torch.equal(batch.mask.cpu(), expected.mask)


def test_colour_changes_contrast_and_brightness_within_bounds() -> None:
    """(v − ½)·c + ½ + b with c within 1 ± colour and b within ± colour/2, cut to what a pixel can be."""
    image = torch.arange(3 * 32 * 32, dtype=torch.uint8).reshape(3, 32, 32)
    store = store_of([image])
    changes = Augment(crop=32, flip=0.0, grey=0.0, colour=0.4)
    seen = set()
    for step in range(12):
        made = plan(step, changes, [(32, 32)], [np.zeros((0, 3), np.float32)], seed=0, batch=1)
        c, b = made.rows[0, 6:8].tolist()
        assert 0.6 <= c <= 1.4 and -0.2 <= b <= 0.2
        seen.add(round(c, 3))
        shown = to_bytes(render(store, made, changes).images)[0] / 255
        assert torch.allclose(shown, ((image / 255 - 0.5) * c + 0.5 + b).clamp(0, 1), atol=1e-4)
    assert len(seen) == 12
    still = plan(0, Augment(crop=32), [(32, 32)], [np.zeros((0, 3), np.float32)], seed=0, batch=1)
    assert still.rows[0, 6:8].tolist() == [1.0, 0.0]


def turned(image: Tensor, way: int) -> Tensor:
    """The last two axes of an image turned as the number says."""
    image = image.flip(-1) if way & 1 else image
    image = image.flip(-2) if way & 2 else image
    return image.transpose(-1, -2) if way & 4 else image


@pytest.mark.parametrize("way", range(8))
def test_a_turned_crop_is_the_crop_of_the_turned_image(way: int) -> None:
    """Pixels, mask and region; its corner and size are those in the turned image, also where it reaches beyond it."""
    image, region = noise_image(40, 70), torch.rand(40, 70) < 0.5
    augment = Augment(crop=32, turn=True, margin=4)
    for corner in ((9, 5), (-4, -4), (42, 12)):
        made = cut_crops(store_of([image], [region]), heads((0, *corner, 1.0, way, 0)), augment)
        x, y = made[2][0].tolist()
        other = cut_crops(
            store_of([turned(image, way)], [turned(region, way)]), heads((0, x, y, 1.0, 0, 0)), Augment(32, margin=4)
        )
        for a, b in zip(made, other):
            assert torch.equal(a, b)


def test_points_turn_with_their_pixels_in_all_eight_ways() -> None:
    points = torch.rand(30, 2, generator=torch.Generator().manual_seed(2)) * torch.tensor([70.0, 40.0])
    points = points.floor() + 0.5
    augment = Augment(crop=32, turn=True)
    store, seen, ways = store_of([dots(40, 70, points)]), 0, set()
    for step in range(12):
        made = plan(step, augment, [(40, 70)], [with_extent(points)], seed=4, batch=4)
        ways |= set(made.rows[:, 4].int().tolist())
        batch = render(store, made, augment)
        for b in range(4):
            for x, y in batch.points.xy[b][batch.points.valid[b]].tolist():
                assert to_bytes(batch.images)[b, 0, int(y), int(x)] > 250
                seen += 1
    assert ways == set(range(8)) and seen > 100
