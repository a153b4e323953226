"""Evaluation of a split: what proposals say inside regions of interest, as counts, in a grid and as places."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from papm import models
from papm.checkpoint import ModelSpec
from papm.data.base import Dataset
from papm.data.resize import resized
from papm.engine.evaluate import evaluate
from papm.inference import Inference
from papm.predict import localization
from papm.predict.predictor import Counter
from papm.structures import Sample

SIZE = (64, 96)


def region() -> Tensor:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[:, :27] = True  # three cells of stride 8 and a part of a fourth
    return mask


def scenes(roi: bool) -> Dataset:
    def pixels() -> Tensor:
        return torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))

    one = Sample("one", pixels, torch.tensor([[4.0, 5.0], [60.0, 30.0]]), SIZE)
    return Dataset([replace(one, roi_source=region) if roi else one])


def network(expected: bool | None) -> models.Network:
    """One that gives points, read either way, or for None a map."""
    torch.manual_seed(0)
    if expected is None:
        return models.create("tiny", stride=8).eval()
    inference = Inference(decode="expected" if expected else "threshold")
    return models.create("p2pnet", trunk="tiny", inference=inference).eval()


@pytest.mark.parametrize("expected", [False, True, None])
@pytest.mark.parametrize("roi", [False, True])
def test_game_of_level_zero_is_the_error_of_the_count(expected: bool | None, roi: bool) -> None:
    found = evaluate(network(expected), scenes(roi), grid=True)
    assert found.predicted[0] > 0
    assert found.game[0] == pytest.approx(found.score.mae, rel=1e-5)
    if expected is not None:
        assert found.mae_by_count["expected" if expected else "points"] == found.score.mae


def test_the_truth_is_that_of_the_files_and_of_their_region() -> None:
    """At half the size the last column of the region is gone, and the point in it would be."""
    points = torch.tensor([[4.0, 5.0], [26.5, 30.0], [60.0, 30.0], [-3.0, 5.0]])
    whole = replace(scenes(True)[0], points=points, labels=torch.tensor([0, 1, 1, 0]), meta={"classes": ("a", "b")})
    small = resized(whole, (32, 48))
    assert whole.counted.tolist() == [True, True, False, False]
    assert small.counted.tolist() == [True, False, False, False]
    two = models.create("tiny", stride=8, num_classes=2).eval()
    for sample in (whole, small):
        found = evaluate(two, Dataset([sample]), classes=("a", "b"))
        assert found.truth == [2] and found.inside == [2] and found.truth_by_class == [[1, 1]]
    free = evaluate(two, Dataset([replace(whole, roi_source=None)]), classes=("a", "b"))
    assert free.truth == [4] and free.inside == [3] and free.truth_by_class == [[2, 2]]


@pytest.mark.parametrize("expected", [False, True, None])
@pytest.mark.parametrize("size", [SIZE, (32, 48)])
def test_a_region_is_decoded_once_an_image(expected: bool | None, size: tuple[int, int]) -> None:
    """It may be a file: counts, both readings, GAME and the truth share what was read."""
    reads: list[str] = []

    def read(name: str) -> Tensor:
        reads.append(name)
        return region()

    one = scenes(False)[0]
    samples = [replace(one, name=name, roi_source=partial(read, name)) for name in ("a", "b")]
    shown = Dataset([s if size == SIZE else resized(s, size) for s in samples])
    found = evaluate(network(expected), shown, grid=True)
    assert reads == ["a", "b"] and found.names == ["a", "b"]
    plain = evaluate(network(expected), Dataset([replace(s, roi_source=region) for s in samples]), grid=True)
    assert found.truth == plain.truth == [1, 1]
    if size == SIZE:
        assert found.predicted == plain.predicted and found.grid == plain.grid


def test_chances_outside_the_region_ask_for_no_points_inside_it() -> None:
    counter = Counter(network(True), ModelSpec("p2pnet"), "cpu")
    sample = scenes(True)[0]
    count = evaluate(counter.network, scenes(True)).predicted[0]
    points, scores = localization._found(counter, sample, sample.roi)
    assert len(points) == len(scores) == round(count)
