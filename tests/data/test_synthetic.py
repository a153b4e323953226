"""Synthetic scenes: their truth is exact, they are the same everywhere, and every option does what it says."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import papm.data
from papm.data.scenes import LOOKS, cells, crowd, vehicles
from papm.data.scenes.base import Layout, scatter
from papm.data.scenes.canvas import blank, box, cover, ellipse, smooth_noise
from papm.data.synthetic import SceneOptions, scene_sample
from papm.errors import ConfigError
from papm.structures import Sample

ALL = sorted(LOOKS)


def scene(look: str, index: int = 0, **options: object) -> Sample:
    return scene_sample(SceneOptions(look=look, **options), "train", index)  # type: ignore[arg-type]


def pixel(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The colour [n, 3] of the pixel each point lies in."""
    at = points.floor().long()
    return image[:, at[:, 1], at[:, 0]].T.int()


def centroid(alpha: np.ndarray) -> tuple[float, float, float]:
    """Centre (x, y) and mass of a plane, pixel centres at +½."""
    ys, xs = np.mgrid[: alpha.shape[0], : alpha.shape[1]] + 0.5
    mass = float(alpha.sum())
    return float((alpha * xs).sum()) / mass, float((alpha * ys).sum()) / mass, mass


# --- the truth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_drawn_object_has_its_centre_and_area_where_the_truth_says(seed: int) -> None:
    """Coverage is recovered from a black and a white background: 1 − (on white − on black)."""
    rng = np.random.default_rng(seed)
    x, y = (24 + 16 * rng.random(2)).tolist()
    a, b, angle = 6 + 4 * rng.random(), 3 + 3 * rng.random(), 2 * math.pi * rng.random()
    person = crowd.dress(1, rng)[0]

    def coverage(draw: object) -> np.ndarray:
        black, white = blank((64, 64), (0, 0, 0)), blank((64, 64), (1, 1, 1))
        draw(black), draw(white)  # type: ignore[operator]
        return 1 - (white - black).mean(0)

    head = coverage(lambda canvas: crowd.draw_head(canvas, x, y, b, a, person))
    car = coverage(lambda canvas: vehicles.draw_vehicle(canvas, x, y, a, b, angle, person.cloth, 0.5))
    glow, core = np.zeros((2, 64, 64), np.float32)
    cells.draw_cell(glow, core, x, y, a, b, angle, 1.0, 4.0)
    r = 2 * b * vehicles.CORNER
    for alpha, area in ((head, math.pi * a * b), (car, 4 * a * b - (4 - math.pi) * r * r), (glow, None), (core, None)):
        cx, cy, mass = centroid(alpha)
        assert math.hypot(cx - x, cy - y) < 0.05
        if area is not None:
            assert mass == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("look", ALL)
def test_a_whole_scene_of_one_object_has_its_centroid_on_the_point(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, through everything: dataset, layout, painting, bytes.

    Large enough that the uneven light of the microscope, which tilts a cell's brightness, does not count.
    """
    monkeypatch.setattr(crowd, "draw_body", lambda *_: None)
    monkeypatch.setattr(vehicles, "draw_shadow", lambda *_: None)
    checked = 0
    for index in range(12):
        sample = scene(look, index, size=192, count=1, clutter=0, noise=0)
        if bool((sample.boxes < 2).any() | (sample.boxes > 190).any()):
            continue  # cut by the border
        if look == "cells":  # its own background: what the objects add or absorb
            difference = (sample.image.int() - sample.source.render(objects=False).int()).abs().sum(0)  # type: ignore[union-attr]
            alpha = difference.numpy().astype(np.float64)
        else:
            images = []
            for level in (0, 1):
                paper = blank((192, 192), (level,) * 3)
                monkeypatch.setattr(LOOKS_MODULES[look], "_background", lambda *_, paper=paper: paper.copy())
                images.append(sample.image.double().mean(0).numpy() / 255)
            alpha = 1 - (images[1] - images[0])
        x, y, _ = centroid(alpha)
        assert math.hypot(x - float(sample.points[0, 0]), y - float(sample.points[0, 1])) < 0.1
        x1, y1, x2, y2 = sample.boxes[0].tolist()
        rows, columns = np.nonzero(alpha > 0.5 * alpha.max())
        if look != "cells":  # cells have blurred edges
            assert columns.min() == pytest.approx(x1, abs=1.5)
            assert columns.max() + 1 == pytest.approx(x2, abs=1.5)
            assert rows.min() == pytest.approx(y1, abs=1.5)
            assert rows.max() + 1 == pytest.approx(y2, abs=1.5)
        checked += 1
    assert checked >= 5


LOOKS_MODULES = {"crowd": crowd, "vehicles": vehicles, "cells": cells}


def test_boxes_of_a_layout_are_the_closed_forms() -> None:
    """A circle's box is its diameter; a turned sharp square's is its diagonal; upright objects have their own axes."""
    at, axes = np.array([[10.0, 20.0]]), np.array([[8.0, 8.0]])
    turned = np.array([math.pi / 4])
    assert Layout(at, axes, turned).boxes[0] == pytest.approx([6, 16, 14, 24])
    d = 4 * math.sqrt(2)
    assert Layout(at, axes, turned, corner=0.0).boxes[0] == pytest.approx([10 - d, 20 - d, 10 + d, 20 + d])
    assert Layout(at, axes, turned, corner=0.5).boxes[0] == pytest.approx([6, 16, 14, 24])  # fully rounded: a circle
    upright = Layout(at, np.array([[8.0, 2.0]]), np.zeros(1))
    assert upright.boxes[0] == pytest.approx([6, 19, 14, 21])
    assert upright.extents[0] == pytest.approx(4)


@pytest.mark.parametrize("look", ALL)
def test_extents_are_the_geometric_mean_of_the_axes_and_agree_with_the_boxes(look: str) -> None:
    sample = scene(look, count=40)
    assert sample.extents is not None and sample.boxes is not None
    sides = sample.boxes[:, 2:] - sample.boxes[:, :2]
    assert torch.allclose((sample.boxes[:, 2:] + sample.boxes[:, :2]) / 2, sample.points, atol=1e-4)
    if look == "crowd":
        assert torch.allclose(sides.prod(1).sqrt(), sample.extents, atol=1e-3)
    else:
        assert bool((sides.prod(1).sqrt() >= sample.extents - 1e-3).all())  # a turned object needs a larger box


# --- laws of the layouts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("occlusion", [0.0, 0.5, 1.0])
def test_no_head_has_its_centre_behind_a_nearer_head(occlusion: float) -> None:
    for index in range(4):
        layout = scene("crowd", index, count=120, occlusion=occlusion).source.layout  # type: ignore[union-attr]
        y = layout.centres[:, 1]
        assert (np.diff(y) >= 0).all(), "drawn from far to near"
        for far, near in itertools.combinations(range(len(y)), 2):
            dx, dy = layout.centres[far] - layout.centres[near]
            a, b = layout.axes[near] / 2
            assert (dx / a) ** 2 + (dy / b) ** 2 >= 1
            if occlusion == 0:  # the bounding circles stay apart
                assert math.hypot(dx, dy) >= b + layout.axes[far, 1] / 2 - 0.1


def test_heads_grow_linearly_from_the_horizon() -> None:
    layout = scene("crowd", count=60, variation=0).source.layout  # type: ignore[union-attr]
    h, horizon = 256, layout.ground["horizon"]
    want = layout.ground["typical"] * (0.5 + (layout.centres[:, 1] - horizon) / (h - horizon))
    assert layout.extents == pytest.approx(want, abs=0.03)
    assert (layout.centres[:, 1] >= horizon).all()


@pytest.mark.parametrize("occlusion", [0.0, 0.5, 1.0])
def test_cells_overlap_no_more_than_asked(occlusion: float) -> None:
    sample = scene("cells", count=80, occlusion=occlusion)
    reach = (sample.extents[:, None] + sample.extents[None]) / 2 * (1 - 0.6 * occlusion)  # type: ignore[index]
    gap = torch.cdist(sample.points, sample.points) - reach
    gap.fill_diagonal_(0)
    assert float(gap.min()) > -0.05


def test_vehicles_never_overlap() -> None:
    """Separating axes on the sharp rectangles, which are larger than the rounded ones."""
    for index in range(3):
        layout = scene("vehicles", index, count=80, variation=0.5).source.layout  # type: ignore[union-attr]
        c, s = np.cos(layout.angles), np.sin(layout.angles)
        frames = np.stack([np.stack([c, s], -1), np.stack([-s, c], -1)], 1)  # [n, 2 axes, 2]
        half = frames * layout.axes[:, :, None] / 2
        for i, j in itertools.combinations(range(len(layout)), 2):
            between = layout.centres[j] - layout.centres[i]
            axes = np.vstack([frames[i], frames[j]])
            size = np.abs(axes @ half[i].T).sum(1) + np.abs(axes @ half[j].T).sum(1)
            assert (np.abs(axes @ between) > size).any()


@pytest.mark.parametrize("look", ["crowd", "vehicles"])
def test_clutter_hides_no_centre(look: str) -> None:
    for index in range(4):
        plain = scene(look, index, clutter=0, noise=0, occlusion=1)
        busy = scene(look, index, clutter=2, noise=0, occlusion=1)
        assert torch.equal(plain.points, busy.points)
        assert torch.equal(pixel(plain.image, plain.points), pixel(busy.image, busy.points))
        assert float((plain.image != busy.image).float().mean()) > 0.01


@pytest.mark.parametrize("look", ALL)
def test_objects_are_seen_where_their_points_are(look: str) -> None:
    sample = scene(look, count=60, noise=0)
    with_, without = sample.image, sample.source.render(objects=False)  # type: ignore[union-attr]
    change = (pixel(with_, sample.points) - pixel(without, sample.points)).abs().sum(1)
    assert float((change > 12).float().mean()) > 0.95  # a grey car on grey asphalt may differ little


def test_darts_that_do_not_fit_are_reported() -> None:
    rng = np.random.default_rng(0)

    def clash(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.abs(p[:, None, 0] - q[None, :, 0]) < 0.3

    assert scatter(9, lambda m: rng.random((m, 1)), clash) is None
    three = scatter(3, lambda m: rng.random((m, 1)), clash)
    assert three is not None and (np.diff(np.sort(three[:, 0])) >= 0.3).all()


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_signed_distances_are_right_where_they_are_known() -> None:
    u, v = np.array([0.0, 3.0, 5.0, 0.0], np.float32), np.array([0.0, 0.0, 0.0, 4.0], np.float32)
    assert ellipse(u, v, 3, 3) == pytest.approx([-3, 0, 2, 1], abs=1e-5)  # a circle: exact
    assert ellipse(u, v, 3, 2)[1] == pytest.approx(0, abs=1e-6)
    assert box(u, v, 3, 2) == pytest.approx([-2, 0, 2, 2])
    assert box(np.array([6.0]), np.array([6.0]), 3, 2) == pytest.approx(5)  # to the corner: 3, 4, 5
    assert cover(np.array([-1.0, -0.5, 0.0, 0.5, 1.0])) == pytest.approx([1, 1, 0.5, 0, 0])


def test_smooth_noise_is_bounded_and_smooth() -> None:
    field = smooth_noise(np.random.default_rng(0), (50, 70), 10)
    assert field.shape == (50, 70) and field.dtype == np.float32
    assert np.abs(field).max() <= 1 and field.std() > 0.2
    assert np.abs(np.diff(field, axis=0)).max() <= 2 * 1.5 / 10 + 1e-5  # smoothstep's steepest slope is 1.5 a cell


# --- the same everywhere ----------------------------------------------------------------------------------------------

GOLDEN = {
    "cells": [[62.96875, 53.71875], [100.53125, 47.0], [103.421875, 15.75]],
    "crowd": [[45.4375, 35.375], [66.5, 50.4375], [5.71875, 84.734375]],
    "vehicles": [[13.9375, 15.171875], [38.8125, 29.703125], [51.546875, 37.671875]],
}

SCRIPT = """
import hashlib, sys
from papm.data.synthetic import SceneOptions, scene_sample
for look in ("cells", "crowd", "vehicles"):
    s = scene_sample(SceneOptions(look=look, size=64, count=9, seed=5), "test", 3)
    parts = [s.points, s.extents, s.boxes, s.image]
    print(look, hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).hexdigest())
"""


@pytest.mark.parametrize("look", ALL)
def test_scenes_are_the_recorded_ones(look: str) -> None:
    """Recorded once; multiples of 1/64, so that equality is exact on every platform."""
    assert scene(look, 7, size=(96, 128), count=3, seed=11).points.tolist() == GOLDEN[look]


@pytest.mark.slow
def test_another_process_paints_the_same_scenes() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(papm.data.__file__).parents[2]), "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", SCRIPT]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env).stdout
    other = dict(line.split() for line in out.splitlines())
    for look in ALL:
        s = scene_sample(SceneOptions(look=look, size=64, count=9, seed=5), "test", 3)
        assert s.extents is not None and s.boxes is not None
        parts = [s.points, s.extents, s.boxes, s.image]
        assert hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).hexdigest() == other[look]


@pytest.mark.parametrize("look", ALL)
def test_a_scene_depends_on_seed_split_and_index_alone(look: str) -> None:
    small = papm.data.open("synthetic", None, look=look, train=2, test=2, size=48, count=(3, 9))
    large = papm.data.open("synthetic", None, look=look, train=4, test=0, size=48, count=(3, 9))
    assert set(small) == {"train", "test"} and set(large) == {"train"}
    for one, two in zip(small["train"], large["train"]):
        assert torch.equal(one.points, two.points) and torch.equal(one.image, two.image)
        assert torch.equal(one.image, one.image)
    other = papm.data.open("synthetic", None, look=look, train=1, size=48, count=(3, 9), seed=1)["train"]
    different = [small["train"][0], small["train"][1], small["test"][0], small["test"][1], other[0]]
    for one, two in itertools.combinations(different, 2):
        assert not torch.equal(one.image, two.image)
        assert one.points.shape != two.points.shape or not torch.equal(one.points, two.points)


@pytest.mark.parametrize("look", ALL)
def test_samples_travel_to_workers(look: str) -> None:
    sample = scene(look, size=48, count=5)
    data = pickle.dumps(sample)
    assert len(data) < 20_000
    back = pickle.loads(data)  # noqa: S301
    assert torch.equal(back.image, sample.image) and torch.equal(back.points, sample.points)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ALL)
@pytest.mark.parametrize("size", [(33, 47), (8, 8), (256, 256), (40, 300)])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_every_look_paints_every_size(look: str, size: tuple[int, int], count: int) -> None:
    sample = scene(look, size=size, count=count)
    assert sample.image.shape == (3, *size) and sample.image.dtype == torch.uint8
    assert sample.points.shape == (count, 2) and sample.points.dtype == torch.float32
    assert sample.extents is not None and sample.extents.shape == (count,) and sample.extents.dtype == torch.float32
    assert sample.boxes is not None and sample.boxes.shape == (count, 4) and sample.boxes.dtype == torch.float32
    assert float(sample.image.float().std()) > 1


@settings(max_examples=25, deadline=None)
@given(
    look=st.sampled_from(ALL),
    size=st.tuples(st.integers(8, 90), st.integers(8, 90)),
    fill=st.floats(0, 1),
    index=st.integers(0, 10**6),
    seed=st.integers(0, 2**40),
    variation=st.floats(0, 0.5),
    clutter=st.floats(0, 2),
    occlusion=st.floats(0, 1),
)
def test_points_lie_inside_and_are_as_many_as_asked(
    look: str, size: tuple[int, int], fill: float, index: int, seed: int, **options: float
) -> None:
    n = int(fill * 0.75 * size[0] * size[1] / 12)  # up to as many as may be asked for
    sample = scene(look, index, size=size, count=n, seed=seed, **options)
    assert sample.count == n and bool(sample.inside.all())
    assert sample.boxes is not None and sample.extents is not None
    assert bool(((sample.boxes[:, :2] < sample.points) & (sample.points < sample.boxes[:, 2:])).all())
    assert bool((sample.extents > 0.5).all())  # the smallest of 3000 crammed scenes was 0.68
    assert torch.equal(sample.points * 64, (sample.points * 64).round())
    assert sample.image.shape == (3, *size)


def test_counts_cover_their_range_and_empty_images_come_as_often_as_asked() -> None:
    n = 400
    counts = [scene("vehicles", i, size=32, count="3-6", empty=0.25).count for i in range(n)]
    assert set(counts) == {0, 3, 4, 5, 6}
    assert abs(counts.count(0) - 0.25 * n) < 4 * math.sqrt(n * 0.25 * 0.75)
    assert scene("cells", count=9, empty=1).count == 0


def test_noise_and_sizes_follow_their_options() -> None:
    clean, noisy = scene("cells", count=5, noise=0), scene("cells", count=5, noise=0.1)
    middle = (clean.image > 80) & (clean.image < 175)  # far from the ends of the scale, where noise is clipped
    spread = (noisy.image.float() - clean.image.float())[middle].std() / 255
    assert float(spread) == pytest.approx(0.1, rel=0.05)
    for look in ALL:
        even, uneven = scene(look, count=20, variation=0).extents, scene(look, count=20, variation=0.5).extents
        assert even is not None and uneven is not None
        if look == "cells":
            assert float(even.std()) < 0.05
        assert float(uneven.std() / uneven.mean()) > 0.15
    assert scene("cells", count=10, extent=30, variation=0).extents.mean() == pytest.approx(30, abs=0.1)  # type: ignore[union-attr]


def test_options_may_be_written_in_the_root() -> None:
    data = papm.data.open_spec("synthetic:look=cells,train=3,test=1,size=40x56,count=2-4,seed=9,clutter=0.1")
    assert [len(data[s]) for s in ("train", "test")] == [3, 1]
    assert data["train"][0].size == (40, 56) and all(2 <= s.count <= 4 for s in data["train"])
    options = {"look": "cells", "train": 3, "test": 1, "size": (40, 56), "count": (2, 4), "seed": 9, "clutter": 0.1}
    direct = papm.data.open("synthetic", None, **options)["train"]
    assert torch.equal(direct[2].points, data["train"][2].points)
    assert data["train"][0].name == "cells-train-00000" and data["train"][0].path is None
    assert len(papm.data.open("synthetic", "train=3", train=1, size=32, count=2)["train"]) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lok=cells", "unknown option of synthetic 'lok'; did you mean 'look'?"),
        ("look=cels", "unknown look of synthetic 'cels'; did you mean 'cells'?"),
        ("look", "'look' is not of the form key=value"),
        ("seed=1,seed=2", "an option is given twice in 'seed=1,seed=2'"),
        ("train=ten", "train of synthetic is a whole number, not 'ten'"),
        ("train=-1", "train of synthetic is a whole number ≥ 0"),
        ("train=1.5", "train of synthetic is a whole number"),
        ("size=12x", "size of synthetic must be a height and a width"),
        ("size=4", "size of synthetic must be at least 8 pixels"),
        ("count=9-3", "count of synthetic must be a range"),
        ("count=a-b", "count of synthetic must be a range"),
        ("count=99999", "does not fit in 256x256 pixels; ask for at most 4096"),
        ("noise=nan", "noise of synthetic is a finite number"),
        ("noise=much", "noise of synthetic is a finite number"),
        ("occlusion=1.2", "occlusion of synthetic must be between 0 and 1"),
        ("clutter=-1", "clutter of synthetic must be between 0 and 2"),
        ("empty=2", "empty of synthetic must be between 0 and 1"),
        ("extent=1", "extent of synthetic must be 0, or from 2 pixels"),
    ],
)
def test_wrong_options_get_one_clear_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        papm.data.open("synthetic", text)
    assert message in str(error.value) and "\n" not in str(error.value)
