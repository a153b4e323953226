"""The model of the annotator: laws of the displacement, rates, alignment, and independence of order."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import papm
from papm.data.base import Dataset
from papm.data.click_model import Annotator, annotate_dataset, generator
from papm.errors import ConfigError, DataError
from papm.structures import Sample

N = 4000


def crowd(n: int = N, name: str = "image-1", size: tuple[int, int] = (1000, 1200), margin: float = 200) -> Sample:
    """n points far from the border, each known by its label, with sizes of 10 to 30 pixels."""
    rng = np.random.default_rng(0)
    h, w = size
    points = torch.from_numpy(margin + rng.random((n, 2)) * [w - 2 * margin, h - 2 * margin]).float()
    extents = torch.from_numpy(10 + 20 * rng.random(n)).float()
    boxes = torch.cat([points - extents[:, None] / 2, points + extents[:, None] / 2], 1)
    source = torch.zeros
    return Sample(name, lambda: source(3, h, w), points, size, torch.arange(n), boxes, extents)


def radii(before: Sample, after: Sample) -> np.ndarray:
    assert after.labels is not None
    return (after.points.double() - before.points[after.labels].double()).norm(dim=1).numpy()


# --- where clicks land ------------------------------------------------------------------------------------------------


def test_a_ring_moves_every_point_by_exactly_its_radius_in_every_direction() -> None:
    truth = crowd()
    clicks = Annotator("ring", 32.0).annotate(truth, seed=3)
    assert radii(truth, clicks) == pytest.approx(32.0, abs=2e-4)
    dx, dy = (clicks.points - truth.points).unbind(1)
    angle = torch.atan2(dy, dx).double().numpy() / (2 * math.pi) % 1
    assert stats.kstest(angle, "uniform").pvalue > 1e-3


def test_a_disc_is_uniform() -> None:
    """r ≤ d, mean 2d/3, and (r/d)² uniform."""
    truth = crowd()
    r = radii(truth, Annotator("disc", 20.0).annotate(truth, seed=3))
    assert r.max() <= 20.0 + 2e-4
    assert abs(r.mean() - 40 / 3) < 4 * 20 * math.sqrt(1 / 18) / math.sqrt(N)
    assert stats.kstest((r / 20) ** 2, "uniform").pvalue > 1e-3


def test_a_gaussian_has_its_standard_deviation_per_axis() -> None:
    truth = crowd()
    moves = (Annotator("gaussian", 5.0).annotate(truth, seed=3).points - truth.points).double().numpy()
    for axis in (0, 1):
        assert stats.kstest(moves[:, axis] / 5, "norm").pvalue > 1e-3


@pytest.mark.parametrize("shape", [2.0, 8.0])
def test_clicks_within_an_object_follow_the_generalized_gaussian_of_its_size(shape: float) -> None:
    """(r²/2σ²)^(s/2) is Gamma(2/s), and E r² = 2σ² Γ(4/s)/Γ(2/s), with σ = amount·extent of each object."""
    truth = crowd()
    assert truth.extents is not None
    sigma = 0.35 * truth.extents.double().numpy()
    r = radii(truth, Annotator("extent", 0.35, shape=shape).annotate(truth, seed=3))
    assert stats.kstest((r**2 / (2 * sigma**2)) ** (shape / 2), "gamma", args=(2 / shape,)).pvalue > 1e-3
    ratio = r**2 / (2 * sigma**2)
    want = math.gamma(4 / shape) / math.gamma(2 / shape)
    assert abs(ratio.mean() - want) < 4 * ratio.std() / math.sqrt(N)
    if shape == 8:  # nearly uniform on the object: hardly a click beyond its edge
        assert (r > 0.6 * truth.extents.numpy()).mean() < 0.02


def test_none_clicks_exactly_on_the_points() -> None:
    truth = crowd(50)
    clicks = Annotator("none").annotate(truth, seed=0)
    assert torch.equal(clicks.points, truth.points) and clicks.points is not truth.points
    assert torch.equal(Annotator("extent", 0.0).annotate(truth, seed=0).points, truth.points)


# --- missed and doubled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "doubled"), [(0.2, 0.0), (0.0, 0.15), (0.3, 0.1), (1.0, 1.0), (0.0, 1.0)])
def test_rates_of_missed_and_doubled_points(missed: float, doubled: float) -> None:
    truth = crowd()
    clicks = Annotator("ring", 3.0, missed=missed, doubled=doubled).annotate(truth, seed=1)
    assert clicks.labels is not None
    times = torch.bincount(clicks.labels, minlength=N)
    assert int(times.max()) <= 2
    hit = int((times > 0).sum())
    assert abs(hit - (1 - missed) * N) <= 4 * math.sqrt(N * missed * (1 - missed))
    assert abs(int((times == 2).sum()) - doubled * hit) <= 4 * math.sqrt(hit * doubled * (1 - doubled))


def test_a_doubled_click_is_independent_of_the_first() -> None:
    truth = crowd()
    clicks = Annotator("gaussian", 5.0, doubled=1.0).annotate(truth, seed=1)
    assert clicks.labels is not None
    first, second = (clicks.points - truth.points[clicks.labels]).chunk(2)
    correlation = float((first * second).sum() / (first.norm() * second.norm()))
    assert abs(correlation) < 4 / math.sqrt(2 * N)


def test_who_is_missed_does_not_depend_on_how_far_clicks_land() -> None:
    truth = crowd(300)
    near = Annotator("ring", 1.0, missed=0.3, doubled=0.2).annotate(truth, seed=1)
    far = Annotator("extent", 0.3, missed=0.3, doubled=0.2).annotate(truth, seed=1)
    assert near.labels is not None and far.labels is not None
    assert torch.equal(near.labels, far.labels)


# --- what stays with a point, and the border --------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["extent", "ring", "disc", "gaussian", "none"]),
    amount=st.floats(0, 40),
    missed=st.floats(0, 1),
    doubled=st.floats(0, 1),
    edge=st.sampled_from(["redraw", "clip", "drop", "free"]),
    n=st.integers(0, 30),
    seed=st.integers(0, 2**63),
)
def test_everything_stays_with_its_point(
    kind: str, amount: float, missed: float, doubled: float, edge: str, n: int, seed: int
) -> None:
    truth = crowd(n, size=(60, 80), margin=1)
    who = Annotator(kind, amount, missed=missed, doubled=doubled, edge=edge)  # type: ignore[arg-type]
    clicks = who.annotate(truth, seed)
    assert clicks.labels is not None and clicks.boxes is not None and clicks.extents is not None
    assert truth.boxes is not None and truth.extents is not None
    assert len(clicks.points) == len(clicks.labels) == len(clicks.boxes) == len(clicks.extents)
    assert torch.equal(clicks.boxes, truth.boxes[clicks.labels])
    assert torch.equal(clicks.extents, truth.extents[clicks.labels])
    assert clicks.points.dtype == torch.float32 and clicks.points.shape[1:] == (2,)
    assert clicks.name == truth.name and clicks.size == truth.size and clicks.source is truth.source
    if edge != "free":
        assert bool(clicks.inside.all())
    again = who.annotate(truth, seed)
    assert torch.equal(again.points, clicks.points) and torch.equal(again.labels, clicks.labels)


@pytest.mark.parametrize("edge", ["redraw", "clip", "drop", "free"])
def test_points_outside_the_image_are_left_out_before_displacing(edge: str) -> None:
    """A clipped outsider would be planted on the border; an outsider one step away might be moved in."""
    points = torch.tensor([[50.0, 50.0], [-3.0, 50.0], [50.0, 100.0], [400.0, 9.0], [30.0, 20.0]])
    truth = Sample("a", lambda: torch.zeros(3, 100, 100), points, (100, 100), torch.arange(5))
    for seed in range(20):
        clicks = Annotator("ring", 8.0, edge=edge).annotate(truth, seed)  # type: ignore[arg-type]
        assert clicks.labels is not None and clicks.labels.tolist() == [0, 4]
        assert radii(truth, clicks) == pytest.approx(8.0, abs=1e-4)


def test_edge_rules_reach_the_displacement() -> None:
    """Half the clicks of points on the left border would fall outside."""
    n = 400
    points = torch.stack([torch.full((n,), 0.0), torch.linspace(40, 60, n)], 1)
    truth = Sample("a", lambda: torch.zeros(3, 100, 100), points, (100, 100))
    kept = {e: Annotator("ring", 10.0, edge=e).annotate(truth, 0).points for e in ("redraw", "clip", "drop", "free")}  # type: ignore[arg-type]
    assert len(kept["redraw"]) == len(kept["clip"]) == len(kept["free"]) == n
    assert abs(len(kept["drop"]) - n / 2) < 4 * math.sqrt(n / 4)
    assert float(kept["redraw"][:, 0].min()) > 0.0
    assert abs(int((kept["clip"][:, 0] == 0).sum()) - n / 2) < 4 * math.sqrt(n / 4)
    assert abs(int((kept["free"][:, 0] < 0).sum()) - n / 2) < 4 * math.sqrt(n / 4)


# --- the same in any order, in any process ----------------------------------------------------------------------------


def test_an_image_is_annotated_by_its_name_whatever_its_place() -> None:
    names = ["a", "b", "c", "ünï"]
    dataset = Dataset([crowd(20, name) for name in names], "d", "train")
    annotator = Annotator("extent", 0.3, missed=0.2, doubled=0.2)
    forward = annotate_dataset(dataset, annotator, seed=5)
    backward = annotate_dataset(dataset[::-1], annotator, seed=5)
    assert (forward.name, forward.split, len(forward)) == ("d", "train", 4)
    for name, one, two in zip(names, forward, list(backward)[::-1]):
        assert one.name == two.name == name and torch.equal(one.points, two.points)
    clicks = [s.points for s in forward] + [annotator.annotate(dataset[0], seed=6).points]
    for i in range(len(clicks)):
        for j in range(i):
            assert clicks[i].shape != clicks[j].shape or not torch.equal(clicks[i], clicks[j])


@pytest.mark.slow
def test_the_stream_of_an_image_is_the_recorded_one_in_every_process() -> None:
    """Python's own hash of a string changes from process to process; ours must not."""
    code = "from papm.data.click_model import generator; print(generator(5, 'image-1').integers(2**62))"
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1]), "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env).stdout
    assert int(out) == int(generator(5, "image-1").integers(2**62)) == RECORDED


RECORDED = 412500911947158232


# --- errors -----------------------------------------------------------------------------------------------------------


def test_sizes_are_asked_for_when_they_are_needed() -> None:
    truth = Sample("IMG_7", lambda: torch.zeros(3, 9, 9), torch.ones(1, 2), (9, 9))
    with pytest.raises(DataError, match=r"IMG_7: .*needs the size of each object.*choose kind 'ring'"):
        Annotator("extent", 0.3).annotate(truth, 0)
    with pytest.raises(DataError, match="finite"):
        broken = Sample("b", truth.source, truth.points, (9, 9), extents=torch.tensor([math.nan]))
        Annotator("extent", 0.3).annotate(broken, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rign"}, "did you mean 'ring'"),
        ({"edge": "drp"}, "did you mean 'drop'"),
        ({"amount": -1.0}, "amount of annotator must not be negative"),
        ({"amount": math.inf}, "amount of annotator is a finite number"),
        ({"shape": 0.0}, "shape of annotator must be positive"),
        ({"missed": 1.5}, "missed of annotator is a share between 0 and 1"),
        ({"doubled": -0.1}, "doubled of annotator is a share between 0 and 1"),
        ({"missed": math.nan}, "missed of annotator is a finite number"),
    ],
)
def test_wrong_options_get_one_clear_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Annotator(**options)  # type: ignore[arg-type]
