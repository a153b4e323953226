"""One point for every object that the probabilities add up to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import papm
from papm.localize import expected_points
from papm.structures import PointProposals


def proposals(points: list[list[float]], chances: list[float]) -> PointProposals:
    """Proposals with these chances, where background weighs as much as the class (1.0), so that a score is a chance."""
    p = torch.tensor(chances, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    logits = torch.stack([torch.zeros_like(p), (p / (1 - p)).log()], -1)[None]
    place = torch.tensor(points).reshape(1, -1, 2)
    return PointProposals(place, logits.float(), place[0])


def test_an_object_that_is_divided_gets_one_point_in_its_middle() -> None:
    """The three best scores would be both halves of one object and nothing of the third."""
    made = proposals(
        [[10.0, 10.0], [14.0, 10.0], [60.0, 10.0], [100.0, 10.0], [104.0, 10.0], [100.0, 14.0]],
        [0.55, 0.45, 0.98, 0.4, 0.3, 0.3],
    )
    points, scores, labels = expected_points(made, 0, 3, 1.0)
    found = sorted(points.tolist())
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor([[11.8, 10.0], [60.0, 10.0], [101.2, 11.2]]), rtol=1e-3, atol=1e-3
    )
    assert scores.tolist() == sorted(scores.tolist(), reverse=True) and labels.tolist() == [0, 0, 0]
    torch.testing.assert_close(scores, torch.tensor([0.98, 0.55, 0.4]))


def test_sure_proposals_are_the_points() -> None:
    made = proposals([[10.0, 10.0], [14.0, 10.0], [18.0, 10.0]], [1.0, 0.0, 1.0])
    points, _, _ = expected_points(made, 0, 2, 1.0)
    torch.testing.assert_close(points.sort(0).values, torch.tensor([[10.0, 10.0], [18.0, 10.0]]))


def test_nothing_is_collected_from_afar() -> None:
    made = proposals([[10.0, 10.0], [40.0, 10.0]], [0.6, 0.5])
    assert sorted(expected_points(made, 0, 2, 1.0)[0][:, 0].tolist()) == [10.0, 40.0]


def test_the_best_scores_follow_where_nothing_is_left() -> None:
    made = proposals([[10.0, 10.0], [12.0, 10.0], [50.0, 10.0]], [0.7, 0.3, 0.001])
    points, _, _ = expected_points(made, 0, 3, 1.0)
    assert len(points) == 3 and [50.0, 10.0] in points.tolist()
    assert len(expected_points(made, 0, 9, 1.0)[0]) == 3 and len(expected_points(made, 0, 0, 1.0)[0]) == 0
    none = proposals([], [])
    assert [len(t) for t in expected_points(none, 0, 2, 1.0)] == [0, 0, 0]


def test_a_centre_beyond_the_region_gives_way() -> None:
    """Two proposals on both sides of a gap in the region: the middle lies in the gap."""
    made = proposals([[10.0, 10.0], [18.0, 10.0]], [0.6, 0.4])
    roi = torch.ones(20, 30, dtype=torch.bool)
    roi[:, 12:16] = False
    assert expected_points(made, 0, 1, 1.0, roi)[0].tolist() == [[10.0, 10.0]]
    torch.testing.assert_close(expected_points(made, 0, 1, 1.0)[0], torch.tensor([[13.2, 10.0]]), rtol=1e-3, atol=1e-3)


def test_labels_are_those_of_the_proposals_that_began() -> None:
    logits = torch.tensor([[[0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]])
    place = torch.tensor([[10.0, 10.0], [50.0, 10.0]])
    made = PointProposals(place[None], logits, place)
    points, _, labels = expected_points(made, 0, 2, 0.5)
    assert {(x, int(k)) for (x, _), k in zip(points.tolist(), labels)} == {(10.0, 0), (50.0, 1)}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 30), st.integers(0, 10_000))
def test_as_many_as_asked_for_and_among_the_proposals(m: int, number: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    place = torch.rand(m, 2, generator=g) * 60
    chances = torch.rand(m, generator=g) ** 3
    points, scores, _ = expected_points(proposals(place.tolist(), chances.tolist()), 0, number, 1.0)
    assert len(points) == len(scores) == min(m, number)
    if m and len(points):
        assert torch.isfinite(points).all()
        low, high = place.amin(0) - 1e-4, place.amax(0) + 1e-4
        assert bool(((points >= low) & (points <= high)).all())


@pytest.mark.slow
def test_the_weight_of_background_has_one_home() -> None:
    """Another default, and the losses, the networks and what is read of a checkpoint all have it.

    Where one of them had a number of its own, counts by chances would be wrong without an error.
    """
    code = """
import papm.config
papm.config.BACKGROUND_WEIGHT = 0.25
from papm import checkpoint, inference, losses, models
old = checkpoint.ModelSpec.from_mapping({"backbone": "p2pnet", "config": {"count": "expected"}}).inference
print(inference.Inference().background, models.create("p2pnet", trunk="tiny").inference.background, old.background)
print(*(losses.create(name, stride=8).options["background_weight"] for name in ("p2pnet", "p2p-papm", "p2p-papm-literal")))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(papm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout.split() == ["0.25"] * 6, done.stderr
