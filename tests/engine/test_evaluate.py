"""Evaluation of a split: what proposals say inside regions of interest, as counts, in a grid and as places."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from papm import models
from papm.checkpoint import ModelSpec
from papm.cli import localization
from papm.data.base import Dataset
from papm.engine.evaluate import evaluate
from papm.predict.predictor import Counter
from papm.structures import Sample

SIZE = (64, 96)


def region() -> Tensor:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[:, :24] = True
    return mask


def scenes(roi: bool) -> Dataset:
    def pixels() -> Tensor:
        return torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))

    one = Sample("one", pixels, torch.tensor([[4.0, 5.0], [60.0, 30.0]]), SIZE)
    return Dataset([replace(one, roi_source=region) if roi else one])


def network(expected: bool) -> models.Network:
    torch.manual_seed(0)
    made = models.create("p2pnet", trunk="tiny").eval()
    models.set_reading(made, expected, 0.5)
    return made


@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("roi", [False, True])
def test_game_of_level_zero_is_the_error_of_the_count(expected: bool, roi: bool) -> None:
    found = evaluate(network(expected), scenes(roi), grid=True)
    assert found.predicted[0] > 0
    assert found.game[0] == pytest.approx(found.score.mae, rel=1e-5)
    assert found.mae_by_count["expected" if expected else "points"] == found.score.mae


def test_chances_outside_the_region_ask_for_no_points_inside_it() -> None:
    counter = Counter(network(True), ModelSpec("p2pnet"), "cpu")
    sample = scenes(True)[0]
    count = evaluate(counter.network, scenes(True)).predicted[0]
    assert len(localization._found(counter, sample)) == round(count)
