"""Moving points: what stays inside, what displacement does to counts and distances."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from papm import points as P
from papm.errors import ConfigError
from papm.structures import PointBatch

coordinates = st.lists(
    st.tuples(st.floats(-5, 40, width=32), st.floats(-5, 40, width=32)), min_size=0, max_size=12
).map(lambda v: torch.tensor(v, dtype=torch.float32).reshape(-1, 2))


def test_inside_is_half_open() -> None:
    xy = torch.tensor([[0.0, 0.0], [31.999, 23.999], [32.0, 5.0], [5.0, 24.0], [-1e-6, 5.0], [math.nan, 5.0]])
    assert P.inside(xy, (24, 32)).tolist() == [True, True, False, False, False, False]


@given(coordinates)
def test_flipping_twice_is_nothing(xy: torch.Tensor) -> None:
    assert torch.allclose(P.flip(P.flip(xy, 37), 37), xy, atol=1e-5)


def test_flip_takes_pixel_centres_to_pixel_centres() -> None:
    xy = torch.tensor([[0.5, 1.0], [6.5, 2.0]])
    assert P.flip(xy, 7)[:, 0].tolist() == [6.5, 0.5]


@given(coordinates)
def test_crops_that_tile_an_image_share_out_its_points(xy: torch.Tensor) -> None:
    kept = []
    for y in range(0, 32, 8):
        for x in range(0, 32, 16):
            moved, index = P.crop(xy, (x, y), (8, 16))
            assert torch.allclose(moved + torch.tensor([float(x), float(y)]), xy[index])
            kept += index.tolist()
    assert sorted(kept) == P.inside(xy, (32, 32)).nonzero()[:, 0].tolist()


def test_spacing_against_all_pairs() -> None:
    xy = 50 * torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    distance = torch.cdist(xy.double(), xy.double())
    nearest = distance.sort(1).values[:, 1:4].mean(1)
    assert torch.allclose(P.spacing(xy), nearest.float(), rtol=1e-5)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 2), (4, 3), (5, 3)])
def test_spacing_with_fewer_neighbours_than_asked(n: int, k: int) -> None:
    xy = torch.stack([torch.arange(n).float() ** 2, torch.zeros(n)], -1)
    expected = [np.mean(sorted(abs(i * i - j * j) for j in range(n) if j != i)[:k]) for i in range(n)]
    assert P.spacing(xy).tolist() == pytest.approx(expected)


def test_spacing_of_few_and_of_duplicates() -> None:
    assert P.spacing(torch.zeros(0, 2)).shape == (0,)
    assert P.spacing(torch.zeros(1, 2), alone=7.0).tolist() == [7.0]
    assert P.spacing(torch.tensor([[1.0, 1.0], [1.0, 1.0], [4.0, 5.0]]), neighbours=1).tolist() == [0, 0, 5]


SIZE = (200, 300)
MIDDLE = torch.tensor([[150.0, 100.0]]).repeat(4000, 1)


def moved_by(kind: P.DisplacementKind, **options: object) -> np.ndarray:
    found, keep = P.displace(MIDDLE, SIZE, 10.0, kind, np.random.default_rng(1), **options)  # type: ignore[arg-type]
    assert len(keep) == len(MIDDLE)
    return (found - MIDDLE).double().norm(dim=1).numpy()


def test_laws_of_displacement() -> None:
    assert moved_by("ring") == pytest.approx(10.0, abs=1e-4)
    assert stats.kstest((moved_by("disc") / 10) ** 2, "uniform").pvalue > 1e-3
    assert stats.kstest(moved_by("gaussian") ** 2 / 200, "expon").pvalue > 1e-3
    assert stats.kstest((moved_by("ggd", shape=4.0) ** 2 / 200) ** 2, stats.gamma(0.5).cdf).pvalue > 1e-3


def test_displacement_in_units_of_each_object() -> None:
    extents = torch.linspace(1, 5, len(MIDDLE))
    found, _ = P.displace(MIDDLE, SIZE, 2.0, "ring", np.random.default_rng(0), extents=extents)
    assert torch.allclose((found - MIDDLE).norm(dim=1), 2 * extents, atol=1e-4)
    # Also for those that are drawn again at a border, each by its own.
    border = torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([32.0, 16.0])
    extents = torch.linspace(1, 5, 200).flip(0)
    found, kept = P.displace(border, (16, 32), 1.0, "ring", np.random.default_rng(0), extents=extents)
    assert len(kept) == 200
    assert torch.allclose((found - border).norm(dim=1), extents, atol=1e-4)


@given(
    xy=st.lists(st.tuples(st.floats(0, 31.99), st.floats(0, 15.99)), min_size=1, max_size=8),
    kind=st.sampled_from(["ring", "disc", "gaussian", "ggd"]),
    edge=st.sampled_from(["redraw", "clip", "drop", "free"]),
    amount=st.floats(0, 30),
)
def test_edge_rules(xy: list[tuple[float, float]], kind: P.DisplacementKind, edge: P.EdgeRule, amount: float) -> None:
    start = torch.tensor(xy, dtype=torch.float32)
    found, keep = P.displace(start, (16, 32), amount, kind, np.random.default_rng(5), edge=edge)
    assert found.dtype == torch.float32 and len(found) == len(keep) and keep.tolist() == sorted(set(keep.tolist()))
    if edge != "free":
        assert P.inside(found, (16, 32)).all()
    if edge in ("clip", "free") or amount == 0:
        assert len(found) == len(start)
    if kind == "ring" and edge in ("redraw", "drop", "free"):
        assert torch.allclose((found - start[keep]).norm(dim=1), torch.tensor(amount).float(), atol=1e-3)


def test_redraw_keeps_the_count_where_it_can() -> None:
    corners = torch.tensor([[0.0, 0.0], [299.9, 0.0], [0.0, 199.9], [299.9, 199.9]]).repeat(50, 1)
    found, keep = P.displace(corners, SIZE, 12.0, "ring", np.random.default_rng(3))
    assert len(found) == 200 and P.inside(found, SIZE).all() and keep.tolist() == list(range(200))


def test_points_that_start_far_outside_are_dropped_not_planted_on_the_border() -> None:
    xy = torch.tensor([[900.0, 50.0], [20.0, 20.0]])
    for edge in ("redraw", "drop"):
        found, keep = P.displace(xy, SIZE, 3.0, "disc", np.random.default_rng(3), edge=edge)
        assert keep.tolist() == [1] and len(found) == 1


def test_displacement_is_seeded_and_takes_no_points() -> None:
    first, second = (P.displace(MIDDLE[:9], SIZE, 5.0, "disc", np.random.default_rng(2))[0] for _ in range(2))
    assert torch.equal(first, second)
    found, keep = P.displace(torch.zeros(0, 2), SIZE, 5.0, "ggd", np.random.default_rng(2))
    assert found.shape == (0, 2) and len(keep) == 0


@pytest.mark.parametrize("kind", ["missed", "doubled"])
def test_laws_of_blunders(kind: P.Blunder) -> None:
    """The share is met, nobody is chosen who would not be chosen with a larger one, and nothing leaves the image."""
    xy = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([90.0, 60.0])
    before = xy.clone()
    chosen: list[set[int]] = []
    for share in (0.0, 0.1, 0.4):
        made, source = P.blunder(xy, (60, 90), share, kind, np.random.default_rng(3))
        extra = (len(xy) - len(made)) if kind == "missed" else len(made) - len(xy)
        assert abs(extra / len(xy) - share) < 0.025 and len(made) == len(source)
        assert bool(P.inside(made, (60, 90)).all())
        if kind == "missed":
            assert torch.equal(made, xy[source])
            chosen.append(set(range(len(xy))) - set(source.tolist()))
        else:
            assert torch.equal(made[: len(xy)], xy)
            away = made[len(xy) :] - xy[source[len(xy) :]]
            assert extra == 0 or abs(float(away.std()) - P.AGAIN) < 0.5
            chosen.append(set(source[len(xy) :].tolist()))
    assert chosen[0] == set() and chosen[1] < chosen[2] and torch.equal(xy, before)


def test_displacement_refuses_what_it_does_not_know() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        P.displace(MIDDLE, SIZE, 1.0, "rings", rng)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="edge rule"):
        P.displace(MIDDLE, SIZE, 1.0, "ring", rng, edge="wrap")  # type: ignore[arg-type]
    for amount in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="finite number of pixels"):
            P.displace(MIDDLE, SIZE, amount, "ring", rng)


# --- padded batches ---------------------------------------------------------------------------------------------------


@given(st.lists(coordinates, max_size=5), st.integers(0, 20))
def test_a_batch_gives_back_its_points(points: list[torch.Tensor], length: int) -> None:
    batch = PointBatch.from_list(points, length=length)
    assert len(batch) == len(points)
    assert batch.xy.shape[1] >= length
    assert batch.counts.tolist() == [len(p) for p in points]
    assert (batch.xy[~batch.valid] == 0).all()
    for back, p in zip(batch.to_list(), points):
        assert torch.equal(back, p)


def test_batch_of_extents_labels_integers_and_doubles() -> None:
    batch = PointBatch.from_list(
        [torch.tensor([[1, 2], [3, 4]]), torch.zeros(0, 2)],
        extents=[torch.tensor([5.0, 6.0]), torch.zeros(0)],
        labels=[torch.tensor([1, 0]), torch.zeros(0, dtype=torch.int64)],
    )
    assert batch.xy.dtype == torch.float32 and batch.extents is not None and batch.labels is not None
    assert batch.extents[0].tolist() == [5, 6] and batch.labels.tolist() == [[1, 0], [0, 0]]
    assert PointBatch.from_list([torch.zeros(1, 2, dtype=torch.float64)]).xy.dtype == torch.float64
    mixed = PointBatch.from_list([torch.tensor([[1, 2]]).half(), torch.tensor([[1000.3, 2000.7]])])
    assert torch.equal(mixed.xy[1, 0], torch.tensor([1000.3, 2000.7]))  # not cut to what the first can hold
    moved = batch.to("cpu")
    assert moved.extents is not None and torch.equal(moved.extents, batch.extents)


@given(st.lists(coordinates, min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 3), st.integers(0, 99))
def test_what_is_kept_comes_first_and_the_rest_is_padding(
    points: list[torch.Tensor], more: int, times: int, seed: int
) -> None:
    numbers = [torch.arange(len(p)) + 1 for p in points]
    length = max(map(len, points)) + more
    batch = PointBatch.from_list(points, None, [n.float() for n in numbers], numbers, length).repeat(times)
    assert len(batch) == times * len(points)
    mask = torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    found = batch.keep(mask)
    assert found.xy.shape == batch.xy.shape and found.extents is not None and found.labels is not None
    assert found.labels.dtype == torch.int64
    for row in range(len(batch)):
        own, picked = points[row // times], mask[row, : len(points[row // times])]
        n = int(picked.sum())
        assert found.valid[row].tolist() == [True] * n + [False] * (length - n)
        assert torch.equal(found.xy[row, :n], own[picked]) and not found.xy[row, n:].any()
        for values in (found.extents, found.labels):
            assert values[row].tolist() == numbers[row // times][picked].tolist() + [0] * (length - n)


def test_what_is_not_kept_may_hold_anything() -> None:
    batch = PointBatch(torch.tensor([[[math.nan, 1.0], [2.0, 3.0]]]), torch.tensor([[False, True]]))
    found = batch.keep(torch.ones(1, 2, dtype=torch.bool))
    assert found.xy[0].tolist() == [[2, 3], [0, 0]] and found.extents is None and found.labels is None


def test_as_batch_takes_both_forms() -> None:
    points = [torch.rand(3, 2), torch.rand(0, 2)]
    batch = P.as_batch(points, torch.device("cpu"))
    assert P.as_batch(batch, torch.device("cpu")) is batch
    assert batch.counts.tolist() == [3, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_points_in_half_precision_are_kept_in_float32(dtype: torch.dtype) -> None:
    """Also because a count above 2048 is no float16."""
    points = torch.ones(2049, 2, dtype=dtype)
    made = PointBatch.from_list([points])
    assert made.xy.dtype == torch.float32 and made.counts.tolist() == [2049.0]
    given = P.as_batch(PointBatch(points[None], torch.ones(1, 2049, dtype=torch.bool)), torch.device("cpu"))
    assert given.xy.dtype == torch.float32


def test_spacing_of_a_padded_batch() -> None:
    g = torch.Generator().manual_seed(0)
    clouds = [torch.rand(n, 2, generator=g) * 100 for n in (0, 1, 2, 3, 20)]
    batch = PointBatch.from_list(clouds)
    for row, cloud in zip(P.batch_spacing(batch.xy, batch.valid), clouds):
        torch.testing.assert_close(row[: len(cloud)], P.spacing(cloud, alone=math.inf))
    assert P.batch_spacing(torch.zeros(1, 1, 2), torch.ones(1, 1, dtype=torch.bool)).tolist() == [[math.inf]]
    assert P.batch_spacing(torch.zeros(1, 0, 2), torch.ones(1, 0, dtype=torch.bool)).shape == (1, 0)


@pytest.mark.parametrize("neighbours", [1, 3])
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_distances_to_neighbours_where_points_coincide(n: int, neighbours: int) -> None:
    rng = np.random.default_rng(n)
    xy = rng.integers(0, 4, (n, 2)).astype(np.float64)
    every = np.sort(np.sqrt(((xy[:, None] - xy[None]) ** 2).sum(-1)), axis=1)
    assert np.array_equal(P.nearest(xy, neighbours), every[:, 1 : 1 + neighbours])


def test_a_heap_of_points_is_no_work() -> None:
    start = time.process_time()
    assert not P.spacing(torch.ones(100_000, 2)).any()  # minutes where all are compared with all
    assert time.process_time() - start < 5
